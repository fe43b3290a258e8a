"""The steps of a compiled pattern: each checks one place of a graph, and says why it fails.

Steps are values: two patterns that begin with equal steps share them. A step that finds something stores it in the
next slot; `outcomes` has all that it could be, in the order in which they are tried.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph.values.meta import tensor_of, value_of
from eductor.patterns.compile.forms import Place
from eductor.patterns.language.pattern import Tolerance, target_name
from eductor.patterns.match.call_reading import MISSING, Inverse, Reading, Signature
from eductor.patterns.match.constants import argument, name_of, nearly, plain, same_constant, shown, unlike
from eductor.patterns.match.node_readings import Readings

aten = torch.ops.aten
Slots = list[Any]
Tolerated = frozenset[Tolerance]
_NOTHING: Tolerated = frozenset()
TESTED: tuple[Any, ...] = (None,)
NO: tuple[Any, ...] = ()


class Step(Protocol):
    """One test. `why` says in words why there is no outcome, and of which node that is."""

    stores: bool

    @property
    def slot(self) -> int:
        """Where that lies which it looks at."""
        ...

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]: ...

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]: ...


@dataclass(frozen=True, slots=True)
class Enter:
    """The argument is a call of one of the keys."""

    slot: int
    place: Place
    keys: tuple[Any, ...]
    overloads: frozenset[OpOverload] | None
    tolerated: Tolerated
    stores = True

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        found: list[Reading] = []
        for inner, passed in readings.beneath(value, self.tolerated):
            for reading in fitting(readings.matching(inner, self.keys, self.tolerated), self.overloads):
                found.append(replace(reading, through=(*reading.through, *passed)) if passed else reading)
        return found

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        reading: Reading = slots[self.slot]
        value = argument(reading, self.place)
        name = name_of(reading, self.place)
        wanted = called(self.keys, self.overloads)
        if isinstance(value, Inverse):
            value = value.node
        if not isinstance(value, Node):
            return f"{name} is {shown(value)}, the pattern wants {wanted}", reading.node
        if self.keys == (aten.square,) and (powers := readings.matching(value, (aten.pow,), self.tolerated)):
            return f"exponent is {shown(powers[0].values[1])}, the pattern wants 2", value
        # Nothing is wrong with an input: the call that has it as its operand is not what the pattern wants.
        place = reading.node if value.op in ("placeholder", "get_attr") else value
        return f"{name} is {described(readings, value, self.overloads)}, the pattern wants {wanted}", place


@dataclass(frozen=True, slots=True)
class Climb:
    """A user of what was found is a call of one of the keys, with it in this place."""

    slot: int
    place: Place
    keys: tuple[Any, ...]
    overloads: frozenset[OpOverload] | None
    tolerated: Tolerated
    stores = True

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        base = slots[self.slot]
        target = base.identity if isinstance(base, Reading) else base
        start = target.node if isinstance(target, Inverse) else target
        found: list[Reading] = []
        for at, passed in readings.above(start, self.tolerated):
            for user in at.users:
                for value in (user, Inverse(user)) if self.tolerated else (user,):
                    for r in fitting(readings.matching(value, self.keys, self.tolerated), self.overloads):
                        given = argument(r, self.place)
                        if given == target or (given is at and target is start):
                            new = tuple(n for n in passed if n not in r.through)
                            found.append(replace(r, through=(*r.through, *new)) if new else r)
        return found

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        base = slots[self.slot]
        node = base.node if isinstance(base, (Reading, Inverse)) else base
        wanted = called(self.keys, self.overloads)
        taken = {found.node for found in slots if isinstance(found, Reading)}
        others = [user for user in node.users if user not in taken]
        for user in others:
            for reading in fitting(readings.matching(user, self.keys, self.tolerated), self.overloads):
                name = name_of(reading, self.place)
                has = shown(argument(reading, self.place))
                return f"{name} of {user.name} is {has}, the pattern wants {node.name} there", user
        if not node.users:
            return f"{node.name} is used by nobody, the pattern wants {wanted} to use it", node
        users = [described(readings, u, self.overloads) for u in node.users]
        more = f" and {len(users) - 3} more" if len(users) > 3 else ""
        place = others[0] if len(others) == 1 and others[0].op != "output" else node
        return f"{node.name} is used by {', '.join(users[:3])}{more}, the pattern wants {wanted} to use it", place


@dataclass(frozen=True, slots=True)
class Closed:
    """Every argument that the pattern does not mention has its default."""

    slot: int
    mentioned: frozenset[int | str]
    casts: bool
    """Whether a `dtype=` that converts to another floating dtype does not count."""
    stores = False

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        return NO if self._unlike(slots[self.slot]) else TESTED

    def _unlike(self, reading: Reading) -> str:
        places = _unmentioned(reading.signature, self.mentioned)
        if isinstance(places, str):
            return places
        for i, default in places:
            got = plain(reading.values[i])
            if self.casts and default is None and isinstance(got, torch.dtype) and got.is_floating_point:
                continue
            if default is MISSING or not same_constant(got, default, mixed=True):
                name = reading.signature.names[i]
                usual = "" if default is MISSING else f" (the default is {shown(default)})"
                return f"{name} is {shown(reading.values[i])}{usual}, which the pattern does not mention"
        return ""

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        return self._unlike(slots[self.slot]), slots[self.slot].node


@functools.lru_cache(maxsize=1 << 12)
def _unmentioned(signature: Signature, mentioned: frozenset[int | str]) -> tuple[tuple[int, Any], ...] | str:
    found = {signature.index(place): place for place in mentioned}
    if -1 in found:
        given = found[-1]
        return f"it has no argument {given!r}" if isinstance(given, str) else f"it has fewer than {given + 1} arguments"
    return tuple((i, default) for i, default in enumerate(signature.defaults) if i not in found)


@dataclass(frozen=True, slots=True)
class Constant:
    """The argument is this constant."""

    slot: int
    place: Place
    value: _Exact
    near: bool
    """Whether the last bit counts: an inverse may have another one."""
    stores = False

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        return NO if unlike(slots[self.slot], self.place, self.value.value, near=self.near) else TESTED

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        return unlike(slots[self.slot], self.place, self.value.value, near=self.near), slots[self.slot].node


@dataclass(frozen=True, slots=True)
class _Exact:
    """A constant that equals another one only if both have one type and sign, so that steps are not shared wrongly."""

    value: Any
    key: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Exact) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def exact(value: Any) -> _Exact:
    return _Exact(value, f"{type(value).__name__} {value!r}")


@dataclass(frozen=True, slots=True)
class Take:
    """The argument is a tensor, or with `anything` whatever it is; it gets a name."""

    slot: int
    place: Place
    kind: str
    anything: bool
    tolerated: Tolerated
    stores = True

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        if self.anything:
            return NO if value is MISSING or isinstance(value, Inverse) else (value,)
        if not isinstance(value, Node):
            return NO
        plain = readings.innermost(value, _NOTHING)
        if not self.tolerated:
            return (plain,) if self._fits(plain) else NO
        # The operand of the casts is what the author means; their result, if the operand would round too much.
        return [v for v in dict.fromkeys((readings.innermost(value, self.tolerated), plain)) if self._fits(v)]

    def _fits(self, value: Any) -> bool:
        tensor = value_of(value) if isinstance(value, Node) else None
        return isinstance(tensor, torch.Tensor) and (not self.kind or self.kind == kind_of(tensor))

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        reading: Reading = slots[self.slot]
        value = argument(reading, self.place)
        name = name_of(reading, self.place)
        tensor = tensor_of(value) if isinstance(value, Node) else None
        if tensor is not None:
            return f"{name} is a tensor of {tensor.dtype}, the pattern wants {self.kind} elements", value
        return f"{name} is {shown(value)}, the pattern wants a tensor", reading.node


def kind_of(tensor: torch.Tensor) -> str:
    """What the elements of a tensor are, as far as patterns tell them apart."""
    if tensor.dtype is torch.bool:
        return "bool"
    return "float" if tensor.dtype.is_floating_point else "complex" if tensor.dtype.is_complex else "int"


@dataclass(frozen=True, slots=True)
class Free:
    """The argument is a constant or a size; it gets a name."""

    slot: int
    place: Place
    stores = True

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        return NO if value is MISSING or isinstance(value, Inverse) or _has_tensors(value) else (value,)

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        reading: Reading = slots[self.slot]
        value = argument(reading, self.place)
        return f"{name_of(reading, self.place)} is {shown(value)}, the pattern wants a constant", reading.node


@dataclass(frozen=True, slots=True)
class Same:
    """The argument is what was found before."""

    slot: int
    place: Place
    other: int
    tolerated: Tolerated
    stores = False

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value, other = argument(slots[self.slot], self.place), slots[self.other]
        wanted = other.identity if isinstance(other, Reading) else other
        if not isinstance(wanted, Inverse) and not _has_tensors(wanted):
            if _has_tensors(value) or isinstance(value, Inverse):
                return NO
            return TESTED if same_constant(plain(value), plain(wanted)) or nearly(value, wanted) else NO
        return TESTED if any(v == wanted for v, _ in readings.beneath(value, self.tolerated)) else NO

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        reading, other = slots[self.slot], slots[self.other]
        wanted = other.node.name if isinstance(other, Reading) else shown(other)
        value = argument(reading, self.place)
        return (
            f"{name_of(reading, self.place)} is {shown(value)}, the pattern wants {wanted} here as well",
            reading.node,
        )


@dataclass(frozen=True, slots=True)
class Length:
    """The argument is a list of so many elements."""

    slot: int
    place: Place
    count: int
    stores = False

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        return TESTED if isinstance(value, (list, tuple)) and len(value) == self.count else NO

    def why(self, readings: Readings, slots: Slots) -> tuple[str, Node | None]:
        reading = slots[self.slot]
        value = argument(reading, self.place)
        many = f"a list of {len(value)}" if isinstance(value, (list, tuple)) else shown(value)
        return f"{name_of(reading, self.place)} is {many}, the pattern wants a list of {self.count}", reading.node


def fitting(found: list[Reading], overloads: frozenset[OpOverload] | None) -> list[Reading]:
    """Those of the wanted overloads; a reading in another spelling stands for all of them."""
    return found if overloads is None else [r for r in found if r.op is None or r.op in overloads]


def called(keys: tuple[Any, ...], overloads: frozenset[OpOverload] | None) -> str:
    """What a pattern looks for, in words."""
    return " or ".join(sorted(map(target_name, overloads)) if overloads else map(target_name, keys))


def described(readings: Readings, node: Node, overloads: frozenset[OpOverload] | None = None) -> str:
    """A node with what it calls, to the overload where these are told apart: `the input x`, `aten.mul (mul_3)`."""
    if node.op == "output":
        return "the output of the graph"
    if node.op in ("placeholder", "get_attr"):
        return f"the {'input' if node.op == 'placeholder' else 'attribute'} {node.name}"
    plainest = readings.of(node)[0] if readings.of(node) else None
    key = plainest.key if plainest is not None else node.target
    is_another = plainest is not None and any(key is o.overloadpacket for o in overloads or ())
    return f"{target_name(node.target if is_another else key)} ({node.name})"


def _has_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_tensors(v) for v in value)
    return isinstance(value, Node) and not isinstance(
        value_of(value), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)
    )
