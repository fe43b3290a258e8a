"""The fastest choice within a budget as an integer program, solved by HiGHS, if SciPy is installed.

Each value has a variable for being saved and one for being recomputed. Only the first must be integers, as they determine
the second. Only the set of saved values is taken from the solution: the choice, its time and its bytes are recomputed
in integers.
"""

from __future__ import annotations

import math
import time
from importlib.util import find_spec
from typing import Any

from eductor.partition.problem import Choice, Problem, bytes_of, completed, in_question, time_of

_LARGEST = 10**6
"""The largest number passed to HiGHS, whose sums are exact to a millionth only."""


def is_available() -> bool:
    """Whether a solver for integer programs is installed."""
    return find_spec("scipy") is not None


def solve(problem: Problem, budget: int, seconds: float, start: Choice) -> tuple[Choice, bool]:
    """The fastest choice found in this time, or `start`; and whether it is proven optimal.

    Proven means that no choice is faster by more than a millionth of the largest of all times.
    """
    numbers = in_question(problem)
    if not numbers:
        return start, True
    end = time.monotonic() + seconds
    found, is_proven = _found(problem, numbers, budget, seconds)
    if found is not None and (over := bytes_of(problem, found) - budget) > 0:
        over += max(problem.values[number].bytes for number in numbers) * 10 // _LARGEST
        found, is_proven = _found(problem, numbers, budget - over, end - time.monotonic())[0], False
    if found is None or bytes_of(problem, found) > budget:
        return start, False
    slower = time_of(problem, found) - time_of(problem, start)
    return (found if slower < 0 else start), is_proven and slower <= 0


def _found(problem: Problem, numbers: list[int], budget: int, seconds: float) -> tuple[Choice | None, bool]:
    """The choice that HiGHS finds, which may exceed the budget by a few bytes, and whether HiGHS calls it optimal."""
    found = _run(problem, numbers, budget, max(seconds, 0.0))
    if found.x is None:
        return None, False
    shares = zip(numbers, found.x[: len(numbers)], strict=True)
    return completed(problem, {number for number, share in shares if share > 0.5}), found.status == 0


def _run(problem: Problem, numbers: list[int], budget: int, seconds: float) -> Any:
    """HiGHS's solution: its `x` has a share saved for each value, then a share recomputed for each."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    values, count = [problem.values[number] for number in numbers], len(numbers)
    times = _scaled([value.keep or 0 for value in values] + [value.again or 0 for value in values])
    can_be = [value.keep is not None for value in values] + [value.again is not None for value in values]
    matrix, at_least = _rules(problem, numbers)
    *sizes, most = _scaled([value.bytes for value in values], budget)
    return milp(
        np.array(times),
        integrality=np.array([1] * count + [0] * count),
        bounds=Bounds(0, np.array(can_be, dtype=float)),
        constraints=[
            LinearConstraint(matrix, lb=np.array(at_least)),
            LinearConstraint(np.array([[*sizes, *[0.0] * count]]), ub=most),
        ],
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )


def _rules(problem: Problem, numbers: list[int]) -> tuple[Any, list[float]]:
    """The constraints: needed values and operands of recomputed values are saved or recomputed."""
    from scipy.sparse import csr_array

    place, count = {number: i for i, number in enumerate(numbers)}, len(numbers)
    entries: list[tuple[int, int, float]] = []
    at_least: list[float] = []
    for i, number in enumerate(numbers):
        value = problem.values[number]
        if value.is_needed:
            entries += [(len(at_least), i, 1.0), (len(at_least), count + i, 1.0)]
            at_least.append(1.0)
        for operand in dict.fromkeys(value.operands) if value.again is not None else ():
            u, row = place[operand], len(at_least)
            entries += [(row, u, 1.0), (row, count + u, 1.0), (row, count + i, -1.0)]
            at_least.append(0.0)
    rows, columns, factors = zip(*entries, strict=True)
    return csr_array((factors, (rows, columns)), shape=(len(at_least), 2 * count)), at_least


def _scaled(amounts: list[int], *limits: int) -> list[float]:
    """Amounts, and limits on their sums, in units of their greatest common divisor, or larger if they are large."""
    unit = math.gcd(*amounts) or 1
    larger = max(1, max(amounts) // unit // _LARGEST)
    return [amount // unit / larger for amount in (*amounts, *limits)]
