"""The cheapest cut of a network, beside all cuts of small ones, and quickly of large ones."""

from __future__ import annotations

import random
import time
from itertools import combinations

import pytest

from eductor.partition.max_flow import Cut, Network


def network_of(vertices, arcs):
    network = Network(vertices)
    for arc in arcs:
        network.add(*arc)
    return network


def random_arcs(rng, vertices):
    """Arcs anywhere, in both directions, also parallel ones and some that nothing fills."""
    capacities = [0, 1, 1, 2, 3, 5, None]
    count = rng.randint(0, 3 * vertices)
    return [(*rng.sample(range(vertices), 2), rng.choice(capacities)) for _ in range(count)]


def cheapest_cuts(vertices, arcs, source, sink):
    """The least capacity of all cuts, and the sides of the sink that have it."""
    others = [v for v in range(vertices) if v not in (source, sink)]
    found = {}
    for size in range(len(others) + 1):
        for some in combinations(others, size):
            behind = frozenset((sink, *some))
            across = [capacity for tail, head, capacity in arcs if tail not in behind and head in behind]
            if None not in across:
                found.setdefault(sum(across), []).append(behind)
    return (min(found), found[min(found)]) if found else (None, [])


def side_of(cut: Cut):
    return frozenset(v for v, is_behind in enumerate(cut.is_behind) if is_behind)


def test_the_cut_is_the_cheapest_of_all_and_has_the_fewest_vertices_behind_it():
    rng = random.Random(0)
    for _ in range(3000):
        vertices = rng.randint(2, 7)
        arcs = random_arcs(rng, vertices)
        source, sink = rng.sample(range(vertices), 2)
        cut = network_of(vertices, arcs).cheapest_cut(source, sink)
        capacity, sides = cheapest_cuts(vertices, arcs, source, sink)
        assert cut.capacity == capacity
        if capacity is not None:
            assert side_of(cut) == frozenset.intersection(*sides)


def test_numbers_of_any_size_stay_exact():
    large = 10**40
    cut = network_of(4, [(0, 1, large + 1), (1, 3, large), (0, 2, large), (2, 3, large + 1)]).cheapest_cut(0, 3)
    assert cut == Cut(2 * large, bytes([0, 0, 1, 1]))


def test_without_a_way_nothing_is_cut():
    assert network_of(3, [(0, 1, 5)]).cheapest_cut(0, 2) == Cut(0, bytes([0, 0, 1]))


def test_a_way_that_nothing_fills_cannot_be_cut():
    assert network_of(3, [(0, 1, None), (1, 2, None), (0, 2, 7)]).cheapest_cut(0, 2).capacity is None


def test_a_network_can_be_cut_twice_and_gives_the_same():
    arcs = random_arcs(random.Random(5), 40)
    network = network_of(40, arcs)
    assert network.cheapest_cut(0, 39) == network.cheapest_cut(0, 39) == network_of(40, arcs).cheapest_cut(0, 39)


def layered_arcs(rng, layers, width):
    """Vertices in layers, each with two arcs into the next one; a source before them, a sink behind."""
    count = layers * width
    arcs = [(0, 1 + i, rng.randint(1, 100)) for i in range(width)]
    for vertex in range(count - width):
        below = (vertex // width + 1) * width
        arcs += [(1 + vertex, 1 + below + rng.randrange(width), rng.randint(1, 100)) for _ in range(2)]
    return arcs + [(1 + count - width + i, count + 1, rng.randint(1, 100)) for i in range(width)]


@pytest.mark.parametrize(("layers", "is_reversed"), [(10, False), (10, True), (100_000, False)])
def test_a_large_network_takes_seconds(layers, is_reversed):
    """Flat and wide, or one long chain, with numbers that rise along the arcs; and with numbers that fall."""
    arcs, last = layered_arcs(random.Random(1), layers, 100_000 // layers), 100_001
    if is_reversed:
        arcs = [(last - tail, last - head, capacity) for tail, head, capacity in arcs]
    network = network_of(last + 1, arcs)
    start = time.process_time()
    cut = network.cheapest_cut(*((last, 0) if is_reversed else (0, last)))
    assert time.process_time() - start < 6
    side = side_of(cut)
    assert cut.capacity == sum(c for tail, head, c in arcs if tail not in side and head in side)
