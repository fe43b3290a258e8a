"""The problem of the partitioner as data, and its cheapest choice, beside all choices of small problems."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest

from eductor.errors import BadGraph, BadOption, Unsupported
from eductor.partition.min_cut import cheapest
from eductor.partition.problem import (
    Choice,
    NoChoice,
    Problem,
    Value,
    bytes_of,
    completed,
    in_question,
    time_of,
)


def is_valid(problem, choice):
    """Whether nothing is missing, nothing is saved or recomputed that must not be, and nothing is both."""
    values, has = problem.values, choice.kept | choice.again
    return (
        all(0 <= number < len(values) for number in has)
        and not choice.kept & choice.again
        and all(values[number].keep is not None for number in choice.kept)
        and all(values[number].again is not None for number in choice.again)
        and all(number in has for number, value in enumerate(values) if value.is_needed)
        and all(operand in has for number in choice.again for operand in values[number].operands)
    )


def random_problem(rng, most):
    """Small numbers, so that many choices cost the same; inputs, views, parameters and values never made again."""
    values = []
    for number in range(rng.randint(1, most)):
        operands = tuple(rng.choices(range(number), k=rng.randint(0, min(number, 3)))) if number else ()
        can_be_again = operands and rng.random() < 0.8
        values.append(
            Value(
                f"v{number}",
                operands,
                bytes=rng.choice([0, 1, 2, 3, 8]),
                keep=None if can_be_again and rng.random() < 0.25 else rng.choice([0, 0, 1, 2, 5]),
                again=rng.choice([0, 1, 2, 3, 9]) if can_be_again else None,
                is_needed=rng.random() < 0.4,
            )
        )
    return Problem(tuple(values))


def all_choices(problem):
    """Each choice there is, from each set of values that can be kept."""
    can_be_kept = [n for n in in_question(problem) if problem.values[n].keep is not None]
    sets = (set(kept) for size in range(len(can_be_kept) + 1) for kept in combinations(can_be_kept, size))
    return {choice for kept in sets if (choice := completed(problem, kept)) is not None}


def layers(count, *, width=1 << 20):
    """A residual chain with side values, as a model has them: so many layers of twelve values."""
    values = [Value("x", bytes=width, keep=width)]

    def add(name, operands=(), size=0, again=None, *, can_be_kept=True, is_needed=False):
        keep = size if can_be_kept else None
        values.append(Value(f"{name}_{len(values)}", tuple(operands), size, keep, again, is_needed))
        return len(values) - 1

    x = 0
    for _ in range(count):
        up, down = add("up", is_needed=True), add("down", is_needed=True)
        mean = add("mean", [x], width // 512, width, is_needed=True)
        norm = add("norm", [x, mean], width, width // 2, is_needed=True)
        flat = add("flat", [norm], 0, 0, can_be_kept=False, is_needed=True)
        wide = add("mm", [flat, up], 4 * width, 60 * width)
        act = add("gelu", [wide], 4 * width, 2 * width)
        mask = add("mask", [act], width, is_needed=True)
        dropped = add("dropout", [act, mask], 4 * width, width, is_needed=True)
        narrow = add("mm", [dropped, down], width, 60 * width)
        add("derivative", [wide], 4 * width, 3 * width, is_needed=True)
        x = add("add", [x, narrow], width, width // 3)
    return Problem(tuple(values))


# ---------------------------------------------------------------------------------------------------- the problem

CHAIN = Problem(
    (
        Value("x", bytes=8, keep=3),
        Value("sin", (0,), bytes=8, keep=3, again=5),
        Value("view", (1,), keep=None, again=0),
        Value("exp", (2, 2), bytes=4, keep=2, again=7, is_needed=True),
    )
)


def test_what_is_not_kept_is_made_again_down_to_what_is():
    assert completed(CHAIN, {3}) == Choice(frozenset({3}), frozenset())
    assert completed(CHAIN, {1}) == Choice(frozenset({1}), frozenset({2, 3}))
    assert completed(CHAIN, {0}) == Choice(frozenset({0}), frozenset({1, 2, 3}))


def test_what_nobody_asks_for_is_not_kept():
    assert completed(CHAIN, {0, 1, 3}) == completed(CHAIN, {3})


def test_an_input_that_is_not_kept_and_a_view_that_is_are_no_choice():
    assert completed(CHAIN, set()) is None
    assert completed(CHAIN, {2}) is None


def test_bytes_and_time_of_a_choice():
    choice = completed(CHAIN, {1})
    assert (bytes_of(CHAIN, choice), time_of(CHAIN, choice)) == (8, 3 + 0 + 7)


@pytest.mark.parametrize(
    ("kept", "again", "valid"),
    [
        ({1}, {2, 3}, True),
        ({0, 1}, {2, 3}, True),
        ({1}, {3}, False),
        ({0}, {2, 3}, False),
        ({1, 3}, {2, 3}, False),
        ({2}, {3}, False),
        ({3}, {0}, False),
        (set(), set(), False),
        ({3, 4}, set(), False),
    ],
)
def test_valid_choices(kept, again, valid):
    assert is_valid(CHAIN, Choice(frozenset(kept), frozenset(again))) is valid


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Value("exp", (1,)), "exp, the value number 1, has the operand 1. Allowed are the numbers of earlier values"),
        (Value("exp", (-1,)), "has the operand -1"),
        (Value("exp", bytes=-4), "has bytes=-4. Allowed are whole numbers from 0 on."),
        (Value("exp", bytes=None), "has bytes=None"),
        (Value("exp", keep=-1), "has keep=-1. Allowed are whole numbers from 0 on, or None."),
        (Value("exp", again=0.5), "has again=0.5"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(value, message):
    with pytest.raises(BadGraph, match=message.replace(".", r"\.")):
        Problem((Value("x"), value))


def test_a_value_that_can_neither_be_kept_nor_made_again_is_named_with_the_way_to_it():
    stuck = Problem((Value("pair", keep=None), *CHAIN.values[1:3], replace(CHAIN.values[3], keep=None)))
    assert cheapest(Problem((*stuck.values[:3], CHAIN.values[3]))).kept == {3}
    stuck = Problem((stuck.values[0], replace(stuck.values[1], keep=None), *stuck.values[2:]))
    with pytest.raises(NoChoice, match="pair can neither be saved nor recomputed, and the backward needs exp") as error:
        cheapest(stuck)
    assert "from view, from sin, from pair" in str(error.value)
    assert isinstance(error.value, Unsupported)


# -------------------------------------------------------------------------------------------------------- the cut


def costs(problem, price):
    return lambda choice: time_of(problem, choice) + price * bytes_of(problem, choice)


@pytest.mark.parametrize(("cases", "most"), [(2000, 8), (30, 14)])
def test_the_cut_is_the_cheapest_of_all_choices_and_makes_least_again(cases, most):
    rng = random.Random(most)
    done = 0
    while done < cases:
        problem = random_problem(rng, most)
        price = rng.choice([0, 1, 7, Fraction(1, 3), Fraction(7, 2), Fraction(999, 1000)])
        try:
            found = cheapest(problem, price)
        except NoChoice:
            continue
        choices, cost = all_choices(problem), costs(problem, price)
        least = min(map(cost, choices))
        assert found in choices
        assert is_valid(problem, found)
        assert cost(found) == least
        assert found.again == frozenset.intersection(*(c.again for c in choices if cost(c) == least))
        done += 1


def test_no_choice_is_found_just_where_there_is_none():
    rng, stuck = random.Random(3), 0
    for _ in range(300):
        values = [replace(v, keep=None if rng.random() < 0.3 else v.keep) for v in random_problem(rng, 8).values]
        problem = Problem(tuple(values))
        can_be_kept = [n for n, v in enumerate(values) if v.keep is not None]
        sets = (set(kept) for size in range(len(can_be_kept) + 1) for kept in combinations(can_be_kept, size))
        if all(completed(problem, kept) is None for kept in sets):
            stuck += 1
            with pytest.raises(NoChoice):
                cheapest(problem)
        else:
            cheapest(problem)
    assert 30 < stuck < 270


def test_names_do_not_matter_and_the_same_problem_gives_the_same_choice():
    problem = layers(20)
    renamed = Problem(tuple(replace(value, name=f"{-n}") for n, value in enumerate(problem.values)))
    assert cheapest(problem, 5) == cheapest(problem, 5) == cheapest(renamed, 5)


def test_a_negative_price_is_refused():
    with pytest.raises(BadOption, match="-1/2 picoseconds per byte"):
        cheapest(CHAIN, Fraction(-1, 2))


def test_nothing_needed_nothing_chosen():
    assert (
        cheapest(Problem(())) == cheapest(Problem((Value("x", bytes=4, keep=4),))) == Choice(frozenset(), frozenset())
    )


def seconds_of(problem):
    """For three prices, the best of five runs each."""
    total = 0.0
    for price in (0, Fraction(1, 3), 10**6):
        times = []
        for _ in range(5):
            start = time.process_time()
            cheapest(problem, price)
            times.append(time.process_time() - start)
        total += min(times)
    return total


def test_time_grows_with_the_problem():
    few, many = (seconds_of(layers(values // 12)) for values in (5_000, 50_000))
    assert many < 3 * 5
    assert many < 30 * few  # quadratic growth would make it 100; what shares the machine may make it 15 or 20


def test_a_long_chain_of_values_that_the_backward_does_not_read_is_no_trap():
    """Each is reached on a way of another length."""
    values = [Value("x", bytes=1, keep=10**9)]
    values += [Value(f"h{n}", (n - 1,), n, 10**9 + 2000 * n, 1000) for n in range(1, 50_000)]
    start = time.process_time()
    found = cheapest(Problem((*values, Value("last", (49_999,), 0, 10**12, 0, True))))
    assert time.process_time() - start < 5
    assert found.again == set(range(1, 50_001))
