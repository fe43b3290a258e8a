"""Finds the fastest choice within a budget of bytes.

A price per byte gives exactly the choices on the lower convex hull of (bytes, time). Equal layers switch at the same
price, so the hull has gaps. For a budget in a gap, the bytes left over are spent on parts of the next choice on the hull,
then value by value; or an integer program finds the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import get_args

from eductor.errors import BadOption, UnknownName, warn
from eductor.options import Solver
from eductor.partition import integer_program as integer
from eductor.partition.min_cut import cheapest
from eductor.partition.problem import Choice, Problem
from eductor.partition.refine import CostedChoice, costed, repaired


class BudgetTooSmall(BadOption):
    """A budget below the fewest bytes that the backward needs."""

    def __init__(self, budget: int, least: int) -> None:
        super().__init__(budget, least)
        self.budget, self.least = budget, least

    def __str__(self) -> str:
        return f"a budget of {self.budget} bytes is too small: at least {self.least} bytes must be saved."


def within(
    problem: Problem,
    budget: int,
    *,
    solver: Solver = "greedy",
    seconds: float = 5.0,
    corners: Sequence[Choice] | None = None,
) -> Choice:
    """The choice with the least time that the solver finds, never with more bytes than the budget.

    `corners` is the problem's hull, if already known.
    """
    if solver not in get_args(Solver):
        raise UnknownName("solver", solver, get_args(Solver))
    over, fits = _around(problem, budget) if corners is None else _neighbours(problem, budget, corners)
    if over is None or solver == "cuts":
        return fits.choice
    choice = repaired(problem, budget, over, fits).choice
    if solver == "integer" and integer.is_available():
        choice, _ = integer.solve(problem, budget, seconds, choice)
    elif solver == "integer":
        warn("SciPy is not installed, so the greedy solver is used.")
    return choice


def hull(problem: Problem) -> list[Choice]:
    """A choice for each corner of the lower convex hull of (bytes, time), from most to fewest bytes."""
    found, left = [_fastest(problem)], [_smallest(problem)]
    while left:
        if (between := _below(problem, found[-1], left[-1])) is not None:
            left.append(between)
            continue
        last = left.pop()
        if len(found) > 1 and _are_in_line(found[-2], found[-1], last):
            found.pop()
        if last.bytes < found[-1].bytes:
            found.append(last)
    return [corner.choice for corner in found]


def least_bytes(problem: Problem) -> Choice:
    """The choice with the fewest bytes; among several, the fastest."""
    most = sum((value.keep or 0) + (value.again or 0) for value in problem.values)
    return cheapest(problem, most + 1)


# ------------------------------------------------------------------------------------------------------- the hull


def _fastest(problem: Problem) -> CostedChoice:
    """The fastest choice; among several, the one with the fewest bytes."""
    most = sum(value.bytes for value in problem.values)
    return costed(problem, cheapest(problem, Fraction(1, most + 1)))


def _smallest(problem: Problem) -> CostedChoice:
    return costed(problem, least_bytes(problem))


def _below(problem: Problem, more: CostedChoice, fewer: CostedChoice) -> CostedChoice | None:
    """A choice on the hull below the line through two others on it; None if they are neighbours."""
    if more.bytes <= fewer.bytes:
        return None
    price = Fraction(fewer.time - more.time, more.bytes - fewer.bytes)
    found = costed(problem, cheapest(problem, price))
    return found if found.time + price * found.bytes < more.time + price * more.bytes else None


def _are_in_line(a: CostedChoice, b: CostedChoice, c: CostedChoice) -> bool:
    return (b.time - a.time) * (b.bytes - c.bytes) == (c.time - b.time) * (a.bytes - b.bytes)


def _neighbours(problem: Problem, budget: int, corners: Sequence[Choice]) -> tuple[CostedChoice | None, CostedChoice]:
    """Like `_around`, but among known corners."""
    candidates = [costed(problem, choice) for choice in corners]
    fits = next((i for i, found in enumerate(candidates) if found.bytes <= budget), None)
    if fits is None:
        raise BudgetTooSmall(budget, candidates[-1].bytes)
    return candidates[fits - 1] if fits else None, candidates[fits]


def _around(problem: Problem, budget: int) -> tuple[CostedChoice | None, CostedChoice]:
    """Two neighbours on the hull, the first over the budget, the second within it; the first is None if all fit."""
    over = _fastest(problem)
    if over.bytes <= budget:
        return None, over
    fits = _smallest(problem)
    if fits.bytes > budget:
        raise BudgetTooSmall(budget, fits.bytes)
    while (found := _below(problem, over, fits)) is not None:
        if found.bytes <= budget:
            fits = found
        else:
            over = found
    return over, fits
