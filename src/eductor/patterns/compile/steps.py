"""The steps of a compiled pattern: each checks one place of a graph, and says why it fails.

Steps are values: two patterns that begin with equal steps share them. A step that finds something stores it in the
next slot; `outcomes` has all that it could be, in the order in which they are tried.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch.fx import Node

from eductor.compat import OpOverload
from eductor.graph import No, tensor_of, value_of
from eductor.patterns.compile.forms import Place
from eductor.patterns.language.pattern import Tolerance, target_name
from eductor.patterns.match.call_reading import MISSING, CallParameters, Inverse, Reading
from eductor.patterns.match.constants import argument, has_constant, name_of, nearly, plain, same_constant, shown
from eductor.patterns.match.node_readings import Readings

aten = torch.ops.aten
Slots = list[Any]
Tolerated = frozenset[Tolerance]
_NOTHING: Tolerated = frozenset()
PASSED: tuple[Any, ...] = (None,)
FAILED: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class MatchStep:
    """One test of a call that was found: what else it finds, or why it finds nothing."""

    slot: int
    """The slot of the call that it looks at."""
    stores: ClassVar[bool] = False
    """Whether what it finds gets a slot."""

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        """All that the step can find; of a step that stores nothing, `PASSED` or `FAILED`."""
        return PASSED if self.answer(readings, slots) else FAILED

    def answer(self, readings: Readings, slots: Slots) -> Literal[True] | No:
        """Why there is no outcome, and of which node that is. A step that finds something is asked only then."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class ArgumentStep(MatchStep):
    """A test of one argument of the call."""

    place: Place

    def unlike(self, slots: Slots, wanted: str, has: str | None = None) -> No:
        """The refusal of the argument: it is another one than wanted."""
        reading: Reading = slots[self.slot]
        has = shown(argument(reading, self.place)) if has is None else has
        return No(f"{name_of(reading, self.place)} is {has}, the pattern wants {wanted}", reading.node)


@dataclass(frozen=True, slots=True)
class CallStep(ArgumentStep):
    """Finds a call of one of the keys."""

    keys: tuple[Any, ...]
    overloads: frozenset[OpOverload] | None
    tolerated: Tolerated
    stores: ClassVar[bool] = True

    def calls(self, readings: Readings, value: Any) -> list[Reading]:
        return readings.matching(value, self.keys, self.tolerated, self.overloads)

    @property
    def wanted(self) -> str:
        return called(self.keys, self.overloads)


@dataclass(frozen=True, slots=True)
class Enter(CallStep):
    """The argument is a call of one of the keys."""

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        found: list[Reading] = []
        for inner, passed in readings.beneath(value, self.tolerated):
            for reading in self.calls(readings, inner):
                found.append(replace(reading, through=(*reading.through, *passed)) if passed else reading)
        return found

    def answer(self, readings: Readings, slots: Slots) -> No:
        reading: Reading = slots[self.slot]
        value = argument(reading, self.place)
        if isinstance(value, Inverse):
            value = value.node
        if not isinstance(value, Node):
            return self.unlike(slots, self.wanted)
        if self.keys == (aten.square,) and (powers := readings.matching(value, (aten.pow,), self.tolerated)):
            return No(f"exponent is {shown(powers[0].values[1])}, the pattern wants 2", value)
        unlike = self.unlike(slots, self.wanted, described(readings, value, self.overloads))
        # Nothing is wrong with an input: the call that has it as its operand is not what the pattern wants.
        return unlike if value.op in ("placeholder", "get_attr") else No(unlike.reason, value)


@dataclass(frozen=True, slots=True)
class Climb(CallStep):
    """A user of what was found is a call of one of the keys, with it in this place."""

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        base = slots[self.slot]
        target = base.identity if isinstance(base, Reading) else base
        start = target.node if isinstance(target, Inverse) else target
        found: list[Reading] = []
        for at, passed in readings.above(start, self.tolerated):
            for user in at.users:
                for value in (user, Inverse(user)) if self.tolerated else (user,):
                    for r in self.calls(readings, value):
                        given = argument(r, self.place)
                        if given == target or (given is at and target is start):
                            new = tuple(n for n in passed if n not in r.through)
                            found.append(replace(r, through=(*r.through, *new)) if new else r)
        return found

    def answer(self, readings: Readings, slots: Slots) -> No:
        base = slots[self.slot]
        node = base.node if isinstance(base, (Reading, Inverse)) else base
        taken = {found.node for found in slots if isinstance(found, Reading)}
        others = [user for user in node.users if user not in taken]
        for user in others:
            for reading in self.calls(readings, user):
                has = f"{name_of(reading, self.place)} of {user.name} is {shown(argument(reading, self.place))}"
                return No(f"{has}, the pattern wants {node.name} there", user)
        if not node.users:
            return No(f"{node.name} is used by nobody, the pattern wants {self.wanted} to use it", node)
        users = [described(readings, u, self.overloads) for u in node.users]
        more = f" and {len(users) - 3} more" if len(users) > 3 else ""
        place = others[0] if len(others) == 1 and others[0].op != "output" else node
        return No(
            f"{node.name} is used by {', '.join(users[:3])}{more}, the pattern wants {self.wanted} to use it", place
        )


