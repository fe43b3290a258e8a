"""prepare_softmax: the maximum and the sum of a softmax in one pass over its input."""

from __future__ import annotations

import pytest
import torch

from eductor import ops
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.prepare_softmax import prepare_softmax
from eductor.verification.verifier import Verifier


def apart(x, dim, keepdim=True):
    power = (x - x.amax(dim, keepdim=True)).exp()
    return power / power.sum(dim, keepdim=keepdim)


def ran(program, x, dynamic=False):
    module = capture(program, [x], "aten", dynamic=dynamic)
    verifier = Verifier([x.clone()])
    run = run_pass(prepare_softmax, "post_grad", module, verifier)
    assert not verifier.notes
    assert not run_pass(prepare_softmax, "post_grad", module).record.changed
    return run


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_softmax_is_prepared_in_one_pass(dim, dtype):
    x = torch.randn(4, 9).to(dtype)
    for dynamic in (False, True):
        run = ran(lambda x: apart(x, dim), x, dynamic)
        assert run.record.changed
        assert ops.fused.online_softmax.default in [n.target for n in run.module.graph.nodes]
        torch.testing.assert_close(run.module(x), apart(x, dim))


def test_a_log_softmax_and_awkward_numbers():
    def program(x):
        less = x - x.amax(1, keepdim=True)
        return less - less.exp().sum(1, keepdim=True).log()

    x = torch.randn(4, 5)
    x[0, 0], x[1] = torch.nan, -torch.inf
    x[2, 2], x[3, 3] = torch.inf, -torch.inf
    module = capture(program, [x], "aten")
    assert run_pass(prepare_softmax, "post_grad", module).record.changed
    torch.testing.assert_close(module(x), x.log_softmax(1), equal_nan=True)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: apart(x, 1, keepdim=False) if x.shape[0] == x.shape[1] else x + 1,
        lambda x: (lambda p: p / p.sum(0, keepdim=True))((x - x.amax(1, keepdim=True)).exp()),
        lambda x: (lambda p: p / p.sum(1, keepdim=True))((x + 1 - x.amax(1, keepdim=True)).exp()),
        lambda x: (lambda p: p / p.sum(1, keepdim=True))(torch.sub(x, x.amax(1, keepdim=True), alpha=2).exp()),
        lambda x: (lambda p: p / p.sum(1, keepdim=True, dtype=torch.float64))((x - x.amax(1, keepdim=True)).exp()),
        lambda x: (lambda p: p / p.sum(1, keepdim=True))((x - x.amin(1, keepdim=True)).exp()),
        lambda x: (lambda p: p / p.sum(1, keepdim=True))(x.long() - x.long().amax(1, keepdim=True)),
    ],
)
def test_others_stay(program):
    assert not ran(program, torch.randn(4, 4)).record.changed


def test_it_waits_for_a_measurement():
    assert not prepare_softmax.on
    assert prepare_softmax.contract.devices == ("cuda",)
