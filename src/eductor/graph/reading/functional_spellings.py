"""Adapters from functions written in Python to operators: `torch.nn.functional`, and some of `torch`.

Each adapter has the signature of its function, and returns the operator with its arguments, or why the call is not one
operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from eductor.compat import OpOverloadPacket
from eductor.graph.no import No
from eductor.graph.values.meta import tensor_of

aten = torch.ops.aten

Spelled = tuple[OpOverloadPacket, tuple[Any, ...], dict[str, Any]] | No
Adapter = Callable[..., Spelled]


def _activation(name: str) -> Adapter:
    """`F.relu(x, inplace=False)` and its like: the operator, or its in-place form."""

    def adapter(input: Any, *args: Any, inplace: bool = False, **kwargs: Any) -> Spelled:
        return getattr(aten, name + "_" if inplace else name), (input, *args), kwargs

    return adapter


def _positional_inplace(name: str, *params: str) -> Adapter:
    """An activation whose `inplace` may also be given by its position, after the named parameters."""
    plain = _activation(name)

    def adapter(input: Any, *args: Any, **kwargs: Any) -> Spelled:
        if len(args) > len(params):
            *args_, inplace = args
            if len(args_) != len(params) or "inplace" in kwargs:
                return No("too many arguments")
            return plain(input, *args_, inplace=inplace, **kwargs)
        return plain(input, **dict(zip(params, args, strict=False)), **kwargs)

    return adapter


def _dropout(name: str, *, active: bool) -> Adapter:
    def adapter(input: Any, p: float = 0.5, training: bool = active, inplace: bool = False) -> Spelled:
        return getattr(aten, name + "_" if inplace else name), (input, p, training), {}

    return adapter


def _channel_dropout(batched: int) -> Adapter:
    """Dropout of whole channels; without a batch, and of other ranks, Python does more than call the operator."""
    plain = _dropout("feature_dropout", active=True)

    def adapter(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Spelled:
        value = tensor_of(input)
        if value is None or value.dim() != batched:
            return No(f"dropout of channels is one operator only on {batched} dimensions")
        return plain(input, p, training, inplace)

    return adapter


def _rrelu(
    input: Any, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Spelled:
    return aten.rrelu_ if inplace else aten.rrelu, (input, lower, upper, training), {}


def _softmax(packet: OpOverloadPacket) -> Adapter:
    def adapter(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Spelled:
        if dim is None:
            return No("softmax without dim picks one by the rank, and warns")
        return packet, (input, dim), {} if dtype is None else {"dtype": dtype}

    return adapter


def _layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Spelled:
    return aten.layer_norm, (input, normalized_shape, weight, bias, eps, torch.backends.cudnn.enabled), {}


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Spelled:
    return aten.rms_norm, (input, normalized_shape, weight, eps), {}


def _group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Spelled:
    return aten.group_norm, (input, num_groups, weight, bias, eps, torch.backends.cudnn.enabled), {}


def _batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Spelled:
    args = (input, weight, bias, running_mean, running_var, training, momentum, eps, torch.backends.cudnn.enabled)
    return aten.batch_norm, args, {}


def _instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Spelled:
    args = (input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps)
    return aten.instance_norm, (*args, torch.backends.cudnn.enabled), {}


def _embedding(
    input: Any,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Spelled:
    if max_norm is not None:
        return No("embedding with max_norm writes its weight")
    if padding_idx is not None and padding_idx < 0:
        return No("a negative padding_idx counts from the end of the weight")
    return aten.embedding, (weight, input, -1 if padding_idx is None else padding_idx, scale_grad_by_freq, sparse), {}


def _pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Spelled:
    return aten.pad, (input, pad, mode, value), {}


def _glu(input: Any, dim: int = -1) -> Spelled:
    return aten.glu, (input, dim), {}


_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Spelled:
    if size_average is not None or reduce is not None or reduction not in _REDUCTIONS:
        return No("a deprecated spelling of the reduction")
    return aten.cross_entropy_loss, (input, target, weight, _REDUCTIONS[reduction], ignore_index, label_smoothing), {}


def _pool(packet: OpOverloadPacket) -> Adapter:
    def adapter(
        input: Any,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Spelled:
        if return_indices:
            return No("pooling with indices is another operator")
        return packet, (input, kernel_size, [] if stride is None else stride, padding, dilation, ceil_mode), {}

    return adapter


def _adaptive_pool(packet: OpOverloadPacket) -> Adapter:
    def adapter(input: Any, output_size: Any) -> Spelled:
        if output_size is None or (isinstance(output_size, (list, tuple)) and None in output_size):
            return No("an output size of None means the input's, which has to be read from its shape")
        return packet, (input, output_size), {}

    return adapter


def _einsum(equation: Any, *operands: Any) -> Spelled:
    if not isinstance(equation, str):
        return No("einsum in its sublist form")
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if len(operands) > 2:
        return No("einsum of more than two operands chooses an order of contraction")
    return aten.einsum, (equation, list(operands)), {}


def _packed(packet: OpOverloadPacket) -> Adapter:
    """A function of any number of tensors, whose operator takes them as a list."""

    def adapter(*tensors: Any) -> Spelled:
        flat = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
        return packet, (list(flat),), {}

    return adapter


def _split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> Spelled:
    return aten.split, (tensor, split_size_or_sections, dim), {}


# By the name of the function; the lookup skips functions that this torch lacks.
FUNCTIONAL: dict[str, Adapter] = {
    **{n: _positional_inplace(n) for n in ("relu", "relu6", "selu", "silu", "mish", "hardswish", "hardsigmoid")},
    "leaky_relu": _positional_inplace("leaky_relu", "negative_slope"),
    "elu": _positional_inplace("elu", "alpha"),
    "celu": _positional_inplace("celu", "alpha"),
    "hardtanh": _positional_inplace("hardtanh", "min_val", "max_val"),
    "threshold": _positional_inplace("threshold", "threshold", "value"),
    "_threshold": _positional_inplace("threshold", "threshold", "value"),
    "rrelu": _rrelu,
    "dropout": _dropout("dropout", active=True),
    "alpha_dropout": _dropout("alpha_dropout", active=False),
    "feature_alpha_dropout": _dropout("feature_alpha_dropout", active=False),
    **{f"dropout{d}d": _channel_dropout(d + 2) for d in (1, 2, 3)},
    "softmax": _softmax(aten.softmax),
    "log_softmax": _softmax(aten.log_softmax),
    "tanh": lambda input: (aten.tanh, (input,), {}),
    "sigmoid": lambda input: (aten.sigmoid, (input,), {}),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "embedding": _embedding,
    "pad": _pad,
    "glu": _glu,
    "cross_entropy": _cross_entropy,
    **{f"max_pool{d}d": _pool(getattr(aten, f"max_pool{d}d")) for d in (1, 2, 3)},
    **{f"_max_pool{d}d": _pool(getattr(aten, f"max_pool{d}d")) for d in (1, 2, 3)},
    "adaptive_avg_pool2d": _adaptive_pool(aten.adaptive_avg_pool2d),
    "adaptive_avg_pool3d": _adaptive_pool(aten.adaptive_avg_pool3d),
}

PLAIN: dict[str, Adapter] = {
    "split": _split,
    "einsum": _einsum,
    "broadcast_tensors": _packed(aten.broadcast_tensors),
    "block_diag": _packed(aten.block_diag),
    "cartesian_prod": _packed(aten.cartesian_prod),
}
