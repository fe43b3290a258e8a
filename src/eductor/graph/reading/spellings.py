"""Torch-level names of operators: the ATen operator that a function, a method or a Python operator calls.

Builtin functions and methods have the name of their operator. What is written in Python (`torch.nn.functional`,
`operator`) has an adapter here: a function with the same signature that returns the operator and its arguments, or
why the call is not one operator.
"""

from __future__ import annotations

import builtins
import functools
import operator
from collections.abc import Container
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from eductor.compat import TENSOR_BASE, HigherOrderOperator, OpOverload, OpOverloadPacket, operator_bindings
from eductor.graph.no import No
from eductor.graph.reading.functional_spellings import FUNCTIONAL, PLAIN, Adapter, Spelled
from eductor.graph.reading.schema import parameters
from eductor.graph.values.meta import value_of

aten = torch.ops.aten

Reflected = OpOverloadPacket | No | None

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

# Numpy's names of arguments, and `input`, which functions use for the schema's `self`.
KEYWORDS: dict[str, tuple[str, ...]] = {
    "axis": ("dim",),
    "keepdims": ("keepdim",),
    "x2": ("other",),
    "input": ("self",),
    "x": ("self", "input"),
    "a": ("self", "input"),
    "x1": ("self", "input"),
}


def keyword(name: str, known: Container[str]) -> str:
    """The schema's name of an argument, for one of its other spellings."""
    return next((k for k in KEYWORDS.get(name, ()) if k in known), name)


@functools.cache
def canonical(packet: OpOverloadPacket) -> OpOverloadPacket:
    """The canonical operator of a synonym."""
    namespace, _, name = packet._qualified_op_name.partition("::")
    if namespace != "aten":
        return packet
    inplace = "_" if name.endswith("_") and not name.endswith("__") else ""
    synonym = SYNONYMS.get(name.removesuffix("_") if inplace else name)
    return getattr(aten, synonym + inplace, packet) if synonym else packet


@functools.cache
def canonical_overload(op: OpOverload) -> OpOverload:
    """The overload of the canonical operator with the same parameters as a synonym's overload."""
    packet = canonical(op.overloadpacket)
    if packet is op.overloadpacket:
        return op
    kinds = [(p.kind, p.keyword_only) for p in parameters(op)]
    overloads = (getattr(packet, name) for name in packet.overloads())
    return next((o for o in overloads if [(p.kind, p.keyword_only) for p in parameters(o)] == kinds), op)


def name_of(target: Any) -> str:
    """The readable name of a target."""
    if isinstance(target, str):
        return f"Tensor.{target}"
    module = getattr(target, "__module__", None)
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
    return f"{module}.{name}" if module else str(name)


def packet_of(target: Any) -> OpOverloadPacket | None:
    """The operator of the same name as a builtin function or tensor method."""
    if isinstance(target, str):
        found = getattr(torch.Tensor, target, None)
        return _packet(target) if callable(found) and not isinstance(found, FunctionType) else None
    if isinstance(target, HigherOrderOperator):
        return None
    name = getattr(target, "__name__", "")
    if isinstance(target, BuiltinFunctionType) and target in _builtins():
        return _packet(name)
    return packet_of(name) if is_method(target) else None


def function_of(packet: OpOverloadPacket) -> Any:
    """The function of `torch` that is a binding of an operator; None if it has none."""
    function = getattr(torch, packet._qualified_op_name.removeprefix("aten::"), None)
    return function if function is not None and packet_of(function) is packet else None


def is_method(target: Any) -> bool:
    """Whether a target is a tensor method, so that its first argument is the receiver."""
    return isinstance(target, str) or getattr(target, "__objclass__", None) is TENSOR_BASE


def _packet(name: str) -> OpOverloadPacket | None:
    packet = getattr(aten, name, None)
    return packet if isinstance(packet, OpOverloadPacket) else None


@functools.cache
def _builtins() -> frozenset[Any]:
    """Every builtin function that is a binding of an operator of its own name."""
    found = (getattr(home, name) for home in operator_bindings() for name in dir(home))
    return frozenset(f for f in found if isinstance(f, BuiltinFunctionType))


def adapter_of(target: Any) -> Adapter | None:
    """The adapter of a target, if reading it takes more than its operator's name."""
    if isinstance(target, str):
        return _METHODS.get(target)
    try:
        return _functions().get(target)
    except TypeError:
        return None


# ---------------------------------------------------------------------------------------------- Python's operators


def _is_tensor(value: Any) -> bool:
    return isinstance(value_of(value), torch.Tensor)


_SIZES = No("arithmetic on sizes, not an operator on tensors")


def _binary(packet: OpOverloadPacket, reflected: Reflected = None) -> Adapter:
    """`a + b`, where `a` may be a number: then Python calls the tensor's reflected operator."""
    reflect = _reflect(packet, reflected)

    def adapter(a: Any, b: Any, /) -> Spelled:
        if _is_tensor(a):
            return packet, (a, b), {}
        return reflect(b, a) if _is_tensor(b) else _SIZES

    return adapter


