"""Replays an earlier or edited plan on a joint graph, if that is valid.

Only what a plan saves counts: everything else that the backward needs is recomputed. Inputs that need no copy are always
available, whether the plan lists them or not. What must not be recomputed is checked on each graph, whatever the plan says.
"""

from __future__ import annotations

from dataclasses import replace

from eductor.errors import BadOption
from eductor.partition.node_info import NodeInfo, is_size
from eductor.partition.plan import Plan
from eductor.partition.prices import Priced
from eductor.partition.problem import Choice, Problem, completed
from eductor.partition.reasons import why_saved


def replayed(plan: Plan, info: NodeInfo, found: Priced) -> Choice:
    """The choice that saves what a plan does. Raises BadOption if a needed value can be neither saved nor recomputed."""
    saved, ahead = (set(nodes) for nodes in plan.nodes(info.nodes[0].graph))
    saved |= {*info.primals} - info.copied | {node for node in found.nodes if is_size(node)}
    kept = {i for i, node in enumerate(found.nodes) if node in saved}
    choice = completed(found.problem, kept)
    if choice is None:
        raise BadOption(_why_not(info, found, kept))
    return replace(choice, ahead=frozenset(i for i in choice.again if found.nodes[i] in ahead))


def _why_not(info: NodeInfo, found: Priced, kept: set[int]) -> str:
    values = found.problem.values
    stuck, *way = _way_to_the_stuck(found.problem, kept)
    node, name = found.nodes[stuck], values[stuck].name
    if stuck in kept:
        what = "a view" if node in info.views else "a tuple, a constant, or what checkpointing recomputes"
        of = ", ".join(values[n].name for n in values[stuck].operands) or "nothing instead"
        return f"the plan saves {name}, which is not saved as it is: it is {what}. Save {of}."
    savable = [values[n].name for n in (stuck, *way) if values[n].keep is not None]
    instead, asking = savable[0], savable[-1]
    needed = "it" if asking == name else f"{asking}, which is recomputed from it"
    why = why_saved(node, info, {}, must_be=True).removeprefix("must not be recomputed: ")
    return (
        f"the plan does not save {name}, and the backward needs {needed}. {name} must not be recomputed: {why}. "
        f"Save {instead}, with `plan.saving({instead!r})`."
    )


def _way_to_the_stuck(problem: Problem, kept: set[int]) -> list[int]:
    """The last value that cannot be saved but is, or must be saved but is not; then its dependents, up to a needed one."""
    values = problem.values
    asked_by: dict[int, int | None] = {i: None for i, value in enumerate(values) if value.is_needed}
    for number in range(len(values) - 1, -1, -1):
        if number not in asked_by:
            continue
        if (values[number].keep if number in kept else values[number].again) is None:
            break
        if number not in kept:
            for operand in values[number].operands:
                asked_by.setdefault(operand, number)
    way: list[int] = []
    asking: int | None = number
    while asking is not None:
        way.append(asking)
        asking = asked_by[asking]
    return way
