"""Memory against time: the choices within smaller and smaller budgets, and one whose peak falls with the budget.

What is saved says not all: a value that is computed again early is held as long as one that was saved. So the peak of a
smaller budget may be higher. It is not taken then: the next smaller budget is, whose peak is not. Each value is computed
again once: with next to nothing saved, the backward begins by making all of the forward again, and the peak rises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eductor.cost import Device
from eductor.options import Solver
from eductor.partition.budget import least_bytes, within
from eductor.partition.liveness import peak_of
from eductor.partition.node_info import NodeInfo
from eductor.partition.prices import Priced
from eductor.partition.problem import Choice, bytes_of, time_of

STEPS = 8
"""Of the curve, from all that the fastest choice saves to nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """A choice on the curve."""

    budget: float
    """The part of the fastest choice's bytes that it may save."""
    choice: Choice
    bytes: int
    picoseconds: int
    peak: int


def curve(
    info: NodeInfo, found: Priced, device: Device, fastest: Choice, solver: Solver, budget: float | None = None
) -> list[Step]:
    """The steps from the fastest choice down, and one for a budget in between."""
    problem = found.problem
    most, least = bytes_of(problem, fastest), bytes_of(problem, least_bytes(problem))
    wanted = {k / STEPS for k in range(STEPS + 1)} | ({budget} if budget is not None else set())
    steps: list[Step] = []
    for part in sorted(wanted, reverse=True):
        allowed = max(int(part * most), least)
        choice = fastest if part == 1 else within(problem, allowed, solver=solver)
        if steps and steps[-1].bytes <= allowed and steps[-1].picoseconds <= time_of(problem, choice):
            choice = steps[-1].choice  # what was found for more room fits here, too
        saved = [found.nodes[i] for i in sorted(choice.kept)]
        steps.append(
            Step(part, choice, bytes_of(problem, choice), time_of(problem, choice), peak_of(info, saved, device))
        )
    return steps


def falling(steps: Sequence[Step], budget: float) -> Step:
    """The step for a budget: the largest one within it whose peak is at most that of every larger budget.

    So the peak never rises as the budget falls. Where no step is so low, it is the lowest that there is.
    """
    limit = min((step.peak for step in steps if step.budget >= budget), default=steps[0].peak)
    within_it = [step for step in steps if step.budget <= budget]
    return next((step for step in within_it if step.peak <= limit), min(within_it, key=lambda step: step.peak))
