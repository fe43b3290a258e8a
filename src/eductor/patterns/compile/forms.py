"""Expands a pattern into plain forms: without alternatives, with positional arguments and canonical spellings.

What `readings` does for the nodes of a graph, this does for the pattern: both meet in the same spelling.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from eductor.compat import HigherOrderOperator, OpOverload, OpOverloadPacket
from eductor.errors import BadPattern
from eductor.graph import Bound, bind_call
from eductor.graph.reading.bind import packets_of
from eductor.graph.reading.schema import candidates
from eductor.patterns.language.pattern import (
    AnyOf,
    Computed,
    Const,
    ListOf,
    Op,
    Outputs,
    Pattern,
    Repeated,
    Tolerance,
    Users,
    Var,
    parts,
    spelled,
    target_name,
    walk,
)
from eductor.patterns.match.call_reading import CallParameters, call_parameters
from eductor.patterns.match.transparent import CAST

aten = torch.ops.aten
MOST_FORMS = 256
Place = tuple[int | str, ...]
"""An argument by its position or name, then positions in lists."""


@dataclass(eq=False, slots=True)
class Call:
    """One call of a form. `places` maps each mentioned argument to its pattern or constant."""

    keys: tuple[Any, ...]
    overloads: frozenset[OpOverload] | None
    places: dict[Place, Any]
    lengths: dict[Place, int]
    users: Users
    open: bool
    said: Op
    """The expression that it was, for messages."""

    @property
    def mentioned(self) -> frozenset[int | str]:
        return frozenset(place[0] for place in (*self.places, *self.lengths))


@dataclass(frozen=True, slots=True)
class Swap:
    """The permutation that exchanges two dims, for any rank."""

    a: int
    b: int

    def of(self, rank: int) -> list[int]:
        dims = list(range(rank))
        if -rank <= min(self.a, self.b) and max(self.a, self.b) < rank:
            dims[self.a], dims[self.b] = dims[self.b], dims[self.a]
        return dims


@dataclass(eq=False, slots=True)
class Each:
    """A list of elements that all have one of these forms."""

    element: tuple[PatternForm, ...]
    partial: bool


@dataclass(eq=False, slots=True)
class PatternForm:
    """A pattern without alternatives, in canonical spelling: what is matched."""

    outputs: tuple[Any, ...]
    tolerated: frozenset[Tolerance]
    repeated: frozenset[Call] = frozenset()
    calls: tuple[Call, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = tuple(_calls(self.outputs))


def forms(
    pattern: Any, tolerated: frozenset[Tolerance] = frozenset(), *, is_element: bool = False
) -> tuple[PatternForm, ...]:
    """The plain forms of a pattern, those with the first alternatives first; an element of a list need not be a call."""
    alternatives = [p for p in walk(pattern, into_lists=False) if isinstance(p, AnyOf)]
    sizes = [len(a.choices) for a in alternatives]
    count = math.prod(sizes)
    if count > MOST_FORMS:
        raise BadPattern(
            f"the alternatives of a pattern multiply to {count} forms, {MOST_FORMS} are allowed: make several rules of it."
        )
    found: list[PatternForm] = []
    for choice in itertools.product(*map(range, sizes)):
        chosen = {id(a): a.choices[i] for a, i in zip(alternatives, choice, strict=True)}
        builder = _Builder(tolerated, chosen, is_element)
        form = builder.form(pattern)
        # A choice within an alternative that was not taken changes nothing.
        if all(choice[k] == 0 for k, a in enumerate(alternatives) if id(a) not in builder.used):
            found.append(form)
    return tuple(found)


class _Builder:
    """Makes one form: each expression becomes one call, however often it is used."""

    def __init__(self, tolerated: frozenset[Tolerance], chosen: dict[int, Any], is_element: bool) -> None:
        self._is_element = is_element
        self._tolerated = tolerated
        self._chosen = chosen
        self._made: dict[int, Any] = {}
        self._roots: dict[int, Op] = {}
        self.used: set[int] = set()

    def form(self, pattern: Any) -> PatternForm:
        pattern = self._chosen_value(pattern)
        roots = pattern.patterns if isinstance(pattern, Outputs) else (pattern,)
        repeated = []
        outputs: list[Any] = []
        for root in roots:
            made = self.value(root.element if isinstance(root, Repeated) else root)
            if isinstance(root, Repeated):
                repeated.append(made)
            outputs.append(made)
        if not any(isinstance(o, Call) for o in outputs) and not self._is_element:
            raise BadPattern(f"the pattern {spelled(pattern)} has no call to look for.")
        return PatternForm(tuple(outputs), self._tolerated, frozenset(repeated))

    def value(self, said: Any) -> Any:
        if isinstance(said, AnyOf):
            self.used.add(id(said))
            return self.value(self._chosen[id(said)])
        if id(said) not in self._made:
            self._made[id(said)] = self._value(said)
        return self._made[id(said)]

    def _value(self, said: Any) -> Any:
        if isinstance(said, ListOf):
            return Each(forms(said.element, self._tolerated, is_element=True), said.partial)
        if isinstance(said, (Outputs, Repeated)):
            raise BadPattern(f"{spelled(said)} must be the outermost expression of a pattern.")
        if not isinstance(said, Op):
            return said
        plain = self._plain(said)
        if not isinstance(plain, Op):
            return self.value(plain)
        if not plain.open:
            _check_arguments(said, plain)
        call = Call(*_target(plain), {}, {}, said.users, plain.open, said)
        for i, given in enumerate(plain.args):
            self._enter(call, (i,), given)
        for name, given in plain.kwargs.items():
            self._enter(call, (name,), given)
        return call

    def _enter(self, call: Call, place: Place, given: Any) -> None:
        given = self._chosen_value(given)
        if isinstance(given, (list, tuple)) and any(isinstance(p, Pattern) for p in walk(given)):
            call.lengths[place] = len(given)
            for i, element in enumerate(given):
                self._enter(call, (*place, i), element)
        else:
            if any(isinstance(p, torch.Tensor) for p in walk(given)):
                raise BadPattern(f"a tensor cannot be a constant of {_shown(call.said)}: make it a var.")
            call.places[place] = self.value(given)

    def _chosen_value(self, given: Any) -> Any:
        while isinstance(given, AnyOf):
            self.used.add(id(given))
            given = self._chosen[id(given)]
        return given

    # ------------------------------------------------------------------------------------------------- one spelling

    def _plain(self, said: Op) -> Any:
        """The expression in canonical spelling."""
        if said.open:
            return said
        if len(said.targets) != 1:
            each = [_as_operator(Op((t,), said.args, said.kwargs, said.users)) for t in said.targets]
            alike = all(e.args == each[0].args and e.kwargs == each[0].kwargs for e in each)
            targets = tuple(e.targets[0] for e in each)
            return Op(targets, each[0].args, each[0].kwargs, said.users) if alike else said
        said = _as_operator(said)
        packets = packets_of(said.targets[0])
        if not packets:
            return said
        (packet,) = packets
        args, kwargs = said.args, said.kwargs
        if packet in (aten.view, aten.reshape, aten._unsafe_view) and len(args) == 2 and not kwargs:
            return Op((aten.view,), args, {}, said.users)
        if packet in (aten.transpose, aten.permute, aten.t, aten.mT) and not kwargs:
            return self._permutation(said, packet)
        if self._is_square(packet, args) and not kwargs:
            return Op((aten.square,), args[:1], {}, said.users)
        dtype = _dtype_of_cast(packet, args, kwargs)
        if dtype is not None:
            loose = "casts" in self._tolerated and (not isinstance(dtype, torch.dtype) or dtype.is_floating_point)
            return args[0] if loose else Op((CAST,), (args[0], dtype), {}, said.users)
        if "scale" in self._tolerated and len(args) == 2 and not kwargs:
            return self._scaled(said, packet)
        return said

    def _permutation(self, said: Op, packet: OpOverloadPacket) -> Op:
        args = said.args
        if packet is aten.transpose and len(args) == 3 and all(type(d) is int for d in args[1:]):
            return Op((aten.permute,), (args[0], Swap(args[1], args[2])), {}, said.users)
        if packet in (aten.t, aten.mT) and len(args) == 1:
            return Op((aten.permute,), (args[0], Swap(-2, -1)), {}, said.users)
        return said

    def _is_square(self, packet: OpOverloadPacket, args: tuple[Any, ...]) -> bool:
        if packet is aten.square:
            return len(args) == 1
        if len(args) != 2:
            return False
        if packet is aten.pow:
            return type(args[1]) in (int, float) and args[1] == 2
        a, b = map(self._chosen_value, args)
        same = a is b or (isinstance(a, Var) and isinstance(b, Var) and a.name == b.name)
        return packet is aten.mul and isinstance(a, (Op, Var)) and same

    def _scaled(self, said: Op, packet: OpOverloadPacket) -> Op:
        """In canonical spelling, numbers multiply and tensors divide."""
        x, y = map(self._chosen_value, said.args)
        if packet is aten.div and (inverse := _inverse(y)) is not None:
            return Op((aten.mul,), (x, inverse), {}, said.users)
        if packet is aten.mul:
            for a, b in ((x, y), (y, x)):
                below = self._divisor(b)
                if below is not None and isinstance(self._chosen_value(a), (Op, Var)):
                    return Op((aten.div,), (a, below), {}, said.users)
        return said

    def _divisor(self, factor: Any) -> Any:
        """What a factor divides by: `v` for `reciprocal(v)`, `sqrt(v)` for `rsqrt(v)`."""
        if not isinstance(factor, Op) or len(factor.args) != 1 or factor.kwargs:
            return None
        packets = {p for t in factor.targets for p in (packets_of(t) or ())}
        if packets == {aten.reciprocal}:
            return factor.args[0]
        if packets == {aten.rsqrt}:
            return self._roots.setdefault(id(factor), Op((aten.sqrt,), factor.args, {}, factor.users))
        return None


def _as_operator(said: Op) -> Op:
    """The expression with the ATen operator that its function or Python operator spells."""
    (target,) = said.targets
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return said
    if target is operator.getitem and said.args and _has_several_results(said.args[0]):
        return said
    constants = [id(p) for p in walk(list(parts(said))) if isinstance(p, (Const, Computed))]
    cases = (dict.fromkeys(constants, kind) for kind in "if")  # a free constant may be a whole number, or need not be
    found = (given.called(bound, said.users) for given, bound in bound_calls(target, said.args, said.kwargs, cases))
    return next(found, said)


def _has_several_results(said: Any) -> bool:
    """Whether an expression is a call that returns a tuple or list, so that `getitem` does not index a tensor."""
    calls = [c for c in (said.choices if isinstance(said, AnyOf) else (said,)) if isinstance(c, Op)]
    targets = [t for c in calls for t in c.targets]
    ops = [o for t in targets for p in packets_of(t) or () for o in candidates(p)]
    several = any([str(r.type) for r in o._schema.returns] != ["Tensor"] for o in ops)
    return several or any(isinstance(t, HigherOrderOperator) for t in targets)


def bound_calls(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], cases: Iterable[Mapping[int, str]]
) -> Iterator[tuple[StandIns, Bound]]:
    """The operators that a call of a pattern may spell: one for each case of kinds of arguments that can be bound."""
    for kinds in cases:
        given = StandIns(kinds)
        bound = bind_call(target, given.filled(args), {k: given.filled(v) for k, v in kwargs.items()})
        if isinstance(bound, Bound):
            yield given, bound


class StandIns:
    """Values in place of the patterns in a call, so that it can be bound: tensors, or of the kinds that are given by id."""

    def __init__(self, kinds: Mapping[int, str]) -> None:
        self._kinds = kinds
        self._known: list[tuple[Any, Any]] = []

    def filled(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self.filled(v) for v in value)
        if not isinstance(value, Pattern):
            return value
        number = (1 << 40) + len(self._known)
        made: dict[str, Any] = {"i": number, "f": number + 0.5, "l": [number]}
        tensor = torch.empty(2, 2, device="meta")
        self._known.append((made.get(self._kinds.get(id(value), "t"), tensor), value))
        return self._known[-1][0]

    def called(self, bound: Bound, users: Users) -> Op:
        """The bound call as an expression of its operator, with the patterns back in place."""
        parameters = call_parameters(bound.op)
        values = {name: self._restored(value) for name, value in bound.arguments.items() if name in bound.given}
        places = tuple(itertools.takewhile(values.__contains__, parameters.names))[: parameters.positional]
        rest = {name: value for name, value in values.items() if name not in places}
        return Op((bound.packet,), tuple(values[n] for n in places), rest, users)

    def _restored(self, value: Any) -> Any:
        for made, pattern in self._known:
            if value is made or (not isinstance(made, torch.Tensor) and type(value) is type(made) and value == made):
                return pattern
        return [self._restored(v) for v in value] if isinstance(value, (list, tuple)) else value

    def are_all_in(self, call: Op) -> bool:
        """Whether every pattern is in the call: one is lost if binding computed with its stand-in."""
        there = {id(p) for p in walk(call)}
        return all(id(pattern) in there for _, pattern in self._known)


def _inverse(divisor: Any) -> Any:
    """The reciprocal of a constant divisor, as a factor; None for anything else."""
    if isinstance(divisor, Const):
        return Const(divisor.name, divisor.where, not divisor.inverted)
    if isinstance(divisor, Computed):
        return Computed(divisor.expression, not divisor.inverted)
    is_number = isinstance(divisor, (int, float)) and not isinstance(divisor, bool)
    return 1.0 / divisor if is_number and divisor != 0 else None


def _dtype_of_cast(packet: OpOverloadPacket, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The dtype to which a call converts its operand and does nothing else, or None."""
    if packet in (CAST, aten.to) and len(args) == 2 and not kwargs and isinstance(args[1], (torch.dtype, Pattern)):
        return None if isinstance(args[1], (Op, Var)) else args[1]
    if packet in (aten._to_copy, aten.to) and len(args) == 1 and set(kwargs) == {"dtype"}:
        return kwargs["dtype"]
    return None


