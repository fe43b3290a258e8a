"""Replaces an einsum that is a small vector-matrix product for each sample by a pointwise product and a sum."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import FakeTensor
from eductor.graph import Bound, GraphView, No, Rewriter, bind, known_equal, tensor_of
from eductor.passes.functional.layout_safety import may_change_strides
from eductor.passes.pre_grad.compressions import are_of_one_kind, einsum_terms
from eductor.pipeline.base import f32, graph_pass

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="reassociates", on=False)
def einsum_to_pointwise_pass(graph: GraphView, rewrite: Rewriter, *, largest: int = 128) -> None:
    """Replaces an einsum that is a small vector-matrix product for each sample by a pointwise product and a sum.

    Each weight is read once, so an engine that fuses the product, the sum and what follows is limited only by memory
    bandwidth. It is off by default: an engine that does not fuse would write the products, which are as many as the
    weights. Vectors and results are at most `largest` long.

    It pays on an engine that fuses, for many samples with small matrices of their own.
    """
    for node in graph.find(aten.einsum):
        found = _read(node)
        if isinstance(found, No):
            rewrite.reject(found, node)
        elif verdict := _may_replace(graph, node, found, largest):
            _replace(rewrite, node, found)
        else:
            rewrite.reject(verdict, node)


@dataclass(frozen=True, slots=True)
class _Products:
    """The vectors and matrices of an einsum, with a letter for each of their dims; some are summed over."""

    vectors: Node
    vector_letters: str
    matrices: Node
    letters: str
    result: str

    @property
    def added(self) -> list[int]:
        """The dims that only matrices have."""
        return [dim for dim, letter in enumerate(self.letters) if letter not in self.vector_letters]

    @property
    def summed(self) -> list[int]:
        return [dim for dim, letter in enumerate(self.letters) if letter not in self.result]


def _read(node: Node) -> _Products | No:
    bound = bind(node)
    if not isinstance(bound, Bound):
        return bound
    terms, result = einsum_terms(bound)
    if not terms:
        return No("its equation does not have a letter for each dim of two operands")
    if any(len(set(letters)) != len(letters) for _, letters in terms):
        return No("a letter occurs twice in one operand")
    for (vectors, vector), (matrices, matrix) in itertools.permutations(terms):
        batch = [c for c in vector if c in matrix and c in result]
        summed = [c for c in vector if c in matrix and c not in result]
        own = [c for c in matrix if c not in vector]
        if set(vector) <= set(matrix) and batch and summed and own and all(c in result for c in own):
            in_order = vector == _among(matrix, vector) and result == _among(matrix, result)
            found = _Products(vectors, vector, matrices, matrix, result)
            return found if in_order else No("its dims are in another order than those of the matrices")
    return No("it is not a product of a vector and a matrix for each sample")


def _among(letters: str, wanted: str) -> str:
    return "".join(c for c in letters if c in wanted)


def _may_replace(graph: GraphView, node: Node, found: _Products, largest: int) -> Literal[True] | No:
    vectors, matrices, result = (tensor_of(n) for n in (found.vectors, found.matrices, node))
    if vectors is None or matrices is None or not isinstance(result, FakeTensor):
        return No("the values of its operands are not known")
    if vectors.dtype not in (torch.float32, torch.float64):
        return No("products in a lower precision would be rounded before they are summed")
    if any(known_equal(size, 1) for size in result.shape):
        return No("the stride of a dim of size 1 may differ")
    sizes: dict[str, Any] = dict(zip(found.letters, matrices.shape, strict=True))
    if not all(known_equal(sizes[c], s) for c, s in zip(found.vector_letters, vectors.shape, strict=True)):
        return No("a dim of size 1 is expanded, or a size is not known")
    inner = [s for c, s in sizes.items() if c not in found.vector_letters or c not in found.result]
    if not all(type(s) is int and s <= largest for s in inner):
        return No(f"a vector or a result is longer than {largest}, or its length is not known")
    if not (alike := are_of_one_kind(found.vectors, found.matrices, node)):
        return alike
    with result.fake_mode, torch.no_grad():
        for dim in found.added:
            vectors = vectors.unsqueeze(dim)
        value = (vectors * matrices).sum(found.summed)
    return may_change_strides(graph, node, value)


def _replace(rewrite: Rewriter, node: Node, found: _Products) -> None:
    vectors = found.vectors
    for dim in found.added:
        vectors = rewrite.insert(aten.unsqueeze, vectors, dim, before=node)
    products = rewrite.insert(aten.mul, vectors, found.matrices, before=node)
    rewrite.replace(node, aten.sum, products, found.summed)


@einsum_to_pointwise_pass.example
def matrix_for_each_sample(
    x: torch.Tensor = f32(4, 5, 6), w: torch.Tensor = f32(4, 5, 6, 3), b: torch.Tensor = f32(4, 5, 3)
) -> torch.Tensor:
    return torch.einsum("abi,abio->abo", x, w) + b


@einsum_to_pointwise_pass.refuses("not a product of a vector and a matrix")
def one_matrix_for_all(x: torch.Tensor = f32(4, 5, 6), w: torch.Tensor = f32(6, 3)) -> torch.Tensor:
    return torch.einsum("abi,io->abo", x, w)


@einsum_to_pointwise_pass.refuses("longer than 128")
def long_vectors(x: torch.Tensor = f32(2, 256), w: torch.Tensor = f32(2, 256, 3)) -> torch.Tensor:
    return torch.einsum("bi,bio->bo", x, w)


@einsum_to_pointwise_pass.refuses("is expanded")
def expanded_samples(x: torch.Tensor = f32(1, 6), w: torch.Tensor = f32(4, 6, 3)) -> torch.Tensor:
    return torch.einsum("bi,bio->bo", x, w)
