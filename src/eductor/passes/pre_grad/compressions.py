"""Reads linear compressions of embeddings, `weight @ x` for each sample, and emits them as one product."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import FakeTensor
from eductor.graph import Bound, GraphView, No, Rewriter, bind, known_equal, tensor_of, value_of
from eductor.ops.launching import KERNEL_DTYPES
from eductor.ops.lce import lce
from eductor.passes.functional.layout_safety import contiguous_like, may_change_strides

aten = torch.ops.aten

SWAPS = (aten.permute, aten.transpose, aten.t, aten.mT, aten.numpy_T, aten.movedim)
"""The operators that may exchange the last two dims."""

LCE_OPERATORS = (*SWAPS, aten.einsum)
"""The operators whose calls may be the end of a compression."""

_RESHAPES = (aten.reshape, aten.view, aten._unsafe_view, aten.flatten, aten.unflatten)


@dataclass(frozen=True, slots=True)
class Compress:
    """`output` is `weight @ x + bias[:, None]`, with a relu if `relu`; `inner` are the nodes that it replaces."""

    output: Node
    weight: Node
    x: Node
    bias: Node | None = None
    relu: bool = False
    reshaped: bool = False
    inner: tuple[Node, ...] = ()
    start: Node | None = None
    """The first view of `x`."""

    @property
    def operands(self) -> list[Node]:
        return [n for n in (self.weight, self.x, self.bias) if n is not None]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.inner, self.output)


def read_lce(graph: GraphView, node: Node) -> Compress | No | None:
    """The compression that a node is the end of; No if it cannot be one product; None for any other node."""
    found = _read_linear(graph, node)
    if found is None:
        found = _read_einsum(graph, node)
    if not isinstance(found, Compress):
        return found
    return _may_be_one_product(graph, found) and found


def _read_linear(graph: GraphView, node: Node) -> Compress | No | None:
    """`linear(x.mT, weight, bias).mT`, with rows that may be flattened around the linear, and a relu before the end."""
    result = swapped(node)
    if result is None:
        return None
    steps = _through(graph, result, aten.relu, *_RESHAPES)
    linear = steps[-1]
    bound = graph.call(linear, aten.linear)
    if bound is None:
        return None
    rows = _through(graph, bound["input"], *_RESHAPES)
    x = swapped(rows[-1]) if rows else None
    if x is None:
        return No(f"the input of {linear.name} does not exchange its last two dims", linear)
    relu = any(graph.is_call(n, aten.relu) for n in steps[:-1])
    reshaped = len(rows) > 1 or any(not graph.is_call(n, aten.relu) for n in steps[:-1])
    if reshaped and not _keeps_rows(x, bound["weight"], rows[0], result):
        return No(f"{linear.name} reads other rows than those of {x.name}", linear, x)
    return Compress(node, bound["weight"], x, bound["bias"], relu, reshaped, tuple(reversed(steps)), rows[-1])


def _through(graph: GraphView, node: Any, *operators: Any) -> list[Node]:
    """A node and its operands through calls of these operators, up to the first call of another operator."""
    found: list[Node] = []
    while isinstance(node, Node):
        found.append(node)
        bound = graph.call(node, *operators)
        node = bound["self"] if bound is not None else None
    return found


def _keeps_rows(x: Node, weight: Any, rows: Node, result: Node) -> bool:
    """Whether reshapes only flatten the leading dims and restore them, so that rows stay rows."""
    whole, matrix, given, end = (tensor_of(n) for n in (x, weight, rows, result))
    if whole is None or matrix is None or given is None or end is None:
        return False
    wanted = (*whole.shape[:-2], whole.shape[-1], matrix.shape[0])
    return known_equal(given.shape[-1], whole.shape[-2]) and known_equal(tuple(end.shape), wanted)


def _read_einsum(graph: GraphView, node: Node) -> Compress | None:
    """`einsum("mn,bnd->bmd", weight, x)`, in any letters."""
    bound = graph.call(node, aten.einsum)
    if bound is None:
        return None
    terms, end = einsum_terms(bound)
    for (weight, w), (x, letters) in itertools.permutations(terms):
        distinct = len(set(letters)) == len(letters) >= 2 and len(set(w)) == len(w) == 2
        if distinct and w[1] == letters[-2] and w[0] not in letters and end == letters[:-2] + w[0] + letters[-1]:
            return Compress(node, weight, x)
    return None


def einsum_terms(bound: Bound) -> tuple[list[tuple[Node, str]], str]:
    """The two operands of an einsum, each with a letter for each of its dims, and the letters of the result.

    No operands if the equation has an ellipsis, no result, or more or fewer operands.
    """
    given, arrow, result = str(bound["equation"]).replace(" ", "").partition("->")
    terms = list(zip(bound["tensors"], given.split(","), strict=False))
    is_plain = bool(arrow) and "." not in given and len(terms) == len(bound["tensors"]) == 2
    return (terms if is_plain else []), result


def _may_be_one_product(graph: GraphView, found: Compress) -> Literal[True] | No:
    """Whether a compression can be one product."""
    weight, x = tensor_of(found.weight), tensor_of(found.x)
    if weight is None or x is None:
        return No("the values of its operands are not known")
    if not (alike := are_of_one_kind(*found.operands, found.output)):
        return alike
    if weight.dim() != 2 or x.dim() < 2 or not known_equal(weight.shape[1], x.shape[-2]):
        return No("its weight is not a matrix over the features")
    start = found.start or found.output
    return have_no_other_users(found.nodes) and undisturbed(graph, start, found.output, found.operands)


def rank_of(node: Any) -> int:
    """The number of dims of a tensor; -1 for anything else."""
    tensor = tensor_of(node)
    return -1 if tensor is None else tensor.dim()


def swapped(node: Any) -> Node | None:
    """The value of which a node is a view with the last two dims exchanged; None for any other node."""
    if not isinstance(node, Node):
        return None
    bound, tensor = bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or tensor is None or bound.packet not in SWAPS:
        return None
    if tensor.dim() < 2 or len(node.all_input_nodes) != 1:
        return None
    sizes = list(range(2, 2 + tensor.dim()))
    # In a shape without equal sizes, the result shows which dims moved.
    probe = Bound(bound.op, {**bound.arguments, "self": torch.empty(sizes, device="meta")}, bound.given)
    args, kwargs = probe.call()
    is_swap = list(bound.op(*args, **kwargs).shape) == [*sizes[:-2], sizes[-1], sizes[-2]]
    return node.all_input_nodes[0] if is_swap else None


def are_of_one_kind(*nodes: Node | None) -> Literal[True] | No:
    """Whether operands and results have one dtype, device and layout, so that other operators promote them alike."""
    tensors = [tensor_of(n) for n in nodes if n is not None]
    if any(t is None for t in tensors):
        return No("the values of its operands are not known")
    if any(type(t) not in (FakeTensor, torch.Tensor, torch.nn.Parameter) for t in tensors):
        return No("an operand is a tensor subclass")
    kinds = {(t.dtype, t.device, t.layout) for t in tensors if t is not None}
    return True if len(kinds) == 1 else No("its operands and its result differ in dtype, device or layout")


def with_relu(graph: GraphView, found: Compress) -> Compress:
    """The compression with the relu that is its only user, if there is one."""
    user = next(iter(found.output.users), None)
    alone = user is not None and len(found.output.users) == 1 and graph.is_call(user, aten.relu)
    if user is None or not alone or not undisturbed(graph, found.output, user, found.operands):
        return found
    return replace(found, output=user, relu=True, inner=found.nodes)


def have_no_other_users(nodes: Sequence[Node]) -> Literal[True] | No:
    """Whether the nodes before the last one have no other users."""
    for node in nodes[:-1]:
        other = next((user for user in node.users if user not in nodes), None)
        if other is not None:
            return No(f"{node.name} is also used by {other.name}", node, other)
    return True


def undisturbed(graph: GraphView, first: Node, last: Node, operands: Iterable[Node]) -> Literal[True] | No:
    """Whether the nodes from `first` to `last` may be computed anywhere between them, from these operands."""
    verdict = graph.effects.same_region((first, last))
    return verdict and graph.effects.unwritten(operands, first, last)


def may_be_product(graph: GraphView, node: Node, operands: Iterable[Node | None]) -> Literal[True] | No:
    """Whether a product of these operands may replace a value: contiguous, with operands that autograd may save.

    A product saves the operands themselves for its backward, where a linear may have saved a copy.
    """
    tensor = value_of(node)
    given = [n for n in operands if n is not None]
    verdict = graph.effects.unwritten(given, node, graph.output) if tensor.requires_grad else True
    return verdict and may_change_strides(graph, node, contiguous_like(tensor))


def insert_product(rewrite: Rewriter, weight: Node, x: Node, bias: Node | None, before: Node) -> Node:
    """`matmul(weight, x) + bias[:, None]` for each sample.

    The weight is expanded to all samples: a matmul with a matrix may copy `x` to make one product of all samples.
    """
    weight = insert_expanded(rewrite, weight, x, before)
    result = rewrite.insert(aten.matmul, weight, x, before=before)
    if bias is None:
        return result
    return rewrite.insert(aten.add, result, rewrite.insert(aten.unsqueeze, bias, -1, before=before), before=before)


def replace_by_kernel(graph: GraphView, rewrite: Rewriter, found: Compress) -> No | None:
    """Replaces a compression by the operator `eductor::lce`, or says why not.

    On every device: the operator runs its kernel on CUDA, and a batched matmul on others.
    """
    x = tensor_of(found.x)
    if x is None or x.dtype not in KERNEL_DTYPES:
        return No("its kernel supports only float32, float16 and bfloat16")
    if not (verdict := may_be_product(graph, found.output, found.operands)):
        return verdict
    rewrite.replace(found.output, lce.default, found.weight, found.x, found.bias, "relu" if found.relu else "none")
    return None


def insert_expanded(rewrite: Rewriter, matrix: Node, x: Node, before: Node) -> Node:
    """A matrix, expanded to the samples of `x`."""
    tensor = value_of(x)
    if tensor.dim() == 2:
        return matrix
    sizes = [
        size if type(size) is int else rewrite.insert(aten.sym_size.int, x, dim, before=before)
        for dim, size in enumerate(tensor.shape[:-2])
    ]
    return rewrite.insert(aten.expand, matrix, [*sizes, -1, -1], before=before)
