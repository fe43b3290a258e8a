"""Torch-level names of operators: which ATen operator a function, a method or a Python operator spells.

Builtin functions and methods have the name of their operator. What is written in Python (`torch.nn.functional`,
`operator`) has an adapter here: a function with the same signature that returns the operator and its arguments, or
a sentence that says why the call is not one operator.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from eductor.compat import HigherOrderOperator, OpOverload, OpOverloadPacket
from eductor.graph.meta import value_of
from eductor.graph.schema import parameters

aten = torch.ops.aten

Spelled = tuple[OpOverloadPacket, tuple[Any, ...], dict[str, Any]] | str
Adapter = Callable[..., Spelled]
Reflected = OpOverloadPacket | str | None

# Names that torch keeps for one and the same operator.
SYNONYMS: dict[str, str] = {
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctanh": "atanh",
    "arctan2": "atan2",
    "negative": "neg",
    "fix": "trunc",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "row_stack": "vstack",
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "greater": "gt",
    "greater_equal": "ge",
    "less": "lt",
    "less_equal": "le",
    "not_equal": "ne",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "moveaxis": "movedim",
    "ger": "outer",
}

# Numpy's names of arguments, and `input`, by which a function calls what a schema calls `self`.
KEYWORDS: dict[str, tuple[str, ...]] = {
    "axis": ("dim",),
    "keepdims": ("keepdim",),
    "x2": ("other",),
    "input": ("self",),
    "x": ("self", "input"),
    "a": ("self", "input"),
    "x1": ("self", "input"),
}


def keyword(name: str, known: Mapping[str, Any]) -> str:
    """The schema's name of an argument, for one of its other spellings."""
    return next((k for k in KEYWORDS.get(name, ()) if k in known), name)


@functools.cache
def canonical(packet: OpOverloadPacket) -> OpOverloadPacket:
    """The operator itself, for one of its synonyms."""
    namespace, _, name = packet._qualified_op_name.partition("::")
    if namespace != "aten":
        return packet
    inplace = "_" if name.endswith("_") and not name.endswith("__") else ""
    synonym = SYNONYMS.get(name.removesuffix("_") if inplace else name)
    return getattr(aten, synonym + inplace, packet) if synonym else packet


@functools.cache
def canonical_overload(op: OpOverload) -> OpOverload:
    """The overload of the operator itself with the same parameters, for an overload of a synonym."""
    packet = canonical(op.overloadpacket)
    if packet is op.overloadpacket:
        return op
    kinds = [(p.kind, p.keyword_only) for p in parameters(op)]
    overloads = (getattr(packet, name) for name in packet.overloads())
    return next((o for o in overloads if [(p.kind, p.keyword_only) for p in parameters(o)] == kinds), op)


def name_of(target: Any) -> str:
    """A target as a reader would write it."""
    if isinstance(target, str):
        return f"Tensor.{target}"
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    return f"{module}.{name}" if module else str(name)


def packet_of(target: Any) -> OpOverloadPacket | None:
    """The operator of a builtin function or of a tensor's method, which have its name."""
    if isinstance(target, str):
        found = getattr(torch.Tensor, target, None)
        return _packet(target) if callable(found) and not isinstance(found, FunctionType) else None
    if isinstance(target, HigherOrderOperator):
        return None
    name = getattr(target, "__name__", "")
    if isinstance(target, BuiltinFunctionType) and target in _builtins():
        return _packet(name)
    return packet_of(name) if is_method(target) else None


def is_method(target: Any) -> bool:
    """Whether the first argument of a call is the tensor whose method it is."""
    return isinstance(target, str) or getattr(target, "__objclass__", None) is torch._C.TensorBase


def _packet(name: str) -> OpOverloadPacket | None:
    packet = getattr(aten, name, None)
    return packet if isinstance(packet, OpOverloadPacket) else None


