"""Operator schemas as plain Python facts: parameters, kinds of values, which value fits which parameter."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from eductor.compat import OpOverload, OpOverloadPacket
from eductor.graph.meta import UNKNOWN, value_of

# Where eager's argument parser takes a Python number for a tensor (and an ATen graph shows it so).
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
    aliased: bool

    def coerce(self, value: Any) -> Any:
        """A single integer where a list is wanted stands for the whole list."""
        if (
            self.kind.startswith("List[")
            and value is not None
            and not isinstance(value, (list, tuple))
            and self.broadcast
        ):
            return [value] * self.broadcast
        return value


@functools.cache
def parameters(op: OpOverload) -> tuple[Parameter, ...]:
    """The parameters of an overload, in the order of its schema."""
    found = []
    for a in op._schema.arguments:
        kind = str(a.real_type)
        optional = kind.startswith("Optional[")
        found.append(
            Parameter(
                name=a.name,
                kind=kind[len("Optional[") : -1] if optional else kind,
                optional=optional,
                keyword_only=a.kwarg_only,
                has_default=a.has_default_value(),
                default=a.default_value if a.has_default_value() else None,
                broadcast=a.N,  # type: ignore[attr-defined]
                written=a.alias_info is not None and a.alias_info.is_write,
                aliased=a.alias_info is not None and not a.alias_info.is_write,
            )
        )
    return tuple(found)


@functools.cache
def candidates(packet: OpOverloadPacket) -> tuple[OpOverload, ...]:
    """The overloads that a Torch-level call can mean: those on tensors, without an `out` of the caller's."""
    overloads = (getattr(packet, name) for name in packet.overloads())
    return tuple(op for op in overloads if _is_readable(op))


def _is_readable(op: OpOverload) -> bool:
    params = parameters(op)
    if any(p.written and p.keyword_only for p in params) or any(_element(p.kind) not in _ACCEPTED for p in params):
        return False
    return any("Tensor" in p.kind for p in params) or any("Tensor" in str(r.real_type) for r in op._schema.returns)


def _element(kind: str) -> str:
    """`List[Optional[Tensor]]` is about `Tensor`."""
    for wrapper in ("List[", "Optional["):
        kind = kind[len(wrapper) : -1] if kind.startswith(wrapper) else kind
    return kind


def code_of(value: Any) -> str:
    """A short name of the kind of a value, as far as overloads are told apart by it."""
    if isinstance(value, torch.Tensor):
        return "T"
    if value is None:
        return "N"
    if isinstance(value, (bool, torch.SymBool)):
        return "b"
    if isinstance(value, (int, torch.SymInt)):
        return "i"
    if isinstance(value, (float, torch.SymFloat)):
        return "f"
    if isinstance(value, (list, tuple)):
        return "[" + "".join(sorted({code_of(value_of(v)) for v in value})) + "]"
    if value is UNKNOWN:
        return "?"
    return next((code for kind, code in _CODES if isinstance(value, kind)), "x")


_CODES: tuple[tuple[type, str], ...] = (
    (complex, "c"),
    (str, "s"),
    (torch.dtype, "d"),
    (torch.layout, "l"),
    (torch.memory_format, "m"),
    (torch.device, "D"),
    (torch.Generator, "G"),
)

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
    """Whether a value of this kind may be given for the parameter, as eager's argument parser would take it."""
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


def _accepts_element(element: str, code: str) -> bool:
    if element.startswith("Optional["):
        return code == "N" or _accepts_element(element[len("Optional[") : -1], code)
    return code == "?" or code in _ACCEPTED.get(element, frozenset())
