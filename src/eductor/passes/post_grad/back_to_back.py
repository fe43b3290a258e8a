"""Reads two matrix products with a pointwise function between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import sort_key
from eductor.graph import Bound, GraphView, No, known_equal, tensor_of, value_of
from eductor.ops.launching import KERNEL_DTYPES
from eductor.ops.middle import CASTS, MiddleStep
from eductor.passes.functional.products import are_alike
from eductor.passes.post_grad.pointwise import elements_of, is_one, read_steps

aten = torch.ops.aten

PRODUCTS = (aten.mm, aten.addmm)

_MOST_STEPS = 32


@dataclass(frozen=True, slots=True)
class BiasedProduct:
    """`left @ right + bias`; `nodes` compute it, the first one is the product, the last one the result."""

    left: Node
    right: Node
    bias: Node | None
    nodes: tuple[Node, ...]

    @property
    def operands(self) -> list[Node]:
        return [x for x in (self.left, self.right, self.bias) if x is not None]


@dataclass(frozen=True, slots=True)
class BackToBack:
    """`outer` multiplies the result of the steps on `inner`; nothing between has another reader."""

    inner: BiasedProduct
    outer: BiasedProduct
    steps: tuple[MiddleStep, ...]


def read_back_to_back(graph: GraphView, node: Node) -> BackToBack | No | None:
    """The two products that end in this one; No for a near miss; None for anything else."""
    bound = graph.bind(node)
    left = bound["mat1" if bound.packet is aten.addmm else "self"] if isinstance(bound, Bound) else None
    if not isinstance(left, Node) or tensor_of(node) is None:
        return None
    between, leaves = _between(graph, left)
    starts = [leaf for leaf in leaves if _is_start(graph, leaf)]
    if not starts:
        return None
    inner = _read_start(graph, starts[0])
    if isinstance(inner, No):
        return inner
    outer = read_product(graph, node)
    if isinstance(outer, No):
        return outer
    others = [leaf for leaf in leaves if leaf is not starts[0]]
    if others:
        return No(f"{others[0].name} is also read between the products", others[0])
    steps = _may_fuse(graph, inner, outer, between) and read_steps(graph, inner.nodes[-1], between)
    return steps if isinstance(steps, No) else BackToBack(inner, outer, steps)


def _between(graph: GraphView, end: Node) -> tuple[list[Node], list[Node]]:
    """The nodes that compute a value element by element, in the order of the graph, and the leaves they start from."""
    between, leaves, seen, pending = list[Node](), list[Node](), {end}, [end]
    while pending:
        node = pending.pop()
        operands = None if _is_start(graph, node) else elements_of(graph, node)
        (leaves if operands is None else between).append(node)
        new = [x for x in operands or () if x not in seen]
        seen.update(new)
        pending += new
    return sorted(between, key=sort_key), leaves


def _is_start(graph: GraphView, node: Node) -> bool:
    return graph.is_call(node, *PRODUCTS) or _biased(graph, node) is not None


def _biased(graph: GraphView, node: Node) -> tuple[Node, Node] | None:
    """The product and the bias that a sum adds."""
    bound = graph.bind(node) if graph.is_call(node, aten.add.Tensor) else None
    if not isinstance(bound, Bound) or not is_one(bound["alpha"]):
        return None
    for x, bias in ((bound["self"], bound["other"]), (bound["other"], bound["self"])):
        if isinstance(x, Node) and graph.is_call(x, aten.mm.default) and _is_vector(bias, x):
            return x, bias
    return None


def _read_start(graph: GraphView, node: Node) -> BiasedProduct | No:
    biased = _biased(graph, node)
    if biased is None:
        return read_product(graph, node)
    product = read_product(graph, biased[0])
    if isinstance(product, No):
        return product
    return BiasedProduct(product.left, product.right, biased[1], (biased[0], node))


def read_product(graph: GraphView, node: Node) -> BiasedProduct | No:
    bound = graph.bind(node)
    if not isinstance(bound, Bound):
        return bound
    if bound.op is aten.mm.default:
        return BiasedProduct(bound["self"], bound["mat2"], None, (node,))
    if bound.op is not aten.addmm.default:
        return No(f"{node.name} has an explicit result dtype", node)
    if not is_one(bound["alpha"]) or not is_one(bound["beta"]):
        return No(f"{node.name} is scaled: alpha={bound['alpha']}, beta={bound['beta']}", node)
    if not _is_vector(bound["self"], node):
        return No(f"the bias of {node.name} is not one number for each column", node)
    return BiasedProduct(bound["mat1"], bound["mat2"], bound["self"], (node,))


def _is_vector(bias: Any, product: Node) -> bool:
    """Whether a bias is known to be one number for each column of a product."""
    value, result = tensor_of(bias), tensor_of(product)
    return value is not None and result is not None and known_equal(tuple(value.shape), tuple(result.shape[1:]))


def _may_fuse(graph: GraphView, inner: BiasedProduct, outer: BiasedProduct, between: list[Node]) -> Literal[True] | No:
    node, start = outer.nodes[0], inner.nodes[-1]
    if len(between) > _MOST_STEPS:
        return No(f"there are more than {_MOST_STEPS} operators between the products")
    own = {*inner.nodes, *between}
    if own & {outer.right, outer.bias}:
        return No("the second product reads the first one more than once")
    seen = next((n for n in own if any(user not in own and user is not node for user in n.users)), None)
    if seen is not None:
        return No(f"{seen.name} is used elsewhere", seen)
    if not (alike := are_alike(node, *inner.operands, start, *outer.operands)):
        return alike
    if any(tensor_of(n) is None for n in between):
        return No("the values between the products are not known to be tensors")
    dtype = value_of(node).dtype
    if dtype not in KERNEL_DTYPES:
        return No(f"its kernel takes {', '.join(CASTS)}, not {dtype}")
    if not known_equal(tuple(value_of(outer.left).shape), tuple(value_of(start).shape)):
        return No("the second product is not known to read the rows of the first one")
    sizes = [*value_of(inner.left).shape, *value_of(outer.right).shape]
    if any(known_equal(size, 0) for size in sizes):
        return No("it has no elements")
    return graph.effects.unwritten(inner.operands, inner.nodes[0], node)
