"""How Inductor generates code for operators of our own. Inductor is imported only when a graph has one of them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch.fx.node import has_side_effect

from eductor import ops

torch.library.define("eductor::drawn_in_order", "(Tensor[] draws) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
drawn_in_order = torch.ops.eductor.drawn_in_order.default
has_side_effect(drawn_in_order)


@torch.library.impl("eductor::drawn_in_order", "CompositeExplicitAutograd")
def _drawn_in_order(draws: Sequence[torch.Tensor]) -> None:
    """Nothing to do where nodes run one after another."""


@torch.library.register_fake("eductor::drawn_in_order")  # type: ignore[untyped-decorator]
def _fake_drawn_in_order(draws: Sequence[torch.Tensor]) -> None:
    """It has no result."""


@functools.cache
def install() -> None:
    """Tells Inductor about our operators, once.

    Its own random primitives refuse to be lowered where random operators of ATen fall back to eager's kernels, and
    those refuse where they do not. One graph may hold both, so ours borrow the primitives with that switch turned.
    """
    from torch._inductor import config, inductor_prims
    from torch._inductor.lowering import lowerings, register_lowering, to_dtype

    def seeds(count: int, *, device: torch.device) -> Any:
        return lowerings[inductor_prims.seeds](count, device)

    def random(seeds: Any, index: int, size: Sequence[Any], distribution: str, *, dtype: torch.dtype) -> Any:
        seeds.realize()
        with config.patch(fallback_random=False):
            seed = lowerings[inductor_prims.lookup_seed](seeds, index)
            drawn = lowerings[inductor_prims.random](size, seed, distribution)
        return to_dtype(drawn, dtype)

    register = functools.partial(register_lowering, type_promotion_kind=None)
    register(ops.random.seeds.default)(seeds)
    register(ops.random.random.default)(random)
    register(drawn_in_order)(_order)


def _order(draws: Sequence[Any]) -> None:
    """Lets the kernels of each draw wait for the results of the one before it."""
    from torch._inductor.virtualized import V

    earlier: list[str] = []
    for draw in draws:
        draw.realize()
        kernels = _kernels(draw.get_name())
        for kernel in kernels:
            V.graph.additional_buffer_deps[kernel.get_operation_name()].update(earlier)
        earlier = [buffer.get_name() for kernel in kernels for buffer in kernel.get_outputs()]


def _kernels(buffer: str) -> list[Any]:
    """What fills a buffer: the kernel that makes it, alone or with others, and kernels that write it later."""
    from torch._inductor.ir import MultiOutput
    from torch._inductor.virtualized import V

    made, operations = V.graph.name_to_buffer[buffer], cast("list[Any]", V.graph.operations)
    maker = made.inputs[0] if isinstance(made, MultiOutput) else made
    return [maker, *(o for o in operations if buffer in o.get_mutation_names())]