@dataclass(frozen=True, slots=True)
class Closed(MatchStep):
    """Every argument that the pattern does not mention has its default."""

    mentioned: frozenset[int | str]
    casts: bool
    """Whether a `dtype=` that converts to another floating dtype does not count."""

    def answer(self, readings: Readings, slots: Slots) -> Literal[True] | No:
        reading: Reading = slots[self.slot]
        places = _unmentioned(reading.parameters, self.mentioned)
        if isinstance(places, No):
            return No(places.reason, reading.node)
        for i, default in places:
            got = plain(reading.values[i])
            if self.casts and default is None and isinstance(got, torch.dtype) and got.is_floating_point:
                continue
            if default is MISSING or not same_constant(got, default, mixed=True):
                has = f"{reading.parameters.names[i]} is {shown(reading.values[i])}"
                usual = "" if default is MISSING else f" (the default is {shown(default)})"
                return No(f"{has}{usual}, which the pattern does not mention", reading.node)
        return True


@functools.lru_cache(maxsize=1 << 12)
def _unmentioned(parameters: CallParameters, mentioned: frozenset[int | str]) -> tuple[tuple[int, Any], ...] | No:
    found = {parameters.index(place): place for place in mentioned}
    if -1 in found:
        given = found[-1]
        return No(
            f"it has no argument {given!r}" if isinstance(given, str) else f"it has fewer than {given + 1} arguments"
        )
    return tuple((i, default) for i, default in enumerate(parameters.defaults) if i not in found)


@dataclass(frozen=True, slots=True)
class Constant(ArgumentStep):
    """The argument is this constant."""

    value: _Exact
    near: bool
    """Whether the last bit counts: an inverse may have another one."""

    def answer(self, readings: Readings, slots: Slots) -> Literal[True] | No:
        return has_constant(slots[self.slot], self.place, self.value.value, near=self.near)


@dataclass(frozen=True, slots=True)
class _Exact:
    """A constant that equals another one only if both have one type and sign, so that steps are not shared wrongly."""

    value: Any = field(compare=False)
    key: str


def exact(value: Any) -> _Exact:
    return _Exact(value, f"{type(value).__name__} {value!r}")


@dataclass(frozen=True, slots=True)
class Take(ArgumentStep):
    """The argument is a tensor, or with `anything` whatever it is; it gets a name."""

    kind: str
    anything: bool
    tolerated: Tolerated
    stores: ClassVar[bool] = True

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        if self.anything:
            return FAILED if value is MISSING or isinstance(value, Inverse) else (value,)
        if not isinstance(value, Node):
            return FAILED
        plain = readings.innermost(value, _NOTHING)
        if not self.tolerated:
            return (plain,) if self._fits(plain) else FAILED
        # The operand of the casts is what the author means; their result, if the operand would round too much.
        return [v for v in dict.fromkeys((readings.innermost(value, self.tolerated), plain)) if self._fits(v)]

    def _fits(self, value: Any) -> bool:
        tensor = value_of(value) if isinstance(value, Node) else None
        return isinstance(tensor, torch.Tensor) and (not self.kind or self.kind == kind_of(tensor))

    def answer(self, readings: Readings, slots: Slots) -> No:
        value = argument(slots[self.slot], self.place)
        tensor = tensor_of(value) if isinstance(value, Node) else None
        if tensor is None:
            return self.unlike(slots, "a tensor")
        return No(self.unlike(slots, f"{self.kind} elements", f"a tensor of {tensor.dtype}").reason, value)


def kind_of(tensor: torch.Tensor) -> str:
    """The kind of a tensor's elements: bool, float, complex or int."""
    if tensor.dtype is torch.bool:
        return "bool"
    return "float" if tensor.dtype.is_floating_point else "complex" if tensor.dtype.is_complex else "int"


@dataclass(frozen=True, slots=True)
class Free(ArgumentStep):
    """The argument is a constant or a size; it gets a name."""

    stores: ClassVar[bool] = True

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        return FAILED if value is MISSING or isinstance(value, Inverse) or _has_tensors(value) else (value,)

    def answer(self, readings: Readings, slots: Slots) -> No:
        return self.unlike(slots, "a constant")


@dataclass(frozen=True, slots=True)
class Same(ArgumentStep):
    """The argument is what was found before."""

    other: int
    tolerated: Tolerated

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value, other = argument(slots[self.slot], self.place), slots[self.other]
        wanted = other.identity if isinstance(other, Reading) else other
        if not isinstance(wanted, Inverse) and not _has_tensors(wanted):
            if _has_tensors(value) or isinstance(value, Inverse):
                return FAILED
            return PASSED if same_constant(plain(value), plain(wanted)) or nearly(value, wanted) else FAILED
        return PASSED if any(v == wanted for v, _ in readings.beneath(value, self.tolerated)) else FAILED

    def answer(self, readings: Readings, slots: Slots) -> No:
        other = slots[self.other]
        return self.unlike(slots, f"{other.node.name if isinstance(other, Reading) else shown(other)} here as well")


@dataclass(frozen=True, slots=True)
class Length(ArgumentStep):
    """The argument is a list of so many elements."""

    count: int

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        value = argument(slots[self.slot], self.place)
        return PASSED if isinstance(value, (list, tuple)) and len(value) == self.count else FAILED

    def answer(self, readings: Readings, slots: Slots) -> No:
        value = argument(slots[self.slot], self.place)
        has = f"a list of {len(value)}" if isinstance(value, (list, tuple)) else None
        return self.unlike(slots, f"a list of {self.count}", has)


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
