"""The rule group_linear: products that differ in one size, as one grouped product."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import eductor
from eductor import Recorder
from eductor.compat import FakeTensorMode
from eductor.cost import cuda_device
from eductor.errors import PassFailed
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.batching import grouped
from eductor.passes.post_grad.group_batch_fusion_passes import group_batch_fusion_passes
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
H200 = cuda_device("NVIDIA H200", 132, 141 << 30)
ANYWHERE = group_batch_fusion_passes.configured(group_linear="anywhere")
PAYING = group_batch_fusion_passes.configured(group_linear="where it pays")


def bf16(*shape):
    return torch.randn(shape, dtype=torch.bfloat16)


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def reasons(run):
    return {r.reason for r in run.record.rejects}


def inner(x, v, w, u):
    a, b, c = x.split([16, 32, 8], 1)
    return (a @ v).relu() + (b @ w).tanh() * (c @ u)


def columns(x, v, w, u):
    a, b, c = x.split(16, 1)
    return torch.cat([(a @ v).relu(), (b @ w).tanh(), c @ u], 1)


def rows(x, v, w, u):
    a, b, c = x.split([3, 4, 5], 0)
    return torch.cat([(a @ v).relu(), (b @ w).tanh(), c @ u], 0)


SHAPES = {
    inner: [(4, 56), (16, 8), (32, 8), (8, 8)],
    columns: [(4, 48), (16, 8), (16, 24), (16, 16)],
    rows: [(12, 16), (16, 8), (16, 8), (16, 8)],
}


@pytest.mark.parametrize("program", SHAPES, ids=lambda p: p.__name__)
def test_products_that_differ_in_one_size_are_one(program):
    given = [bf16(*shape) for shape in SHAPES[program]]
    module = capture(program, given, "aten")
    verifier = Verifier([x.clone() for x in given])
    run = run_pass(ANYWHERE, "post_grad", module, verifier)
    assert run.record.changed, reasons(run)
    assert not verifier.notes, verifier.notes
    assert targets(module).count(aten._grouped_mm.default) == 1
    assert aten.mm.default not in targets(module)
    assert {match.rule for match in run.record.matches} == {"group_linear"}
    assert not run_pass(ANYWHERE, "post_grad", module).record.changed
    result, eager = module(*given), program(*given)
    torch.testing.assert_close(result, eager)
    assert result.stride() == eager.stride()


def test_parts_of_one_tensor_are_not_copied():
    module = capture(inner, [bf16(*shape) for shape in SHAPES[inner]], "aten")
    run_pass(ANYWHERE, "post_grad", module)
    (product,) = module.graph.find_nodes(op="call_function", target=aten._grouped_mm.default)
    assert product.args[0].op == "placeholder"


@pytest.mark.parametrize("program", SHAPES, ids=lambda p: p.__name__)
def test_results_that_leave_have_memory_of_their_own(program):
    def returned(x, *weights):
        sizes = {inner: ([16, 32, 8], 1), columns: (16, 1), rows: ([3, 4, 5], 0)}[program]
        return [piece @ weight for piece, weight in zip(x.split(*sizes), weights, strict=True)]

    given = [bf16(*shape) for shape in SHAPES[program]]
    module = capture(returned, given, "aten")
    assert run_pass(ANYWHERE, "post_grad", module).record.changed
    results, eager = module(*given), returned(*given)
    torch.testing.assert_close(list(results), eager)
    assert [r.stride() for r in results] == [r.stride() for r in eager]
    assert len({r.untyped_storage().data_ptr() for r in results}) == 3


def test_one_of_which_another_is_computed_stays():
    def chain(x, v, w):
        return (x @ v) @ w

    module = capture(chain, [bf16(4, 16), bf16(16, 8), bf16(8, 8)], "aten")
    assert not run_pass(ANYWHERE, "post_grad", module).record.changed


@pytest.mark.parametrize(
    ("shapes", "dtype", "because"),
    [
        ([(4, 48), (16, 8), (16, 24), (16, 16)], torch.float32, "support bfloat16 only"),
        ([(4, 36), (12, 8), (12, 24), (12, 16)], torch.bfloat16, "multiples of 16 bytes"),
    ],
)
def test_is_refused(shapes, dtype, because):
    split = shapes[1][0]

    def program(x, v, w, u):
        a, b, c = x.split(split, 1)
        return torch.cat([a @ v, b @ w, c @ u], 1)

    run = run_pass(ANYWHERE, "post_grad", capture(program, [torch.randn(s).to(dtype) for s in shapes], "aten"))
    assert not run.record.changed
    assert any(because in reason for reason in reasons(run))


def test_a_factor_that_all_share_and_symbols_are_refused():
    def shared(x, v, w):
        return torch.cat([x @ v, x @ w], 1)

    given = [bf16(4, 16), bf16(16, 8), bf16(16, 24)]
    assert any("share a factor" in r for r in reasons(run_pass(ANYWHERE, "post_grad", capture(shared, given, "aten"))))
    symbolic = capture(columns, [bf16(*shape) for shape in SHAPES[columns]], "aten", dynamic=True)
    assert any("sizes are symbolic" in reason for reason in reasons(run_pass(ANYWHERE, "post_grad", symbolic)))


def test_it_is_off_and_its_option_is_checked():
    module = capture(inner, [bf16(*shape) for shape in SHAPES[inner]], "aten")
    assert not run_pass(group_batch_fusion_passes, "post_grad", module).record.changed
    with pytest.raises(PassFailed, match="where it pays"):
        run_pass(group_batch_fusion_passes.configured(group_linear="always"), "post_grad", module)


# ---------------------------------------------------------------------------------------- on a GPU that need not be there


def on_cuda(monkeypatch, count, width, device=H200, has_kernel=True):
    """Features of different widths, each with a weight of its own, brought to one width."""
    monkeypatch.setattr(grouped, "device_of", lambda *_: device)
    monkeypatch.setattr(grouped, "has_grouped_product", lambda _: has_kernel)
    widths = [width * (1 + i) for i in range(count)]

    def program(x, *weights):
        return sum(torch.tanh(a @ w) for a, w in zip(x.split(widths, 1), weights, strict=True))

    with FakeTensorMode():
        made = [
            torch.empty(s, device="cuda", dtype=torch.bfloat16)
            for s in ((128, sum(widths)), *((w, 64) for w in widths))
        ]
        module = make_fx(program)(*made)
    return run_pass(PAYING, "post_grad", module)


def test_many_small_products_pay(monkeypatch):
    run = on_cuda(monkeypatch, 12, 32)
    assert run.record.changed, reasons(run)
    assert targets(run.module).count(aten._grouped_mm.default) == 1
    assert aten.mm.default not in targets(run.module)


def test_two_products_do_not_pay(monkeypatch):
    run = on_cuda(monkeypatch, 2, 4096)
    assert not run.record.changed
    assert any("a group of 2 saves" in reason for reason in reasons(run))


def test_without_a_kernel_or_fusing_they_stay(monkeypatch):
    assert any("computed one by one" in r for r in reasons(on_cuda(monkeypatch, 12, 32, has_kernel=False)))
    plain = dataclasses.replace(H200, fuses=False)
    assert any("without fusing" in r for r in reasons(on_cuda(monkeypatch, 12, 32, device=plain)))


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_compiled(engine):
    given = [bf16(*shape) for shape in SHAPES[inner]]
    pipeline = eductor.Pipeline.default().replaced("post_grad/group_batch_fusion_passes", ANYWHERE)
    recorder = Recorder()
    torch._dynamo.reset()
    fast = eductor.compile(inner, engine=engine, pipeline=pipeline, instruments=[recorder], strict=True)
    torch.testing.assert_close(fast(*given), inner(*given))
    made = [m.rule for r in recorder.records if r.address == "post_grad/group_batch_fusion_passes" for m in r.matches]
    assert made == ["group_linear"]
