"""`No`: the answer of a question that is declined, with the reason and the nodes it is about."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import Node


@dataclass(frozen=True, slots=True, init=False)
class No:
    """A falsy answer: `X | No` for a question that gives a value, `Literal[True] | No` for one of yes or no.

    `rewrite.reject` takes it as it is.
    """

    reason: str
    nodes: tuple[Node, ...]

    def __init__(self, reason: str, *nodes: Node) -> None:
        object.__setattr__(self, "reason", reason)
        object.__setattr__(self, "nodes", nodes)

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return self.reason
