"""The least time within a budget of bytes: the hull, and three solvers, beside all choices of small problems."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from test_min_cut import all_choices, is_valid, layers, random_problem

from eductor.errors import BadOption, EductorWarning, UnknownName
from eductor.partition import integer_program as integer
from eductor.partition.budget import BudgetTooSmall, hull, least_bytes, within
from eductor.partition.problem import Choice, NoChoice, Problem, Value, bytes_of, completed, time_of

needs_scipy = pytest.mark.skipif(not integer.is_available(), reason="needs SciPy")


def problems(seed, count, most=9):
    """Random problems that have a choice, each with all of them."""
    rng = random.Random(seed)
    while count:
        problem = random_problem(rng, most)
        try:
            choices = all_choices(problem)
        except NoChoice:
            continue
        count -= 1
        yield problem, choices


def point(problem, choice):
    return bytes_of(problem, choice), time_of(problem, choice)


def corners(points):
    """The lower convex hull's corners, from the fastest point to the smallest one."""
    best = {}
    for size, time in points:
        best[size] = min(time, best.get(size, time))
    found = []
    for size, time in sorted(best.items()):
        while len(found) > 1 and is_above(found[-2], found[-1], (size, time)):
            found.pop()
        found.append((size, time))
    fastest = min(found, key=lambda p: (p[1], p[0]))
    return [p for p in reversed(found) if p[0] <= fastest[0]]


