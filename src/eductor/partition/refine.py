"""Improves a choice within a budget by spending the bytes that it leaves over."""

from __future__ import annotations

import heapq
import math
from fractions import Fraction
from typing import NamedTuple

from eductor.partition.problem import Choice, Problem, bytes_of, completed, time_of

_FEW = 256
"""The most values whose costs one move may change: larger changes are left to the cuts."""
_ROUNDS = 8
"""How often all moves are tried again, as saving a value may make saving others worthwhile."""


class CostedChoice(NamedTuple):
    """A choice, with its bytes and time."""

    bytes: int
    time: int
    choice: Choice


def costed(problem: Problem, choice: Choice) -> CostedChoice:
    """A choice with its bytes and its time."""
    return CostedChoice(bytes_of(problem, choice), time_of(problem, choice), choice)


def repaired(problem: Problem, budget: int, over: CostedChoice, fits: CostedChoice) -> CostedChoice:
    """The choice that fits, with as much of its neighbour as the budget allows, then with more values saved."""
    best = _better(problem, budget, fits, _mixed(problem, budget, over, fits))
    search = _LocalSearch(problem, best.choice)
    left = budget - best.bytes
    for _ in range(_ROUNDS):
        spent = search.fill(left)
        if spent is None:
            break
        left -= spent
    return _better(problem, budget, best, search.kept)


def _better(problem: Problem, budget: int, known: CostedChoice, kept: set[int]) -> CostedChoice:
    """The choice that saves these values, or the known one if that is no slower."""
    choice = completed(problem, kept)
    found = known if choice is None else costed(problem, choice)
    return found if found.bytes <= budget and found.time < known.time else known


def _mixed(problem: Problem, budget: int, over: CostedChoice, fits: CostedChoice) -> set[int]:
    """The values saved by the choice that fits, with the parts of the other one that gain most time per byte."""
    parts: list[tuple[Fraction, int, list[int]]] = []
    for numbers in _parts(problem, fits.choice, over.choice):
        (size, time), (new_size, new_time) = (_sums(problem, numbers, p.choice) for p in (fits, over))
        if new_time <= time:
            parts.append((Fraction(new_time - time, max(new_size - size, 1)), size - new_size, numbers))
    kept, left = set(fits.choice.kept), budget - fits.bytes
    for _, freed, numbers in sorted(parts):
        if left + freed >= 0:
            left += freed
            kept.difference_update(numbers)
            kept |= over.choice.kept.intersection(numbers)
    return kept


def _parts(problem: Problem, one: Choice, other: Choice) -> list[list[int]]:
    """The values in which two choices differ, in independent groups: each may be taken alone."""
    differing = sorted((one.kept ^ other.kept) | (one.again ^ other.again))
    leaders = {number: number for number in differing}
    for number in differing:
        if number in one.again or number in other.again:
            for operand in problem.values[number].operands:
                if operand in leaders:
                    leaders[_leader(leaders, operand)] = _leader(leaders, number)
    groups: dict[int, list[int]] = {}
    for number in differing:
        groups.setdefault(_leader(leaders, number), []).append(number)
    return list(groups.values())


def _leader(leaders: dict[int, int], number: int) -> int:
    while leaders[number] != number:
        leaders[number] = number = leaders[leaders[number]]
    return number


def _sums(problem: Problem, numbers: list[int], choice: Choice) -> tuple[int, int]:
    """The bytes and the time of some values in a choice."""
    part = Choice(choice.kept.intersection(numbers), choice.again.intersection(numbers))
    return bytes_of(problem, part), time_of(problem, part)


class _Move(NamedTuple):
    """Saving a value that is recomputed now: the bytes it takes, the time it saves, the values no longer needed."""

    bytes: int
    saved: int
    freed: list[int]

    def rate(self, left: int) -> float:
        """The time saved per byte; 0 if it saves nothing, or takes more bytes than are left."""
        if self.bytes > left or self.saved < 0 or (self.saved == 0 and self.bytes >= 0):
            return 0.0
        return self.saved / self.bytes if self.bytes > 0 else math.inf


class _LocalSearch:
    """A choice that is improved value by value."""

    def __init__(self, problem: Problem, choice: Choice) -> None:
        self.kept = set(choice.kept)
        self._again = set(choice.again)
        self._values = problem.values
        self._asking = [int(value.is_needed) for value in problem.values]
        for number in choice.again:
            for operand in set(self._values[number].operands):
                self._asking[operand] += 1

    def fill(self, left: int) -> int | None:
        """Saves more values, those that gain most time per byte first; returns the bytes it took, None if it saved none."""
        moves = [(-self._move(number).rate(left), number) for number in sorted(self._again)]
        heapq.heapify(moves)
        spent: int | None = None
        while moves and moves[0][0] < 0:
            rate, number = heapq.heappop(moves)
            if number not in self._again:
                continue
            move = self._move(number)
            if (now := -move.rate(left)) > rate:  # its rate fell as other values were saved
                heapq.heappush(moves, (now, number))
                continue
            self._apply(number, move)
            left -= move.bytes
            spent = (spent or 0) + move.bytes
        return spent

    def _move(self, number: int) -> _Move:
        value, freed = self._values[number], self._freed(number)
        if value.keep is None or freed is None:
            return _Move(0, -1, [])
        kept = [self._values[n] for n in freed if n in self.kept]
        again = [self._values[n] for n in (number, *freed) if n in self._again]
        time = sum(v.keep or 0 for v in kept) + sum(v.again or 0 for v in again)
        return _Move(value.bytes - sum(v.bytes for v in kept), time - value.keep, freed)

    def _freed(self, number: int) -> list[int] | None:
        """The values no longer needed if a value is saved; None if too many."""
        freed: list[int] = []
        fewer: dict[int, int] = {}
        todo = [number]
        while todo:
            for operand in set(self._values[todo.pop()].operands):
                fewer[operand] = fewer.get(operand, 0) + 1
                if fewer[operand] == self._asking[operand]:
                    freed.append(operand)
                    if operand in self._again:
                        todo.append(operand)
            if len(freed) > _FEW:
                return None
        return freed

    def _apply(self, number: int, move: _Move) -> None:
        for gone in (number, *move.freed):
            if gone in self._again:
                self._again.discard(gone)
                for operand in set(self._values[gone].operands):
                    self._asking[operand] -= 1
        self.kept.difference_update(move.freed)
        self.kept.add(number)
