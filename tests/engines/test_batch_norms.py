"""Batch norms of the CPU keep mean and deviation in the precision of their parameters, as eager's kernels do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import eductor
from eductor.engines.batch_norms import FORWARDS
from eductor.engines.inductor import decompositions

aten = torch.ops.aten
TABLE = decompositions(fallback_random=False)
KINDS = {"parameters and statistics": (True, True), "statistics": (False, True), "parameters": (True, False)}


def call(op, input, precision, parameters, statistics):
    """What an operator is called with."""
    names = {"weight": parameters, "bias": parameters, "running_mean": statistics, "running_var": statistics}
    numbers = {"training": True, "momentum": 0.1, "eps": 1e-5}
    given = {name: torch.linspace(0.5, 1.5, 3).to(precision) if there else None for name, there in names.items()}
    return [(given | numbers | {"input": input})[a.name] for a in op._schema.arguments]


def kinds_of(op):
    """With what it can be called: some take statistics always or never, the newer ones are nothing without all."""
    optional = {a.name: isinstance(a.type, torch.OptionalType) for a in op._schema.arguments}
    yield "parameters and statistics"
    if "update" in op._schema.name:
        return
    if "running_mean" in optional:
        yield "statistics"
    if optional.get("running_mean", True):
        yield "parameters"


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("op", "kind"), [(op, kind) for op in FORWARDS for kind in kinds_of(op)])
def test_what_the_backward_takes_is_what_the_kernel_keeps(op, kind, precision):
    input = torch.randn(2, 3, 4).to(torch.bfloat16)
    (result, *expected), (ours, *got) = (f(*call(op, input, precision, *KINDS[kind])) for f in (op, TABLE[op]))
    torch.testing.assert_close(ours, result, rtol=0.02, atol=0.02)  # some kernels round in between
    for kept, taken in zip(expected[:2], got[:2], strict=True):
        assert kept.dtype == taken.dtype
        torch.testing.assert_close(taken, kept)


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
