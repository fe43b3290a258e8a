"""Two runs beside a third in float64: how much further from it is ours than eager's."""

from __future__ import annotations

import statistics
from collections import defaultdict

import torch

FACTOR = 2
"""So many times eager's error is allowed; and a few roundings, where eager happens to make none."""
ROUNDINGS = 4
FLOOR = 1e-3
"""Values below this part of the largest of their kind are judged by it: some gradients are zero but for roundings."""


def differing(ours, eager):
    """The names of what is not the same bit by bit."""
    assert ours.keys() == eager.keys()
    return [name for name in eager if not torch.equal(ours[name], eager[name])]


def excess(ours, eager, truth, dtype=torch.float32):
    """Our error over eager's, for each value by name; what is no float must be the same.

    Eager's error is that of the value or the usual one of its kind, whichever is larger: a single number may have luck.
    """
    assert ours.keys() == eager.keys() == truth.keys()
    kinds = defaultdict(list)
    for name, value in eager.items():
        assert (ours[name].dtype, ours[name].shape) == (value.dtype, value.shape), name
        if value.is_floating_point():
            kinds[kind(name)].append(name)
        else:
            assert torch.equal(ours[name], value), name
    found = {}
    for names in kinds.values():
        floor = FLOOR * max(size(truth[name]) for name in names) or 1.0

        def error(run, name, floor=floor):
            return size(run[name].double() - truth[name]) / max(size(truth[name]), floor)

        errors = {name: error(eager, name) for name in names}
        usual = max(sum(errors.values()) / len(errors), ROUNDINGS * torch.finfo(dtype).eps / FACTOR)
        found |= {name: error(ours, name) / max(errors[name], usual) for name in names}
    return found


def together(runs):
    """Several runs as one."""
    return {name: torch.stack([run[name] for run in runs]) for name in runs[0]}


def assert_near(ours, eager, truth, dtype=torch.float32):
    """No value is further from float64 than eager's by more than the factor."""
    _assert_near(excess(ours, eager, truth, dtype))


def assert_usually_near(runs, dtype=torch.float32):
    """The same for most of several runs: for a model that a rounding may send another way, in eager as well."""
    found = [excess(*run, dtype) for run in runs]
    _assert_near({name: statistics.median(one[name] for one in found) for name in found[0]})


def _assert_near(found):
    worst = max(found, key=lambda name: found[name])
    assert found[worst] <= FACTOR, f"{worst}: {found[worst]:.2f} times eager's error"


def kind(name):
    return next(word for word in ("loss", "output", "gradient", "parameter", "buffer", "cache") if word in name)


def size(x):
    return x.double().square().mean().sqrt().item() if x.numel() else 0.0
