"""The arguments of a call by their schema names: the one way to read a node.

`bind(node)` brings any call form (function, method, operator, overload, packet; positional, keyword, numpy spelling,
varargs) to one ATen operator with every argument under its schema name. What it cannot read with certainty is a `No` with
the reason; it never guesses.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch.fx import Node

from eductor.compat import OpOverload, OpOverloadPacket, is_dispatched
from eductor.graph.no import No
from eductor.graph.reading import spellings
from eductor.graph.reading.schema import NUMBERS, Parameter, accepts, candidates, code_of, never_takes, parameters
from eductor.graph.values.meta import value_of


@dataclass(frozen=True, slots=True)
class Bound:
    """A call that was understood: the operator, and each argument by its schema name."""

    op: OpOverload
    arguments: Mapping[str, Any]
    given: frozenset[str]

    @property
    def packet(self) -> OpOverloadPacket:
        packet: OpOverloadPacket = self.op.overloadpacket
        return packet

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.arguments.get(name, default)

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with which `self.op` is called: positional where the schema allows, without defaults at the end."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        skipped = False
        for p in parameters(self.op):
            value = self.arguments[p.name]
            is_default = p.has_default and p.name not in self.given
            if p.keyword_only or skipped:
                if not is_default:
                    keywords[p.name] = value
            elif is_default:
                skipped = True
            else:
                positional.append(value)
        return tuple(positional), keywords


def bind(node: Node) -> Bound | No:
    """The operator and the arguments of a call by their schema names, or why they cannot be known."""
    if node.op not in ("call_function", "call_method"):
        return No(f"a {node.op} node is not a call of an operator")
    return bind_call(node.target, node.args, node.kwargs)


def bind_call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound | No:
    """`bind` for a call that is no node yet: a target (a method by its name) and its arguments."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return _match(_overloads(target), args, kwargs, exact=True)
    form = _form_of(target)
    if isinstance(form, No):
        return form
    if isinstance(form, _Direct):
        return _match(form.overloads, args, kwargs, receiver=form.receiver)
    try:
        spelled = form(*args, **kwargs)
    except TypeError as error:
        return No(f"{spellings.name_of(target)}: {error}")
    if isinstance(spelled, No):
        return spelled
    packet, args, kwargs = spelled
    return _match(_overloads(packet), args, kwargs)


