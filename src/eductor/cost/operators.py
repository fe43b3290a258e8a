"""Cost of an operator: bytes, flops and launches from fake values, and the time they take on a device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.cost.device import Device
from eductor.graph import Bound, No, bind, effect_of, tensor_of, value_of
from eductor.graph.values.meta import hint_of

aten = torch.ops.aten

_UNKNOWN_SIZE = 1024
"""Assumed value of a data-dependent size: neither small nor large."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products of a `rows x inner` with an `inner x columns` matrix."""

    rows: int
    columns: int
    inner: int
    dtype: torch.dtype
    batch: int = 1
    aligned_factors: bool = True
    """Whether the rows of both factors are aligned for matrix units; see `Device.alignment`."""
    aligned_result: bool = True

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.columns * self.inner

    @property
    def bytes(self) -> int:
        elements = self.rows * self.inner + self.inner * self.columns + self.rows * self.columns
        return self.batch * elements * self.dtype.itemsize

    def backward(self) -> tuple[Gemm, Gemm]:
        """The products that give the gradients of both factors."""
        to_left = Gemm(self.rows, self.inner, self.columns, self.dtype, self.batch)
        to_right = Gemm(self.inner, self.columns, self.rows, self.dtype, self.batch)
        return to_left, to_right


def size_of(size: Any) -> int:
    """A size as a number; for a symbolic one, its hint from capture. Installs no guard."""
    hint = hint_of(value_of(size))
    return hint if isinstance(hint, int) else _UNKNOWN_SIZE


def elements_of(value: torch.Tensor) -> int:
    """How many elements a tensor has."""
    return math.prod([s if type(s) is int else size_of(s) for s in value.shape])


def bytes_of(value: Any) -> int:
    """The bytes of a value, of a node's fake value, or of all values in a sequence; 0 for what is no tensor."""
    value = value_of(value)
    if isinstance(value, torch.Tensor):
        return elements_of(value) * value.dtype.itemsize
    return sum(map(bytes_of, value)) if isinstance(value, (list, tuple)) else 0


def is_pointwise(node: Node) -> bool:
    """Whether each element of the result depends on one element of each operand: where pointwise operators fuse,
    recomputing it in a kernel that reads it is nearly free."""
    bound = bind(node)
    return isinstance(bound, Bound) and torch.Tag.pointwise in bound.op.tags


def launches_of(node: Node) -> int:
    """How many kernels a node launches if nothing fuses: none for views, elements of sequences and inputs."""
    if node.op in ("placeholder", "get_attr", "output"):
        return 0
    effect = effect_of(node)
    return 0 if effect.is_view or effect.is_switch or not bytes_of(node) else 1


def gemm_of(node: Node) -> Gemm | None:
    """The dimensions of a node that is a matrix product; None for any other operator."""
    bound = bind(node)
    if not isinstance(bound, Bound) or bound.packet not in _FACTORS:
        return None
    left, right = (tensor_of(bound[name]) for name in _FACTORS[bound.packet])
    result = tensor_of(node)
    if left is None or right is None or result is None or not left.dim() or not right.dim():
        return None
    inner = size_of(left.shape[-1])
    if bound.packet is aten.linear:
        columns, batch = elements_of(right) // max(inner, 1), 1
    else:
        columns = size_of(right.shape[-1]) if right.dim() > 1 else 1
        batch = math.prod(size_of(s) for s in result.shape[:-2]) if right.dim() > 2 else 1
    rows = elements_of(result) // max(columns * batch, 1)
    return Gemm(rows, columns, inner, result.dtype, batch)


_FACTORS: dict[Any, tuple[str, str]] = {
    aten.linear: ("input", "weight"),
    aten.mm: ("self", "mat2"),
    aten.bmm: ("self", "mat2"),
    aten.matmul: ("self", "other"),
    aten.addmm: ("mat1", "mat2"),
    aten.baddbmm: ("batch1", "batch2"),
}


def flops_of(node: Node) -> int:
    """The flops of a node: of matrix products, convolutions and attention; other operators are bound by memory."""
    gemm = gemm_of(node)
    if gemm is not None:
        return gemm.flops
    bound, result = bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or result is None:
        return 0
    name = bound.packet._qualified_op_name
    if name in _CONVOLUTIONS:
        weight = tensor_of(bound["weight"])
        return (
            0 if weight is None else 2 * elements_of(result) * elements_of(weight) // max(size_of(weight.shape[0]), 1)
        )
    if bound.packet is aten.scaled_dot_product_attention:
        query, key = tensor_of(bound["query"]), tensor_of(bound["key"])
        return 0 if query is None or key is None else 4 * elements_of(query) * size_of(key.shape[-2])
    return 0


_CONVOLUTIONS = frozenset({"aten::convolution", "aten::conv1d", "aten::conv2d", "aten::conv3d"})


def gemm_time(gemm: Gemm, device: Device) -> float:
    """Seconds of a matrix product: its flops or its bytes, whichever take longer, plus a launch."""
    return max(_computing(gemm, device), gemm.bytes / device.bandwidth) + device.launch


def is_bound_by_memory(gemm: Gemm, device: Device) -> bool:
    """Whether a product is memory-bound, so that it gains nothing from computing faster."""
    return _computing(gemm, device) <= gemm.bytes / device.bandwidth


