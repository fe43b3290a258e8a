"""Normalizes the operators that split, join and permute tensors, before autograd and, by request, after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload, OpOverloadPacket
from eductor.graph import Bound, GraphView, No, Rewriter, bind_call, known_equal, requires_grad, tensor_of, value_of
from eductor.graph.reading import spellings
from eductor.graph.text.compare import same_value
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten

_SPLITS = (aten.split, aten.split_with_sizes, aten.chunk)
_SLICES = (aten.tensor_split, aten.hsplit, aten.vsplit, aten.dsplit)
_UNSAFE = (aten.unsafe_split, aten.unsafe_split_with_sizes, aten.unsafe_chunk)

Canonical = tuple[OpOverloadPacket, dict[str, Any]]
"""An operator and its arguments by name, the tensors first."""


def normalize(graph: GraphView, rewrite: Rewriter) -> None:
    """Rewrites each of these calls to its canonical form, in the dialect that it is spelled in."""
    for node in graph.find(*_SPLITS, *_SLICES, *_UNSAFE, *_RULES):
        rewrite.record(_normalize(graph, rewrite, node), node)


def _normalize(graph: GraphView, rewrite: Rewriter, node: Node) -> No | None:
    bound = graph.bind(node)
    if not isinstance(bound, Bound):
        return bound
    rule = _RULES.get(bound.packet)
    canonical = rule(bound) if rule is not None else _sections(graph, node, bound)
    if isinstance(canonical, No):
        return canonical
    packet, arguments = canonical
    if packet is not bound.packet or not same_value(arguments, {name: bound[name] for name in arguments}):
        target, args, kwargs = _spelled(node, packet, arguments)
        rewrite.update(node, target=target, args=args, kwargs=kwargs, respelled=True)
    return None


def _spelled(node: Node, packet: OpOverloadPacket, arguments: dict[str, Any]) -> tuple[Any, tuple[Any, ...], Any]:
    """A call in the dialect of the node: the overload, or the function of the operator's name."""
    first, *rest = arguments
    args, kwargs = (arguments[first],), {name: arguments[name] for name in rest}
    if not isinstance(node.target, (OpOverload, OpOverloadPacket)):
        return spellings.function_of(packet), args, kwargs
    bound = bind_call(packet, args, kwargs)
    assert isinstance(bound, Bound)
    return bound.op, args, kwargs


# ------------------------------------------------------------------------------------------------------ into pieces


def _sections(graph: GraphView, node: Node, bound: Bound) -> Canonical | No:
    """`split_with_sizes`, with the sizes that the pieces have: they are not recomputed from the number of pieces."""
    tensor, pieces = tensor_of(bound["self"]), value_of(node)
    if tensor is None or not isinstance(pieces, (list, tuple)):
        return No("the shapes of its pieces are not known")
    dim = _cut_dim(bound, tensor)
    if isinstance(dim, No):
        return dim
    sizes = [piece.shape[dim] for piece in pieces]
    if not all(type(size) is int for size in sizes):
        return No("the size of a piece is symbolic")
    if not known_equal(sum(sizes), tensor.shape[dim]):
        return No("its pieces overlap, or do not cover the tensor")
    if bound.packet not in _SPLITS:
        if bound.packet in _SLICES and requires_grad(tensor):
            return No("the gradients of slices are added, in which -0.0 becomes 0.0")
        if graph.effects.leaves(node) or _is_written_from(graph, node):
            return No("its pieces may be written, which autograd forbids for those of a split")
    return aten.split_with_sizes, {"self": bound["self"], "split_sizes": sizes, "dim": dim}


def _cut_dim(bound: Bound, tensor: torch.Tensor) -> int | No:
    fixed = {aten.hsplit: 0 if tensor.dim() == 1 else 1, aten.vsplit: 0, aten.dsplit: 2}
    return _counted(fixed.get(bound.packet, bound.get("dim")), tensor.dim())


def _is_written_from(graph: GraphView, node: Node) -> bool:
    """Whether the memory of a node's value may be written after it."""
    effects = graph.effects
    place = effects.place(node)
    return any(effects.of(m).opaque or place in effects.writes(m) for m in effects.marks_between(node.next, None))


# ------------------------------------------------------------------------------------------------- of dimensions


def _counted(dim: Any, rank: int) -> int | No:
    """A dimension counted from the front; a tensor of rank 0 is indexed like one of rank 1."""
    if type(dim) is not int:
        return No("the dimension is not an int")
    return dim % max(rank, 1)


def _with_dims(*names: str, added: int = 0) -> Callable[[Bound], Canonical | No]:
    """The same operator, with the dimensions in these arguments counted from the front."""

    def rule(bound: Bound) -> Canonical | No:
        tensor = tensor_of(bound["self"])
        if tensor is None:
            return No("the rank of its operand is not known")
        arguments = dict(bound.arguments)
        for name in names:
            given = arguments.get(name)
            if given is None:
                continue
            dims = [_counted(d, tensor.dim() + added) for d in (given if _is_list(given) else [given])]
            unknown = next((d for d in dims if isinstance(d, No)), None)
            if unknown is not None:
                return unknown
            arguments[name] = type(given)(dims) if _is_list(given) else dims[0]
        return bound.packet, arguments

    return rule


def _is_list(given: Any) -> bool:
    return isinstance(given, (list, tuple))


def _reshape(bound: Bound) -> Canonical | No:
    """Replaces -1 in the shape by the size that it stands for, where that is a number."""
    tensor, shape = tensor_of(bound["self"]), bound["shape"]
    if tensor is None or not _is_list(shape) or -1 not in shape:
        return bound.packet, dict(bound.arguments)
    known = [s for s in shape if s != -1]
    if not all(type(s) is int for s in (*known, *tensor.shape)):
        return No("the size to infer is symbolic")
    inferred = tensor.numel() // max(torch.Size(known).numel(), 1)
    return aten.reshape, {"self": bound["self"], "shape": [inferred if s == -1 else s for s in shape]}


