"""Computes the activation behind a matrix product with a bias at the end of that product's kernel."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor import ops
from eductor.compat import sort_key
from eductor.graph import GraphView, No, Rewriter, is_row_major, known_equal, tensor_of, value_of
from eductor.ops.middle import MiddleStep
from eductor.passes.functional.products import are_alike
from eductor.passes.post_grad.back_to_back import BiasedProduct, read_product
from eductor.passes.post_grad.pointwise import POINTS, RELU, RESHAPES, elements_of, evaluated, is_gelu, read_step
from eductor.patterns import ANY, Match, op, pattern_pass
from eductor.pipeline.base import bf16, f32

aten = torch.ops.aten

_MOST_STEPS = 32
_VECTOR = 8
"""Elements of two bytes to which the factors' rows must be aligned, for a kernel that ends in a gelu."""


@pattern_pass(stage="post_grad", numerics="reassociates", devices="cuda")
def addmm_activation() -> None:
    """Computes the activation behind a matrix product with a bias at the end of that product's kernel.

    These are `relu`, and in half precision `gelu` with `tanh`, which is known by its values, however it is spelled. They
    are not fused where another node reads an intermediate value.

    It pays on CUDA, always: on an H200 it costs a fifth of a kernel of its own.
    """


@dataclass(frozen=True, slots=True)
class _Activation:
    """A product, and the nodes of the activation that follows it, in the order of the graph."""

    product: BiasedProduct
    between: list[Node]
    has_gelu: bool

    @property
    def end(self) -> Node:
        return self.between[-1]


@addmm_activation.rule(op(aten.addmm, ..., users=ANY))
def activated_product(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    """What follows the product is known by its values, so that the pattern ends at the product."""
    found = _read(graph, match.output)
    if isinstance(found, No):
        rewrite.reject(found, match.output)
    elif found is not None:
        _emit(graph, rewrite, found)


def _emit(graph: GraphView, rewrite: Rewriter, found: _Activation) -> None:
    product, end = found.product, found.end
    arguments = (product.bias, product.left, product.right)
    reshape = next((n for n in reversed(found.between) if graph.is_call(n, *RESHAPES)), None)
    if reshape is None:
        rewrite.replace(end, ops.fused.addmm_activation.default, *arguments, use_gelu=found.has_gelu)
    else:
        flat = rewrite.insert(ops.fused.addmm_activation.default, *arguments, before=end, use_gelu=found.has_gelu)
        rewrite.replace(end, aten.view.default, flat, reshape.args[1])


def _read(graph: GraphView, node: Node) -> _Activation | No | None:
    """The activation of a product; why it stays, for one that has it; None where there is none."""
    numbers, values = {node: 0}, [POINTS]
    for follower in _followers(graph, node, numbers):
        step = read_step(graph, follower, numbers)
        if step is None:
            numbers[follower] = numbers[follower.all_input_nodes[0]]
        elif isinstance(step, MiddleStep) and (value := evaluated(step, values)) is not None:
            numbers[follower] = len(values)
            values.append(value)
        if follower in numbers and value_of(follower).dtype == value_of(node).dtype:
            value = values[numbers[follower]]
            if value is RELU or is_gelu(value):
                return _judged(graph, node, _between(node, follower, numbers), has_gelu=value is not RELU)
    return None


def _followers(graph: GraphView, node: Node, known: dict[Node, int]) -> Iterator[Node]:
    """What is computed element by element from known values alone, in the order of the graph."""
    pending = [(sort_key(user), user) for user in node.users]
    heapq.heapify(pending)
    seen = set[Node]()
    while pending and len(seen) < _MOST_STEPS:
        _, follower = heapq.heappop(pending)
        operands = None if follower in seen else elements_of(graph, follower)
        seen.add(follower)
        if operands and known.keys() >= set(operands) and tensor_of(follower) is not None:
            yield follower
            for user in follower.users:
                heapq.heappush(pending, (sort_key(user), user))


def _between(start: Node, end: Node, known: dict[Node, int]) -> list[Node]:
    """What leads from one value to another, the end included, in the order of the graph."""
    pending, seen = [end], {end}
    while pending:
        new = {x for x in pending.pop().all_input_nodes if x in known} - seen - {start}
        seen |= new
        pending += new
    return sorted(seen, key=sort_key)


def _judged(graph: GraphView, node: Node, between: list[Node], *, has_gelu: bool) -> _Activation | No:
    product = read_product(graph, node)
    if isinstance(product, No):
        return product
    return _may_fuse(graph, product, between, has_gelu=has_gelu) and _Activation(product, between, has_gelu)


def _may_fuse(graph: GraphView, product: BiasedProduct, between: list[Node], *, has_gelu: bool) -> Literal[True] | No:
    node, end, own = product.nodes[0], between[-1], {*product.nodes, *between}
    seen = next((n for n in own if n is not end and any(user not in own for user in n.users)), None)
    if seen is not None or graph.effects.leaves(node):
        return No(f"{(seen or node).name} is used elsewhere")
    bias = tensor_of(product.bias)
    if bias is None or not known_equal(bias.stride(0), 1):
        return No("its bias is not contiguous")
    if not (alike := are_alike(node, *product.operands)):
        return alike
    dtype = value_of(node).dtype
    half = dtype in (torch.bfloat16, torch.float16)
    if not half and (has_gelu or dtype is not torch.float32):
        return No(f"no kernel has {'a gelu' if has_gelu else 'a relu'} at its end in {dtype}")
    if has_gelu and not all(_is_aligned(size) for x in (product.left, product.right) for size in value_of(x).shape[1:]):
        return No(f"kernels that end in a gelu want rows that are known to be multiples of {_VECTOR} elements")
    if not is_row_major(value_of(end)) or not is_row_major(value_of(node)):
        return No("its result is not row-major")
    return graph.effects.unwritten(product.operands, node, end)


def _is_aligned(size: Any) -> bool:
    return isinstance(size, int) and size % _VECTOR == 0


@addmm_activation.example
def linear_and_relu(x: torch.Tensor = f32(4, 3), w: torch.Tensor = f32(5, 3), b: torch.Tensor = f32(5)) -> torch.Tensor:
    return F.linear(x, w, b).relu()


@addmm_activation.example
def gelu_by_hand(
    x: torch.Tensor = bf16(2, 4, 8), w: torch.Tensor = bf16(16, 8), b: torch.Tensor = bf16(16)
) -> torch.Tensor:
    y = F.linear(x, w, b)
    return 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))


@addmm_activation.refuses("no kernel has a gelu")
def gelu_in_single_precision(
    x: torch.Tensor = f32(4, 8), w: torch.Tensor = f32(16, 8), b: torch.Tensor = f32(16)
) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


@addmm_activation.refuses("is used elsewhere")
def kept(
    x: torch.Tensor = f32(4, 3), w: torch.Tensor = f32(5, 3), b: torch.Tensor = f32(5)
) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.linear(x, w, b)
    return y.relu(), y


@addmm_activation.refuses("is scaled")
def scaled(x: torch.Tensor = f32(4, 3), w: torch.Tensor = f32(3, 5), b: torch.Tensor = f32(5)) -> torch.Tensor:
    return torch.addmm(b, x, w, beta=0.5).relu()
