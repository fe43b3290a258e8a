"""Layers that repeat in a captured graph: the same calls on the same forms of operands, one layer fed by the one before it.

A layer reads values of its own calls and of the layer before, inputs that only it reads (its parameters), and what all
layers read (a mask). Nothing but the next layer reads it, the last one excepted.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch.fx import Graph, Node

from eductor.compat import HigherOrderOperator
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.no import No
from eductor.graph.reading.static import is_static
from eductor.graph.values.meta import UNKNOWN, metadata_key, nodes_in, requires_grad, value_of

LEAST = 6
"""The fewest layers that count as repeated."""
_PERIODS = 16
"""How many lengths of a layer are tried: the most frequent distances between equal calls."""


@dataclass(frozen=True, slots=True)
class Repeats:
    """The layers in order: the calls of each, and the inputs that it alone reads, in the order of their first use."""

    calls: tuple[tuple[Node, ...], ...]
    inputs: tuple[tuple[Node, ...], ...]


def find_repeats(graph: Graph) -> Repeats | No:
    """The run of equal layers that has the most calls beyond the first few layers."""
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    run = _longest_run(_forms(calls))
    if run is None:
        return No("no layer repeats")
    start, period, end = run
    places = {node: i for i, node in enumerate(calls)}
    start += _first_cut(calls[start : start + 3 * period], period)
    layers = [tuple(calls[i : i + period]) for i in range(start, end - period + 1, period)]
    wired = [_Wiring.of(layer, places) for layer in layers]
    first, last = max(_stretches(wired), key=lambda ends: ends[1] - ends[0])
    if first == 1:
        led = _Wiring.of(layers[0], places, wired[1].sources)
        if led.sources == wired[1].sources:
            first, wired[0] = 0, led
    layers, wired = layers[first:last], wired[first:last]
    if len(layers) < LEAST:
        return No("no layer repeats often: they read different values")
    if not all(map(_is_read_by, layers, layers[1:])):
        return No("a value of a layer is read elsewhere than in the next one")
    return Repeats(tuple(layers), tuple(w.inputs for w in wired))


def _first_cut(calls: Sequence[Node], period: int) -> int:
    """Where a layer may begin so that no two layers read the same parameter: of three layers, a place in the first."""
    places = {node: i for i, node in enumerate(calls)}
    read = {x for node in calls[period : 2 * period] for x in node.all_input_nodes if x.op == "placeholder"}
    uses = [sorted(places.get(user, -len(calls)) for user in x.users) for x in read]
    spans = [(found[0], found[-1]) for found in uses if found[-1] - found[0] < period]
    inside = {i % period for first, last in spans for i in range(first + 1, last + 1)}
    return next((i for i in range(period) if i not in inside), 0)


def _is_read_by(layer: Sequence[Node], following: Sequence[Node]) -> bool:
    """Whether only a layer itself and the following one read its values."""
    readers = {*layer, *following}
    return all(readers.issuperset(node.users) for node in layer)


def _forms(calls: Sequence[Node]) -> list[int]:
    """A number for each call, the same for calls that differ in the values of their operands alone."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(_form_of_call(node), len(numbers)) for node in calls]


def _form_of_call(node: Node) -> Any:
    value = value_of(node)
    if value is UNKNOWN or isinstance(node.target, HigherOrderOperator) or not may_repeat(node):
        return node  # like no other call
    differentiable = tuple(requires_grad(x) for x in (value, *map(value_of, node.all_input_nodes)))
    form = (node.op, node.target, _form(node.args), _form(node.kwargs), _form(value), differentiable)
    return form if _is_hashable(form) else node


def _is_hashable(given: Any) -> bool:
    try:
        hash(given)
    except TypeError:
        return False
    return True


def may_repeat(node: Node) -> bool:
    """Whether a call has no effect but that it may draw random numbers: copies draw theirs in the order of the graph."""
    effect = effect_of(node)
    return not (effect.writes or effect.barrier or effect.kept) and (effect.random or not effect.ordered)


def _form(given: Any) -> Any:
    if isinstance(given, slice):
        return ("slice", _form(given.start), _form(given.stop), _form(given.step))
    if isinstance(given, (list, tuple)):
        return (type(given), *map(_form, given))
    if isinstance(given, dict):
        return ("dict", *((key, _form(value)) for key, value in given.items()))
    return metadata_key(given)


def _longest_run(forms: Sequence[int]) -> tuple[int, int, int] | None:
    """Where calls repeat the most: the first call, the number of calls in a layer, and the end."""
    last: dict[int, int] = {}
    distances: Counter[int] = Counter()
    for i, form in enumerate(forms):
        if form in last:
            distances[i - last[form]] += 1
        last[form] = i
    runs = [run for period, _ in distances.most_common(_PERIODS) for run in _runs(forms, period)]
    return max(runs, key=lambda run: (run[2] - run[0] - LEAST * run[1], -run[1]), default=None)


def _runs(forms: Sequence[int], period: int) -> Iterator[tuple[int, int, int]]:
    start = 0
    for same, group in groupby(map(operator.eq, forms, forms[period:])):
        length = len(list(group))
        if same and length >= (LEAST - 1) * period:
            yield start, period, start + length + period
        start += length


Source = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class _Wiring:
    """What each operand of a layer is: a call, counted from the layer's first, an input of its own, or another node."""

    sources: tuple[Source, ...]
    inputs: tuple[Node, ...]

    @staticmethod
    def of(layer: tuple[Node, ...], places: Mapping[Node, int], second: Sequence[Source] = ()) -> _Wiring:
        """`second` are the sources of the second layer, if this is the first: other values are carried into this one."""
        members, own = set(layer), dict[Node, int]()
        sources: list[Source] = []
        for k, x in enumerate(x for node in layer for x in nodes_in((node.args, node.kwargs))):
            distance = places[x] - places[layer[0]] if x in places else -len(places)
            if second and (_is_carried(second[k]) or second[k] == ("shared", x)):
                sources.append(second[k])
            elif distance >= -len(layer):
                sources.append(("call", distance))
            elif x.op == "placeholder" and members.issuperset(x.users):
                sources.append(("input", (own.setdefault(x, len(own)), _form_of_input(x))))
            else:
                sources.append(("shared", x))
        return _Wiring(tuple(sources), tuple(own))


def _is_carried(source: Source) -> bool:
    return source[0] == "call" and source[1] < 0


def _form_of_input(node: Node) -> Any:
    value = value_of(node)
    return type(value), _form(value), requires_grad(value), is_static(node)


def _stretches(wired: Sequence[_Wiring]) -> Iterator[tuple[int, int]]:
    """The ends of each stretch of equally wired layers; the first layer is apart, since its operands come from outside."""
    start = 1
    for _, group in groupby(wired[1:], key=lambda w: w.sources):
        end = start + len(list(group))
        yield start, end
        start = end
