"""Lowerings of Eductor's operators for torch's code generator."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

from eductor import ops
from eductor.compat import OpOverload


@functools.cache
def our_lowerings() -> Mapping[OpOverload, Callable[..., Any]]:
    """The lowering of each of our operators."""
    from torch._inductor.lowering import fallback_handler

    contiguous_backward = ops.contiguous_convolution.contiguous_convolution_backward.default
    called = functools.partial(fallback_handler, add_to_fallback_set=False)
    return {
        ops.copies.stored.default: _stored,
        ops.random.seeds.default: _seeds,
        ops.random.random.default: _random,
        ops.random.random_integers.default: _random_integers,
        ops.random.drawn_in_order.default: _drawn_in_order,
        ops.fused.addmm_activation.default: _addmm_activation,
        ops.fused.online_softmax.default: _online_softmax,
        contiguous_backward: called(contiguous_backward),
        ops.cut_mm.cut_mm.default: called(ops.cut_mm.cut_mm.default),
        ops.copies.wide_cat.default: called(torch.ops.aten.cat.default),
    }


def _stored(x: Any) -> Any:
    x.realize()
    return x


def _addmm_activation(bias: Any, a: Any, b: Any, *, use_gelu: bool) -> Any:
    from torch._inductor.lowering import fallback_handler

    on_cuda = bias.get_device().type == "cuda"
    op = torch.ops.aten._addmm_activation if on_cuda else ops.fused.addmm_activation
    return fallback_handler(op.default, add_to_fallback_set=False)(bias, a, b, use_gelu=use_gelu)


def _online_softmax(x: Any, dim: int) -> Any:
    from torch._inductor import inductor_prims
    from torch._inductor.lowering import lowerings

    return lowerings[inductor_prims.prepare_softmax_online](x, dim)


# Torch lowers its random primitives only without `fallback_random`, and random operators of ATen only with it. One graph
# may hold both, so `_primitive` turns the setting off.


def _seeds(count: int, *, device: torch.device) -> Any:
    return _primitive("seeds", count, device)


def _random(seeds: Any, index: int, size: Sequence[Any], distribution: str, *, dtype: torch.dtype) -> Any:
    from torch._inductor.lowering import lowerings, mul, to_dtype

    drawn = _primitive("random", size, _seed(seeds, index), distribution)
    if distribution == "rand" and torch.finfo(dtype).eps > torch.finfo(torch.float32).eps:
        # Rounded to fewer digits, a number just below 1 would be 1.
        steps = 2 / torch.finfo(dtype).eps
        drawn = mul(lowerings[torch.ops.aten.floor.default](mul(drawn, steps)), 1 / steps)
    return to_dtype(drawn, dtype)


def _random_integers(seeds: Any, index: int, size: Sequence[Any], low: Any, high: Any, *, dtype: torch.dtype) -> Any:
    from torch._inductor.lowering import to_dtype

    return to_dtype(_primitive("randint", low, high, size, _seed(seeds, index)), dtype)


def _seed(seeds: Any, index: int) -> Any:
    seeds.realize()
    return _primitive("lookup_seed", seeds, index)


def _primitive(name: str, *args: Any) -> Any:
    from torch._inductor import config, inductor_prims
    from torch._inductor.lowering import lowerings

    with config.patch(fallback_random=False):
        return lowerings[getattr(inductor_prims, name)](*args)


def _drawn_in_order(draws: Sequence[Any]) -> None:
    """Make the kernels of each draw depend on the results of the draw before it."""
    from torch._inductor.virtualized import V

    earlier: list[str] = []
    for draw in draws:
        draw.realize()
        kernels = _kernels(draw.get_name())
        for kernel in kernels:
            V.graph.additional_buffer_deps[kernel.get_operation_name()].update(earlier)
        earlier = [buffer.get_name() for kernel in kernels for buffer in kernel.get_outputs()]


def _kernels(buffer: str) -> list[Any]:
    """The kernels that write a buffer: the one that creates it, and those that write it later."""
    from torch._inductor.ir import MultiOutput
    from torch._inductor.virtualized import V

    made, operations = V.graph.name_to_buffer[buffer], cast("list[Any]", V.graph.operations)
    maker = made.inputs[0] if isinstance(made, MultiOutput) else made
    return [maker, *(o for o in operations if buffer in o.get_mutation_names())]
