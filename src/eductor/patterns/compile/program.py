"""Compiles a form of a pattern to a list of steps: from one of its calls down to operands, then up to users."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch.fx import Node

from eductor.errors import BadPattern
from eductor.graph import No
from eductor.patterns.compile.forms import Call, Each, PatternForm, Place
from eductor.patterns.compile.steps import (
    FAILED,
    ArgumentStep,
    Climb,
    Closed,
    Constant,
    Enter,
    Free,
    Length,
    MatchStep,
    Same,
    Slots,
    Take,
    exact,
)
from eductor.patterns.language.pattern import Computed, Const, Pattern, Var, names_of, spelled
from eductor.patterns.match.call_reading import CallParameters, Inverse, Reading
from eductor.patterns.match.constants import argument, name_of
from eductor.patterns.match.node_readings import Readings


@dataclass(eq=False)
class MatchProgram:
    """A compiled form: its steps, and the slots of the values that the pattern names."""

    form: PatternForm
    anchor: Call | None
    """None: the slot 0 is a list's element, not a call."""
    steps: tuple[MatchStep, ...]
    names: dict[str, int]
    inverses: frozenset[str]
    """The names whose slots hold the inverse of what they stand for."""
    calls: dict[Call, int]
    computed: tuple[tuple[int, int, Place, Computed], ...]
    """Values that must follow from others: the slot, that of the call that has it as its argument, and where."""
    lists: tuple[int, ...]

    @functools.cached_property
    def conditions(self) -> tuple[Any, ...]:
        """The variables and constants that have a condition."""
        leaves = (*self.form.outputs, *(value for call in self.form.calls for value in call.places.values()))
        return tuple(x for x in leaves if isinstance(x, (Var, Const)) and has_condition(x))

    def key(self, slots: Slots) -> Any:
        """A key of a solution, equal for the same match in another form of the rule; None if only the match can tell."""
        if self.lists or self.computed or len(self.form.outputs) > 1 or self.form.repeated:
            return None
        named = frozenset([(name, id(slots[slot])) for name, slot in self.names.items()])
        return named, frozenset([id(slots[slot].node) for slot in self.calls.values()])

    def starts(self, readings: Readings, node: Node) -> list[Reading]:
        """The readings of a node that the first slot may hold."""
        assert self.anchor is not None
        return anchored(readings, node, self.anchor, self.form)

    def solutions(self, readings: Readings, start: Reading) -> Iterator[Slots]:
        """All ways to take the steps from a start."""
        return _solutions(self.steps, readings, [start], 0)


def anchored(readings: Readings, node: Node, call: Call, form: PatternForm) -> list[Reading]:
    """The readings of a node as a call of a form, or as the inverse of one."""
    tolerated = form.tolerated
    found = readings.matching(node, call.keys, tolerated, call.overloads)
    if tolerated:
        found += readings.matching(Inverse(node), call.keys, tolerated, call.overloads)
    return found


def has_condition(leaf: Var | Const) -> bool:
    return leaf.where is not None or (isinstance(leaf, Var) and (leaf.exclusive or leaf.shape is not None))


def compiled(form: PatternForm, anchor: Call | None) -> MatchProgram:
    """The program of a form that starts at one of its calls, or at an element of a list."""
    return _Compiler(form, anchor).program()


def _solutions(steps: Sequence[MatchStep], readings: Readings, slots: Slots, at: int) -> Iterator[Slots]:
    if at == len(steps):
        yield list(slots)
        return
    step = steps[at]
    for outcome in step.outcomes(readings, slots):
        if step.stores:
            slots.append(outcome)
        yield from _solutions(steps, readings, slots, at + 1)
        if step.stores:
            slots.pop()


