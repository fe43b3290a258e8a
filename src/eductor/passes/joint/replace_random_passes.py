"""Draws one seed tensor a device, and makes every random tensor a function of its seed."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor import ops
from eductor.graph.bind import Bound
from eductor.graph.meta import known_equal, tensor_of
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass

aten = torch.ops.aten

DISTRIBUTIONS: dict[Any, str] = {
    aten.rand: "rand",
    aten.rand_like: "rand",
    aten.randn: "randn",
    aten.randn_like: "randn",
}


def _unless_eager(context: Context) -> bool | str:
    return "the option fallback_random asks for eager's random numbers" if context.options.fallback_random else True


@graph_pass(stage="joint", numerics="redraws", when=_unless_eager)
def replace_random_passes(graph: GraphView, rewrite: Rewriter) -> None:
    """Draws one seed tensor a device, and makes every random tensor a function of its seed.

    A launch a device instead of one a tensor; the draw fuses into its consumers; and a mask that the backward
    computes again is the same mask.
    """
    seeds: dict[torch.device, Node] = {}
    for node in graph.find(*DISTRIBUTIONS):
        bound, value = graph.bind(node), tensor_of(node)
        reason = _why_not(bound, value)
        if reason:
            rewrite.reject(reason, node)
            continue
        assert isinstance(bound, Bound)
        assert value is not None
        index = 0
        if value.device in seeds:
            index = seeds[value.device].args[0]  # type: ignore[assignment]
            rewrite.update(seeds[value.device], args=(index + 1,))
        else:
            seeds[value.device] = rewrite.insert(ops.random.seeds, 1, device=value.device, before=node)
        _replace(rewrite, node, value, seeds[value.device], index, bound)


def _why_not(bound: Any, value: torch.Tensor | None) -> str:
    if not isinstance(bound, Bound):
        return str(bound.reason)
    if value is None:
        return "its shape is not known"
    if bound.get("generator") is not None:
        return "it draws from a generator of its own"
    if bound.get("pin_memory"):
        return "it lies in pinned memory"
    if value.layout is not torch.strided:
        return f"its layout is {value.layout}"
    return "" if _physical_order(value) is not None else "its strides are not those of a permuted tensor"


def _physical_order(value: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost, if a dense tensor in that order has these strides."""
    dims = list(range(value.dim()))
    if not value.is_contiguous():
        if any(isinstance(s, torch.SymInt) for s in value.stride()):
            return None
        dims.sort(key=lambda d: (value.stride(d), value.shape[d]), reverse=True)
    step: Any = 1
    for d in reversed(dims):
        if not known_equal(value.stride(d), step):
            return None
        step = step * (value.shape[d] if not known_equal(value.shape[d], 0) else 1)
    return dims


def _replace(rewrite: Rewriter, node: Node, value: torch.Tensor, seeds: Node, index: int, bound: Bound) -> None:
    order = _physical_order(value)
    assert order is not None
    sizes = _sizes(rewrite, node, value, bound)
    draw = (ops.random.random, seeds, index, [sizes[d] for d in order], DISTRIBUTIONS[bound.packet])
    if order == sorted(order):
        rewrite.replace(node, *draw, dtype=value.dtype)
    else:
        dense = rewrite.insert(*draw, dtype=value.dtype, before=node)
        rewrite.replace(node, aten.permute, dense, [order.index(d) for d in range(value.dim())])


def _sizes(rewrite: Rewriter, node: Node, value: torch.Tensor, bound: Bound) -> list[Any]:
    """The sizes as arguments: what the call names, or read off the tensor it is like where they are symbolic."""
    if "size" in bound.arguments:
        return list(bound["size"])
    like = bound["self"]
    return [
        rewrite.insert(aten.sym_size.int, like, d, before=node) if isinstance(size, torch.SymInt) else size
        for d, size in enumerate(value.shape)
    ]


@replace_random_passes.example
def noise(x: torch.Tensor = f32(64, 64)) -> torch.Tensor:
    return x + torch.rand_like(x)


@replace_random_passes.example
def two_draws(x: torch.Tensor = f32(64, 64)) -> torch.Tensor:
    return x * torch.randn(64, 64) + torch.randn_like(x.t()).t()


def _give_a_generator(module: GraphModule) -> None:
    """Not every torch traces a call with a generator; what follows must not depend on that."""
    (node,) = module.graph.find_nodes(op="call_function", target=aten.rand.default)
    module.generator = own = torch.Generator()  # type: ignore[assignment]
    with module.graph.inserting_before(node):
        generator = module.graph.create_node("get_attr", "generator")
    generator.meta["val"] = own
    node.target = aten.rand.generator
    node.kwargs = {**node.kwargs, "generator": generator}


@replace_random_passes.refuses("a generator of its own", prepare=_give_a_generator)
def own_generator(x: torch.Tensor = f32(8, 8)) -> torch.Tensor:
    return x + torch.rand(8, 8)
