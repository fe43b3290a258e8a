"""A captured graph after all graph passes, ready to be compiled and linked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch.fx import GraphModule

from eductor.graph.no import No
from eductor.program.joint import Signature
from eductor.program.parts import Parts


@dataclass(frozen=True, slots=True)
class ReplayNeeds:
    """What a later run of the captured graph in eager needs of a call, as read off the joint graph before its passes."""

    is_random: bool
    watched: tuple[int, ...]
    """Inputs that must not be written until then."""
    let_go: tuple[int, ...]
    """Inputs of which only shape, strides and dtype are needed."""
    may_run: Literal[True] | No
    """Whether a replay would compute what the compiled forward did."""


@dataclass(frozen=True, slots=True)
class Program:
    """The final graphs, and what the function around them must know."""

    signature: Signature
    parts: Parts
    replay: ReplayNeeds | None
    """None where the captured graph is never replayed."""
    function_graph: GraphModule | None = None
    """The joint graph as it was traced, where gradients of a user's autograd.Function may be differentiated again."""
