"""The partition page: what is saved and what is recomputed, the curve, and the memory over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LISTS = ("saved", "again", "others")
FIELDS = ("name", "bytes", "seconds", "instead", "reason", "ahead")


def partition_data(facts: Mapping[str, Any], names: Mapping[str, int]) -> dict[str, Any] | None:
    """The data of the page, from the facts of the stage; `names` are the ids of the nodes of the joint graph."""
    plan = facts.get("plan")
    if plan is None:
        return None
    values = {
        what: [{**{key: entry[key] for key in FIELDS}, "node": names.get(entry["name"])} for entry in plan[what]]
        for what in LISTS
    }
    timeline = [{**step, "node": names.get(step["name"])} for step in facts.get("timeline", ())]
    return {
        "budget": plan["budget"],
        "peak": plan["peak"],
        **values,
        "curve": facts.get("curve"),
        "timeline": timeline,
    }
