"""A captured graph once it is traced, rewritten and parted: all that is left to do is to make its graphs runnable."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from eductor.autograd.eager_replay import Needs
from eductor.autograd.joint import Signature
from eductor.program.handoff import Parts


@dataclass(frozen=True, slots=True)
class Program:
    """The final graphs, and what the function around them must know."""

    signature: Signature
    parts: Parts
    needs: Needs | None
    """What another run of the forward needs; None where there is to be none."""
    function_graph: GraphModule | None = None
    """The joint graph as it was traced, where gradients of a user's autograd.Function may be differentiated again."""
