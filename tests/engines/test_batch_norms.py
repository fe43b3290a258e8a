"""Batch norms of the CPU keep mean and deviation in the precision of their parameters, as eager's kernels do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import eductor
from eductor.engines.inductor.batch_norms import FORWARDS
from eductor.engines.inductor.engine import decompositions

aten = torch.ops.aten
TABLE = decompositions(fallback_random=False)
KINDS = {"parameters and statistics": (True, True), "statistics": (False, True), "parameters": (True, False)}


def given_to(op, input, precision, kind, training):
    """What an operator is called with."""
    parameters, statistics = KINDS[kind]
    names = {"weight": parameters, "bias": parameters, "running_mean": statistics, "running_var": statistics}
    numbers = {"training": training, "momentum": 0.1, "eps": 1e-5}
    given = {name: torch.linspace(0.5, 1.5, 3).to(precision) if there else None for name, there in names.items()}
    return [(given | numbers | {"input": input})[a.name] for a in op._schema.arguments]


def ways_to_call(op):
    """With what it can be called: some take statistics always or never, the newer ones are nothing without all."""
    optional = {a.name: isinstance(a.type, torch.OptionalType) for a in op._schema.arguments}
    takes_statistics, is_new = "running_mean" in optional, "update" in op._schema.name
    if takes_statistics:
        yield "parameters and statistics", True
        if "training" in optional:
            yield "parameters and statistics", False
        if not is_new:
            yield "statistics", True
    if optional.get("running_mean", True) and not is_new:
        yield "parameters", True


@pytest.mark.parametrize("precision", [torch.float32, None], ids=["float32", "same"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
@pytest.mark.parametrize(("op", "kind", "training"), [(op, *way) for op in FORWARDS for way in ways_to_call(op)])
def test_what_the_backward_takes_is_what_the_kernel_keeps(op, kind, training, dtype, precision):
    input = torch.randn(2, 3, 4).to(dtype)
    first, second = (given_to(op, input, precision or dtype, kind, training) for _ in range(2))
    (result, *expected), (ours, *got) = op(*first), TABLE[op](*second)
    assert (result.dtype, ours.dtype) == (dtype, dtype)
    torch.testing.assert_close(ours, result, rtol=0.02, atol=0.02)  # some kernels round in between
    for kept, taken in zip(expected[:2], got[:2], strict=True):
        assert kept.dtype == taken.dtype
        torch.testing.assert_close(taken, kept)
    statistics = zip([*first[3:5], *expected[2:]], [*second[3:5], *got[2:]], strict=True)
    for a, b in ((a, b) for a, b in statistics if isinstance(a, torch.Tensor)):
        torch.testing.assert_close(b.double(), a.double(), rtol=0.01, atol=0.01)  # torch widens those of narrow ones


def test_a_gradient_over_few_rows_under_autocast():
    """Over two rows it is the small difference of large numbers: rounded statistics gave another one."""
    model, x = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), torch.randn(2, 4)

    def gradient(compile, dtype=torch.float32):
        given = copy.deepcopy(model).to(dtype)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            result = compile(given)(x.to(dtype))
        result.double().square().mul(torch.tensor([[1.0], [2.0]])).sum().backward()
        return given[0].weight.grad.double()

    truth = gradient(lambda f: f, torch.float64)
    eager = gradient(lambda f: f)
    ours = gradient(lambda f: eductor.compile(f, engine="inductor", strict=True))
    assert (ours - truth).norm() <= 1.1 * (eager - truth).norm()
