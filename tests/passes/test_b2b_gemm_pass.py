"""Two matrix products with a pointwise function between them: which are read, what must stay, where one kernel pays."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.cost import Gemm, cuda_device
from eductor.errors import EductorWarning
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.b2b_gemm_pass import B2B_GEMM_PASS, one_kernel_pays
from eductor.pipeline import Registry, f32
from eductor.testing import assert_pass
from eductor.verification.verifier import Verifier

aten, b2b_gemm = torch.ops.aten, torch.ops.eductor.b2b_gemm
FORCED = B2B_GEMM_PASS.configured(force=True)

MIDDLES = {
    "nothing": (lambda x: x, ""),
    "relu": (torch.relu, "relu(%0)"),
    "gelu": (F.gelu, "gelu(%0)"),
    "gelu of tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu_tanh(%0)"),
    "silu": (F.silu, "silu(%0)"),
    "silu by hand": (lambda x: x * x.sigmoid(), "sigmoid(%0); mul(%0, %1)"),
    "numbers": (lambda x: (x * 2 + 1) / 3 - 0.5, "mul(%0, 2.0); add(%1, 1.0); div(%2, 3.0); sub(%3, 0.5)"),
    "number first": (lambda x: 1 - x, "sub(1.0, %0)"),
    "functions": (
        lambda x: (-x.tanh()).exp().abs().sqrt().rsqrt().erf(),
        "tanh(%0); neg(%1); exp(%2); abs(%3); sqrt(%4); rsqrt(%5); erf(%6)",
    ),
    "reshapes": (lambda x: x.view(4, -1).relu().view(2, 2, -1).tanh().reshape(x.shape), "relu(%0); tanh(%1)"),
}


def inputs(*shapes, dtype=torch.float32):
    made = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=made).to(dtype) for shape in shapes]


def calls(module):
    return [n for n in module.graph.nodes if n.op == "call_function"]


def ran(program, *given, pass_=FORCED, dynamic=False):
    """The run of the pass, which is right, and has nothing to do a second time."""
    module = capture(program, list(given), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in given])
    run = run_pass(pass_, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(pass_, "post_grad", module).record.changed
    return run


def fused(run):
    """The one call that is left, but for views."""
    assert run.record.changed, [r.reason for r in run.record.rejects]
    assert not {aten.mm.default, aten.addmm.default} & {n.target for n in calls(run.module)}
    (node,) = [n for n in calls(run.module) if n.target is b2b_gemm.default]
    return node


def assert_stays(because, program, *given, pass_=FORCED):
    run = ran(program, *given, pass_=pass_)
    assert not run.record.changed
    reasons = [r.reason for r in run.record.rejects]
    assert any(because in reason for reason in reasons), reasons


def test_it_is_off_and_stands_after_the_fusions():
    names = [step.name for step in Registry.default().order("post_grad")]
    place = names.index("B2B_GEMM_PASS")
    assert names[place - 1] == "decompose_mem_bound_mm"
    assert names[place + 1] == "micro_pipeline_tp_pass"
    assert not B2B_GEMM_PASS.on
    assert B2B_GEMM_PASS.contract.devices == ("cuda",)


def test_two_layers_are_one_call():
    assert_pass(
        FORCED,
        before=lambda a, b, c: (a @ b).relu() @ c,
        after=lambda a, b, c: b2b_gemm(a, b, c, None, None, "relu(%0)"),
        inputs=[f32(8, 5), f32(5, 6), f32(6, 3)],
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MIDDLES)
def test_middles(name, dtype):
    f, text = MIDDLES[name]
    given = inputs((8, 5), (5, 6), (6, 3), dtype=dtype)
    run = ran(lambda a, b, c: f(a @ b) @ c, *given)
    assert fused(run).args[3:] == (None, None, text)
    a, b, c = given
    got = run.module(a, b, c)
    assert got.dtype is dtype
    torch.testing.assert_close(got, f(a @ b) @ c)


def test_casts_between():
    given = inputs((8, 5), (5, 6), (6, 3), dtype=torch.bfloat16)
    run = ran(lambda a, b, c: (a @ b).float().exp().mul(0.1).bfloat16() @ c, *given)
    assert fused(run).args[5] == "float32(%0); exp(%1); mul(%2, 0.1); bfloat16(%3)"


@pytest.mark.parametrize(
    "program",
    [
        lambda x, v, b, w, c: torch.addmm(c, torch.addmm(b, x, v).relu(), w),
        lambda x, v, b, w, c: torch.addmm(c, (x @ v + b).relu(), w),
        lambda x, v, b, w, c: torch.addmm(c, torch.relu(b + x @ v), w),
        lambda x, v, b, w, c: F.linear(F.linear(x, v.t(), b).relu(), w.t(), c),
    ],
)
def test_biases(program):
    run = ran(program, *inputs((8, 5), (5, 6), (6,), (6, 3), (3,)))
    assert fused(run).args[3] is not None
    assert fused(run).args[4] is not None


def test_layouts():
    run = ran(lambda a, b, c: (a.t() @ b[:, ::2]).relu() @ c.t(), *inputs((5, 8), (5, 12), (3, 6)))
    fused(run)


def test_symbolic_sizes_are_computed_at_run_time():
    program = lambda a, b, c: (a @ b).relu() @ c  # noqa: E731
    module = capture(program, inputs((8, 5), (5, 6), (6, 3)), "aten", dynamic=True)
    env = next(n.meta["val"] for n in module.graph.nodes if n.op == "placeholder").fake_mode.shape_env
    guards = len(env.guards)
    run = run_pass(FORCED, "post_grad", module)
    fused(run)
    assert len(env.guards) == guards
    for given in (inputs((4, 7), (7, 2), (2, 9)), inputs((0, 7), (7, 2), (2, 9))):
        torch.testing.assert_close(module(*given), program(*given))


def test_no_numbers_and_infinities_go_through():
    a, b, c = inputs((6, 5), (5, 6), (6, 3))
    a[0, 0], a[1, 0], a[2, 0] = torch.nan, torch.inf, -torch.inf
    for f, _ in MIDDLES.values():
        run = ran(lambda a, b, c, f=f: f(a @ b) @ c, a, b, c)
        torch.testing.assert_close(run.module(a, b, c), f(a @ b) @ c, equal_nan=True)


def used_twice(a, b, c):
    y = (a @ b).relu()
    return y @ c, y.sum()


def product_is_kept(a, b, c):
    y = a @ b
    return y.relu() @ c, y


@pytest.mark.parametrize(
    ("because", "program"),
    [
        ("relu is used elsewhere", used_twice),
        ("mm is used elsewhere", product_is_kept),
        ("more than once", lambda a, b, c: (lambda y: torch.mm(y, y))((a[:5] @ b[:, :5]).relu())),
        ("is also read between the products", lambda a, b, c: (a @ b * a.sum()) @ c),
        ("is also read between the products", lambda a, b, c: (a @ b + torch.rand_like(c[:, :1]).t()) @ c),
        ("is also read between the products", lambda a, b, c: (a @ b + (a * 2) @ b) @ c),
        ("is also read between the products", lambda a, b, c: (a @ b).relu().add(c[0, 0]) @ c),
        ("does not compute aten.sin.default", lambda a, b, c: (a @ b).sin() @ c),
        ("does not compute aten.div.Tensor_mode", lambda a, b, c: (a @ b).div(2, rounding_mode="floor") @ c),
        ("does not compute", lambda a, b, c: (a @ b).to(torch.int64).to(torch.float32) @ c),
        ("scales its operand", lambda a, b, c: (lambda y: torch.add(y, y, alpha=2))(a @ b) @ c),
        ("nor a finite number", lambda a, b, c: (a @ b + torch.inf) @ c),
        ("nor a finite number", lambda a, b, c: (a @ b * 1e300) @ c),
        ("alpha=2, beta=1", lambda a, b, c: torch.addmm(b[0], a, b, alpha=2).relu() @ c),
        ("alpha=1, beta=0.5", lambda a, b, c: torch.addmm(c[0], (a @ b).relu(), c, beta=0.5)),
        ("one number for each column", lambda a, b, c: torch.addmm(a[:, :1], a, b).relu() @ c),
        ("one number for each column", lambda a, b, c: torch.addmm(c, (a[:6] @ b).relu(), c)),
        ("not known to read the rows", lambda a, b, c: (a @ b).view(16, 3).relu() @ c[:3]),
    ],
)
def test_stays(because, program):
    assert_stays(because, program, *inputs((8, 5), (5, 6), (6, 3)))


def test_many_steps_stay():
    def program(a, b, c):
        y = a @ b
        for _ in range(33):
            y = y.tanh()
        return y @ c

    assert_stays("more than 32 operators", program, *inputs((8, 5), (5, 6), (6, 3)))


def test_what_is_written_between_stays():
    module = capture(lambda a, b, c: (a @ b).relu() @ c, inputs((8, 5), (5, 6), (6, 3)), "aten")
    a, *_, outer, _ = module.graph.nodes
    with module.graph.inserting_before(outer):
        written = module.graph.call_function(aten.copy_.default, (a, a))
    written.meta["val"] = a.meta["val"]
    with pytest.warns(EductorWarning, match="write-backs"):
        run = run_pass(FORCED, "post_grad", module)
    assert not run.record.changed
    assert "may write what is read" in run.record.rejects[0].reason


@pytest.mark.parametrize("sizes", [(0, 5, 6, 3), (8, 0, 6, 3), (8, 5, 0, 3), (8, 5, 6, 0)])
def test_what_is_empty_stays(sizes):
    m, k, n, p = sizes
    assert_stays("no elements", lambda a, b, c: (a @ b).relu() @ c, *inputs((m, k), (k, n), (n, p)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.complex64])
def test_other_dtypes_stay(dtype):
    assert_stays("its kernel takes", lambda a, b, c: (-(a @ b)) @ c, *inputs((8, 5), (5, 6), (6, 3), dtype=dtype))


def test_other_products_are_no_candidates():
    for program in (
        lambda a, b, c: a @ (b @ c).relu(),
        lambda a, b, c: a.relu() @ b @ c.sum(1),
        lambda a, b, c: (a @ b).softmax(1) @ c,
        lambda a, b, c: torch.bmm(torch.bmm(a[None], b[None]).relu(), c[None]),
    ):
        run = ran(program, *inputs((8, 5), (5, 6), (6, 3)))
        assert not run.record.changed
        assert not run.record.rejects


def test_three_layers_are_a_pair_and_one():
    run = ran(lambda a, b, c, d: ((a @ b).relu() @ c).relu() @ d, *inputs((8, 5), (5, 6), (6, 3), (3, 4)))
    assert [n.target for n in calls(run.module)] == [b2b_gemm.default, aten.relu.default, aten.mm.default]


# ------------------------------------------------------------------------------------------------------ where it pays

H200 = cuda_device("NVIDIA H200", 132, 141 << 30)


def loses(m, k, n, p, dtype=torch.bfloat16, device=H200, has_middle=True):
    """Why one kernel does not pay; empty if it does."""
    verdict = one_kernel_pays(Gemm(m, n, k, dtype), Gemm(m, p, n, dtype), has_middle, device)
    return "" if verdict else verdict.reason


def test_many_rows_of_few_columns_pay():
    assert not loses(1 << 20, 64, 64, 64)
    assert not loses(1 << 22, 16, 16, 16, torch.float32)
    assert not loses(1 << 20, 32, 256, 16)


def test_what_does_not_pay():
    assert "leave some of the 132 units" in loses(4096, 64, 64, 64)
    assert "saves" in loses(1 << 20, 64, 64, 1024)
    assert "saves" in loses(1 << 20, 1024, 1024, 1024)
    assert "bound by arithmetic" in loses(1 << 20, 64, 64, 64, torch.float32)
    assert not loses(1 << 20, 64, 64, 64, torch.float32, cuda_device("NVIDIA H200", 132, 141 << 30, tf32=True))


def test_the_time_of_the_launch_counts():
    sizes = 400_000, 64, 64, 64
    assert "saves" in loses(*sizes)
    assert not loses(*sizes, device=cuda_device("NVIDIA H200", 132, 141 << 30, graphs=True))


def test_a_kernel_between_counts():
    sizes = 1 << 22, 128, 64, 64
    assert not loses(*sizes)
    assert "saves" in loses(*sizes, has_middle=False)


def test_without_force_the_figures_decide():
    assert_stays("one kernel", lambda a, w: (a @ w).relu() @ w, *inputs((4096, 512), (512, 512)), pass_=B2B_GEMM_PASS)


# ---------------------------------------------------------------------------------------------------------- end to end


class Layers(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(16, 24), nn.Linear(24, 8), activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


def compiled(model, engine):
    pipeline_pass = FORCED if torch.cuda.is_available() else FORCED.anywhere()
    recorder = eductor.Recorder()
    options = {"engine": engine, "instruments": [recorder], "strict": True}
    return eductor.compile(model, post_grad_custom_post_pass=[pipeline_pass], **options), recorder


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh()], ids=repr)
def test_a_model(activation, engine):
    torch.manual_seed(0)
    model, x = Layers(activation), torch.randn(3, 32, 16)
    fast, recorder = compiled(model, engine)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert any("B2B_GEMM_PASS" in address for address in recorder.changed())


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_a_model_with_batches_of_any_size(engine):
    torch._dynamo.reset()
    model = Layers(nn.ReLU())
    fast, recorder = compiled(model, engine)
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 32, 16)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(fast(x), model(x))
    assert len([address for address in recorder.changed() if "B2B_GEMM_PASS" in address]) == 1


def test_off_a_gpu_it_is_left_out():
    recorder = eductor.Recorder()
    fast = eductor.compile(Layers(nn.ReLU()), enable=["B2B_GEMM_PASS"], engine="aten", instruments=[recorder])
    with torch.no_grad():
        fast(torch.randn(32, 16))
    assert not any("B2B_GEMM_PASS" in address for address in recorder.changed())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("engine", "name"), [*(("aten", name) for name in MIDDLES), ("inductor", "gelu"), ("inductor", "silu by hand")]
)
def test_on_a_gpu(engine, name, dtype):
    """All of it: the pass by its figures, the kernel, tiles that are not full."""
    f, _ = MIDDLES[name]

    def program(a, b, c):
        return f(a @ b) @ c

    given = [x.cuda() / 4 for x in inputs((20_004, 20), (20, 24), (24, 30), dtype=dtype)]
    given[0] = given[0].repeat(401, 1)
    recorder = eductor.Recorder()
    fast = eductor.compile(program, enable=["B2B_GEMM_PASS"], engine=engine, instruments=[recorder], strict=True)
    got = fast(*given)
    assert "post_grad/B2B_GEMM_PASS" in recorder.changed()
    assert got.dtype is dtype
    wide = f(given[0].double() @ given[1].double()) @ given[2].double()
    close = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(got.double(), wide, rtol=close, atol=close * (1 + wide.abs().max().item()))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [(5, 7, 3, 2), (64, 64, 64, 64), (1000, 200, 130, 70), (70_000, 64, 64, 64), (9, 0, 3, 2)]
)
def test_the_kernel_on_a_gpu(sizes, dtype):
    m, k, n, p = sizes
    a, b, c = (x.cuda() * max(x.shape[0], 1) ** -0.5 for x in inputs((m, k), (k, n), (n, p), dtype=dtype))
    inner, outer = (x.cuda() for x in inputs((n,), (p,), dtype=dtype))
    for left, right in ((a, b), (a.t().contiguous().t(), b.t().contiguous().t())):
        got = b2b_gemm(left, right, c, inner, outer, "sigmoid(%0); mul(%0, %1)")
        wide = torch.addmm(outer.double(), F.silu(torch.addmm(inner.double(), a.double(), b.double())), c.double())
        close = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
        torch.testing.assert_close(got.double(), wide, rtol=close, atol=close * (1 + wide.abs().max().item()))