@functools.cache
def _builtins() -> frozenset[Any]:
    """Every builtin function that is a binding of an operator of its own name."""
    c = torch._C
    homes = (torch, c._VariableFunctions, c._nn, c._fft, c._linalg, c._special)  # type: ignore[attr-defined]
    found = (getattr(home, name) for home in homes for name in dir(home))
    return frozenset(f for f in found if isinstance(f, BuiltinFunctionType))


def adapter_of(target: Any) -> Adapter | None:
    """The adapter of a target whose call is more than its operator's name."""
    if isinstance(target, str):
        return _METHODS.get(target)
    try:
        return _functions().get(target)
    except TypeError:
        return None


# ---------------------------------------------------------------------------------------------- Python's operators


def _is_tensor(value: Any) -> bool:
    return isinstance(value_of(value), torch.Tensor)


_SIZES = "arithmetic on sizes, not an operator on tensors"


def _binary(packet: OpOverloadPacket, reflected: Reflected = None) -> Adapter:
    """`a + b`, where `a` may be a number: then Python asks the tensor's reflected operator."""
    reflect = _reflect(packet, reflected)

    def adapter(a: Any, b: Any, /) -> Spelled:
        if _is_tensor(a):
            return packet, (a, b), {}
        return reflect(b, a) if _is_tensor(b) else _SIZES

    return adapter


def _reflect(packet: OpOverloadPacket, reflected: Reflected) -> Adapter:
    """`x.__rsub__(2)`: an operator of its own, the operator with its operands exchanged, or why it is neither."""

    def adapter(self: Any, other: Any, /) -> Spelled:
        if isinstance(reflected, str):
            return reflected
        return (packet, (other, self), {}) if reflected is None else (reflected, (self, other), {})

    return adapter


def _unary(packet: OpOverloadPacket) -> Adapter:
    return lambda a, /: (packet, (a,), {}) if _is_tensor(a) else _SIZES


def _inplace(packet: OpOverloadPacket) -> Adapter:
    return lambda a, b, /: (packet, (a, b), {}) if _is_tensor(a) else _SIZES


def _getitem(a: Any, index: Any, /) -> Spelled:
    if not _is_tensor(a):
        return "picks an element of a sequence, not an operator on tensors"
    if isinstance(index, slice):
        return aten.slice, (a, 0, index.start, index.stop, 1 if index.step is None else index.step), {}
    if index is None:
        return aten.unsqueeze, (a, 0), {}
    number = value_of(index)
    if isinstance(number, (int, torch.SymInt)) and not isinstance(number, bool):
        return aten.select, (a, 0, index), {}
    return "an index of several parts is a chain of operators"


def _setitem(a: Any, index: Any, value: Any, /) -> Spelled:
    return "an assignment to an index writes its tensor through a chain of views"


def _getattr(a: Any, name: str, /) -> Spelled:
    if not _is_tensor(a):
        return "an attribute of something that is not a tensor"
    known = {"T": aten.numpy_T, "mT": aten.mT, "H": aten.matrix_H, "mH": aten.mH, "real": aten.real, "imag": aten.imag}
    return (known[name], (a,), {}) if name in known else f"the attribute {name!r} is not an operator"


_BINARY: dict[Any, tuple[OpOverloadPacket, Reflected]] = {
    operator.add: (aten.add, aten.add),
    operator.sub: (aten.sub, aten.rsub),
    operator.mul: (aten.mul, aten.mul),
    operator.truediv: (aten.div, "a number divided by a tensor is a reciprocal and a product"),
    operator.floordiv: (aten.floor_divide, "a number floor-divided by a tensor is several operators"),
    operator.mod: (aten.remainder, None),
    operator.pow: (aten.pow, None),
    operator.matmul: (aten.matmul, None),
    operator.and_: (aten.bitwise_and, aten.bitwise_and),
    operator.or_: (aten.bitwise_or, aten.bitwise_or),
    operator.xor: (aten.bitwise_xor, aten.bitwise_xor),
    operator.lshift: (aten.__lshift__, "a number shifted by a tensor is not one operator"),
    operator.rshift: (aten.__rshift__, "a number shifted by a tensor is not one operator"),
    operator.eq: (aten.eq, aten.eq),
    operator.ne: (aten.ne, aten.ne),
    operator.lt: (aten.lt, aten.gt),
    operator.le: (aten.le, aten.ge),
    operator.gt: (aten.gt, aten.lt),
    operator.ge: (aten.ge, aten.le),
}

