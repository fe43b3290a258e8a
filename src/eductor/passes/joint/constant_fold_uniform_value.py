"""Folds tensors that are one number everywhere, and drops additions of 0, products with 1 and constant masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import sort_key
from eductor.graph import Bound, GraphView, No, Rewriter, difference, is_row_major, tensor_of, value_of
from eductor.passes.joint.uniform_values import CONSTRUCTORS, VIEWS, Number, Uniform
from eductor.passes.noops import replace_by_equal
from eductor.pipeline.base import b8, f32, graph_pass, i64

aten = torch.ops.aten


@graph_pass(stage="joint", numerics="exact")
def constant_fold_uniform_value(graph: GraphView, rewrite: Rewriter) -> None:
    """Folds tensors that are one number everywhere, and drops additions of 0, products with 1 and constant masks.

    A value computed from such tensors becomes one `full`. Floating-point results stay exact: `x * 0` stays, which keeps
    NaN; `x + 0` stays where x may be -0.0 and the sign is observable. Operators that devices round differently are not
    folded. Of several reinterpretations of the same memory (`view.dtype`), one is kept.

    It pays always: a kernel less, and masks and factors that autograd created no longer read memory.
    """
    folding = _Folding(graph, rewrite, Uniform(graph))
    for node in graph.candidates(folding.neutral_calls()):
        folding.drop(node)
    for node in graph.candidates(folding.results()):
        folding.fold(node)
    for node in graph.candidates([n for n in graph.calls(aten.view) if n.target is aten.view.dtype]):
        _reuse(graph, rewrite, node)


@dataclass
class _Folding:
    """One run of the pass over one graph."""

    graph: GraphView
    rewrite: Rewriter
    uniform: Uniform

    def neutral_calls(self) -> list[Node]:
        """Calls that may return one operand unchanged because the other one is a known number."""
        found = {user for node in self.uniform for user in node.users}
        for op in _ARITHMETIC:
            found.update(n for n in self.graph.calls(op) if any(type(x) in _NUMBERS and x in (0, 1) for x in n.args))
        wanted = [n for n in found if n not in self.uniform and any(key in _NEUTRAL for key in self.graph.keys(n))]
        return sorted(wanted, key=sort_key)

    def drop(self, node: Node) -> None:
        bound = self.graph.bind(node)
        if not isinstance(bound, Bound):
            self.rewrite.reject(bound, node)
            return
        kept = self._neutral_operand(bound, node)
        if kept is None:
            return
        if isinstance(kept, No):
            self.rewrite.reject(kept, node)
        else:
            replace_by_equal(self.graph, self.rewrite, node, kept)

    def _neutral_operand(self, bound: Bound, node: Node) -> Node | No | None:
        """The operand that a call returns unchanged; No if it nearly does."""
        tensor, neutral = tensor_of(node), _NEUTRAL[bound.packet]
        if tensor is None:
            return None
        if tensor.dtype.is_complex:
            return No("each part of a complex result depends on both parts of its operands")
        if bound.op is aten.where.self:
            picks = self.uniform.number(bound["condition"])
            kept = None if picks is None else bound["self"] if picks else bound["other"]
            return kept if isinstance(kept, Node) else None
        for kept, number, is_right in (
            (bound.get("self"), self.uniform.number(bound.get("other")), True),
            (bound.get("other"), self.uniform.number(bound.get("self")), False),
        ):
            if isinstance(kept, Node) and number is not None:
                answer = neutral(number, tensor.dtype, is_right)
                if not answer and not isinstance(answer, No):
                    continue
                if bound.get("alpha", 1) != 1 or bound.get("rounding_mode") is not None:
                    return No("it also scales or rounds")
                is_dead = answer is _SIGN_OF_ZERO and self._is_zero_sign_dead(node, kept)
                return kept if answer or is_dead else answer
        return None

    def _is_zero_sign_dead(self, node: Node, operand: Node) -> bool:
        """Whether the operand is never -0.0, or no user of the result distinguishes it from 0.0."""
        users = list(node.users)
        if users and all(_is_any(self.graph, user, _BLIND_TO_SIGN) for user in users):
            return True
        made = self.graph.bind(operand)
        if not isinstance(made, Bound):
            return False
        if made.packet is aten.mul:
            return made["self"] is made["other"]
        if made.packet is aten.add:
            numbers = (self.uniform.number(made[name]) for name in ("self", "other"))
            return made["alpha"] == 1 and any(n == 0 and not _is_minus_zero(n) for n in numbers if n is not None)
        return made.packet in _NEVER_MINUS_ZERO

    def results(self) -> list[Node]:
        """Values computed from uniform tensors, last first: folding a late one makes the earlier ones dead."""
        return [n for n in reversed(list(self.uniform)) if not _is_any(self.graph, n, CONSTRUCTORS)]

    def fold(self, node: Node) -> None:
        tensor = tensor_of(node)
        assert tensor is not None
        is_view = _is_any(self.graph, node, VIEWS)
        if not node.users or (is_view and len(node.all_input_nodes[0].users) > 1):
            return  # a view costs nothing, a second tensor would
        literal, sizes = self.uniform.literal(node), self._sizes(tensor, node)
        if literal is None:
            self.rewrite.reject("no Python number represents its value exactly", node)
        elif not is_row_major(tensor):
            self.rewrite.reject("it is not row-major, as a new tensor would be", node)
        elif is_view and self.graph.effects.leaves(node):
            self.rewrite.reject("it escapes as a view, and folding it would change its aliases", node)
        elif sizes is None:
            self.rewrite.reject("no node of the graph holds one of its symbolic sizes", node)
        else:
            self.rewrite.replace(node, aten.full, sizes, literal, dtype=tensor.dtype, device=tensor.device)

    def _sizes(self, tensor: torch.Tensor, before: Node) -> list[Any] | None:
        """The sizes of a tensor as arguments: numbers, and nodes that hold them."""
        found: list[Any] = [
            self._held_sizes.get(s.node.expr) if isinstance(s, torch.SymInt) else s for s in tensor.shape
        ]
        return found if all(s is not None and (not isinstance(s, Node) or s < before) for s in found) else None

    @cached_property
    def _held_sizes(self) -> dict[Any, Node]:
        held: dict[Any, Node] = {}
        for node in self.graph.nodes:
            if isinstance(size := value_of(node), torch.SymInt):
                held.setdefault(size.node.expr, node)
        return held


def _is_any(graph: GraphView, node: Node, operators: Any) -> bool:
    return any(key in operators for key in graph.keys(node))


# ------------------------------------------------------------------------------------------------- neutral elements

_SIGN_OF_ZERO = No("adding zero turns -0.0 into 0.0")
_NUMBERS = (bool, int, float)
_ARITHMETIC = (aten.add, aten.sub, aten.mul, aten.div)


def _is_minus_zero(number: Number) -> bool:
    return isinstance(number, float) and number == 0 and math.copysign(1, number) < 0


def _added(number: Number, dtype: torch.dtype, is_right: bool) -> bool | No:
    if number != 0:
        return False
    return True if not dtype.is_floating_point or _is_minus_zero(number) else _SIGN_OF_ZERO


def _subtracted(number: Number, dtype: torch.dtype, is_right: bool) -> bool | No:
    if number != 0 or not is_right:
        return False
    return _SIGN_OF_ZERO if dtype.is_floating_point and _is_minus_zero(number) else True


def _multiplied(number: Number, dtype: torch.dtype, is_right: bool) -> bool | No:
    if number == 0 and dtype.is_floating_point:
        return No("a floating-point product with zero may be NaN or -0.0")
    return number == 1


_NEUTRAL: dict[Any, Callable[[Number, torch.dtype, bool], bool | No]] = {
    aten.add: _added,
    aten.sub: _subtracted,
    aten.mul: _multiplied,
    aten.div: lambda number, dtype, is_right: is_right and number == 1,
    aten.bitwise_and: lambda number, dtype, is_right: number == (1 if dtype is torch.bool else -1),
    aten.bitwise_or: lambda number, dtype, is_right: number == 0,
    aten.bitwise_xor: lambda number, dtype, is_right: number == 0,
    aten.logical_and: lambda number, dtype, is_right: bool(number),
    aten.logical_or: lambda number, dtype, is_right: not number,
    aten.where: lambda number, dtype, is_right: False,
}
"""Whether a call with this number as one operand returns the other operand; No if it nearly does."""

_NEVER_MINUS_ZERO = frozenset((aten.abs, aten.exp, aten.exp2, aten.cosh, aten.sigmoid, aten._softmax, aten.softmax))
_COMPARISONS = (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.isnan, aten.isinf)
_BLIND_TO_SIGN = frozenset((*_COMPARISONS, *_NEVER_MINUS_ZERO, aten.cos))
"""Operators that give the same result for 0.0 and -0.0."""


# ------------------------------------------------------------------------------------------------- reinterpretations


def _reuse(graph: GraphView, rewrite: Rewriter, node: Node) -> None:
    """Reinterprets a tensor's memory at most once per dtype, and never as its own dtype."""
    bound = graph.bind(node)
    assert isinstance(bound, Bound)
    base, sizes = bound["self"], {bound["dtype"].itemsize}
    while isinstance(inner := graph.bind(base), Bound) and inner.op is aten.view.dtype:
        sizes.add(inner["dtype"].itemsize)
        base = inner["self"]
    if difference(value_of(node), value_of(base)) is None:
        same = base
    else:
        same = next((n for n in base.users if n < node and _reads_as(graph, n, bound["dtype"])), None)
    if same is not None:
        replace_by_equal(graph, rewrite, node, same)
    elif base is not bound["self"]:
        tensor = tensor_of(base)
        if tensor is not None and sizes == {tensor.dtype.itemsize}:
            rewrite.update(node, args=(base, bound["dtype"]), kwargs={}, respelled=True)
        else:
            rewrite.reject("its element size differs from that of the tensor it reinterprets", node)