def _transposed(bound: Bound) -> Canonical | No:
    """`t` and `mT` exchange two dimensions, and `T` reverses them."""
    tensor = tensor_of(bound["self"])
    if tensor is None:
        return No("the rank of its operand is not known")
    rank = tensor.dim()
    if bound.packet is aten.numpy_T:
        return aten.permute, {"self": bound["self"], "dims": list(reversed(range(rank)))}
    if rank < 2:
        return No("a tensor of less than two dimensions has none to transpose")
    return aten.transpose, {"self": bound["self"], "dim0": rank - 2, "dim1": rank - 1}


# ------------------------------------------------------------------------------------------------------ together


def _joined(least_rank: int, dim: int) -> Callable[[Bound], Canonical | No]:
    """`hstack` and the like are `cat` for tensors of one rank that have the dimension."""

    def rule(bound: Bound) -> Canonical | No:
        rank = _common_rank(bound["tensors"])
        if isinstance(rank, No):
            return rank
        if rank < least_rank:
            return No(f"tensors of rank {rank} are reshaped before they are concatenated")
        return aten.cat, {"tensors": bound["tensors"], "dim": min(dim, rank - 1)}

    return rule


def _along(added: int) -> Callable[[Bound], Canonical | No]:
    """`cat` and `stack` along a dimension counted from the front."""

    def rule(bound: Bound) -> Canonical | No:
        dim = bound["dim"]
        if type(dim) is int and dim >= 0:
            return bound.packet, {"tensors": bound["tensors"], "dim": dim}
        rank = _common_rank(bound["tensors"])
        counted = rank if isinstance(rank, No) else _counted(dim, rank + added)
        return counted if isinstance(counted, No) else (bound.packet, {"tensors": bound["tensors"], "dim": counted})

    return rule


def _common_rank(operands: Any) -> int | No:
    if not isinstance(operands, Sequence):
        return No("its operands are not a list")
    tensors = [tensor_of(n) for n in operands]
    ranks = {None if t is None else t.dim() for t in tensors}
    rank = next(iter(ranks), None)
    return rank if len(ranks) == 1 and rank is not None else No("its operands differ in rank, or a rank is unknown")


_RULES: dict[OpOverloadPacket, Callable[[Bound], Canonical | No]] = {
    aten.cat: _along(0),
    aten.stack: _along(1),
    aten.hstack: _joined(1, 1),
    aten.vstack: _joined(2, 0),
    aten.dstack: _joined(3, 2),
    aten.column_stack: _joined(2, 1),
    aten.unbind: _with_dims("dim"),
    aten.squeeze: _with_dims("dim"),
    aten.unsqueeze: _with_dims("dim", added=1),
    aten.flatten: _with_dims("start_dim", "end_dim"),
    aten.unflatten: _with_dims("dim"),
    aten.reshape: _reshape,
    aten.permute: _with_dims("dims"),
    aten.transpose: _with_dims("dim0", "dim1"),
    aten.movedim: _with_dims("source", "destination"),
    aten.t: _transposed,
    aten.mT: _transposed,
    aten.numpy_T: _transposed,
}


# -------------------------------------------------------------------------------------------------------- the passes


@graph_pass(stage="pre_grad", numerics="exact")
def normalization_pass_aten(graph: GraphView, rewrite: Rewriter) -> None:
    """Normalizes the operators that split, join and permute tensors: known sizes, dimensions counted from the front.

    Every split becomes `split_with_sizes`, every concatenation along an existing dimension becomes `cat`. No value,
    alias or layout changes.

    It pays indirectly: third-party passes, and readers, see one form where authors have a dozen.
    """
    normalize(graph, rewrite)


@normalization_pass_aten.example
def chunk_with_a_short_piece(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b, c = x.chunk(3, -1)
    return a * b + c.sum()


@normalization_pass_aten.example
def stack_of_columns(a: torch.Tensor = f32(2, 3), b: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.stack([torch.hstack([a, b]), torch.cat([b, a], -1)], -1)


@normalization_pass_aten.example
def size_to_be_inferred(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.reshape(2, -1).mT.unsqueeze(-1)


@normalization_pass_aten.refuses("which autograd forbids")
def pieces_that_are_written(x: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    a, b = torch.unsafe_split(x * 2, 3, 1)
    return a.add_(b)


@normalization_pass_aten.refuses("out= writes")
def out_of_the_callers(a: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(2, 6)) -> torch.Tensor:
    return torch.cat([a, a], -1, out=y)


@graph_pass(stage="post_grad", numerics="exact", on=False)
def normalization_aten_pass(graph: GraphView, rewrite: Rewriter) -> None:
    """Normalizes the operators that split and concatenate tensors: known sections, nonnegative dimensions.

    It pays through later passes: the fusions after it match only this form.
    """
    normalize(graph, rewrite)


@normalization_aten_pass.example
def last_piece_is_short(x: torch.Tensor = f32(4, 300)) -> torch.Tensor:
    a, b, c = x.split(128, -1)
    return torch.cat([c, a, b], -1)


@normalization_aten_pass.refuses("its operands are not a list", prepare=lambda module: _forget_the_list(module))
def operands_of_unknown_number(x: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    return torch.cat(x.split([2, 4], 1), -1)


def _forget_the_list(module: torch.fx.GraphModule) -> None:
    """Makes the cat take the list that the split returns."""
    (cat,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    (split,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.split_with_sizes.default)
    cat.args = (split, -1)