class _Compiler:
    """Walks over a form and writes down the steps."""

    def __init__(self, form: PatternForm, anchor: Call | None) -> None:
        self._form = form
        self._anchor = anchor
        self._steps: list[MatchStep] = []
        self._names: dict[str, int] = {}
        self._inverses: set[str] = set()
        self._inside: list[str] = []
        self._calls: dict[Call, int] = {}
        self._computed: list[tuple[int, int, Place, Computed]] = []
        self._lists: list[int] = []
        self._later: list[tuple[int, Place, Any]] = []
        self._slots = 1

    def program(self) -> MatchProgram:
        if self._anchor is None:
            self._visit(0, (0,), self._form.outputs[0])
        else:
            self._calls[self._anchor] = 0
            self._arguments(self._anchor, 0)
        while (next_ := self._next_user() or self._next_named_user()) is not None:
            call, place, below = next_
            self._calls[call] = self._add(Climb(below, place, call.keys, call.overloads, self._form.tolerated))
            self._arguments(call, self._calls[call], known=place)
        self._visit_later()
        missing = [c for c in self._form.calls if c not in self._calls]
        if missing:
            raise BadPattern(
                f"the results of a pattern must have a call or a variable in common: {spelled(missing[0].said)} stands alone."
            )
        twice = next((name for name in self._inside if name in self._names), None)
        if twice is not None:
            raise BadPattern(f"{twice} is inside of a list and outside of it: use two names.")
        for *_, value in self._computed if self._anchor is not None else ():
            unknown = [name for name in names_of(value.expression) if name not in (*self._names, *self._inside)]
            if unknown:
                raise BadPattern(f"computed({value.expression!r}): the pattern has no name {unknown[0]!r}.")
        return MatchProgram(
            self._form,
            self._anchor,
            tuple(self._steps),
            self._names,
            frozenset(self._inverses),
            self._calls,
            tuple(self._computed),
            tuple(self._lists),
        )

    def _add(self, step: MatchStep) -> int:
        self._steps.append(step)
        if step.stores:
            self._slots += 1
        return self._slots - 1

    def _arguments(self, call: Call, slot: int, known: Place | None = None) -> None:
        if not call.open:
            self._add(Closed(slot, call.mentioned, "casts" in self._form.tolerated))
        for place, count in call.lengths.items():
            self._add(Length(slot, place, count))
        # What tells patterns apart comes first: constants, then calls, users among them, then what fits anything.
        for place, value in sorted(call.places.items(), key=lambda item: _rank(item[1])):
            if place == known:
                continue
            if _rank(value) < _ANYTHING:
                self._visit(slot, place, value)
            else:
                self._later.append((slot, place, value))

    def _visit(self, slot: int, place: Place, value: Any) -> None:
        tolerated = self._form.tolerated
        if isinstance(value, Call):
            if value in self._calls:
                self._add(Same(slot, place, self._calls[value], tolerated))
            else:
                self._calls[value] = self._add(Enter(slot, place, value.keys, value.overloads, tolerated))
                self._arguments(value, self._calls[value])
        elif isinstance(value, (Var, Const)):
            known = self._names.get(value.name)
            inverted = isinstance(value, Const) and value.inverted
            if known is not None and inverted is (value.name in self._inverses):
                self._add(Same(slot, place, known, tolerated))
            elif isinstance(value, Var):
                self._names[value.name] = self._add(Take(slot, place, value.kind, value.anything, tolerated))
            else:
                self._const(slot, place, value)
        elif isinstance(value, Computed):
            self._computed.append((self._add(Free(slot, place)), slot, place, value))
        elif isinstance(value, Each):
            programs = tuple(compiled(form, None) for form in value.element)
            self._inside.extend(name for program in programs for name in program.names)
            self._lists.append(self._add(Every(slot, place, programs, value.partial)))
        elif isinstance(value, Pattern):
            raise BadPattern(f"{spelled(value)} cannot be an argument of a call.")
        else:
            self._add(Constant(slot, place, exact(value), "scale" in tolerated))

    def _const(self, slot: int, place: Place, value: Const) -> None:
        at = self._add(Free(slot, place))
        if value.name in self._names:
            self._computed.append((at, slot, place, Computed(value.name, value.inverted)))
            return
        self._names[value.name] = at
        if value.inverted:
            self._inverses.add(value.name)

    def _visit_later(self) -> None:
        while self._later:
            self._visit(*self._later.pop(0))

    def _next_user(self) -> tuple[Call, Place, int] | None:
        """A call not matched yet that uses a matched one: the call, the operand's place, and its slot."""
        for call, place, value in self._unfound():
            if isinstance(value, Call) and value in self._calls:
                return call, place, self._calls[value]
        return None

    def _next_named_user(self) -> tuple[Call, Place, int] | None:
        """The same for a call that uses a bound variable."""
        self._visit_later()
        for call, place, value in self._unfound():
            if isinstance(value, Var) and value.name in self._names and not value.anything:
                return call, place, self._names[value.name]
        return None

    def _unfound(self) -> Iterator[tuple[Call, Place, Any]]:
        for call in self._form.calls:
            if call not in self._calls:
                yield from ((call, place, value) for place, value in call.places.items())


