"""addmm_activation: which activations are known, what must stay, and what the kernels give."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.addmm_activation import addmm_activation
from eductor.pipeline import f32
from eductor.testing import assert_pass
from eductor.verification.verifier import Verifier

aten, addmm_activated = torch.ops.aten, torch.ops.eductor.addmm_activation
C = math.sqrt(2 / math.pi)

GELUS = {
    "operator": lambda x: F.gelu(x, approximate="tanh"),
    "by hand": lambda x: 0.5 * x * (1.0 + torch.tanh(C * (x + 0.044715 * torch.pow(x, 3.0)))),
    "products": lambda x: x * 0.5 * (torch.tanh(C * x * (1.0 + 0.044715 * x * x)) + 1),
    "sigmoid": lambda x: x * torch.sigmoid(2 * C * (x + 0.044715 * x**3)),
    "half of a sum": lambda x: (x + x * torch.tanh(C * (x + 0.044715 * x**3))) / 2,
    "in float32": lambda x: F.gelu(x.float(), approximate="tanh").to(x.dtype),
    "reshaped": lambda x: F.gelu(x.view(2, -1), approximate="tanh").view(x.shape[0], 2, -1),
}
LOOK_ALIKES = {
    "with erf": F.gelu,
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
    "another constant": lambda x: 0.5 * x * (1.0 + torch.tanh(C * (x + 0.0447 * torch.pow(x, 3.0)))),
    "another power": lambda x: 0.5 * x * (1.0 + torch.tanh(C * (x + 0.044715 * torch.pow(x, 2.0)))),
    "twice": lambda x: x * (1.0 + torch.tanh(C * (x + 0.044715 * torch.pow(x, 3.0)))),
    "silu": F.silu,
    "relu of twice": lambda x: (2 * x).relu(),
    "relu of six": F.relu6,
    "leaky": F.leaky_relu,
    "wider result": lambda x: F.gelu(x.float(), approximate="tanh"),
}


def linear(f):
    return lambda x, w, b: f(F.linear(x, w, b))


def given(dtype=torch.bfloat16, rows=4):
    made = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=made).to(dtype) for size in ((rows, 8), (16, 8), (16,))]


def ran(program, *inputs, dynamic=False):
    """The run of the pass, which is right, and has nothing to do a second time."""
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(addmm_activation, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(addmm_activation, "post_grad", module).record.changed
    return run


def fused(run):
    return [n.kwargs["use_gelu"] for n in run.module.graph.nodes if n.target is addmm_activated.default]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", GELUS)
def test_a_gelu_is_known_by_its_values(name, dtype):
    assert fused(ran(linear(GELUS[name]), *given(dtype))) == [True]


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_look_alikes_stay(name):
    run = ran(linear(LOOK_ALIKES[name]), *given())
    assert not run.record.changed
    assert any(n.target is aten.addmm.default for n in run.module.graph.nodes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_relu(dtype):
    assert fused(ran(linear(torch.relu), *given(dtype))) == [False]
    assert fused(ran(linear(lambda x: x.float().relu().to(dtype)), *given(dtype))) == [False]


def test_it_is_one_call():
    assert_pass(
        addmm_activation,
        before=lambda b, x, w: torch.addmm(b, x, w).relu(),
        after=lambda b, x, w: addmm_activated(b, x, w, use_gelu=False),
        inputs=[f32(5), f32(4, 3), f32(3, 5)],
    )


def test_what_follows_reads_the_result():
    run = ran(lambda x, w, b: F.linear(x, w, b).relu() * 2 + 1, *given(torch.float32))
    assert fused(run) == [False]
    assert sum(n.op == "call_function" for n in run.module.graph.nodes) == 4


def test_sizes_that_are_not_known():
    rows = [torch.randn(2, 3, 8, dtype=torch.bfloat16), *given()[1:]]
    assert fused(ran(linear(GELUS["by hand"]), *rows, dynamic=False)) == [True]
    run = ran(lambda x, w, b: F.linear(x, w, b).relu(), *rows, dynamic=True)
    assert fused(run) == [False]


STAYS = {
    "is used elsewhere": lambda x, w, b: (lambda y: (y.relu(), y.sum()))(F.linear(x, w, b)),
    "is scaled": lambda x, w, b: torch.addmm(b, x, w.t(), alpha=2).relu(),
    "not one number for each column": lambda x, w, b: torch.addmm(x[:, :1], x, w.t()).relu(),
    "its bias is not contiguous": lambda x, w, b: torch.addmm(w[:, 0], x, w.t()).relu(),
}


@pytest.mark.parametrize("reason", STAYS)
def test_what_stays(reason):
    run = ran(STAYS[reason], *given(torch.float32))
    assert not run.record.changed
    assert any(reason in x.reason for x in run.record.rejects)


def test_rows_that_are_not_aligned_stay():
    x, w, b = given()
    run = ran(linear(GELUS["operator"]), x[:, :7].contiguous(), w[:, :7].contiguous(), b)
    assert not run.record.changed
    assert any("multiples of 8" in x.reason for x in run.record.rejects)


def test_an_operand_that_is_written_in_between_stays():
    def program(x, w, b):
        y = F.linear(x, w, b)
        x.add_(1)
        return y.relu(), x

    inputs = given(torch.float32)
    compiled = eductor.compile(program, engine="aten", post_grad_custom_pre_pass=[addmm_activation.anywhere()])
    mine, theirs = [[t.clone() for t in inputs] for _ in range(2)]
    torch.testing.assert_close(compiled(*mine), program(*theirs))
    torch.testing.assert_close(mine, theirs)


def test_numbers_that_are_none():
    values = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e30, -1e30, 5.0, -5.0])
    x, w = torch.zeros(4, 8), torch.zeros(8, 8)
    run = ran(lambda x, w, b: torch.addmm(b, x, w).relu(), x, w, values)
    assert fused(run) == [False]
    torch.testing.assert_close(run.module(x, w, values), values.expand(4, 8).relu(), equal_nan=True)


@pytest.mark.parametrize("use_gelu", [False, True])
def test_the_engine_knows_the_operator(use_gelu):
    x, w, b = given(torch.float32)
    compiled = eductor.compile(lambda b, x, w: addmm_activated(b, x, w, use_gelu=use_gelu) + 1, engine="inductor")
    torch.testing.assert_close(compiled(b, x, w.t()), addmm_activated(b, x, w.t(), use_gelu=use_gelu) + 1)


class Layers(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(64, 256), nn.Linear(256, 64), activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


@pytest.mark.gpu
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["relu", *GELUS])
def test_on_a_gpu(name, dtype, engine, training):
    torch.manual_seed(0)
    activation = torch.relu if name == "relu" else GELUS[name]
    if name == "reshaped":
        activation = lambda x: GELUS["reshaped"](x).view(x.shape)  # noqa: E731
    layers = Layers(activation).cuda().to(dtype)
    x = torch.randn(48, 64, device="cuda", dtype=dtype)
    recorder = eductor.Recorder()
    fast = eductor.compile(layers, engine=engine, instruments=[recorder], strict=True)
    wide = Layers(activation).cuda().double()
    wide.load_state_dict(layers.state_dict())
    with torch.set_grad_enabled(training):
        got, eager, exact = fast(x), layers(x), wide(x.double())
    # In training a gelu's input is saved for the backward, or computed again there.
    is_expected = name == "relu" or (dtype is not torch.float32 and not training)
    assert not is_expected or "post_grad/addmm_activation" in recorder.changed()
    assert (got.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + 1e-6
    if training:
        for a, b in zip(
            torch.autograd.grad(got.sum(), list(layers.parameters())),
            torch.autograd.grad(exact.sum(), list(wide.parameters())),
            strict=True,
        ):
            close = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}[dtype]
            torch.testing.assert_close(a.double(), b, rtol=close, atol=close * (1 + b.abs().max().item()))
