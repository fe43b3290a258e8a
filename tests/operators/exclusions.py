"""Operators that do not do compiled what they do in eager, and why: never for a fault of ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Exclusion:
    """What the construct is, and in which profiles it shows."""

    reason: str
    profiles: tuple[str, ...] = ("exact",)


EXCLUDED: dict[str, Exclusion] = {
    "addcdiv": Exclusion("Dynamo takes it apart where `value=` is given: what is captured rounds more often"),
}
"""An operator that gives eager's results again fails the tests, until it is taken off."""
