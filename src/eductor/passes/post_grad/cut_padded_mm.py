"""Computes a product whose last columns are sliced off in blocks of rows, so that it is never whole in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor import ops
from eductor.cost import bytes_of, device_of
from eductor.cost.operators import size_of
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, tensor_of, value_of
from eductor.ops.cut_mm import rows_of_a_piece
from eductor.passes.functional.products import are_alike, fuses_into_users
from eductor.passes.post_grad.back_to_back import PRODUCTS, BiasedProduct, read_product
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten

_MIB = 1 << 20
_LEAST = 32 * _MIB


@graph_pass(stage="post_grad", numerics="reassociates")
def cut_padded_mm(graph: GraphView, rewrite: Rewriter, context: Context, *, force: bool = False) -> None:
    """Computes a product whose last columns are sliced off in blocks of rows, so that it is never whole in memory.

    `pad_mm` leaves such products where their strides are observable: the padded product, then a copy without the
    padding. With `force` they are computed in blocks on any device and at any size.

    It pays on CUDA, in memory: for the logits of a language model, it saves nearly half of product and copy together.
    """
    for node in graph.find(*PRODUCTS):
        cut = next((user for user in node.users if graph.is_call(user, aten.slice)), None)
        if cut is None:
            continue
        found = _read(graph, node, cut)
        if isinstance(found, No):
            rewrite.reject(found, node, cut)
        elif not (verdict := _may_cut(graph, found, context, force=force)):
            rewrite.reject(verdict, node, cut)
        else:
            rewrite.replace(found.copy, ops.cut_mm.cut_mm.default, *found.arguments)
            rewrite.note(f"saves {_saved(node) // _MIB} MiB")


@dataclass(frozen=True, slots=True)
class _CutProduct:
    """A product whose only reader is a copy of its first columns."""

    product: BiasedProduct
    columns: Any
    copy: Node

    @property
    def arguments(self) -> tuple[Any, ...]:
        bias = () if self.product.bias is None else (self.product.bias,)
        return self.product.left, self.product.right, self.columns, *bias


def _read(graph: GraphView, node: Node, cut: Node) -> _CutProduct | No:
    """The product with the copy of its first columns, or why there is none."""
    if len(node.users) > 1:
        return No(f"{node.name} is used elsewhere", node)
    if tensor_of(node) is None or tensor_of(cut) is None:
        return No("its fake values are not known")
    columns = _first_columns(graph, cut)
    if isinstance(columns, No):
        return columns
    copy = next((user for user in cut.users if graph.is_call(user, aten.clone)), None)
    if copy is None:
        return No(f"{cut.name} is not copied", cut)
    if len(cut.users) > 1:
        return No(f"{cut.name} is used elsewhere", cut)
    if not is_row_major(value_of(copy)):
        return No("the copy is not row-major")
    product = read_product(graph, node)
    return product if isinstance(product, No) else _CutProduct(product, columns, copy)


def _first_columns(graph: GraphView, cut: Node) -> Any:
    """The number of columns that a slice takes, as a number or a node; No where it does not take the first ones."""
    bound = graph.bind(cut)
    if not isinstance(bound, Bound):
        return bound
    if bound["dim"] not in (1, -1):
        return No(f"{cut.name} cuts rows", cut)
    start, step, end = (value_of(bound[name]) for name in ("start", "step", "end"))
    if not (start is None or known_equal(start, 0)) or not known_equal(step, 1):
        return No(f"{cut.name} does not take the first columns", cut)
    columns = value_of(cut).shape[1]
    if isinstance(columns, int):
        return columns
    return bound["end"] if known_equal(columns, end) else No(f"how many columns {cut.name} takes is not known", cut)


def _may_cut(graph: GraphView, found: _CutProduct, context: Context, *, force: bool) -> Literal[True] | No:
    product, node = found.product, found.product.nodes[0]
    value = value_of(node)
    if value.device.type != "cuda" and not force:
        return No(f"products on the device {value.device.type!r} stay whole")
    if not (alike := are_alike(node, *product.operands)):
        return alike
    if any(value_of(x).layout is not torch.strided for x in product.operands):
        return No("its factors are not plain tensors")
    if device_of(value.device, context.options).fuses and fuses_into_users(graph, found.copy):
        return No("its copy fuses into its readers, and takes no memory")
    if _saved(node) < _LEAST and not force:
        return No(f"it would save {_saved(node) // _MIB} MiB, which is below {_LEAST // _MIB}")
    return graph.effects.unwritten(product.operands, node, found.copy)


def _saved(node: Node) -> int:
    """The bytes of a product less those of one block of its rows."""
    whole, rows = bytes_of(node), size_of(value_of(node).shape[0])
    row = whole // max(rows, 1)
    return max(whole - rows_of_a_piece(row) * row, 0)


@cut_padded_mm.example(options={"force": True})
def padded_product(x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 8)) -> torch.Tensor:
    return (x @ w)[:, :5].contiguous()


@cut_padded_mm.example(options={"force": True})
def with_a_bias(b: torch.Tensor = f32(8), x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 8)) -> torch.Tensor:
    return torch.addmm(b, x, w)[:, :5].reshape(2, 15)


@cut_padded_mm.refuses("products on the device 'cpu' stay whole")
def on_a_cpu(x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 8)) -> torch.Tensor:
    return (x @ w)[:, :5].contiguous()


@cut_padded_mm.refuses("is not copied", options={"force": True})
def returned_as_it_is(x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 8)) -> torch.Tensor:
    return (x @ w)[:, :5]


@cut_padded_mm.refuses("mm is used elsewhere", options={"force": True})
def read_as_a_whole(x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    product = x @ w
    return product[:, :5].contiguous(), product.sum()


@cut_padded_mm.refuses("fuses into its readers", options={"force": True})
def read_by_a_kernel_that_fuses(x: torch.Tensor = f32(6, 7), w: torch.Tensor = f32(7, 8)) -> torch.Tensor:
    return (x @ w)[:, :5].contiguous().amax(-1)
