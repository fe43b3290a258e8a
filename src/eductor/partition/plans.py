"""Plans for several graphs: reads, writes, and matches them to graphs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from eductor.errors import BadOption
from eductor.graph.effects.order import ancestors
from eductor.options import Options
from eductor.partition.node_info import classify
from eductor.partition.plan import Plan, keys
from eductor.program.joint import Joint


class NoPlanFits(BadOption):
    """A graph that none of the plans fits."""


def write_plans(file: str | os.PathLike[str], plans: Iterable[Plan]) -> None:
    """Writes plans as JSON, for `read_plans`."""
    Path(file).write_text(json.dumps([plan.to_json() for plan in plans], indent=1))


def read_plans(file: str | os.PathLike[str]) -> list[Plan]:
    """The plans of a file that `write_plans` wrote."""
    try:
        found = json.loads(Path(file).read_text())
        if not isinstance(found, list):
            raise ValueError("it does not contain a list")
    except (OSError, ValueError) as error:
        raise BadOption(f"{str(file)!r} is not a file of plans: {error}. `eductor.write_plans` writes one.") from error
    return [Plan.from_json(plan) for plan in found]


def plans_of(options: Options) -> tuple[Plan, ...]:
    """The plans that the options give."""
    for plan in options.plans:
        if not isinstance(plan, Plan):
            raise BadOption(
                f"option plans: {plan!r} is not a plan. `eductor.explain(fn, *args).explain_saved()` gives one for each graph, "
                "`eductor.read_plans(file)` gives those of a file."
            )
    return tuple(options.plans)


def plan_for(joint: Joint, options: Options) -> Plan | None:
    """The first plan of the options whose values are exactly those of a joint graph; None if no plans are given."""
    plans = plans_of(options)
    if not plans:
        return None
    names = keys(joint.module.graph)
    own = {names[node] for node in ancestors(classify(joint).asked)}
    known = [{entry.key for entry in plan.entries()} for plan in plans]
    for plan, values in zip(plans, known, strict=True):
        if values == own:
            return plan
    nearest = min(known, key=lambda values: len(values ^ own))
    raise NoPlanFits(
        f"of the {len(own)} values that its backward can be computed from, the nearest plan has {len(nearest & own)}, "
        f"and {len(nearest - own)} others"
    )