def _computing(gemm: Gemm, device: Device) -> float:
    """Seconds of the flops of a product.

    The result is computed in tiles, one per unit at a time; the last round may leave units idle. With fewer tiles than
    units, the inner dimension is split among the idle units.
    """
    high, wide = (min(device.tile, _in_steps(size)) for size in (gemm.rows, gemm.columns))
    tiles = gemm.batch * -(-gemm.rows // high) * -(-gemm.columns // wide)
    rounds = -(-tiles // device.units)
    splits = min(max(device.units // max(tiles, 1), 1), -(-gemm.inner // _SPLIT) or 1)
    flops_per_tile = 2 * high * wide * gemm.inner / splits
    return rounds * flops_per_tile * device.units / (device.rate(gemm.dtype) * _reached(gemm, device))


def _reached(gemm: Gemm, device: Device) -> float:
    """The fraction of the device's rate that a product reaches, by the alignment of its rows."""
    if gemm.dtype not in device.aligned or (gemm.aligned_factors and gemm.aligned_result):
        return 1.0
    return UNALIGNED_RESULT if gemm.aligned_factors else UNALIGNED_FACTOR


UNALIGNED_FACTOR, UNALIGNED_RESULT = 0.4, 0.4
"""The fraction of the matrix units' rate that is left if the rows of a factor, or of the result alone, are not aligned to
`VECTOR` bytes: the kernels then load or store element by element, without block copies. `bench/pad_mm.py` measures it."""


_STEP, _SPLIT = 16, 256
"""The rows that matrix units take at once; the smallest split of the inner dimension."""


def _in_steps(size: int) -> int:
    return max(-(-size // _STEP), 1) * _STEP


def copy_time(size: float, device: Device) -> float:
    """Seconds of a kernel that reads and writes this many bytes."""
    return 2 * size / device.bandwidth + device.launch


def time_of(node: Node, device: Device) -> float:
    """Seconds of a node as a separate kernel; 0 if it launches none."""
    gemm = gemm_of(node)
    if gemm is not None:
        return gemm_time(gemm, device)
    if not launches_of(node):
        return 0.0
    result = tensor_of(node)
    computing = flops_of(node) / device.rate(torch.float32 if result is None else result.dtype)
    moving = (bytes_of(node) + sum(map(bytes_of, node.all_input_nodes))) / device.bandwidth
    return max(computing, moving) + device.launch


def pays(what: str, saves: float, costs: float) -> Literal[True] | No:
    """Whether a rewrite pays; No has its figures. A gain within the error of the figures does not count."""
    if saves > _MARGIN * costs:
        return True
    return No(f"{what} saves {microseconds(saves)} and costs {microseconds(costs)}")


_MARGIN = 1.2


def microseconds(seconds: float) -> str:
    """Formats a time for a reason."""
    return f"{seconds * 1e6:.3g} us"


# ------------------------------------------------------------------------------------------- inside other kernels


def fuses(node: Node) -> bool:
    """Whether a compiler computes a node element by element where its result is read, without a separate kernel."""
    op = _operator(node)
    return op is not None and _fuses(op)


def reduces(node: Node) -> bool:
    """Whether a node reads many elements per result element; its operands may be computed inside its kernel."""
    op = _operator(node)
    return op is not None and op.overloadpacket._qualified_op_name in _REDUCTIONS


def _operator(node: Node) -> OpOverload | None:
    if isinstance(node.target, OpOverload):
        return node.target
    bound = bind(node) if node.op == "call_function" else None
    return bound.op if isinstance(bound, Bound) else None


@functools.cache
def _fuses(op: OpOverload) -> bool:
    return torch.Tag.pointwise in op.tags or op.overloadpacket._qualified_op_name in (*_CONSTRUCTED, *_MOVED)


def fused_time_of(node: Node, device: Device) -> float:
    """Seconds of a node fused into a kernel that reads its operands anyway: its arithmetic, or its gather."""
    bound, result = bind(node), tensor_of(node)
    if not isinstance(bound, Bound) or result is None:
        return time_of(node, device)
    name = bound.packet._qualified_op_name
    if name in _MOVED:
        return bytes_of(node) / device.bandwidth
    return elements_of(result) * (_SERIES if name in _TRANSCENDENTAL else 1) / device.rate(torch.float32)


def _named(*names: str) -> frozenset[str]:
    return frozenset(name if "::" in name else f"aten::{name}" for name in names)


_SERIES = 20
"""Flops of a function that is computed as a series."""

_TRANSCENDENTAL = _named(
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh"),
    *("cosh", "tanh", "erf", "erfc", "erfinv", "sigmoid", "pow", "atan2", "gelu", "silu", "mish", "softplus", "lgamma"),
)
_CONSTRUCTED = _named(
    *("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "scalar_tensor", "arange", "prims::iota"),
    *("_to_copy", "tril", "triu", "prims::_low_memory_max_pool_offsets_to_indices"),
)
"""Operators that compute each element from its index, or from the operand's element at that index."""
_MOVED = _named("embedding", "index", "gather", "constant_pad_nd", "flip", "cat", "slice_scatter", "select_scatter")
"""Operators that copy each element from another index."""
_REDUCTIONS = _named(
    *("sum", "mean", "amax", "amin", "max", "min", "var", "var_mean", "std", "prod", "any", "all", "argmax", "argmin"),
    *("_softmax", "_log_softmax", "native_layer_norm", "linalg_vector_norm"),
)
