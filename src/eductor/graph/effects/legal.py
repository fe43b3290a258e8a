"""The invariants of a graph at each stage, as a table."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from eductor.compat import HigherOrderOperator, OpOverload
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.values.meta import UNKNOWN, value_of

aten = torch.ops.aten

STAGES = ("pre_grad", "joint", "partition", "post_grad", "lower")
_ATEN = STAGES[1:]
_FUNCTIONAL = STAGES[1:-1]


@dataclass(frozen=True, slots=True)
class Law:
    """One row of the table: an invariant of every node at some stages, and its check."""

    name: str
    text: str
    stages: tuple[str, ...]
    holds: Callable[[Node], bool]


@dataclass(frozen=True, slots=True)
class Violation:
    """A node that breaks a law."""

    law: str
    node: Node
    text: str


def _is_aten_call(node: Node) -> bool:
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    if node.op != "call_function":
        return False
    if isinstance(node.target, (OpOverload, HigherOrderOperator)) or node.target is operator.getitem:
        return True
    value = value_of(node)
    is_number = isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))
    return is_number or (not isinstance(value, (torch.Tensor, list, tuple)) and not effect_of(node).opaque)


def _writes_back_last(node: Node) -> bool:
    """Whether a write goes back to an input or an attribute, with only write-backs and the output after it."""
    if node.target is not aten.copy_.default:
        return True
    destination = node.args[0]
    into_input = isinstance(destination, Node) and destination.op in ("placeholder", "get_attr")
    after = node.next
    while after.op != "output" and after.op != "root":
        if after.target is not aten.copy_.default:
            return False
        after = after.next
    return into_input


LAWS: tuple[Law, ...] = (
    Law("order", "a node comes after its operands", STAGES, lambda n: all(o < n for o in n.all_input_nodes)),
    Law(
        "values",
        "a node that is used has a fake value, unless it is opaque",
        STAGES,
        lambda n: n.op == "output" or not n.users or value_of(n) is not UNKNOWN or effect_of(n).barrier != "",
    ),
    Law(
        "aten",
        "calls are of ATen overloads, higher-order operators, getitem, or arithmetic on sizes",
        _ATEN,
        _is_aten_call,
    ),
    Law(
        "functional",
        "only a `copy_` that writes back may write",
        _FUNCTIONAL,
        lambda n: not effect_of(n).writes or n.target is aten.copy_.default,
    ),
    Law("write-backs", "write-backs go to inputs or attributes, at the end", _FUNCTIONAL, _writes_back_last),
)
"""The invariants of graphs, stage by stage; `violations` checks them."""


_OF_FUNCTIONAL_GRAPHS = ("functional", "write-backs")


def violations(graph: Graph, stage: str, *, in_place: bool = False) -> list[Violation]:
    """Every node that breaks a law of the stage; a graph that writes `in_place` need not be functional."""
    laws = [law for law in LAWS if stage in law.stages and not (in_place and law.name in _OF_FUNCTIONAL_GRAPHS)]
    return [Violation(law.name, node, law.text) for node in graph.nodes for law in laws if not law.holds(node)]