def is_above(a, b, c):
    """Whether the middle one of three points lies on or above the line through the others."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


# -------------------------------------------------------------------------------------------------------- the hull


def test_the_hull_has_just_the_corners_of_the_lower_convex_hull():
    for problem, choices in problems(1, 400):
        found = hull(problem)
        assert set(found) <= choices
        assert [point(problem, choice) for choice in found] == corners(point(problem, c) for c in choices)


def test_the_fewest_bytes_and_then_the_least_time():
    for problem, choices in problems(2, 300):
        assert point(problem, least_bytes(problem)) == min(point(problem, choice) for choice in choices)


def test_the_hull_of_equal_layers_has_holes():
    assert len(hull(layers(12))) == len(hull(layers(3)))


# ------------------------------------------------------------------------------------------------------ the budget


@pytest.mark.parametrize(("cases", "most"), [(500, 9), (10, 14)])
def test_no_solver_exceeds_the_budget_and_greedy_is_no_worse_than_cuts(cases, most):
    best = equal = 0
    for problem, choices in problems(most, cases, most):
        points = [point(problem, choice) for choice in choices]
        for budget in range(min(points)[0], max(points)[0] + 2):
            least = min(time for size, time in points if size <= budget)
            cuts, greedy = (within(problem, budget, solver=solver) for solver in ("cuts", "greedy"))
            assert {cuts, greedy} <= choices
            assert max(bytes_of(problem, cuts), bytes_of(problem, greedy)) <= budget
            assert least <= time_of(problem, greedy) <= time_of(problem, cuts)
            best, equal = best + 1, equal + (time_of(problem, greedy) == least)
    assert equal > 0.9 * best


@needs_scipy
def test_the_integer_program_finds_the_best_choice_and_knows_it():
    for problem, choices in problems(4, 60):
        points = [point(problem, choice) for choice in choices]
        for budget in range(min(points)[0], max(points)[0] + 1, 3):
            start = least_bytes(problem)
            found, is_proven = integer.solve(problem, budget, 5.0, start)
            assert found in choices
            assert is_proven
            assert bytes_of(problem, found) <= budget
            assert time_of(problem, found) == min(time for size, time in points if size <= budget)
            assert time_of(problem, within(problem, budget, solver="integer")) == time_of(problem, found)


@needs_scipy
@pytest.mark.parametrize("longest", [10**4, 10**9, 10**12])
def test_large_numbers_do_not_break_the_budget(longest):
    """Sizes of gigabytes that differ by a byte: floats do not tell them apart, and what is over is sought again."""
    rng, proven = random.Random(9), 0
    for _ in range(10):
        numbers = [(2**32 + rng.randint(0, 9), rng.randint(0, 9), longest + rng.randint(0, 9)) for _ in range(8)]
        problem = Problem(tuple(Value(f"v{n}", (), *each, is_needed=True) for n, each in enumerate(numbers)))
        points = [point(problem, choice) for choice in all_choices(problem)]
        for budget in rng.sample([size for size, _ in points], 5):
            found, is_proven = integer.solve(problem, budget, 5.0, least_bytes(problem))
            slower = time_of(problem, found) - min(time for size, time in points if size <= budget)
            assert bytes_of(problem, found) <= budget
            assert slower <= (1e-6 * longest if is_proven else 1.1 * longest)
            proven += is_proven
    assert proven > 20


@needs_scipy
def test_without_time_the_integer_program_gives_back_what_it_was_given():
    problem = layers(40)
    budget = 2 * bytes_of(problem, least_bytes(problem))
    start = within(problem, budget)
    found, is_proven = integer.solve(problem, budget, 0.0, start)
    assert time_of(problem, found) <= time_of(problem, start)
    assert bytes_of(problem, found) <= budget
    assert not is_proven


def test_without_scipy_the_greedy_solver_is_taken_and_said_to_be(monkeypatch):
    monkeypatch.setattr(integer, "is_available", lambda: False)
    problem = layers(4)
    budget = 2 * bytes_of(problem, least_bytes(problem))
    with pytest.warns(EductorWarning, match="SciPy is not installed") as warned:
        found = within(problem, budget, solver="integer")
    assert len(warned) == 1
    assert found == within(problem, budget)


@pytest.mark.parametrize("solver", ["cuts", "greedy", "integer"])
def test_a_budget_below_the_fewest_bytes_is_refused(solver):
    problem = layers(3)
    least = bytes_of(problem, least_bytes(problem))
    assert bytes_of(problem, within(problem, least)) == least
    with pytest.raises(BudgetTooSmall, match=f"a budget of {least - 1} bytes is too small: at least {least}") as error:
        within(problem, least - 1, solver=solver)
    assert (error.value.budget, error.value.least) == (least - 1, least)
    assert isinstance(error.value, BadOption)


def test_a_value_that_cannot_be_had_and_an_unknown_solver():
    with pytest.raises(NoChoice, match="pair can neither"):
        within(Problem((Value("pair", keep=None, is_needed=True),)), 10)
    with pytest.raises(UnknownName, match="greedy"):
        within(layers(1), 10**9, solver="gredy")


def test_nothing_needed_fits_into_nothing():
    assert within(Problem((Value("x", bytes=4),)), 0) == Choice(frozenset(), frozenset())


# ------------------------------------------------------------------------------------------------- what is left over


def test_greedy_fills_the_holes_of_the_hull():
    """Twelve equal layers: between two corners of the hull, most of the budget is used, layer by layer."""
    problem = layers(12)
    found = [point(problem, choice) for choice in hull(problem)]
    for (more, fast), (fewer, slow) in pairwise(found):
        if more - fewer < 0.2 * more:
            continue
        for share in (0.3, 0.5, 0.8):
            budget = int(fewer + share * (more - fewer))
            assert point(problem, within(problem, budget, solver="cuts")) == (fewer, slow)
            size, time = point(problem, within(problem, budget))
            assert 0.9 * budget < size <= budget
            assert time < slow - 0.8 * share * (slow - fast)


def test_more_memory_is_not_slower_for_equal_layers():
    problem = layers(6)
    least, most = (bytes_of(problem, choice) for choice in (least_bytes(problem), hull(problem)[0]))
    times = [time_of(problem, within(problem, least + (most - least) * i // 40)) for i in range(41)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("solver", ["cuts", "greedy"])
def test_names_do_not_matter_and_the_same_problem_gives_the_same_choice(solver):
    problem = layers(12)
    renamed = Problem(tuple(replace(value, name=f"{-n}") for n, value in enumerate(problem.values)))
    for times in (1.1, 2, 3):
        budget = int(times * bytes_of(problem, least_bytes(problem)))
        found = within(problem, budget, solver=solver)
        assert found == within(problem, budget, solver=solver) == within(renamed, budget, solver=solver)
        assert is_valid(problem, found)
        assert found == completed(problem, found.kept)