_ANYTHING = 2


def _rank(value: Any) -> int:
    if isinstance(value, Call):
        return 1
    return _ANYTHING if isinstance(value, (Var, Const, Each, Computed)) else 0


# ------------------------------------------------------------------------------------------------- lists of any length

_ELEMENT = CallParameters(("element",), 1, (None,))


def element(node: Node, value: Any) -> Reading:
    """The start of a program without an anchor: one element of a list argument."""
    return Reading(node, None, None, _ELEMENT, (value,))


@dataclass(frozen=True, slots=True)
class Every(ArgumentStep):
    """The argument is a list, each element of which (or with `partial`, one at least) matches."""

    programs: tuple[MatchProgram, ...]
    partial: bool
    stores: ClassVar[bool] = True

    def outcomes(self, readings: Readings, slots: Slots) -> Sequence[Any]:
        found = self._found(readings, slots)
        return FAILED if isinstance(found, int) or not found else (found,)

    def _found(self, readings: Readings, slots: Slots) -> list[tuple[MatchProgram, Slots]] | int:
        """What each element is, or the number of the first that does not match."""
        values = argument(slots[self.slot], self.place)
        if not isinstance(values, (list, tuple)):
            return 0
        found: list[tuple[MatchProgram, Slots]] = []
        shared: dict[int, Any] = {}
        for i, value in enumerate(values):
            one = self._element(readings, slots[self.slot].node, value, shared)
            if one is not None:
                found.append(one)
            elif not self.partial:
                return i
        return found

    def _element(
        self, readings: Readings, node: Node, value: Any, shared: dict[int, Any]
    ) -> tuple[MatchProgram, Slots] | None:
        for program in self.programs:
            for found in program.solutions(readings, element(node, value)):
                common = {id(c.said): found[slot].node for c, slot in program.calls.items() if is_shared(c)}
                if all(shared.get(k, n) is n for k, n in common.items()):
                    shared.update(common)
                    return program, found
        return None

    def answer(self, readings: Readings, slots: Slots) -> No:
        reading: Reading = slots[self.slot]
        name, values = name_of(reading, self.place), argument(reading, self.place)
        if not isinstance(values, (list, tuple)):
            return No(f"{name} is not a list", reading.node)
        found = self._found(readings, slots)
        at = values[found] if isinstance(found, int) and found < len(values) else None
        wanted = " or ".join(
            spelled(o.said if isinstance(o, Call) else o) for p in self.programs for o in p.form.outputs
        )
        if not isinstance(at, Node):
            return No(f"no element of {name} is {wanted}", reading.node)
        if self._element(readings, reading.node, at, {}) is not None:
            return No(f"the element {at.name} of {name} stands on another node than those before it", at)
        return No(f"an element of {name} is {at.name}, the pattern wants each to be {wanted}", at)


def is_shared(call: Call) -> bool:
    """Whether a call is one node for all elements of a list, and for all repetitions."""
    return call.users is not None and not (type(call.users) is int and call.users == 1)
