"""cut_padded_mm: padded products are cut piece by piece; what must stay whole; values and memory of whole programs."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.compat import FakeTensorMode, make_fx
from eductor.errors import EductorWarning
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.joint.pad_mm import pad_mm
from eductor.passes.post_grad.cut_padded_mm import cut_padded_mm
from eductor.pipeline import f32
from eductor.testing import assert_pass
from eductor.verification.verifier import Verifier

aten, cut_mm = torch.ops.aten, torch.ops.eductor.cut_mm
FORCED = cut_padded_mm.configured(force=True)
THE_OPERATOR = sys.modules["eductor.ops.cut_mm"]


def calls(module, packet):
    return [n for n in module.graph.nodes if getattr(n.target, "overloadpacket", None) is packet]


def reasons(run):
    return [r.reason for r in run.record.rejects]


def ran(program, *inputs, dynamic=False):
    """The run of the pass, which is right, and has nothing to do a second time."""
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(FORCED, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(FORCED, "post_grad", module).record.changed
    return run


def given(height=600, dtype=torch.float32):
    return [torch.randn(size).to(dtype) for size in ((height, 7), (7, 16), (16,))]


# ----------------------------------------------------------------------------------------------------- the rewrite


def test_it_is_one_call():
    assert_pass(
        FORCED,
        before=lambda x, w: torch.mm(x, w)[:, :5].contiguous(),
        after=lambda x, w: cut_mm(x, w, 5),
        inputs=[f32(6, 7), f32(7, 8)],
    )
    assert_pass(
        FORCED,
        before=lambda b, x, w: torch.addmm(b, x, w)[:, :5].contiguous(),
        after=lambda b, x, w: cut_mm(x, w, 5, b),
        inputs=[f32(8), f32(6, 7), f32(7, 8)],
    )


ROWS = torch.contiguous_format
CUTS = {
    "as pad_mm has it": lambda x, w, b: (x @ w)[:, :13].clone(memory_format=ROWS),
    "contiguous": lambda x, w, b: (x @ w)[:, :13].contiguous(),
    "clone": lambda x, w, b: (x @ w)[:, :13].clone(),
    "reshape": lambda x, w, b: (x @ w)[:, :13].reshape(-1),
    "from the end": lambda x, w, b: (x @ w)[:, :-3].contiguous(),
    "narrow": lambda x, w, b: (x @ w).narrow(1, 0, 13).contiguous(),
    "linear": lambda x, w, b: F.linear(x, w.t(), b)[:, :13].contiguous(),
    "transposed factors": lambda x, w, b: (x.t().contiguous().t() @ w.t().contiguous().t())[:, :13].contiguous(),
    "read by a product": lambda x, w, b: (x @ w)[:, :13].contiguous() @ w[:, :13].t(),
    "read and returned": lambda x, w, b: ((y := (x @ w)[:, :13].contiguous()), y.exp()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("height", [256, 600], ids=["one piece", "a short piece"])
@pytest.mark.parametrize("name", CUTS)
def test_cuts(monkeypatch, name, height, dtype):
    monkeypatch.setattr(THE_OPERATOR, "_BYTES", 0)
    run = ran(CUTS[name], *given(height, dtype))
    (made,) = calls(run.module, cut_mm)
    assert made.meta["val"].shape == (height, 13)
    assert not calls(run.module, aten.clone) or name == "transposed factors"


def test_one_row():
    (made,) = calls(ran(CUTS["as pad_mm has it"], *given(1)).module, cut_mm)
    assert made.meta["val"].stride() == (13, 1)
    kept = ran(CUTS["clone"], *given(1))
    assert not kept.record.changed
    assert reasons(kept) == ["the copy is not row-major"], "as far apart as the rows of the product"


def test_rows_that_are_not_known(monkeypatch):
    monkeypatch.setattr(THE_OPERATOR, "_BYTES", 0)
    w = torch.randn(7, 16)
    module = capture(lambda x: (x @ w).narrow(1, 0, 13).contiguous(), [torch.randn(600, 7)], "aten", dynamic=True)
    run = run_pass(FORCED, "post_grad", module)
    (made,) = calls(run.module, cut_mm)
    assert isinstance(made.meta["val"].shape[0], torch.SymInt)
    assert made.args[2] == 13
    for height in (2, 300, 1000):
        x = torch.randn(height, 7)
        torch.testing.assert_close(run.module(x), (x @ w)[:, :13])


def test_columns_that_are_not_known():
    def program(x, w, y):
        return (x @ w).narrow(1, 0, y.shape[0]).contiguous()

    x, w, _ = given()
    run = ran(program, x, w, torch.randn(13), dynamic=True)
    assert len(calls(run.module, cut_mm)) == 1
    torch.testing.assert_close(run.module(x, w, torch.randn(9)), (x @ w)[:, :9])


def test_where_columns_end_is_not_known():
    def program(x, w, y):
        return aten.slice(x @ w, 1, 0, -y.shape[0]).clone()

    x, w, _ = given()
    run = ran(program, x, w, torch.randn(3), dynamic=True)
    assert not run.record.changed
    assert reasons(run) == ["how many columns slice_1 takes is not known"]


STAYS = {
    "mm is used elsewhere": lambda x, w, b: ((y := x @ w)[:, :13].contiguous(), y.sum()),
    "mm is used elsewhere ": lambda x, w, b: ((y := x @ w)[:, :13].contiguous(), y),
    "slice_1 is used elsewhere": lambda x, w, b: ((y := (x @ w)[:, :13]).contiguous(), y.sum()),
    "slice_1 is not copied": lambda x, w, b: (x @ w)[:, :13],
    "slice_1 is not copied ": lambda x, w, b: (x @ w)[:, :13].relu() @ w[:, :13].t(),
    "slice_1 cuts rows": lambda x, w, b: (x @ w)[:13].clone(),
    "slice_1 does not take the first columns": lambda x, w, b: (x @ w)[:, 3:].contiguous(),
    "slice_1 does not take the first columns ": lambda x, w, b: (x @ w)[:, :13:2].contiguous(),
    "is scaled": lambda x, w, b: torch.addmm(b, x, w, alpha=2)[:, :13].contiguous(),
    "not one number for each column": lambda x, w, b: torch.addmm(x[:, :1], x, w)[:, :13].contiguous(),
    "fuses into its readers": lambda x, w, b: (x @ w)[:, :13].contiguous().view(2, -1).softmax(-1).sum(-1),
}


@pytest.mark.parametrize("reason", STAYS)
def test_what_stays(reason):
    run = ran(STAYS[reason], *given())
    assert not run.record.changed
    assert any(reason.strip() in x for x in reasons(run)), reasons(run)


def test_other_products_are_passed_over_in_silence():
    run = ran(lambda x, w, b: ((x @ w).sum(), torch.bmm(x[None], w[None])[:, :, :13].contiguous()), *given())
    assert not run.record.changed
    assert not reasons(run)


def test_a_factor_that_is_written_before_the_copy_stays():
    def program(x, w):
        cut = aten.slice(x @ w, 1, 0, 13)
        x.copy_(x + 1)
        return cut.contiguous()

    module = make_fx(program, tracing_mode="fake")(*given()[:2])
    with pytest.warns(EductorWarning, match="write-backs"):  # no stage leaves such a graph
        run = run_pass(FORCED, "post_grad", module)
    assert not run.record.changed
    assert reasons(run) == ["copy_ in between may write what is read"]


# ---------------------------------------------------------------------------------------------------- the decision


def on_cuda(*shapes, pass_=cut_padded_mm):
    """What becomes of logits on a GPU that need not be there: values are fake."""

    def program(x, w):
        return aten.slice(x @ w, 1, 0, w.shape[1] - 6).clone(memory_format=ROWS)

    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
        module = make_fx(program)(*inputs)
    return run_pass(pass_, "post_grad", module)


def test_large_products_on_a_gpu():
    run = on_cuda((8192, 768), (768, 30528))
    assert len(calls(run.module, cut_mm)) == 1
    (match,) = run.record.matches
    assert match.note == "saves 447 MiB"


@pytest.mark.parametrize(
    ("height", "width", "reason"),
    [(512, 30528, "it would save 0 MiB"), (1024, 30528, "it would save 29 MiB"), (64, 1024, "would save 0 MiB")],
)
def test_small_products_stay(height, width, reason):
    run = on_cuda((height, 768), (768, width))
    assert not run.record.changed
    assert reason in reasons(run)[0]
    assert on_cuda((height, 768), (768, width), pass_=FORCED).record.changed


def test_other_devices_stay():
    module = capture(lambda x, w, b: (x @ w)[:, :13].contiguous(), given(), "aten")
    run = run_pass(cut_padded_mm, "post_grad", module)
    assert reasons(run) == ["products on the device 'cpu' stay whole"]


# ------------------------------------------------------------------------------------------------------ end to end


class Head(nn.Module):
    def __init__(self, width=8, words=13, *, bias=False, **kind):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width, **kind), nn.Linear(width, words, bias=bias, **kind)

    def forward(self, x):
        return self.linear(self.norm(x))


def compiled(model, engine, **options):
    """With `pad_mm` and `cut_padded_mm` forced, at their places; what each graph calls is noted."""
    pipeline = eductor.Pipeline.default().replaced("joint/pad_mm", pad_mm.configured(force=True))
    pipeline = pipeline.replaced("cut_padded_mm", FORCED)
    recorder = eductor.Recorder()
    return eductor.compile(
        model, engine=engine, pipeline=pipeline, instruments=[recorder], strict=True, **options
    ), recorder


@pytest.mark.parametrize(("engine", "dynamic"), [("aten", False), ("aten", True), ("inductor", True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference(monkeypatch, engine, dynamic, dtype):
    monkeypatch.setattr(THE_OPERATOR, "_BYTES", 0)
    for bias in (False, True):
        torch._dynamo.reset()
        model, wide = Head(bias=bias, dtype=dtype), Head(bias=bias, dtype=torch.float64)
        wide.load_state_dict(model.state_dict())
        fn, recorder = compiled(model, engine, dynamic=dynamic)
        for shape in ((2, 300, 8), (3, 100, 8)):
            x = torch.randn(shape, dtype=dtype)
            with torch.no_grad():
                got, eager, exact = fn(x), model(x), wide(x.double())
            assert (got.stride(), got.dtype) == (eager.stride(), dtype)
            assert got.untyped_storage().nbytes() == got.nbytes
            assert (got.double() - exact).abs().max() <= 2 * (eager.double() - exact).abs().max() + 1e-6
        assert "post_grad/cut_padded_mm" in recorder.changed()


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_training(engine):
    model = Head()
    fn, recorder = compiled(model, engine)
    x = torch.randn(2, 300, 8, requires_grad=True)
    got, wanted = fn(x), model(x)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    mine, theirs = (torch.autograd.grad(y.square().sum(), [x, *model.parameters()]) for y in (got, wanted))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert "post_grad/cut_padded_mm" in recorder.changed()


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_what_the_caller_gets_is_its_own(engine):
    model = Head()
    fn, _ = compiled(model, engine)
    x = torch.randn(2, 300, 8)
    with torch.no_grad():
        one, two = fn(x), fn(x)
        one.zero_()
        torch.testing.assert_close(two, model(x), rtol=1e-5, atol=1e-5)


def test_the_exact_profile_cuts_nothing():
    fn, recorder = compiled(Head(), "aten", profile="exact")
    with torch.no_grad():
        fn(torch.randn(2, 300, 8))
    assert not {"joint/pad_mm", "post_grad/cut_padded_mm"} & set(recorder.changed())


def grown(fn, x):
    """The result of a second call, and by how much it made the memory grow."""
    fn(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = fn(x)
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["aten", "inductor"])
@torch.no_grad()
def test_the_logits_of_a_language_model_are_in_memory_once(engine):
    head = nn.Linear(768, 30522, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(8192, 768, device="cuda", dtype=torch.bfloat16)
    recorder = eductor.Recorder()
    cut, cut_bytes = grown(eductor.compile(head, engine=engine, instruments=[recorder], strict=True), x)
    assert "post_grad/cut_padded_mm" in recorder.changed()
    torch._dynamo.reset()
    whole, whole_bytes = grown(eductor.compile(head, engine=engine, disable=["cut_padded_mm"], strict=True), x)
    inputs = x.nbytes + head.weight.nbytes
    print(f"{engine}: {cut_bytes / 2**20:.0f} MiB in pieces, {whole_bytes / 2**20:.0f} MiB as a whole")
    assert inputs + cut_bytes < 1.15 * (inputs + cut.nbytes)
    assert whole_bytes > cut_bytes + 0.8 * cut.nbytes
    assert cut.stride() == whole.stride() == (30522, 1)
    torch.testing.assert_close(cut, whole, rtol=2**-7, atol=1e-3)
    rows = slice(None, None, 97)
    exact = x[rows].double() @ head.weight.double().t()
    errors = [(y[rows].double() - exact).abs().max() for y in (cut, whole)]
    assert errors[0] <= 2 * errors[1]
