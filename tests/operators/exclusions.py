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

_IN_FEWER_DIGITS = "eager rounds a gradient to the narrow dtype in between, a kernel computes it in float32"
_OF_LARGE_NUMBERS = "the sweep takes cosines of large numbers, where the last digit of an operand counts"

ROUNDED: dict[str, str] = {
    "bfloat16": _IN_FEWER_DIGITS,
    "half": _IN_FEWER_DIGITS,
    "native_group_norm": "over one number a group: its gradient is a difference of roundings, ours nearer to float64",
    "nn.functional.conv_transpose2d": _OF_LARGE_NUMBERS,
    "expm1": _OF_LARGE_NUMBERS,
    "sinh": _OF_LARGE_NUMBERS,
    "nn.functional.poisson_nll_loss": _OF_LARGE_NUMBERS,
}
"""Operators that the code generator rounds otherwise than eager, with torch's own passes as well, and where that shows."""

NOT_GENERATED: dict[str, str] = {
    "narrow": "its gradient, for a place that a tensor holds: the lowering asks whether that counts from the end, and the engine "
    "aten takes over, with a warning; with torch's own passes the backward raises",
}
"""Operators that the code generator refuses in the sweep's programs; what takes over does what eager does."""