def misfit(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> No | None:
    """Why a call does not fit the schema of its operator; None if it may. Only an overload's schema is certain."""
    if isinstance(target, OpOverload):
        return _misfit(target, _kinds(args, kwargs))
    form = _form_of(target)
    found = bind_call(target, args, kwargs) if isinstance(form, _Direct) else None
    return found if isinstance(found, No) else None


def _kinds(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Kinds:
    values = [*args, *kwargs.values()]
    return _Kinds(len(args), tuple(kwargs), tuple([code_of(value_of(v)) for v in values]), True, False)


@functools.lru_cache(maxsize=1 << 14)
def _misfit(op: OpOverload, kinds: _Kinds) -> No | None:
    return _Fit(op, kinds, checked=False).misfit()


def packets_of(target: Any) -> tuple[OpOverloadPacket, ...] | None:
    """The operators that a target can mean, whatever its arguments; None if it can be any."""
    if isinstance(target, OpOverload):
        return (spellings.canonical(target.overloadpacket),)
    if isinstance(target, OpOverloadPacket):
        return (spellings.canonical(target),)
    form = _form_of(target)
    if isinstance(form, No):
        return ()
    if isinstance(form, _Direct):
        return (spellings.canonical(form.packet),)
    return None


@dataclass(frozen=True, slots=True)
class _Direct:
    """A function or method named like its operator; a method's receiver is the schema's `self`."""

    packet: OpOverloadPacket
    overloads: _Overloads
    receiver: bool


_Form = _Direct | Callable[..., Any] | No


def _form_of(target: Any) -> _Form:
    try:
        return _form(target)
    except TypeError:
        return No(f"{spellings.name_of(target)} cannot be looked up, it is not hashable")


@functools.lru_cache(maxsize=1 << 14)
def _form(target: Any) -> _Form:
    """How a Torch-level target is read: through an adapter, as the operator of its name, or not at all."""
    adapter = spellings.adapter_of(target)
    if adapter is not None:
        return adapter
    packet = spellings.packet_of(target)
    if packet is not None and candidates(packet):
        return _Direct(packet, _overloads(packet), receiver=spellings.is_method(target))
    return No(f"{spellings.name_of(target)} is not a known operator")


@dataclass(frozen=True, slots=True)
class _Overloads:
    """The overloads that a call may mean, with a cache of plans by the kinds of its arguments."""

    ops: tuple[OpOverload, ...]
    plans: dict[Any, _Plan | No] = field(default_factory=dict)


@functools.cache
def _overloads(target: OpOverload | OpOverloadPacket) -> _Overloads:
    return _Overloads((target,) if isinstance(target, OpOverload) else candidates(target))


def _match(
    overloads: _Overloads,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    exact: bool = False,
    receiver: bool = False,
) -> Bound | No:
    """Binds to the first overload that takes the arguments; `exact` keywords are the schema's names."""
    if "out" in kwargs or "requires_grad" in kwargs:
        if kwargs.get("out") is not None:
            return No("out= writes into a tensor of the caller")
        kwargs = {k: v for k, v in kwargs.items() if k != "out" and (exact or k != "requires_grad" or v is not False)}
    values = [*args, *kwargs.values()]
    kinds = (len(args), tuple(kwargs), tuple([code_of(value_of(v)) for v in values]), exact, receiver)
    plan = overloads.plans.get(kinds)
    if plan is None:
        plan = overloads.plans[kinds] = _plan(overloads.ops, _Kinds(*kinds))
    if isinstance(plan, No):
        return plan
    arguments = dict(plan.defaults)
    for name, source in plan.sources:
        arguments[name] = values[source]
    for name, make in plan.lists:
        arguments[name] = make(values)
    return Bound(plan.op, arguments, plan.given)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How each parameter of an overload gets its value from the arguments of a call.

    The value is a default, the argument at an index, or a new list made of arguments.
    """

    op: OpOverload
    defaults: Mapping[str, Any]
    sources: tuple[tuple[str, int], ...]
    lists: tuple[tuple[str, Callable[[list[Any]], list[Any]]], ...]
    given: frozenset[str]


class _Kinds(NamedTuple):
    """The cache key of a plan: number of positional arguments, keywords, and kinds of all arguments."""

    positional: int
    keywords: tuple[str, ...]
    codes: tuple[str, ...]
    exact: bool
    receiver: bool

    @property
    def unknown(self) -> bool:
        """Whether an argument has no fake value."""
        return any("?" in code for code in self.codes)


def _plan(overloads: tuple[OpOverload, ...], kinds: _Kinds) -> _Plan | No:
    """The plan for all calls with arguments of these kinds."""
    found: list[_Plan] = []
    reasons: dict[str, None] = {}
    for op in overloads:
        plan = _Fit(op, kinds, checked=not (kinds.exact and len(overloads) == 1)).plan()
        if plan is _UNCLEAR:
            return plan
        if isinstance(plan, No):
            reasons[plan.reason] = None
            continue
        found.append(plan)
        if not kinds.unknown:
            return plan
    if len(found) == 1:
        return found[0]
    if found:
        return No("an argument has no fake value, so several overloads fit")
    if not overloads:
        return _TORCHSCRIPT
    name = overloads[0].overloadpacket._qualified_op_name.replace("::", ".")
    return No(f"no overload of {name} takes these arguments: {'; '.join(reasons)}")


_UNCLEAR = No("an argument has no fake value, it may be one number or a list of numbers")
_TORCHSCRIPT = No("it is a TorchScript-only operator")


class _Fit:
    """An attempt to match one overload to the arguments of a call: which argument each parameter gets."""

    def __init__(self, op: OpOverload, kinds: _Kinds, *, checked: bool) -> None:
        self._op, self._kinds, self._checked = op, kinds, checked
        self._sources: dict[str, int | slice] = {}
        """The arguments of each parameter: the index of one, or the slice of several, spelled out."""

    def plan(self) -> _Plan | No:
        if not is_dispatched(self._op):
            return _TORCHSCRIPT
        self._params = parameters(self._op)
        self._by_name = {p.name: p for p in self._params}
        fits = self._by_position() and self._by_keyword() and self._are_accepted() and self._takes_a_tensor()
        return fits and self._made()

    def misfit(self) -> No | None:
        """Why a direct call of the overload fails; None if it may succeed."""
        self._params = parameters(self._op)
        self._by_name = {p.name: p for p in self._params}
        fits = self._by_position() and self._by_keyword() and self._may_convert()
        return fits if isinstance(fits, No) else None

    def _may_convert(self) -> Literal[True] | No:
        for p in self._params:
            source = self._sources.get(p.name)
            if source is None and not p.has_default:
                return No(f"the argument {p.name!r} is missing")
            if isinstance(source, int) and never_takes(p, self._kinds.codes[source]):
                return No(f"the argument {p.name!r} takes {p.kind}")
        return True

    def _by_position(self) -> Literal[True] | No:
        """Assigns positional arguments to the parameters in order, a method's receiver to `self`."""
        kinds, in_order = self._kinds, [p for p in self._params if not p.keyword_only]
        if kinds.receiver:
            if "self" not in self._by_name:
                return No("it is not a method")
            in_order.sort(key=lambda p: p.name != "self")
        spelled_out = not kinds.exact and _spelled_out(in_order, kinds.codes[: kinds.positional])
        if spelled_out is None:
            return _UNCLEAR
        if spelled_out:
            *in_order, last = in_order
            self._sources[last.name] = slice(len(in_order), kinds.positional)
        elif kinds.positional > len(in_order):
            return No(f"{len(in_order)} positional arguments are allowed, {kinds.positional} were given")
        given = in_order if spelled_out else in_order[: kinds.positional]
        self._sources.update({p.name: i for i, p in enumerate(given)})
        return True

    def _by_keyword(self) -> Literal[True] | No:
        """Assigns keyword arguments to parameters by their schema names or numpy names."""
        kinds, by_name = self._kinds, self._by_name
        for i, keyword in enumerate(kinds.keywords):
            name = keyword if kinds.exact or keyword in by_name else spellings.keyword(keyword, by_name)
            if name not in by_name:
                return No(f"it has no argument {keyword!r}")
            if name in self._sources:
                return No(f"the argument {name!r} is given twice")
            self._sources[name] = kinds.positional + i
        return True

    def _are_accepted(self) -> Literal[True] | No:
        """Whether each parameter accepts its value."""
        codes = self._kinds.codes
        for p in self._params:
            source = self._sources.get(p.name)
            if source is None:
                if not p.has_default:
                    return No(f"the argument {p.name!r} is missing")
            elif self._checked and isinstance(source, int) and not accepts(self._op, p, codes[source]):
                return No(f"the argument {p.name!r} takes {p.kind}")
            elif p.broadcast and isinstance(source, int) and codes[source] == "?":
                return _UNCLEAR
        return True

    def _takes_a_tensor(self) -> Literal[True] | No:
        """Whether a tensor is given, if one is required: Python dispatches to such an operator only then."""
        if not self._checked or self._kinds.exact or any("T" in code or "?" in code for code in self._kinds.codes):
            return True
        wanted = any("Tensor" in p.kind and not p.optional for p in self._params)
        return No("it takes no tensors") if wanted else True

    def _made(self) -> _Plan:
        """The plan, with the parameter names of the canonical overload."""
        op = spellings.canonical_overload(self._op)
        named = [(q, self._sources.get(p.name)) for p, q in zip(self._params, parameters(op), strict=True)]
        makers = ((q.name, _list_maker(q, source, self._kinds.codes)) for q, source in named)
        lists = {name: make for name, make in makers if make is not None}
        return _Plan(
            op,
            {q.name: q.default for q, _ in named},
            tuple((q.name, source) for q, source in named if isinstance(source, int) and q.name not in lists),
            tuple(lists.items()),
            frozenset(q.name for q, source in named if source is not None),
        )


def _list_maker(
    p: Parameter, source: int | slice | None, codes: tuple[str, ...]
) -> Callable[[list[Any]], list[Any]] | None:
    """The function that makes a parameter's list, if it gets one that is not itself an argument."""
    if isinstance(source, slice):
        return operator.itemgetter(source)
    if source is None:
        return (lambda values: list(p.default)) if isinstance(p.default, list) else None
    repeated = p.broadcast if p.kind.startswith("List[") and codes[source] in NUMBERS else None
    return (lambda values: [values[source]] * repeated) if repeated else None  # one number for the whole list


def _spelled_out(in_order: list[Parameter], codes: tuple[str, ...]) -> bool | None:
    """`x.view(2, 3)`: a list of integers, alone or after `self`, may be spelled out. None: it is unknown."""
    names = [p.name for p in in_order]
    if not in_order or in_order[-1].kind != "List[int]" or names[:-1] not in ([], ["self"]):
        return False
    rest = codes[len(in_order) - 1 :]
    if len(rest) > 1:
        return all(code in ("i", "?") for code in rest)
    if in_order[-1].broadcast:
        return False
    return None if rest == ("?",) else rest == ("i",)