def _reflect(packet: OpOverloadPacket, reflected: Reflected) -> Adapter:
    """`x.__rsub__(2)`: a separate operator, the operator with its operands swapped, or why it is neither."""

    def adapter(self: Any, other: Any, /) -> Spelled:
        if isinstance(reflected, No):
            return reflected
        return (packet, (other, self), {}) if reflected is None else (reflected, (self, other), {})

    return adapter


def _unary(packet: OpOverloadPacket) -> Adapter:
    return lambda a, /: (packet, (a,), {}) if _is_tensor(a) else _SIZES


def _inplace(packet: OpOverloadPacket) -> Adapter:
    return lambda a, b, /: (packet, (a, b), {}) if _is_tensor(a) else _SIZES


def _getitem(a: Any, index: Any, /) -> Spelled:
    if not _is_tensor(a):
        return No("picks an element of a sequence, not an operator on tensors")
    if isinstance(index, slice):
        return aten.slice, (a, 0, index.start, index.stop, 1 if index.step is None else index.step), {}
    if index is None:
        return aten.unsqueeze, (a, 0), {}
    number = value_of(index)
    if isinstance(number, (int, torch.SymInt)) and not isinstance(number, bool):
        return aten.select, (a, 0, index), {}
    return No("an index of several parts is a chain of operators")


def _setitem(a: Any, index: Any, value: Any, /) -> Spelled:
    return No("an assignment to an index writes its tensor through a chain of views")


def _getattr(a: Any, name: str, /) -> Spelled:
    if not _is_tensor(a):
        return No("an attribute of something that is not a tensor")
    known = {"T": aten.numpy_T, "mT": aten.mT, "H": aten.matrix_H, "mH": aten.mH, "real": aten.real, "imag": aten.imag}
    return (known[name], (a,), {}) if name in known else No(f"the attribute {name!r} is not an operator")


_BINARY: dict[Any, tuple[OpOverloadPacket, Reflected]] = {
    operator.add: (aten.add, aten.add),
    operator.sub: (aten.sub, aten.rsub),
    operator.mul: (aten.mul, aten.mul),
    operator.truediv: (aten.div, No("a number divided by a tensor is a reciprocal and a product")),
    operator.floordiv: (aten.floor_divide, No("a number floor-divided by a tensor is several operators")),
    operator.mod: (aten.remainder, None),
    operator.pow: (aten.pow, None),
    operator.matmul: (aten.matmul, None),
    operator.and_: (aten.bitwise_and, aten.bitwise_and),
    operator.or_: (aten.bitwise_or, aten.bitwise_or),
    operator.xor: (aten.bitwise_xor, aten.bitwise_xor),
    operator.lshift: (aten.__lshift__, No("a number shifted by a tensor is not one operator")),
    operator.rshift: (aten.__rshift__, No("a number shifted by a tensor is not one operator")),
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
        return No("too many arguments")
    if isinstance(options.get("device"), int):
        return No("a device index depends on the machine's accelerator")
    if isinstance(options.get("device"), str):
        options["device"] = torch.device(options["device"])
    return aten.to, (self,), {k: v for k, v in options.items() if v is not None}


def _cast(dtype: torch.dtype) -> Adapter:
    return lambda self, memory_format=None: (aten.to, (self, dtype), {"memory_format": memory_format})


def _cpu(self: Any, memory_format: torch.memory_format | None = None) -> Spelled:
    return aten.to, (self,), {"device": torch.device("cpu"), "memory_format": memory_format}


def _type(self: Any, dtype: Any = None, non_blocking: bool = False) -> Spelled:
    if not isinstance(dtype, torch.dtype):
        return No("the call returns the type, or gets it by name")
    return aten.to, (self, dtype, non_blocking), {}


def _special_methods() -> dict[str, Adapter]:
    """The special methods of Python's operators: `__add__`, `__radd__`, `__iadd__` and so on."""
    plain = {f"__{function.__name__.strip('_')}__": adapter for function, adapter in _OPERATORS.items()}
    reflected = {f"__r{function.__name__.strip('_')}__": _reflect(*forms) for function, forms in _BINARY.items()}
    return {name: adapter for name, adapter in {**plain, **reflected}.items() if hasattr(torch.Tensor, name)}


def _split_method(self: Any, split_size: Any, dim: int = 0) -> Spelled:
    return aten.split, (self, split_size, dim), {}


def _unflatten(self: Any, dim: int, sizes: Any) -> Spelled:
    return aten.unflatten, (self, dim, sizes), {}


_METHODS: dict[str, Adapter] = {
    **_special_methods(),
    "to": _to,
    "type": _type,
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


@functools.cache
def _functions() -> dict[Any, Adapter]:
    """The adapters of functions written in Python, by function, without those that this torch lacks."""
    found: dict[Any, Adapter] = {}
    for home, table in ((F, FUNCTIONAL), (torch, PLAIN)):
        for name, adapter in table.items():
            function = getattr(home, name, None)
            if function is not None and packet_of(function) is None:
                found[function] = adapter
    methods = {getattr(torch.Tensor, name): adapter for name, adapter in _METHODS.items()}
    return {**_OPERATORS, **found, **methods}
