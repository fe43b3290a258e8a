"""The side effects of a node, as a record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from eductor.graph.values.meta import value_of

RANDOM = "draws random numbers"
COLLECTIVE = "is a collective"
ACT = "is called for its side effects"


class Effect(NamedTuple):
    """The side effects of one node.

    `writes` are the operands it mutates, `shares` those that its result may alias (and does, for a view). Nothing moves
    across a `barrier`; a switch (of grad mode, autocast) is one that touches no memory. Nodes with the same `ordered`
    keep their relative order. A `kept` node is never dead, even without users. One that `reshapes` changes the
    geometry of what it writes: `t_`, `resize_`, `set_`.
    """

    writes: tuple[Node, ...] = ()
    shares: tuple[Node, ...] = ()
    barrier: str = ""
    ordered: str = ""
    kept: str = ""
    is_view: bool = False
    is_switch: bool = False
    reshapes: bool = False

    @property
    def random(self) -> bool:
        return self.ordered == RANDOM

    @property
    def opaque(self) -> bool:
        """Whether it may read, write, keep and return any memory it can reach."""
        return bool(self.barrier) and not self.is_switch

    @property
    def removable(self) -> bool:
        """Whether a node without users may be removed."""
        return not (self.writes or self.barrier or self.ordered or self.kept)


PURE = Effect()


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool))


def may_be_tensor(node: Node) -> bool:
    """Whether a node may be a tensor or a sequence of tensors: nothing else is known of it."""
    value = value_of(node)
    return not (is_number(value) or value is None or isinstance(value, (str, torch.dtype, torch.device, torch.Size)))


def tensors_among(values: Iterable[Any]) -> tuple[Node, ...]:
    """The nodes among values, and in lists of them, that may be tensors."""
    found: dict[Node, None] = {}
    for value in values:
        if isinstance(value, Node):
            if may_be_tensor(value):
                found[value] = None
        elif isinstance(value, (list, tuple)):
            found.update(dict.fromkeys(tensors_among(value)))
    return tuple(found)
