"""move_constructors_to_gpu: constants are made where they are used, all that depend on each other or none."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import eductor
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.move_constructors_to_gpu import move_constructors_to_gpu

aten, prims = torch.ops.aten, torch.ops.prims


def ran(program, *inputs, device="meta", dynamic=False):
    """The meta device stands for an accelerator: values are not looked at."""
    given = [torch.randn(4, 4, device=device), *inputs]
    module = capture(program, given, "aten", dynamic=dynamic)
    run = run_pass(move_constructors_to_gpu, "post_grad", module)
    assert not run_pass(move_constructors_to_gpu, "post_grad", module).record.changed
    return run


def devices(run):
    nodes = [n for n in run.module.graph.nodes if n.op == "call_function"]
    return {n.meta["val"].device.type for n in nodes if isinstance(n.meta["val"], torch.Tensor)}


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[torch.arange(4)],
        lambda x: x[torch.arange(2) * 2 + torch.ones(2, dtype=torch.int64)],
        lambda x: x[prims.iota(4, start=0, step=1, dtype=torch.int64, device=torch.device("cpu"), requires_grad=False)],
        lambda x: x * torch.full([], 2.0),
        lambda x: x * aten.scalar_tensor(2.0),
        lambda x: torch.where(x > 0, torch.full([], -torch.inf), torch.zeros([])),
        lambda x: x + torch.arange(4.0).sin().to("meta"),
        lambda x: aten.index_put(x, [torch.arange(4)], torch.ones([])),
        lambda x: x + torch.eye(4).to(x.device) + torch.zeros(4, 4).fill_diagonal_(2).to(x.device),
        lambda x: x + torch.linspace(0, 1, 4).view(1, 4).expand(4, 4).to("meta"),
        lambda x: x + torch.zeros_like(torch.ones(4), device="cpu").to("meta"),
        lambda x: x + torch.stack(torch.arange(8.0).split(4)).sum(0).to("meta"),
    ],
)
def test_constants_are_made_where_they_are_used(program):
    run = ran(program)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    assert devices(run) == {"meta"}


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: (lambda i: (x[i], i))(torch.arange(4)), "returned on the CPU"),
        (lambda x: (lambda i: (x[i], i + 1))(torch.arange(4)), "returned on the CPU"),
        (lambda x: (lambda i: (x[i], i.view(2, 2)))(torch.arange(4)), "returned on the CPU"),
        (lambda x: x[torch.arange(4) + torch.randperm(4)], "is a custom operator or has an effect"),
        (lambda x: aten.index_put(x, [torch.ones(4, dtype=torch.bool)], x[0]), "counts the elements that the mask"),
        (lambda x: x * torch.rand(4).mul(torch.ones(4)).to("meta"), "is a custom operator or has an effect"),
        (lambda x: torch.arange(4) + 1, "returned on the CPU"),
        (lambda x: x + 1, None),
    ],
)
def test_others_stay(program, because):
    run = ran(program)
    reasons = [r.reason for r in run.record.rejects]
    assert not run.record.changed, run.after
    assert not reasons if because is None else any(because in reason for reason in reasons), reasons


def test_it_is_all_of_a_connected_set_or_none():
    """One constant of three is returned: those that meet it stay with it, another one goes."""

    def program(x):
        a, b, c = torch.arange(4), torch.ones(4, dtype=torch.int64), torch.arange(2)
        return x[a + b - 1], x[c], b * 2

    run = ran(program)
    where = {n.target: n.meta["val"].device.type for n in run.module.graph.nodes if n.op == "call_function"}
    ranges = [n for n in run.module.graph.nodes if n.target is aten.arange.start_step or "arange" in str(n.target)]
    assert sorted(n.meta["val"].device.type for n in ranges) == ["cpu", "meta"]
    assert where[aten.ones.default] == "cpu"
    assert any("returned on the CPU" in r.reason for r in run.record.rejects)


def test_an_input_on_the_cpu_stays_and_keeps_what_meets_it():
    run = ran(lambda x, y: x[y + torch.arange(4)], torch.zeros(4, dtype=torch.int64))
    assert not run.record.changed
    assert "is on the CPU" in run.record.rejects[0].reason


def test_symbolic_sizes():
    run = ran(lambda x: x[torch.arange(x.shape[0])], dynamic=True)
    assert run.record.changed
    assert devices(run) == {"meta"}


def test_fake_cuda():
    with FakeTensorMode():
        x = torch.empty(4, 4, device="cuda")
        module = make_fx(lambda x: x * torch.full([], 3.0))(x)
    assert run_pass(move_constructors_to_gpu, "post_grad", module).record.changed
    assert {n.meta["val"].device.type for n in module.graph.nodes if n.op == "call_function"} == {"cuda"}


def test_several_other_devices():
    with FakeTensorMode():
        x, y = torch.empty(4, device="cuda"), torch.empty(4, device="meta")
        module = make_fx(lambda x, y: (x * torch.full([], 3.0), y + 1))(x, y)
    run = run_pass(move_constructors_to_gpu, "post_grad", module)
    assert not run.record.changed
    assert "several other devices" in run.record.rejects[0].reason


def test_a_graph_on_the_cpu_is_left():
    module = capture(lambda x: x[torch.arange(4)], [torch.randn(4, 4)], "aten")
    run = run_pass(move_constructors_to_gpu, "post_grad", module)
    assert not run.record.changed
    assert not run.record.rejects


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_on_a_gpu():
    def program(x):
        return x[torch.arange(4)] * torch.full([], 3.0)

    x = torch.randn(4, 4, device="cuda")
    assert torch.equal(eductor.compile(program, strict=True)(x), program(x))