def _target(said: Op) -> tuple[Any, frozenset[OpOverload] | None]:
    """The index keys of a call's targets, and their overloads if only some are meant."""
    keys: list[Any] = []
    overloads: set[OpOverload] = set()
    for target in said.targets:
        packets = packets_of(target)
        keys.append(packets[0] if packets else target)
        if isinstance(target, OpOverload):
            overloads.add(target)
    exact = len(overloads) == len(said.targets)
    return tuple(dict.fromkeys(keys)), (frozenset(overloads) if exact else None)


def _check_arguments(said: Op, plain: Op) -> None:
    """Raises BadPattern unless some overload of a target takes these arguments."""
    count, keywords = len(plain.args), tuple(plain.kwargs)
    if any(_takes(target, count, keywords) for target in plain.targets):
        return
    given = f"{count} positional argument{'s' if count != 1 else ''}"
    named = f" and {', '.join(f'{k}=' for k in keywords)}" if keywords else ""
    known = dict.fromkeys(
        f"{target_name(o)}({', '.join(_listed(call_parameters(o)))})" for t in plain.targets for o in _overloads(t)
    )
    raise BadPattern(f"{_shown(said)}: no overload takes {given}{named}. There is {'; '.join(known)}.")


@functools.lru_cache(maxsize=1 << 12)
def _takes(target: Any, count: int, keywords: tuple[str, ...]) -> bool:
    """Whether an overload of a target takes so many positional arguments and these keywords."""
    overloads = _overloads(target)
    return not overloads or any(
        count <= s.positional and set(keywords) <= set(s.names[count:]) for s in map(call_parameters, overloads)
    )


