"""Fuses matrix products of one left operand into one with concatenated right operands, and splits its result."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import is_wrapper_subclass, sort_key
from eductor.cost import Device, Gemm, bytes_of, copy_time, device_of, gemm_of, is_pointwise, pays
from eductor.graph import Bound, GraphView, No, Rewriter, is_row_major, known_equal, requires_grad, tensor_of, value_of
from eductor.graph.reading.static import is_static, pack
from eductor.passes.batching.limits import Placing, gradients, needed, own_copy, touched
from eductor.passes.batching.products import gain
from eductor.passes.batching.rule import Emission
from eductor.pipeline.base import Context

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class SharedProduct:
    """A call that multiplies its input with a matrix of weights, and adds a bias."""

    node: Node
    op: Any
    x: Node
    weight: Node
    bias: Node | None
    width: int

    @property
    def result(self) -> torch.Tensor:
        found: torch.Tensor = value_of(self.node)
        return found


def fuse_shared_inputs(graph: GraphView, rewrite: Rewriter, context: Context) -> bool:
    """Fuses products that share their left operand, where it pays; returns whether there were any."""
    groups = _groups(graph, rewrite)
    changed = False
    for leader in graph.candidates(list(groups)):
        answer = _fuse(graph, rewrite, context, groups[leader])
        rewrite.record(answer, *(product.node for product in groups[leader]))
        changed = changed or bool(answer)
    return changed


# ---------------------------------------------------------------------------------------------------------- groups


def _groups(graph: GraphView, rewrite: Rewriter) -> dict[Node, list[SharedProduct]]:
    """Groups of two or more products that may be fused, by their first product."""
    found: dict[Any, list[SharedProduct]] = {}
    nodes = [node for op in _OPERANDS for node in graph.calls(op)]
    readers = Counter(operand for node in nodes for operand in node.all_input_nodes)
    for node in sorted((n for n in nodes if any(readers[x] > 1 for x in n.all_input_nodes)), key=sort_key):
        product = _product(graph, node)
        if isinstance(product, No):
            rewrite.reject(product, node)
        elif product is not None:
            found.setdefault((product.op, product.x), []).append(product)
    several = [products for products in found.values() if len(products) > 1]
    return {group[0].node: group for products in several for group in _alike(graph, rewrite, products)}


def _alike(graph: GraphView, rewrite: Rewriter, products: list[SharedProduct]) -> list[list[SharedProduct]]:
    """Groups of products with results and weights of one kind; a product unlike its leader is noted with the reason."""
    leader, *others = products
    group, rest = [leader], []
    graded = gradients(graph)
    for product in others:
        verdict = graph.effects.same_kind((leader.node, product.node)) and _is_like(leader, product, graded)
        if verdict:
            group.append(product)
        else:
            rewrite.reject(verdict, product.node)
            rest.append(product)
    return ([group] if len(group) > 1 else []) + (_alike(graph, rewrite, rest) if len(rest) > 1 else [])


def _is_like(leader: SharedProduct, product: SharedProduct, graded: dict[Node, int]) -> Literal[True] | No:
    """Whether two products agree in the kinds of their weights and biases, and in the source of their gradients."""
    one, other = leader.node, product.node
    biases = [p.bias for p in (leader, product) if p.bias is not None]
    if kind_of(leader.weight) != kind_of(product.weight):
        return No(f"the weights of {one.name} and {other.name} differ in dtype, device or requires_grad", other, one)
    if len({kind_of(bias) for bias in biases}) > 1:
        return No(f"the biases of {one.name} and {other.name} differ in dtype, device or requires_grad", other, one)
    if graded.get(one) != graded.get(other):
        return No(f"{one.name} and {other.name} get gradients from different outputs", other, one)
    return True


def kind_of(node: Node) -> Any:
    """What the operands of fused products must agree in."""
    value = tensor_of(node)
    return None if value is None else (value.dtype, value.device, value.layout, value.requires_grad)


_OPERANDS: dict[Any, tuple[str, str, str | None]] = {
    aten.linear: ("input", "weight", "bias"),
    aten.matmul: ("self", "other", None),
    aten.mm: ("self", "mat2", None),
    aten.addmm: ("mat1", "mat2", "self"),
}


def _product(graph: GraphView, node: Node) -> SharedProduct | No | None:
    """A call as a product of an input with a matrix; None if it is not one, No if it must stay."""
    bound, result = graph.bind(node), tensor_of(node)
    if not isinstance(bound, Bound):
        return bound
    left, right, added = _OPERANDS[bound.packet]
    x, weight, bias = bound[left], bound[right], bound[added] if added else None
    matrix, given = tensor_of(weight), tensor_of(x)
    if result is None or matrix is None or given is None or node not in needed(graph):
        return None
    if matrix.dim() != 2 or not given.dim():
        return None
    if any(is_wrapper_subclass(value) for value in (matrix, given)):
        return No("an operand is a wrapper subclass")
    width = matrix.shape[0 if bound.packet is aten.linear else 1]
    if not isinstance(width, int):
        return No("its width is symbolic")
    if bias is not None and not _is_vector(tensor_of(bias), width):
        return No("its bias is not a vector with one number for each output")
    if bound.get("alpha", 1) != 1 or bound.get("beta", 1) != 1:
        return No("it scales its operands")
    if not is_row_major(result):
        return No("its result is not row-major")
    return SharedProduct(node, bound.packet, x, weight, bias, width)


def _is_vector(bias: torch.Tensor | None, width: int) -> bool:
    return bias is not None and bias.dim() == 1 and known_equal(bias.shape[0], width)


# ---------------------------------------------------------------------------------------------------- whether it pays


def _fuse(graph: GraphView, rewrite: Rewriter, context: Context, products: list[SharedProduct]) -> Literal[True] | No:
    """Fuses the products, or says why not."""
    found = Placing(graph).place(product.node for product in products)
    if isinstance(found, No):
        return found
    before, moved = found
    is_packed = context.packs and all(is_static(p.weight) and (p.bias is None or is_static(p.bias)) for p in products)
    device = device_of(products[0].result.device, context.options)
    trains = requires_grad(products[0].result) and not context.is_inference
    saves = _saved(products, device, trains)
    costs = _costs(products, is_packed, device, trains)
    what = f"one product for {len(products)}"
    copied = [p for p in products if needs_copy(graph, p)] if pays(what, saves, costs) else []
    costs += sum(copy_time(bytes_of(product.node), device) for product in copied)
    if not (verdict := pays(what, saves, costs)):
        return verdict
    for node in moved:
        rewrite.move(node, before=before)
    parts = _emit(Emission(rewrite, before, products[0].node), products, is_packed)
    for product, part in zip(products, parts, strict=True):
        own = own_copy(rewrite, part, before=before, like=product.node) if product in copied else part
        rewrite.replace(product.node, own)
    return True


def _saved(products: Sequence[SharedProduct], device: Device, trains: bool) -> float:
    gemms = [gemm for gemm in (gemm_of(product.node) for product in products) if gemm is not None]
    if len(gemms) < len(products):
        return 0.0
    wide = Gemm(gemms[0].rows, sum(gemm.columns for gemm in gemms), gemms[0].inner, gemms[0].dtype)
    # The gradient of the input is a sum with one product per call.
    sums = (len(products) - 1) * copy_time(bytes_of(products[0].x), device) if trains else 0.0
    return gain(gemms, wide, device, trains) + sums


def _costs(products: Sequence[SharedProduct], is_packed: bool, device: Device, trains: bool) -> float:
    weights = sum(bytes_of(product.weight) + bytes_of(product.bias) for product in products)
    costs = 0.0 if is_packed else copy_time(weights, device)
    if trains:  # the gradients of the parts are concatenated
        costs += copy_time(sum(bytes_of(product.node) for product in products), device)
    return costs


# --------------------------------------------------------------------------------------------------------- layout


def _is_single_row(product: SharedProduct) -> bool:
    return all(known_equal(size, 1) for size in product.result.shape[:-1])


def needs_copy(graph: GraphView, product: SharedProduct) -> bool:
    """Whether a part must be copied: it escapes, is written, or has a reader that may depend on its strides."""
    node = product.node
    if graph.effects.leaves(node) or graph.effects.place(node) in touched(graph):
        return True
    return not _is_single_row(product) and not all(_accepts_any_row_stride(graph, node, user) for user in node.users)


# Operators whose result and layout do not depend on the row stride; of attention, only through key and value.
_ANY_ROW_STRIDE: dict[Any, tuple[str, ...] | None] = {
    **dict.fromkeys((aten.linear, aten.matmul, aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.layer_norm)),
    **dict.fromkeys((aten.cat, aten.stack, aten.sum, aten.mean, aten.softmax, aten.log_softmax)),
    aten.scaled_dot_product_attention: ("key", "value"),
}
_VIEWS = frozenset((aten.view, aten.reshape, aten.unflatten, aten.transpose, aten.permute))


def _accepts_any_row_stride(graph: GraphView, node: Node, user: Node) -> bool:
    bound = graph.bind(user)
    if not isinstance(bound, Bound):
        return False
    if is_pointwise(user) and not graph.effects.of(user).writes:
        return True
    if bound.packet in _VIEWS and _keeps_rows(node, user, bound):
        return all(_accepts_any_row_stride(graph, user, next_user) for next_user in user.users)
    if bound.packet not in _ANY_ROW_STRIDE:
        return False
    names = _ANY_ROW_STRIDE[bound.packet]
    return names is None or not any(value is node for name, value in bound.arguments.items() if name not in names)


def _keeps_rows(node: Node, view: Node, bound: Bound) -> bool:
    """Whether a view splits only the last dimension, or permutes dimensions: it accepts any row stride."""
    if bound.packet in (aten.transpose, aten.permute):
        return True
    old, new = tensor_of(node), tensor_of(view)
    if old is None or new is None:
        return False
    leading = old.dim() - 1
    return new.dim() > leading and known_equal(list(new.shape[:leading]), list(old.shape[:leading]))


# -------------------------------------------------------------------------------------------------------- emission


def _emit(emission: Emission, products: Sequence[SharedProduct], is_packed: bool) -> list[Node]:
    """Emits the wide product and its parts."""
    leader = products[0]
    is_linear = leader.op is aten.linear
    weight = emission(aten.cat, [product.weight for product in products], 0 if is_linear else 1)
    bias = _bias(emission, products)
    if is_packed:
        for node in (weight, bias):
            if node is not None:
                pack(node)
    if is_linear:
        wide = emission(aten.linear, leader.x, weight, bias)
    elif leader.op is aten.addmm:
        wide = emission(aten.addmm, bias, leader.x, weight)
    else:
        wide = emission(leader.op, leader.x, weight)
    return parts_of(emission, wide, products)


def _bias(emission: Emission, products: Sequence[SharedProduct]) -> Node | None:
    """The concatenated biases, with zeros where there is none."""
    given = next((product.bias for product in products if product.bias is not None), None)
    if given is None:
        return None
    biases = [product.bias or emission(aten.new_zeros, given, [product.width]) for product in products]
    return emission(aten.cat, biases, 0)


def parts_of(emission: Emission, wide: Node, products: Sequence[SharedProduct]) -> list[Node]:
    """Splits the wide result into the results of the products."""
    rank = products[0].result.dim()
    is_single_row = _is_single_row(products[0]) and rank > 1
    if is_single_row:  # split as a vector, its parts keep their strides
        wide = emission(aten.flatten, wide)
    split = emission(aten.split_with_sizes, wide, [product.width for product in products], -1)
    parts = [
        emission.rewrite.insert(operator.getitem, split, i, before=emission.before, like=product.node)
        for i, product in enumerate(products)
    ]
    if not is_single_row:
        return parts
    shapes = [[*([1] * (rank - 1)), product.width] for product in products]
    return [emission(aten.view, part, shape) for part, shape in zip(parts, shapes, strict=True)]
