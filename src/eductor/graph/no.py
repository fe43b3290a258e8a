"""`No`: the answer of a question that is declined, with the reason and the nodes it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch.fx import Node


@dataclass(frozen=True, slots=True, init=False)
class No:
    """A falsy answer, which says why; `rewrite.reject` takes it as it is.

    A question of yes or no returns `Literal[True] | No`, so that `first and second` is the first refusal, or True. A
    question for a value returns `X | No`: ask `isinstance(answer, No)`, as a value may be falsy too. It returns None
    in addition where a node is no candidate at all, of which there is nothing to say.
    """

    reason: str
    nodes: tuple[Node, ...]

    def __init__(self, reason: str, *nodes: Node) -> None:
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "nodes", nodes)

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return self.reason
