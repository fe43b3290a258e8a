"""Fuses matrix products that differ in exactly one of their three sizes into one grouped product."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import has_grouped_product, is_wrapper_subclass
from eductor.cost import VECTOR, Device, Gemm, bytes_of, copy_time, device_of, pays
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, tensor_of
from eductor.passes.batching.buckets import levels
from eductor.passes.batching.limits import Placing, needed, own_copy, touched
from eductor.passes.batching.products import BATCH_PRODUCT, gain
from eductor.passes.batching.rule import Emission
from eductor.passes.batching.shared_input import SharedProduct, needs_copy
from eductor.pipeline.base import Context
from eductor.views import ViewPlan, concatenated, stacked

aten = torch.ops.aten

NAME = "group_linear"
ANYWHERE = "anywhere"
WHEN = ("never", "where it pays", ANYWHERE)


@dataclass(frozen=True, slots=True)
class GroupedForm:
    """The size in which products differ, and the dimension along which each tensor is concatenated: None if stacked."""

    differs: int
    """0 for rows, 1 for the inner size, 2 for columns."""
    left: int | None
    right: int | None
    result: int | None


FORMS = (GroupedForm(1, 1, 0, None), GroupedForm(2, None, 1, 1), GroupedForm(0, 0, None, 0))
"""The forms that the operator takes. Where inner sizes differ, results are stacked: it comes first."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A product that may be grouped."""

    product: SharedProduct
    sizes: tuple[int, int, int]

    @property
    def node(self) -> Node:
        return self.product.node

    @property
    def gemm(self) -> Gemm:
        rows, inner, columns = self.sizes
        return Gemm(rows, columns, inner, self.product.result.dtype)


def group_products(graph: GraphView, rewrite: Rewriter, context: Context, when: str) -> None:
    """Emits grouped products, where they pay or anywhere."""
    calls = [node for packet in BATCH_PRODUCT.keys for node in graph.calls(packet)]
    members: dict[Node, tuple[Any, _Member]] = {}
    for node, level in levels(graph, dict.fromkeys(calls, BATCH_PRODUCT)) if len(calls) > 1 else ():
        member = _member(graph, node, context, when)
        if isinstance(member, No):
            rewrite.reject(member, node)
        else:
            members[node] = (level, member.product.result.device), member
    for form in FORMS:
        groups = {group[0].node: group for group in _alike(form, [m for n, m in members.items() if n in graph])}
        for leader in graph.candidates(list(groups)):
            answer = _Group(graph, context, form, groups[leader]).emit(rewrite, when)
            rewrite.record(answer, *(member.node for member in groups[leader]))


def _alike(form: GroupedForm, members: Iterable[tuple[Any, _Member]]) -> list[list[_Member]]:
    """Groups independent members that differ in one size; members that agree in all sizes are left for a batch."""
    groups: dict[Any, list[_Member]] = {}
    for place, member in members:
        others = tuple(size for i, size in enumerate(member.sizes) if i != form.differs)
        groups.setdefault((place, others), []).append(member)
    return [group for group in groups.values() if len({member.sizes for member in group}) > 1]


def _member(graph: GraphView, node: Node, context: Context, when: str) -> _Member | No:
    """A call as a member of a group, or why it cannot be one."""
    bound, result = graph.bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or result is None or node not in needed(graph):
        return No("its call cannot be read, or its result is dead")
    if when != ANYWHERE and not has_grouped_product(result.device):
        return No(f"on the device {str(result.device)!r} a grouped product is computed one by one")
    if when != ANYWHERE and not device_of(result.device, context.options).fuses:
        return No("without fusing, the ends of the groups take another kernel")
    if bound.op is not aten.mm.default:
        return No("a grouped product takes no addend, and would be rounded before the sum")
    left, right = tensor_of(bound["self"]), tensor_of(bound["mat2"])
    if left is None or right is None or any(map(is_wrapper_subclass, (left, right))):
        return No("an operand is not a plain tensor")
    sizes = (*left.shape, right.shape[1])
    if not all(type(size) is int and size for size in sizes):
        return No("its sizes are symbolic, or it has no elements")
    if result.dtype is not torch.bfloat16:
        return No("grouped products support bfloat16 only")
    if any(size * result.dtype.itemsize % VECTOR for size in sizes[1:]):
        return No(f"its rows do not begin at multiples of {VECTOR} bytes")
    return _Member(SharedProduct(node, bound.packet, bound["self"], bound["mat2"], None, sizes[2]), sizes)