_OPERATORS: dict[Any, Adapter] = {
    **{function: _binary(*forms) for function, forms in _BINARY.items()},
    operator.neg: _unary(aten.neg),
    operator.pos: _unary(aten.positive),
    operator.invert: _unary(aten.bitwise_not),
    operator.inv: _unary(aten.bitwise_not),
    operator.abs: _unary(aten.abs),
    builtins.abs: _unary(aten.abs),
    operator.iadd: _inplace(aten.add_),
    operator.isub: _inplace(aten.sub_),
    operator.imul: _inplace(aten.mul_),
    operator.itruediv: _inplace(aten.div_),
    operator.ifloordiv: _inplace(aten.floor_divide_),
    operator.imod: _inplace(aten.remainder_),
    operator.ipow: _inplace(aten.pow_),
    operator.iand: _inplace(aten.bitwise_and_),
    operator.ior: _inplace(aten.bitwise_or_),
    operator.ixor: _inplace(aten.bitwise_xor_),
    operator.ilshift: _inplace(aten.__ilshift__),
    operator.irshift: _inplace(aten.__irshift__),
    operator.getitem: _getitem,
    operator.setitem: _setitem,
    builtins.getattr: _getattr,
}


# ------------------------------------------------------------------------------------------------ tensors' methods


def _to(self: Any, *args: Any, **kwargs: Any) -> Spelled:
    """`Tensor.to` in its three forms: a dtype, a device (and a dtype), another tensor."""
    options = dict(kwargs)
    rest = list(args)
    if rest and (isinstance(rest[0], (torch.device, str, int)) or rest[0] is None):
        options["device"] = rest.pop(0)
        if rest and (isinstance(rest[0], torch.dtype) or rest[0] is None):
            options["dtype"] = rest.pop(0)
    elif rest and isinstance(rest[0], torch.dtype):
        options["dtype"] = rest.pop(0)
    elif rest and _is_tensor(rest[0]):
        return aten.to, (self, rest[0], *rest[1:]), options
    options.update(zip(("non_blocking", "copy"), rest, strict=False))
    if len(rest) > 2:
        return "too many arguments"
    if isinstance(options.get("device"), int):
        return "a device by its number depends on the machine's accelerator"
    if isinstance(options.get("device"), str):
        options["device"] = torch.device(options["device"])
    return aten.to, (self,), {k: v for k, v in options.items() if v is not None}


def _cast(dtype: torch.dtype) -> Adapter:
    return lambda self, memory_format=None: (aten.to, (self, dtype), {"memory_format": memory_format})


def _cpu(self: Any, memory_format: torch.memory_format | None = None) -> Spelled:
    return aten.to, (self,), {"device": torch.device("cpu"), "memory_format": memory_format}


def _special_methods() -> dict[str, Adapter]:
    """What Python calls for its operators: `__add__`, `__radd__`, `__iadd__` and their like."""
    plain = {f"__{function.__name__.strip('_')}__": adapter for function, adapter in _OPERATORS.items()}
    reflected = {f"__r{function.__name__.strip('_')}__": _reflect(*forms) for function, forms in _BINARY.items()}
    return {name: adapter for name, adapter in {**plain, **reflected}.items() if hasattr(torch.Tensor, name)}


def _split(tensor: Any, split_size_or_sections: Any, dim: int = 0) -> Spelled:
    return aten.split, (tensor, split_size_or_sections, dim), {}


