"""The fastest choice at a price per saved byte, as the minimum cut of a network.

Each value is two vertices. Cutting the arc from the source to the first means recomputing it, cutting the arc from the
first to the second means saving it. Arcs of infinite capacity make a recomputed value need its operands, and the backward
need what it reads. So a cut is a choice, and its capacity is the cost of the choice.

A value that must not be recomputed has the source as its first vertex, one that cannot be saved has a single vertex, and
one that is saved for free has none: the cut is the same, and found sooner.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import chain

from eductor.errors import BadOption
from eductor.partition.max_flow import Network
from eductor.partition.problem import Choice, Problem, Value, in_question

_SOURCE = 0


def cheapest(problem: Problem, price: Fraction | int = 0) -> Choice:
    """The choice with the least time plus `price` picoseconds per byte; among several, the one that recomputes least."""
    if price < 0:
        raise BadOption(f"a price of {price} picoseconds per byte is not allowed: it must not be negative")
    price, values = Fraction(price), problem.values
    numbers = in_question(problem)
    first, second, sink = _vertices(problem, numbers, price)
    is_behind = _network(problem, first, second, sink, price).cheapest_cut(_SOURCE, sink).is_behind
    again = frozenset(number for number, vertex in first.items() if is_behind[vertex])
    asked = chain((n for n in numbers if values[n].is_needed), *(values[n].operands for n in again))
    return Choice(frozenset(asked) - again, again)


def _vertices(problem: Problem, numbers: list[int], price: Fraction) -> tuple[dict[int, int], dict[int, int], int]:
    """The first and second vertices of values, and the sink, numbered so that all arcs go from lower to higher."""
    first: dict[int, int] = {}
    second: dict[int, int] = {}
    last = _SOURCE
    for number in numbers:
        value = problem.values[number]
        keeping = _keeping(value, price)
        if keeping == 0:
            continue
        first[number] = _SOURCE if value.again is None else (last := last + 1)
        second[number] = first[number] if keeping is None else (last := last + 1)
    return first, second, last + 1


def _network(problem: Problem, first: dict[int, int], second: dict[int, int], sink: int, price: Fraction) -> Network:
    """The network, with capacities scaled so that the price is an integer."""
    network = Network(sink + 1)
    for number, vertex in first.items():
        value = problem.values[number]
        if second[number] != vertex:
            network.add(vertex, second[number], _keeping(value, price))
        if value.again is not None:
            network.add(_SOURCE, vertex, value.again * price.denominator)
            for operand in dict.fromkeys(value.operands):
                if operand in second:
                    network.add(second[operand], vertex, None)
    for number, vertex in second.items():  # added last, so the flow tries them first
        if problem.values[number].is_needed:
            network.add(vertex, sink, None)
    return network


def _keeping(value: Value, price: Fraction) -> int | None:
    return None if value.keep is None else value.keep * price.denominator + value.bytes * price.numerator