@dataclass(frozen=True, slots=True)
class _Group:
    """Products that may become one."""

    graph: GraphView
    context: Context
    form: GroupedForm
    members: Sequence[_Member]

    def emit(self, rewrite: Rewriter, when: str) -> Literal[True] | No:
        """Emits one grouped product, or says why not."""
        lefts, rights = [m.product.x for m in self.members], [m.product.weight for m in self.members]
        if len(set(lefts)) == 1 or len(set(rights)) == 1:
            return No("they share a factor, so one plain product suffices")
        found = Placing(self.graph).place(member.node for member in self.members)
        if isinstance(found, No):
            return found
        before, moved = found
        left, right = self._view(lefts, self.form.left, before), self._view(rights, self.form.right, before)
        copied = [member for member in self.members if self._is_copied(member)]
        device = device_of(self.members[0].product.result.device, self.context.options)
        writes = [*([] if left else lefts), *([] if right else rights), *(member.node for member in copied)]
        costs = copy_time(sum(map(bytes_of, writes)), device) if writes else 0.0
        verdict = when == ANYWHERE or pays(f"a group of {len(self.members)}", self._saved(device), costs)
        if isinstance(verdict, No):
            return verdict
        for node in moved:
            rewrite.move(node, before=before)
        emission = Emission(rewrite, before, self.members[0].node)
        factors = (_joined(emission, lefts, self.form.left, left), _joined(emission, rights, self.form.right, right))
        parts = self._parts(emission, emission(aten._grouped_mm, *factors, self._ends(emission)))
        for member, part in zip(self.members, parts, strict=True):
            own = own_copy(rewrite, part, before=before, like=member.node) if member in copied else part
            rewrite.replace(member.node, own)
        return True

    def _view(self, operands: Sequence[Node], dim: int | None, before: Node) -> ViewPlan | None:
        """The joined operands as a view, if they are parts of one tensor in order, and the operator takes it."""
        after = max(before, max(operands).next)
        if dim is None:
            found = stacked(self.graph, operands, 0, before=after)
        else:
            found = concatenated(self.graph, operands, dim, before=after)
        return found if found is not None and found.is_view and _is_aligned(found.value) else None

    def _is_copied(self, member: _Member) -> bool:
        """Whether a result must be copied: columns of the product are strided, its rows and stacked results are not."""
        if self.form.result == 1:
            return member.sizes[0] == 1 or needs_copy(self.graph, member.product)
        return self.graph.effects.leaves(member.node) or self.graph.effects.place(member.node) in touched(self.graph)

    def _saved(self, device: Device) -> float:
        """Seconds saved; besides the product, one kernel computes the ends of the groups and one reads them."""
        count = len(self.members)
        rows, inner, columns = (-(-sum(m.sizes[i] for m in self.members) // count) for i in range(3))
        together = Gemm(rows, columns, inner, self.members[0].gemm.dtype, count)
        return gain([m.gemm for m in self.members], together, device, trains=False) - 2 * device.launch

    def _ends(self, emission: Emission) -> Node:
        """Where each group ends, as a tensor."""
        kind = {"dtype": torch.int32, "device": self.members[0].product.result.device}
        ends = accumulate(member.sizes[self.form.differs] for member in self.members)
        return emission(aten.cat, [emission(aten.full, [1], end, **kind) for end in ends], 0)

    def _parts(self, emission: Emission, grouped: Node) -> list[Node]:
        """The results of the products."""
        dim, differs = self.form.result, self.form.differs
        if dim is None:
            pieces = emission(aten.unbind, grouped, 0)
        else:
            pieces = emission(aten.split_with_sizes, grouped, [member.sizes[differs] for member in self.members], dim)
        return [emission(operator.getitem, pieces, i) for i in range(len(self.members))]


def _joined(emission: Emission, operands: Sequence[Node], dim: int | None, view: ViewPlan | None) -> Node:
    """The operands concatenated, or stacked."""
    if view is not None:
        return view.emit(emission.rewrite, before=emission.before, like=emission.like)
    return emission(aten.stack, operands, 0) if dim is None else emission(aten.cat, operands, dim)


def _is_aligned(value: torch.Tensor) -> bool:
    """Whether it is row-major and begins at a multiple of a vector: then each row does too, by its length."""
    return is_row_major(value) and value.storage_offset() * value.element_size() % VECTOR == 0