def _split_method(self: Any, split_size: Any, dim: int = 0) -> Spelled:
    return aten.split, (self, split_size, dim), {}


def _unflatten(self: Any, dim: int, sizes: Any) -> Spelled:
    return aten.unflatten, (self, dim, sizes), {}


_METHODS: dict[str, Adapter] = {
    **_special_methods(),
    "to": _to,
    "split": _split_method,
    "unflatten": _unflatten,
    "float": _cast(torch.float32),
    "double": _cast(torch.float64),
    "half": _cast(torch.float16),
    "bfloat16": _cast(torch.bfloat16),
    "bool": _cast(torch.bool),
    "int": _cast(torch.int32),
    "long": _cast(torch.int64),
    "short": _cast(torch.int16),
    "char": _cast(torch.int8),
    "byte": _cast(torch.uint8),
    "cfloat": _cast(torch.complex64),
    "cdouble": _cast(torch.complex128),
    "cpu": _cpu,
}


# --------------------------------------------------------------------------------------- torch.nn.functional, torch


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
                return "too many arguments"
            return plain(input, *args_, inplace=inplace, **kwargs)
        return plain(input, **dict(zip(params, args, strict=False)), **kwargs)

    return adapter


def _dropout(name: str, *, active: bool) -> Adapter:
    def adapter(input: Any, p: float = 0.5, training: bool = active, inplace: bool = False) -> Spelled:
        return getattr(aten, name + "_" if inplace else name), (input, p, training), {}

    return adapter


def _rrelu(
    input: Any, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Spelled:
    return aten.rrelu_ if inplace else aten.rrelu, (input, lower, upper, training), {}


def _softmax(packet: OpOverloadPacket) -> Adapter:
    def adapter(input: Any, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Spelled:
        if dim is None:
            return "softmax without dim picks one by the rank, and warns"
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
        return "embedding with max_norm writes its weight"
    if padding_idx is not None and padding_idx < 0:
        return "a negative padding_idx counts from the end of the weight"
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
        return "a deprecated spelling of the reduction"
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
            return "pooling with indices is another operator"
        return packet, (input, kernel_size, [] if stride is None else stride, padding, dilation, ceil_mode), {}

    return adapter


def _adaptive_pool(packet: OpOverloadPacket) -> Adapter:
    def adapter(input: Any, output_size: Any) -> Spelled:
        if output_size is None or (isinstance(output_size, (list, tuple)) and None in output_size):
            return "an output size of None is the input's, to be read from its shape"
        return packet, (input, output_size), {}

    return adapter


def _einsum(equation: Any, *operands: Any) -> Spelled:
    if not isinstance(equation, str):
        return "einsum in its sublist form"
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if len(operands) > 2:
        return "einsum of more than two operands chooses an order of contraction"
    return aten.einsum, (equation, list(operands)), {}


def _packed(packet: OpOverloadPacket) -> Adapter:
    """A function of any number of tensors, whose operator takes them as a list."""

    def adapter(*tensors: Any) -> Spelled:
        flat = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)) else tensors
        return packet, (list(flat),), {}

    return adapter


@functools.cache
def _functions() -> dict[Any, Adapter]:
    """The adapters of functions written in Python, by the function; what this torch lacks is left out."""
    functional: dict[str, Adapter] = {
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
    plain: dict[str, Adapter] = {
        "split": _split,
        "einsum": _einsum,
        "broadcast_tensors": _packed(aten.broadcast_tensors),
        "block_diag": _packed(aten.block_diag),
        "cartesian_prod": _packed(aten.cartesian_prod),
    }
    found: dict[Any, Adapter] = {}
    for home, table in ((F, functional), (torch, plain)):
        for name, adapter in table.items():
            function = getattr(home, name, None)
            if function is not None and packet_of(function) is None:
                found[function] = adapter
    methods = {getattr(torch.Tensor, name): adapter for name, adapter in _METHODS.items()}
    return {**_OPERATORS, **found, **methods}
