"""`No`: a refusal, with its reason and the nodes that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch.fx import Node


@dataclass(frozen=True, slots=True, init=False)
class No:
    """A falsy refusal with a reason; `rewrite.reject` takes it as it is.

    A question of yes or no returns `Literal[True] | No`, so that `first and second` is the first refusal, or True. A
    question for a value returns `X | No`: ask `isinstance(answer, No)`, as a value may be falsy too. It returns None
    where a node is not a candidate at all.
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