def _overloads(target: Any) -> tuple[OpOverload, ...]:
    """The overloads of ATen that a target means: those of the operator that graphs are read with, too."""
    if isinstance(target, OpOverload):
        found: tuple[OpOverload, ...] = (target,)
    elif isinstance(target, OpOverloadPacket):
        found = tuple(o for p in dict.fromkeys((target, *(packets_of(target) or ()))) for o in candidates(p))
    else:
        return ()
    return tuple(o for o in found if o.namespace == "aten")


def _listed(parameters: CallParameters) -> Iterator[str]:
    """The parameters of a schema, with a `*` before the keyword-only ones."""
    for i, name in enumerate(parameters.names):
        yield from ("*", name) if i == parameters.positional else (name,)


def _shown(said: Op) -> str:
    """A call in an error message, without the contents of tensors."""
    args = ["a tensor" if isinstance(a, torch.Tensor) else spelled(a) for a in said.args]
    named = [f"{k}={'a tensor' if isinstance(v, torch.Tensor) else spelled(v)}" for k, v in said.kwargs.items()]
    return f"{' | '.join(map(target_name, said.targets))}({', '.join((*args, *named))})"


def _calls(outputs: tuple[Any, ...]) -> Iterator[Call]:
    """The calls of a form, operands after users, each once."""
    seen: set[int] = set()
    pending = [o for o in reversed(outputs) if isinstance(o, Call)]
    while pending:
        call = pending.pop()
        if id(call) not in seen:
            seen.add(id(call))
            yield call
            pending += [v for v in reversed(call.places.values()) if isinstance(v, Call)]
