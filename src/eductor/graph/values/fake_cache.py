"""Fake results without the cost of torch's fake mode: from a cache, or by running the meta kernel alone.

The cache is keyed by operator and operand metadata: a hit does not run the operator. The mode infers a device, looks into
a cache of its own and checks for special cases, which takes several times as long as a kernel: views and matrix products
of plain tensors on one device need none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.compat import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    in_kernel_invocation_manager,
    is_symbolic,
    unset_fake_temporarily,
    with_history,
)
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.values.meta import UNKNOWN, row_major_strides, value_of


class FakeResults:
    """The metadata of results by call, for new tensors from plain operands, which determine it."""

    def __init__(self) -> None:
        self._results: dict[Any, _Result] = {}

    def value(self, node: Node, mode: FakeTensorMode, evaluate: Callable[[], Any]) -> Any:
        """The fake value of a call: evaluated, unless it is cached or can be inferred."""
        try:
            key = _key_of_call(node, mode)
        except _NotPlain:
            return evaluate()
        known = self._results.get(key) or (_inferred(key) if node.args else None)
        if known is not None:
            return known.tensor(mode)
        value = evaluate()
        with suppress(_NotPlain):
            result = _Result(*_key_of_tensor(value, mode))
            if effect_of(node).removable and not _aliases(value, map(value_of, node.all_input_nodes)):
                self._results[key] = result
        return value


class _NotPlain(Exception):
    """Raised for a value that its metadata does not determine."""


def _aliases(value: torch.Tensor, operands: Iterable[Any]) -> bool:
    """Whether a result aliases one of its operands."""
    memory = value.untyped_storage()
    return any(x.untyped_storage() is memory for x in operands if isinstance(x, torch.Tensor))


def _key_of_call(node: Node, mode: FakeTensorMode) -> Any:
    if not isinstance(node.target, OpOverload):
        raise _NotPlain
    args, kwargs = _key_of(node.args, mode), tuple((k, _key_of(v, mode)) for k, v in node.kwargs.items())
    return node.target, args, kwargs, torch.is_grad_enabled()


def _key_of(given: Any, mode: FakeTensorMode) -> Any:
    if isinstance(given, Node):
        given = value_of(given)
    if isinstance(given, torch.Tensor):
        return _key_of_tensor(given, mode)
    if isinstance(given, (list, tuple)):
        return tuple([_key_of(x, mode) for x in given])
    if isinstance(given, float):
        return repr(given)
    if given is None or isinstance(given, (int, str, *_CONSTANTS)):
        return type(given), given
    raise _NotPlain


_CONSTANTS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def _key_of_tensor(given: Any, mode: FakeTensorMode) -> tuple[Any, ...]:
    if type(given) is not FakeTensor or given.fake_mode is not mode or given.constant is not None:
        raise _NotPlain
    if is_symbolic(given) or given.storage_offset() or given.layout is not torch.strided:
        raise _NotPlain
    if given.is_conj() or given.is_neg() or given.is_inference():
        raise _NotPlain
    return tuple(given.shape), given.stride(), given.dtype, given.device, given.requires_grad


def _inferred(key: Any) -> _Result | None:
    """The result of an operator that passes create often, without running it."""
    return _stacked(key) or _elementwise(key)


def _stacked(key: Any) -> _Result | None:
    """The stack of equal-sized row-major tensors: for many of them, torch takes milliseconds."""
    target, (tensors, *rest), keywords, grad_enabled = key
    if target is not torch.ops.aten.stack.default or not tensors or any(tensor != tensors[0] for tensor in tensors):
        return None
    (_, dim), *others = [*rest, *(value for _, value in keywords)] or [(int, 0)]
    shape, stride, dtype, device, requires_grad = tensors[0]
    if others or stride != row_major_strides(shape):
        return None
    at = dim % (len(shape) + 1)
    result = (*shape[:at], len(tensors), *shape[at:])
    return _Result(result, row_major_strides(result), dtype, device, requires_grad and grad_enabled)


aten = torch.ops.aten
_ELEMENTWISE: frozenset[Any] = frozenset(
    {aten.tanh.default, aten.sigmoid.default, aten.relu.default, aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor}
)


def _elementwise(key: Any) -> _Result | None:
    """The result for row-major floating tensors that broadcast to the first: it has the metadata of that one."""
    target, (first, *others), keywords, grad_enabled = key
    if target not in _ELEMENTWISE or keywords or not all(len(x) == len(first) for x in others):
        return None
    shape, stride, dtype, device, _ = first
    if not dtype.is_floating_point or stride != row_major_strides(shape):
        return None
    for other in others:
        if other[2:4] != (dtype, device) or other[1] != row_major_strides(other[0]) or not _broadcasts(other[0], shape):
            return None
    return _Result(shape, stride, dtype, device, grad_enabled and any(x[-1] for x in (first, *others)))


def _broadcasts(shape: tuple[int, ...], over: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another one without changing that."""
    rest = len(over) - len(shape)
    return rest >= 0 and all(a in (b, 1) for a, b in zip(shape, over[rest:], strict=True))


@dataclass(frozen=True, slots=True)
class _Result:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def tensor(self, mode: FakeTensorMode) -> torch.Tensor:
        """A new tensor with this metadata; one that requires grad is not a leaf."""
        with unset_fake_temporarily():
            if not self.requires_grad:
                return self._plain(mode)
            source = torch.empty(0, requires_grad=True)
            found: torch.Tensor = _Computed.apply(source, self, mode)  # type: ignore[no-untyped-call]
            return found

    def _plain(self, mode: FakeTensorMode) -> torch.Tensor:
        memory = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")
        return FakeTensor(mode, memory, self.device)


class _Computed(torch.autograd.Function):
    """Makes a tensor that is not a leaf, so that it may be written in place like any result."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, result: _Result, mode: FakeTensorMode) -> torch.Tensor:
        return result._plain(mode)


# ------------------------------------------------------------------------------------------------- meta kernels alone

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
