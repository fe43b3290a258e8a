"""Memory budgets for parts of a model: each budget limits the saved values of some modules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from torch.fx import Node

from eductor.errors import warn
from eductor.options import Solver
from eductor.partition.budget import least_bytes, within
from eductor.partition.prices import Priced
from eductor.partition.problem import Choice, Problem, Value, bytes_of


def within_regions(found: Priced, full: Choice, budgets: Mapping[str, float], solver: Solver) -> Choice:
    """A choice in which each region saves no more than its budget; the rest is saved as in the full choice."""
    choice = full
    for budget, region in _regions(found, budgets):
        inputs = {u for i in region for u in found.problem.values[i].operands} - region
        problem = _others_fixed(found.problem, choice, region, inputs)
        size = sum(found.problem.values[i].bytes for i in full.kept & region)
        allowed = int(budget * size) if budget <= 1 else int(budget)
        choice = within(problem, max(allowed, bytes_of(problem, least_bytes(problem))), solver=solver)
    return choice


def _others_fixed(problem: Problem, choice: Choice, region: set[int], inputs: set[int]) -> Problem:
    """The problem of one region: what else is saved stays saved for free; its inputs may be saved at its expense."""

    def fixed(number: int, value: Value) -> Value:
        if number in region:
            return value
        if number in choice.kept:
            return replace(value, bytes=0, again=None)
        return value if number in inputs else replace(value, keep=None if value.again is not None else value.keep)

    return Problem(tuple(fixed(i, value) for i, value in enumerate(problem.values)))


def _regions(found: Priced, budgets: Mapping[str, float]) -> list[tuple[float, set[int]]]:
    """The values of each budget; a value belongs to the first pattern that matches one of its modules."""
    regions: list[tuple[float, set[int]]] = [(budget, set()) for budget in budgets.values()]
    known: set[str] = set()
    for number, node in enumerate(found.nodes):
        names = _modules(node)
        known.update(names)
        fits = (k for k, pattern in enumerate(budgets) if any(fnmatchcase(name, pattern) for name in names))
        if (k := next(fits, None)) is not None:
            regions[k][1].add(number)
    if not any(region for _, region in regions):
        warn(
            f"option memory_budget={dict(budgets)!r}: no module of this graph matches; it has "
            f"{', '.join(sorted(known)) or 'no modules'}."
        )
    return [(budget, region) for budget, region in regions if region]


def _modules(node: Node) -> set[str]:
    """The modules that a node was computed in, by path in the model and by class name."""
    stack = (node.meta.get("nn_module_stack") or {}).values()
    names = ((_ROOT.sub("", str(path)), getattr(kind, "__name__", str(kind))) for path, kind in stack)
    return {name for pair in names for name in pair if name}


_ROOT = re.compile(r"^\w+\[[^]]*\]\.?")
"""Dynamo's prefix of a module path: `L['self'].layers.0` is the module `layers.0`."""
