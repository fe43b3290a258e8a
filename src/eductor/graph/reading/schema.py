"""Operator schemas as plain Python: parameters, kinds of values, which value a parameter accepts."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from eductor.compat import FakeTensor, OpOverload, OpOverloadPacket, is_dispatched
from eductor.graph.values.meta import UNKNOWN, value_of

# Operators for which eager's argument parser accepts a Python number as a tensor (and ATen graphs show it so).
NUMBERS_AS_TENSORS = frozenset(
    f"aten::{name}{suffix}"
    for name in ("add", "sub", "mul", "div", "true_divide", "floor_divide", "multiply", "subtract", "divide")
    for suffix in ("", "_")
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator's schema."""

    name: str
    kind: str
    optional: bool
    keyword_only: bool
    has_default: bool
    default: Any
    broadcast: int | None
    written: bool
    shared: bool


NUMBERS = ("i", "f", "b", "c")
"""The kinds of values that are single numbers."""


@functools.cache
def parameters(op: OpOverload) -> tuple[Parameter, ...]:
    """The parameters of an overload, in the order of its schema."""
    found = []
    for a in op._schema.arguments:
        kind = str(a.real_type)
        optional = kind.startswith("Optional[")
        kind = kind[len("Optional[") : -1] if optional else kind
        default = a.default_value if a.has_default_value() else None
        found.append(
            Parameter(
                name=a.name,
                kind=kind,
                optional=optional,
                keyword_only=a.kwarg_only,
                has_default=a.has_default_value(),
                default=_DEFAULTS.get((kind, default), default) if isinstance(default, int) else default,
                broadcast=a.N,  # type: ignore[attr-defined]
                written=a.alias_info is not None and a.alias_info.is_write,
                shared=a.alias_info is not None and (not a.alias_info.is_write or _is_returned(op, a.alias_info)),
            )
        )
    return tuple(found)


# A schema gives these defaults as their C++ enum values.
_DEFAULTS: dict[tuple[str, int], Any] = {
    ("ScalarType", 4): torch.int64,
    ("MemoryFormat", 0): torch.contiguous_format,
}


def _is_returned(op: OpOverload, alias: Any) -> bool:
    """Whether a written argument is also returned: training batch norm writes its statistics and returns a new tensor.

    A list names no aliases, and an operator whose schema returns nothing may return its argument in Python.
    """
    returned = [r.alias_info for r in op._schema.returns]
    named = all(r is None or r.before_set for r in returned) and bool(alias.before_set)
    return not returned or not named or any(r is not None and r.before_set & alias.before_set for r in returned)


@functools.cache
def candidates(packet: OpOverloadPacket) -> tuple[OpOverload, ...]:
    """The overloads that a Torch-level call can mean: those of eager without an `out` argument."""
    overloads = (getattr(packet, name) for name in packet.overloads())
    return tuple(op for op in overloads if _is_readable(op))


def _is_readable(op: OpOverload) -> bool:
    params = parameters(op)
    if any(p.written and p.keyword_only for p in params) or any(_element(p.kind) not in _ACCEPTED for p in params):
        return False
    return is_dispatched(op)


def _element(kind: str) -> str:
    """`List[Optional[Tensor]]` is about `Tensor`."""
    for wrapper in ("List[", "Optional["):
        kind = kind[len(wrapper) : -1] if kind.startswith(wrapper) else kind
    return kind


def code_of(value: Any) -> str:
    """A short code for the kind of a value, as far as overload resolution distinguishes kinds."""
    code = _CODES.get(type(value))
    if code is not None:
        return code
    if isinstance(value, (list, tuple)):
        return "[" + "".join(sorted({code_of(value_of(v)) for v in value})) + "]"
    if value is UNKNOWN:
        return "?"
    return next((code for kind, code in _CODES.items() if isinstance(value, kind)), "x")


_CODES: dict[type, str] = {
    FakeTensor: "T",
    torch.Tensor: "T",
    type(None): "N",
    bool: "b",
    torch.SymBool: "b",
    int: "i",
    torch.SymInt: "i",
    float: "f",
    torch.SymFloat: "f",
    complex: "c",
    str: "s",
    torch.dtype: "d",
    torch.layout: "l",
    torch.memory_format: "m",
    torch.device: "D",
    torch.Generator: "G",
}
"""Looked up by exact type first, which is one lookup; then by `isinstance`, in this order."""

_ACCEPTED: dict[str, frozenset[str]] = {
    "Tensor": frozenset("T"),
    "number": frozenset("ifbc"),
    "int": frozenset("i"),
    "float": frozenset("fi"),
    "bool": frozenset("b"),
    "complex": frozenset("cfi"),
    "str": frozenset("s"),
    "ScalarType": frozenset("d"),
    "Layout": frozenset("l"),
    "MemoryFormat": frozenset("m"),
    "Device": frozenset("Ds"),
    "Generator": frozenset("G"),
}


def accepts(op: OpOverload, p: Parameter, code: str) -> bool:
    """Whether eager's argument parser accepts a value of this kind for the parameter."""
    if code == "?":
        return True
    if code == "N":
        return p.optional
    if p.kind.startswith("List["):
        element = p.kind[len("List[") : -1]
        if code.startswith("["):
            return all(_accepts_element(element, c) for c in code[1:-1])
        return p.broadcast is not None and _accepts_element(element, code)
    if p.kind == "Tensor" and code in "ifbc":
        return op._schema.name in NUMBERS_AS_TENSORS
    return code in _ACCEPTED.get(p.kind, frozenset())


def never_takes(p: Parameter, code: str) -> bool:
    """Whether even a direct call of the overload refuses a value of this kind; it converts more than eager's parser."""
    is_list = p.kind.startswith("List[")
    if code == "N":  # an undefined tensor, as gradients of attention take for masks
        return not p.optional and (is_list or p.kind in _ACCEPTED) and p.kind not in ("bool", "Tensor")
    if not is_list:
        return (code.startswith("[") and p.kind in _ACCEPTED) or _is_never(p.kind, code)
    if not code.startswith("["):
        return code in "sdlmDG" or (code in "Tifbc" and p.broadcast is None)
    element = p.kind[len("List[") : -1]
    kind = _element(element)
    return any(_is_never(kind, c) or (c == "N" and kind == element) for c in code[1:-1])


def _is_never(kind: str, code: str) -> bool:
    """Numbers, dtypes, layouts and memory formats are converted to each other, and tensors to numbers."""
    refused = "sdlmDG" if kind == "Tensor" else "sDG"
    return code in refused and code not in _ACCEPTED.get(kind, refused)


def _accepts_element(element: str, code: str) -> bool:
    if element.startswith("Optional["):
        return code == "N" or _accepts_element(element[len("Optional[") : -1], code)
    return code == "?" or code in _ACCEPTED.get(element, frozenset())
