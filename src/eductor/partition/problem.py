"""The question of a partitioner as plain data: which values to keep for the backward, and which to make again there.

Each value that the backward reads is kept or made again, and so is each operand of one that is made again. All numbers
are whole, so that two choices are compared exactly.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from eductor.errors import BadGraph, Unsupported


class NoChoice(Unsupported):
    """A value that the backward asks for, and that can neither be kept nor made again."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that the forward makes: what keeping it for the backward takes, and what making it again does."""

    name: str
    operands: tuple[int, ...] = ()
    """The numbers of earlier values that it is made from."""
    bytes: int = 0
    """Memory while it is kept; 0 if it is there anyway, as a parameter is."""
    keep: int | None = 0
    """Picoseconds that keeping it takes, to write and to read it; None if it cannot be kept (a view, a tuple)."""
    again: int | None = None
    """Picoseconds of making it again in the backward; None if it must not be."""
    is_needed: bool = False
    """Whether the backward reads it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The values of a forward, each behind its operands."""

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        for number, value in enumerate(self.values):
            _check(number, value)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which values are kept, and which are made again."""

    kept: frozenset[int]
    again: frozenset[int]
    ahead: frozenset[int] = frozenset()
    """Those that the backward makes again at its start, and holds from then on; what it made them from, it may make twice."""


def bytes_of(problem: Problem, choice: Choice) -> int:
    """The memory of what is kept."""
    return sum(problem.values[number].bytes for number in choice.kept)


def time_of(problem: Problem, choice: Choice) -> int:
    """Picoseconds of keeping and of making again, all together."""
    return sum(problem.values[n].keep or 0 for n in choice.kept) + sum(
        problem.values[n].again or 0 for n in choice.again
    )


def completed(problem: Problem, kept: Set[int]) -> Choice | None:
    """The choice that keeps these values, as far as they are asked for; None if the rest cannot be made again."""
    asked = bytearray(value.is_needed for value in problem.values)
    used: list[int] = []
    again: list[int] = []
    for number in range(len(asked) - 1, -1, -1):  # whoever asks for a value stands behind it
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


def is_valid(problem: Problem, choice: Choice) -> bool:
    """Whether nothing is missing, nothing is kept or made again that must not be, and nothing is both."""
    values, has = problem.values, choice.kept | choice.again
    return (
        all(0 <= number < len(values) for number in has)
        and not choice.kept & choice.again
        and all(values[number].keep is not None for number in choice.kept)
        and all(values[number].again is not None for number in choice.again)
        and all(number in has for number, value in enumerate(values) if value.is_needed)
        and all(operand in has for number in choice.again for operand in values[number].operands)
    )


def in_question(problem: Problem) -> list[int]:
    """The values that some choice asks for, in order. An error names one that every choice needs and none can have."""
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
    """Whether each needed value can be had somehow: kept, or made again from values that can be had."""
    values = problem.values
    can: list[bool] = []
    for value in values:
        can.append(value.keep is not None or (value.again is not None and all(can[n] for n in value.operands)))
    for number, value in enumerate(values):
        if value.is_needed and not can[number]:
            raise NoChoice(_why_not(problem, number, can))


def _why_not(problem: Problem, number: int, can: list[bool]) -> str:
    """The way from a needed value to the one that it is stuck at."""
    way = [number]
    while problem.values[way[-1]].again is not None:
        way.append(next(n for n in problem.values[way[-1]].operands if not can[n]))
    names = [problem.values[n].name for n in way]
    because = f" (which is made again from {', from '.join(names[1:])})" if len(names) > 1 else ""
    return (
        f"{names[-1]} can neither be kept nor made again, and the backward needs {names[0]}{because}. "
        f"Let {names[-1]} be kept, or be made again."
    )
