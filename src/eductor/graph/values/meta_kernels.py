"""Runs meta kernels directly for fake values, without the overhead of torch's fake mode.

The mode infers a device, looks into a cache and checks for special cases, which takes several times as long as the
kernel. Views and matrix products of plain tensors on one device need none of this.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.compat import (
    FakeTensor,
    FakeTensorMode,
    TorchDispatchMode,
    in_kernel_invocation_manager,
    is_symbolic,
    with_history,
)
from eductor.graph.values.meta import UNKNOWN, value_of

aten = torch.ops.aten

_SUPPORTED: frozenset[Any] = frozenset(
    {
        *(aten.view.default, aten.reshape.default, aten.flatten.using_ints, aten.unflatten.int, aten.expand.default),
        *(aten.transpose.int, aten.t.default, aten.permute.default, aten.movedim.int, aten.movedim.intlist),
        *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.narrow.default, aten.slice.Tensor, aten.select.int),
        *(aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default, aten.chunk.default),
        *(aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default),
    }
)
"""Operators with meta kernels in C++ that depend on sizes and strides alone, on every device."""


def run_meta_kernel(node: Node, mode: FakeTensorMode) -> Any:
    """The fake value of a call by its meta kernel; UNKNOWN where that does not suffice.

    It suffices if the operands are plain tensors of one device, with sizes that are numbers.
    """
    if node.target not in _SUPPORTED:
        return UNKNOWN
    device: torch.device | None = None
    for value in map(value_of, node.all_input_nodes):
        if type(value) is not FakeTensor or value.fake_mode is not mode or is_symbolic(value):
            return UNKNOWN
        if value.device != (device := device or value.device):
            return UNKNOWN
    assert device is not None
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: with_history(value_of(n)))
    with _MetaKernels(mode, device):
        return node.target(*args, **kwargs)  # type: ignore[operator]


class _MetaKernels(TorchDispatchMode):
    """Runs operators by their meta kernels; results are fake tensors on the device of the operands."""

    def __init__(self, mode: FakeTensorMode, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode, self._device = mode, device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return self._device
        with in_kernel_invocation_manager(self._mode):
            made = func(*args, **(kwargs or {}))
        return self._faked(made) if isinstance(made, torch.Tensor) else [self._faked(x) for x in made]

    def _faked(self, made: torch.Tensor) -> torch.Tensor:
        return FakeTensor(self._mode, made, self._device)