def _reads_as(graph: GraphView, node: Node, dtype: torch.dtype) -> bool:
    bound = graph.bind(node)
    return isinstance(bound, Bound) and bound.op is aten.view.dtype and bool(bound["dtype"] == dtype)


# ------------------------------------------------------------------------------------------------------------ examples


@constant_fold_uniform_value.example
def computed_from_ones(x: torch.Tensor = f32(4)) -> torch.Tensor:
    return x * (torch.ones(4) * 3 + 1)


@constant_fold_uniform_value.example
def product_with_ones(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return (x.sin() * torch.ones_like(x) - torch.zeros(2, 3)).cos()


@constant_fold_uniform_value.example
def full_mask(x: torch.Tensor = f32(2, 3), m: torch.Tensor = b8(2, 3)) -> torch.Tensor:
    return torch.where(m & torch.ones(2, 3, dtype=torch.bool), x, 0.0)


@constant_fold_uniform_value.example
def integers_times_zero(x: torch.Tensor = i64(4)) -> torch.Tensor:
    return x * torch.zeros(4, dtype=torch.int64) + x


@constant_fold_uniform_value.refuses("may be NaN or -0.0")
def product_with_zeros(x: torch.Tensor = f32(4)) -> torch.Tensor:
    return x * torch.zeros(4)


@constant_fold_uniform_value.refuses("turns -0.0 into 0.0")
def plus_zeros(x: torch.Tensor = f32(4)) -> torch.Tensor:
    return (x + torch.zeros(4)).sin()


@constant_fold_uniform_value.refuses("a separate output")
def input_that_would_be_the_output(x: torch.Tensor = f32(4)) -> torch.Tensor:
    return x - torch.zeros(4)
