"""The partitioning problem as plain data: which values to save for the backward, and which to recompute there.

Each value that the backward reads is saved or recomputed, and so is each operand of a recomputed one. All numbers are
integers, so that choices compare exactly.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from eductor.errors import BadGraph, Unsupported


class NoChoice(Unsupported):
    """A value that the backward needs, and that can neither be saved nor recomputed."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the forward, with the costs of saving it for the backward and of recomputing it."""

    name: str
    operands: tuple[int, ...] = ()
    """The numbers of earlier values that it is computed from."""
    bytes: int = 0
    """Memory while it is saved; 0 if it is alive anyway, such as a parameter."""
    keep: int | None = 0
    """Picoseconds to save it, for its write and read; None if it cannot be saved (a view, a tuple)."""
    again: int | None = None
    """Picoseconds to recompute it in the backward; None if it must not be."""
    is_needed: bool = False
    """Whether the backward reads it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The values of a forward, each after its operands."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        for number, value in enumerate(self.values):
            _check(number, value)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which values are saved (`kept`), and which are recomputed (`again`)."""

    kept: frozenset[int]
    again: frozenset[int]
    ahead: frozenset[int] = frozenset()
    """Values recomputed at the start of the backward and held from then on; what they need may be recomputed twice."""


def bytes_of(problem: Problem, choice: Choice) -> int:
    """The memory of the saved values."""
    return sum(problem.values[number].bytes for number in choice.kept)


def time_of(problem: Problem, choice: Choice) -> int:
    """Picoseconds of all saving and recomputing."""
    return sum(problem.values[n].keep or 0 for n in choice.kept) + sum(
        problem.values[n].again or 0 for n in choice.again
    )


def completed(problem: Problem, kept: Set[int]) -> Choice | None:
    """The choice that saves these values, if needed; None if the rest cannot be recomputed."""
    asked = bytearray(value.is_needed for value in problem.values)
    used: list[int] = []
    again: list[int] = []
    for number in range(len(asked) - 1, -1, -1):  # readers come after their operands
        if not asked[number]:
            continue
        value = problem.values[number]
        if number in kept:
            if value.keep is None:
                return None
            used.append(number)
        elif value.again is None:
            return None
        else:
            again.append(number)
            for operand in value.operands:
                asked[operand] = True
    return Choice(frozenset(used), frozenset(again))


def in_question(problem: Problem) -> list[int]:
    """The values that some choice needs, in order. Raises NoChoice for a needed value that no choice can provide."""
    _check_possible(problem)
    asked = bytearray(value.is_needed for value in problem.values)
    for number in range(len(asked) - 1, -1, -1):
        if asked[number] and problem.values[number].again is not None:
            for operand in problem.values[number].operands:
                asked[operand] = True
    return [number for number, is_asked in enumerate(asked) if is_asked]


def _check(number: int, value: Value) -> None:
    for operand in value.operands:
        if not 0 <= operand < number:
            raise BadGraph(
                f"{value.name}, the value number {number}, has the operand {operand}. "
                f"Allowed are the numbers of earlier values: 0 to {number - 1}."
            )
    for what, amount in (("bytes", value.bytes), ("keep", value.keep), ("again", value.again)):
        if amount is None and what != "bytes":
            continue
        if not isinstance(amount, int) or amount < 0:
            raise BadGraph(
                f"{value.name}, the value number {number}, has {what}={amount!r}. Allowed are whole numbers from 0 on"
                f"{'' if what == 'bytes' else ', or None'}."
            )


def _check_possible(problem: Problem) -> None:
    """Raises NoChoice unless each needed value can be saved, or recomputed from values that can be."""
    values = problem.values
    can: list[bool] = []
    for value in values:
        can.append(value.keep is not None or (value.again is not None and all(can[n] for n in value.operands)))
    for number, value in enumerate(values):
        if value.is_needed and not can[number]:
            raise NoChoice(_why_not(problem, number, can))


def _why_not(problem: Problem, number: int, can: list[bool]) -> str:
    """The path from a needed value to the operand that blocks it."""
    way = [number]
    while problem.values[way[-1]].again is not None:
        way.append(next(n for n in problem.values[way[-1]].operands if not can[n]))
    names = [problem.values[n].name for n in way]
    because = f" (which is recomputed from {', from '.join(names[1:])})" if len(names) > 1 else ""
    return (
        f"{names[-1]} can neither be saved nor recomputed, and the backward needs {names[0]}{because}. "
        f"Allow {names[-1]} to be saved or recomputed."
    )
