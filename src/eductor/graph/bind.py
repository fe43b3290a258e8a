"""The arguments of a call by their schema names: the one way to read a node.

`bind(node)` brings any call form (function, method, operator, overload, packet; positional, keyword, numpy spelling,
varargs) to one ATen operator with every argument under its schema name. What it cannot read with certainty it returns
as `NotUnderstood`, with the reason; it never guesses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import OpOverload, OpOverloadPacket
from eductor.graph import spellings
from eductor.graph.meta import value_of
from eductor.graph.schema import Parameter, accepts, candidates, code_of, parameters


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


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    """A call that cannot be read with certainty, and why."""

    reason: str

    def __bool__(self) -> bool:
        return False


def bind(node: Node) -> Bound | NotUnderstood:
    """The operator and the arguments of a call by their schema names, or why they cannot be known."""
    if node.op not in ("call_function", "call_method"):
        return NotUnderstood(f"a {node.op} node is not a call of an operator")
    return bind_call(node.target, node.args, node.kwargs)


def bind_call(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Bound | NotUnderstood:
    """`bind` for a call that is no node yet: a target (a method by its name) and its arguments."""
    if isinstance(target, OpOverload):
        return _match((target,), args, kwargs, exact=True)
    if isinstance(target, OpOverloadPacket):
        return _match(candidates(target), args, kwargs, exact=True)
    form = _form(target)
    if isinstance(form, NotUnderstood):
        return form
    if isinstance(form, OpOverloadPacket):
        return _match(candidates(form), args, kwargs)
    try:
        spelled = form(*args, **kwargs)
    except TypeError as error:
        return NotUnderstood(f"{spellings.name_of(target)}: {error}")
    if isinstance(spelled, str):
        return NotUnderstood(spelled)
    packet, args, kwargs = spelled
    return _match(candidates(packet), args, kwargs)


def packets_of(target: Any) -> tuple[OpOverloadPacket, ...] | None:
    """The operators that a target can stand for, without looking at arguments; None if any."""
    if isinstance(target, OpOverload):
        return (spellings.canonical(target.overloadpacket),)
    if isinstance(target, OpOverloadPacket):
        return (spellings.canonical(target),)
    form = _form(target)
    if isinstance(form, NotUnderstood):
        return ()
    if isinstance(form, OpOverloadPacket):
        return (spellings.canonical(form),)
    return None


@functools.cache
def _form(target: Any) -> OpOverloadPacket | Callable[..., Any] | NotUnderstood:
    """How a Torch-level target is read: as a packet, through a spelling's adapter, or not at all."""
    adapter = spellings.adapter_of(target)
    if adapter is not None:
        return adapter
    packet = spellings.packet_of(target)
    if packet is not None:
        return packet
    return NotUnderstood(f"{spellings.name_of(target)} is not a known operator")


def _match(
    overloads: tuple[OpOverload, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any], exact: bool = False
) -> Bound | NotUnderstood:
    """Binds to the first overload that takes the arguments; `exact` keywords are the schema's own."""
    if "out" in kwargs and kwargs["out"] is not None:
        return NotUnderstood("out= writes into a tensor of the caller's")
    values = [*args, *kwargs.values()]
    codes = tuple(code_of(value_of(v)) for v in values)
    plan = _plan(overloads, len(args), tuple(kwargs), codes, exact)
    if isinstance(plan, NotUnderstood):
        return plan
    arguments: dict[str, Any] = {}
    for p, source in plan.sources:
        if source is None:
            arguments[p.name] = list(p.default) if isinstance(p.default, list) else p.default
        elif isinstance(source, slice):
            arguments[p.name] = list(values[source])
        else:
            arguments[p.name] = p.coerce(values[source])
    return Bound(plan.op, arguments, plan.given)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where each parameter of an overload finds its value among the arguments of a call."""

    op: OpOverload
    sources: tuple[tuple[Parameter, int | slice | None], ...]
    given: frozenset[str]


@functools.lru_cache(maxsize=1 << 16)
def _plan(
    overloads: tuple[OpOverload, ...], positional: int, keywords: tuple[str, ...], codes: tuple[str, ...], exact: bool
) -> _Plan | NotUnderstood:
    """The reading of all calls with arguments of these kinds: worked out once, then looked up."""
    found: list[_Plan] = []
    reason = "it takes no tensors"
    for op in overloads:
        plan = _fit(op, positional, keywords, codes, exact, checked=not (exact and len(overloads) == 1))
        if isinstance(plan, NotUnderstood):
            reason = plan.reason
            continue
        found.append(plan)
        if not any("?" in code for code in codes):
            return plan
    if len(found) == 1:
        return found[0]
    if found:
        return NotUnderstood("an argument has no fake value, so that several overloads would fit")
    name = overloads[0].overloadpacket._qualified_op_name.replace("::", ".") if overloads else "the operator"
    return NotUnderstood(f"no overload of {name} takes these arguments: {reason}")


def _fit(
    op: OpOverload, positional: int, keywords: tuple[str, ...], codes: tuple[str, ...], exact: bool, checked: bool
) -> _Plan | NotUnderstood:
    params = parameters(op)
    by_name = {p.name: p for p in params}
    sources: dict[str, int | slice] = {}
    in_order = [p for p in params if not p.keyword_only]
    if positional > len(in_order) or _is_varargs(in_order, positional, codes, exact):
        if exact or not _is_varargs(in_order, positional, codes, exact):
            return NotUnderstood(f"{len(in_order)} positional arguments are allowed, {positional} were given")
        sources[in_order[-1].name] = slice(len(in_order) - 1, positional)
        positional_names = [p.name for p in in_order[:-1]]
    else:
        positional_names = [p.name for p in in_order[:positional]]
    sources.update({name: i for i, name in enumerate(positional_names)})
    for i, keyword in enumerate(keywords):
        name = keyword if exact or keyword in by_name else spellings.keyword(keyword, by_name)
        if name not in by_name:
            if keyword == "out":
                continue
            return NotUnderstood(f"it has no argument {keyword!r}")
        if name in sources:
            return NotUnderstood(f"the argument {name!r} is given twice")
        sources[name] = positional + i
    for p in params:
        source = sources.get(p.name)
        if source is None:
            if not p.has_default:
                return NotUnderstood(f"the argument {p.name!r} is missing")
        elif checked and isinstance(source, int) and not accepts(op, p, codes[source]):
            return NotUnderstood(f"the argument {p.name!r} takes {p.kind}")
    unread = not any("T" in code or "?" in code for code in codes)
    if checked and not exact and unread and any("Tensor" in p.kind and not p.optional for p in params):
        return NotUnderstood("it takes no tensors")
    op = spellings.canonical_overload(op)
    filled = tuple((q, sources.get(p.name)) for p, q in zip(params, parameters(op), strict=True))
    return _Plan(op, filled, frozenset(q.name for q, source in filled if source is not None))


def _is_varargs(in_order: list[Parameter], positional: int, codes: tuple[str, ...], exact: bool) -> bool:
    """`x.view(2, 3)`: a single list of integers after `self` (or alone) may be spelled out."""
    if exact or not in_order or in_order[-1].kind != "List[int]":
        return False
    first = len(in_order) - 1
    lone = first == 0 or (first == 1 and in_order[0].name == "self")
    rest = codes[first:positional]
    return (
        lone and len(rest) > 0 and all(c in ("i", "?") for c in rest) and (len(rest) > 1 or not in_order[-1].broadcast)
    )


def is_tensor(value: Any) -> bool:
    """Whether an argument (a node, or a constant) is a tensor."""
    return isinstance(value_of(value), torch.Tensor)
