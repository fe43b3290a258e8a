"""The memory-time curve: the choices within decreasing budgets, with a peak that never rises as the budget falls.

Saved bytes do not determine the peak: with almost nothing saved, the backward starts by recomputing the whole forward,
and holds it. Where a smaller budget would have a higher peak, the backward runs the forward twice: at its start it
computes what the choice with the lower peak saves, and frees the rest; from then on it does what that choice does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from eductor.options import Solver
from eductor.partition.budget import hull, least_bytes, within
from eductor.partition.liveness import Liveness
from eductor.partition.plan import Plan
from eductor.partition.prices import PICOSECONDS, Priced
from eductor.partition.problem import Choice, Problem, bytes_of, time_of

BUDGETS = (*(k / 20 for k in range(20, 0, -1)), 0.04, 0.03, 0.02, 0.01, 0.0)
"""The budgets of the curve: any other is rounded down to one of them."""


@dataclass(frozen=True, slots=True)
class BudgetStep:
    """The fastest choice found within one budget: a step of the curve."""

    budget: float
    """The fraction of the fastest choice's bytes that it may save."""
    choice: Choice
    bytes: int
    picoseconds: int
    peak: int


def curve(found: Priced, liveness: Liveness, fastest: Choice, solver: Solver) -> list[BudgetStep]:
    """A step for each budget, from the fastest choice down to one that saves only inputs."""
    steps: list[BudgetStep] = []
    lowest: BudgetStep | None = None
    for step in _steps(found, liveness, fastest, solver):
        if lowest is not None and step.peak > lowest.peak:
            steps.append(_staged(found, liveness, step, lowest, steps[-1], solver))
        else:
            steps.append(step)
            lowest = step
    for i in range(len(steps) - 2, -1, -1):
        smaller = steps[i + 1]
        if smaller.picoseconds <= steps[i].picoseconds and smaller.peak <= steps[i].peak:
            steps[i] = replace(smaller, budget=steps[i].budget)
    return steps


def step_for(steps: Sequence[BudgetStep], budget: float) -> BudgetStep:
    """The step of the largest budget not above this one."""
    return next(step for step in steps if step.budget <= budget)


def curve_to_json(steps: Sequence[BudgetStep], plan: Plan) -> dict[str, Any]:
    """The curve as plain data: a point for each budget from 1 down to 0, and the plan that was chosen."""
    assert plan.peak is not None  # it was made for this graph, not edited
    points = [_point(s.budget, s.bytes, s.picoseconds / PICOSECONDS, s.peak) for s in steps]
    chosen = _point(plan.budget, plan.bytes, plan.seconds, plan.peak)
    if any(entry.ahead for entry in plan.again):  # a plan lists once what is computed twice, so its time is too short
        same = (point for point in points if (point["bytes"], point["peak"]) == (plan.bytes, plan.peak))
        chosen = {**next(same, chosen), "budget": plan.budget}
    return {"points": points, "chosen": chosen}


def _point(budget: float | Mapping[str, float], bytes: int, seconds: float, peak: int) -> dict[str, Any]:
    return {"budget": budget, "bytes": bytes, "seconds": seconds, "peak": peak}


def _steps(found: Priced, liveness: Liveness, fastest: Choice, solver: Solver) -> Iterator[BudgetStep]:
    """For each budget the fastest choice that there is, whatever its peak."""
    problem, corners = found.problem, hull(found.problem)
    most, fewest = bytes_of(problem, fastest), bytes_of(problem, corners[-1])
    last: BudgetStep | None = None
    for budget in BUDGETS:
        allowed = max(int(budget * most), fewest)
        choice = fastest if last is None else within(problem, allowed, solver=solver, corners=corners)
        if last is not None and last.bytes <= allowed and last.picoseconds <= time_of(problem, choice):
            last = replace(last, budget=budget)  # what was found for a larger budget fits here as well
        else:
            peak = liveness.peak(found.chosen(choice.kept))
            last = BudgetStep(budget, choice, bytes_of(problem, choice), time_of(problem, choice), peak)
        yield last


def _staged(
    found: Priced, liveness: Liveness, plain: BudgetStep, goal: BudgetStep, last: BudgetStep, solver: Solver
) -> BudgetStep:
    """A step whose backward starts by computing all that `goal` saves; the plain step if that has no lower peak."""
    problem = _to_have(found.problem, goal.choice)
    smallest = least_bytes(problem)
    allowed = max(plain.bytes, bytes_of(problem, smallest))
    if last.choice.ahead and last.bytes <= allowed:
        return replace(last, budget=plain.budget)
    staged = []
    for first in (within(problem, allowed, solver=solver), smallest):
        choice = Choice(first.kept, first.again | goal.choice.again, goal.choice.kept - first.kept)
        time = time_of(problem, first) + time_of(problem, Choice(frozenset(), goal.choice.again))
        peak = liveness.peak(found.chosen(choice.kept), found.chosen(choice.ahead))
        staged.append(BudgetStep(plain.budget, choice, bytes_of(problem, choice), time, peak))
    return next((step for step in staged if step.peak <= goal.peak), min((plain, *staged), key=lambda s: s.peak))


def _to_have(problem: Problem, choice: Choice) -> Problem:
    """The problem in which what a choice saves is needed, instead of what the backward reads."""
    wanted = (replace(value, is_needed=i in choice.kept) for i, value in enumerate(problem.values))
    return Problem(tuple(wanted))
