"""Two runs beside a third in float64: how much further from it is ours than eager's."""

from __future__ import annotations

import torch

FACTOR = 3
"""So many times eager's error, and a few roundings, are allowed."""
ROUNDINGS = 4
FLOOR = 1e-3
"""Of the largest values of its kind: what is smaller is judged by these. Some gradients are zero but for roundings."""


def differing(ours, eager):
    """The names of what is not the same bit by bit."""
    assert ours.keys() == eager.keys()
    return [name for name in eager if not torch.equal(ours[name], eager[name])]


def excess(ours, eager, truth, epsilon):
    """Our error over the allowed part of eager's, for each value by name; what is no float must be the same."""
    assert ours.keys() == eager.keys() == truth.keys()
    floats = [name for name in eager if eager[name].is_floating_point()]
    for name in eager.keys() - set(floats):
        assert torch.equal(ours[name], eager[name]), name
    largest = {}
    for name in floats:
        assert ours[name].dtype == eager[name].dtype, name
        largest[kind(name)] = max(largest.get(kind(name), 0.0), size(truth[name]))
    slack = ROUNDINGS * epsilon

    def error(values, name):
        scale = max(size(truth[name]), FLOOR * largest[kind(name)])
        return size(values[name].double() - truth[name]) / scale if scale else 0.0

    return {name: error(ours, name) / (error(eager, name) + slack) for name in floats}


def assert_near(ours, eager, truth, epsilon):
    """No value is further from float64 than eager's by more than the factor; gives the worst one."""
    found = excess(ours, eager, truth, epsilon)
    worst = max(found, key=lambda name: found[name])
    assert found[worst] <= FACTOR, f"{worst}: {found[worst]:.2f} times eager's error"
    return found[worst]


def kind(name):
    return next(word for word in ("loss", "output", "gradient", "parameter", "buffer", "cache") if word in name)


def size(x):
    return x.double().square().mean().sqrt().item() if x.numel() else 0.0
