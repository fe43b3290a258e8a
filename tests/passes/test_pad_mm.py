"""pad_mm: padded products are right in every spelling, layout and dtype; CPU graphs cost nothing; the record says why."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import eductor
from eductor import Recorder
from eductor.compat import FakeTensorMode, make_fx
from eductor.cost import cuda_device
from eductor.errors import EductorWarning
from eductor.graph import capture
from eductor.graph.values.meta import is_backward
from eductor.observe.manual.manual import run_pass
from eductor.observe.manual.manual_page import page
from eductor.passes.joint.pad_mm import pad_mm
from eductor.passes.joint.padding.plan import Matrix, MatrixProduct, Pads
from eductor.passes.joint.padding.trial import measure_product
from eductor.pipeline.base import graph_pass
from eductor.pipeline.registry import Registry
from eductor.testing import check_contract
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
THE_MODULE = sys.modules["eductor.passes.joint.pad_mm"]
FORCED = pad_mm.configured(force=True)
H200 = cuda_device("NVIDIA H200", 132, 141 << 30)
NAN, INF = float("nan"), float("inf")


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def forced(program, *inputs, dynamic=False):
    """A program with all its products padded, checked by running it before and after."""
    module = capture(program, inputs, "aten", dynamic=dynamic)
    run = run_pass(FORCED, "joint", module, Verifier(list(inputs)))
    assert not run_pass(FORCED, "joint", run.module).record.changed
    return run


def pads_of(run):
    return [n.args[1] for n in run.module.graph.nodes if n.target is aten.constant_pad_nd.default]


def reasons(run):
    return [r.reason for r in run.record.rejects]


def notes(run):
    return [m.note for m in run.record.matches]


def check_same(got, wanted):
    """Equal up to rounding, with eager's strides."""
    assert got.stride() == wanted.stride()
    tolerance = 2e-2 if wanted.dtype.itemsize == 2 else 1e-5
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_contract():
    check_contract(pad_mm, "joint")


def test_the_manual_shows_the_options_of_its_examples():
    registry = Registry.default()
    is_known = any(step.name == "pad_mm" for step in registry.steps())
    text = page(registry if is_known else registry.with_passes([pad_mm]), "pad_mm")
    assert "### Odd sizes, with `pad_mm(force=True)`" in text
    assert "### On a cpu\n" in text


# ---------------------------------------------------------------------------------------------------- the rewrite

PROGRAMS = {
    "mm": (lambda x, w: x @ w, [(6, 7), (7, 5)]),
    "of a transposed weight": (lambda x, w: x @ w.t(), [(6, 7), (5, 7)]),
    "of a transposed input": (lambda x, w: x.t() @ w, [(7, 6), (7, 5)]),
    "of transposed matrices": (lambda x, w: x.t() @ w.t(), [(7, 6), (5, 7)]),
    "linear": (lambda x, w, b: F.linear(x, w, b), [(2, 3, 7), (5, 7), (5,)]),
    "linear without bias": (lambda x, w: F.linear(x, w).relu(), [(2, 3, 7), (5, 7)]),
    "of a slice": (lambda x, w: x[:, 1:8] @ w[::2], [(6, 9), (14, 5)]),
    "of an expanded row": (lambda x, w: x.expand(6, 7) @ w, [(1, 7), (7, 5)]),
    "bmm": (lambda x, w: torch.bmm(x, w), [(3, 6, 7), (3, 7, 5)]),
    "bmm of transposed matrices": (lambda x, w: torch.bmm(x.mT, w.mT), [(3, 7, 6), (3, 5, 7)]),
    "rows of bmm": (lambda x, w: torch.bmm(x, w), [(3, 6, 8), (3, 8, 8)]),
    "one bmm": (lambda x, w: torch.bmm(x, w), [(1, 6, 8), (1, 8, 8)]),
    "matmul over a batch": (lambda x, w: x @ w, [(3, 2, 6, 7), (2, 7, 5)]),
    "rows of mm": (lambda x, w: x @ w, [(6, 8), (8, 8)]),
    "flattened": (lambda x, w: (x @ w).view(-1), [(6, 7), (7, 5)]),
    "transposed": (lambda x, w: (x @ w).t(), [(6, 7), (7, 5)]),
    "read by strides": (lambda x, w: (x @ w).as_strided((5, 2), (1, 5)).clone(), [(6, 7), (7, 5)]),
    "pointwise": (lambda x, w: (x @ w).relu() + 1, [(6, 7), (7, 5)]),
    "pointwise with a transposed one": (lambda x, w, y: (x @ w) * y.t() + y.t(), [(6, 7), (7, 5), (5, 6)]),
    "chained": (lambda x, w, v: x @ w @ v, [(6, 7), (7, 5), (5, 3)]),
    "returned and used": (lambda x, w: ((y := x @ w), y.exp()), [(6, 7), (7, 5)]),
    "softmax": (lambda x, w: torch.softmax(x @ w, -1), [(6, 7), (7, 5)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_programs_compute_the_same(name, dtype):
    program, shapes = PROGRAMS[name]
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    run = forced(program, *inputs)
    assert run.record.changed
    assert pads_of(run)
    got, wanted = run.module(*inputs), program(*inputs)
    if not isinstance(wanted, tuple):
        got, wanted = (got,), (wanted,)
    for a, b in zip(got, wanted, strict=True):
        check_same(a, b)


def test_half_precision_is_padded_to_eight_and_double_not_at_all():
    inputs = torch.randn(6, 12), torch.randn(12, 20)
    assert pads_of(forced(torch.mm, *(x.half() for x in inputs))) == [[0, 4, 0, 2], [0, 4, 0, 4]]
    assert pads_of(forced(torch.mm, *inputs)) == [[0, 0, 0, 2]]
    refused = forced(torch.mm, *(x.double() for x in inputs))
    assert not refused.record.changed
    assert reasons(refused) == ["products in float64 need no alignment"]


@pytest.mark.parametrize("scales", [{}, {"beta": 0.5, "alpha": 3}, {"beta": 0}, {"alpha": 0}], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 1), (1, 5), (6, 1), (6, 5)], ids=str)
def test_a_bias_is_padded_where_it_is_not_broadcast(shape, scales):
    inputs = torch.randn(shape), torch.randn(6, 7), torch.randn(7, 5)

    def program(b, x, w):
        return torch.addmm(b, x, w, **scales)

    run = forced(program, *inputs)
    own = [dim for dim, size in zip(((0, 3), (0, 2)), reversed(shape), strict=False) if size > 1]
    assert len(pads_of(run)) == (3 if own else 2)
    check_same(run.module(*inputs), program(*inputs))


def test_a_bias_that_does_not_count_may_be_nan():
    inputs = torch.full((5,), NAN), torch.randn(6, 7), torch.randn(7, 5)
    run = forced(lambda b, x, w: torch.addmm(b, x, w, beta=0), *inputs)
    assert run.record.changed
    assert not run.module(*inputs).isnan().any()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_stays_in_its_row_and_column(bad):
    x, w = torch.randn(6, 7), torch.randn(7, 5)
    x[2, 3] = bad
    w[4, 1] = bad
    run = forced(torch.mm, x, w)
    assert run.record.changed
    check_same(run.module(x, w), x @ w)


def test_dimensions_of_one_element_are_not_padded():
    assert pads_of(forced(torch.mm, torch.randn(1, 7), torch.randn(7, 1))) == [[0, 1, 0, 0], [0, 0, 0, 1]]
    outer = forced(torch.mm, torch.randn(8, 1), torch.randn(1, 8))
    assert reasons(outer) == ["no size can be padded to a multiple of 4"]


@pytest.mark.parametrize("shapes", [((0, 7), (7, 5)), ((6, 0), (0, 5)), ((6, 7), (7, 0))], ids=str)
def test_empty_products_are_left(shapes):
    run = forced(torch.mm, *map(torch.randn, shapes))
    assert not run.record.changed
    assert reasons(run) == ["it has a dimension of size 0"]


def test_only_static_dimensions_are_padded():
    w = torch.randn(7, 5)
    run = run_pass(FORCED, "joint", capture(lambda x: x @ w, [torch.randn(6, 7)], "aten", dynamic=True))
    assert pads_of(run) == [[0, 1, 0, 0], [0, 3, 0, 1]]
    x = torch.randn(9, 7)
    check_same(run.module(x), x @ w)


def test_strided_readers_get_a_copy_and_others_a_slice():
    x, w, v = torch.randn(8, 8), torch.randn(8, 5), torch.randn(5, 8)
    assert aten.clone.default in targets(forced(lambda x, w: x @ w, x, w).module)
    assert aten.clone.default in targets(forced(lambda x, w: (x @ w).view(4, 2, 5) + 1, x, w).module)
    assert aten.clone.default not in targets(forced(lambda x, w: (x @ w).relu(), x, w).module)
    assert aten.clone.default not in targets(forced(lambda x, w, v: x @ w @ v, x, w, v).module)
    assert aten.clone.default not in targets(forced(lambda x, w: w.t() @ x, x, w).module), "whole rows are a slice"


def test_what_several_products_read_is_padded_once():
    x, w, v = torch.randn(8, 7), torch.randn(7, 8), torch.randn(7, 8)
    run = forced(lambda x, w, v: x @ w + x @ v, x, w, v)
    assert len(pads_of(run)) == 3


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_any_product_equals_the_one_in_float64(m, k, n, batch, left, right, dtype):
    def random(rows, columns, is_transposed):
        shape = (columns, rows) if is_transposed else (rows, columns)
        made = torch.randn(*([batch] if batch else []), *shape).to(dtype)
        return made.mT if is_transposed else made

    x, w = random(m, k, left), random(k, n, right)
    run = forced(torch.bmm if batch else torch.mm, x, w)
    got, wanted = run.module(x, w), x.double() @ w.double()
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


# ----------------------------------------------------------------------------------------------------- end to end


class Block(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.up = torch.nn.Linear(7, 13, dtype=dtype)
        self.down = torch.nn.Linear(13, 5, bias=False, dtype=dtype)

    def forward(self, x):
        hidden = F.gelu(self.up(x))
        scores = torch.bmm(hidden, hidden.transpose(1, 2)).softmax(-1)
        return self.down(torch.bmm(scores, hidden))


class Small(torch.nn.Module):
    """As little as has all kinds of products that training needs: each kernel is a compile of a C++ compiler."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.linear = torch.nn.Linear(7, 5, dtype=dtype)

    def forward(self, x):
        return self.linear(x).relu()


MODELS = {"aten": Block, "inductor": Small}


def compiled(model, engine, recorder, **options):
    slots = {"joint_custom_post_pass": [FORCED], "disable": ["fuse_attention"]}  # the products are to stay products
    return eductor.compile(model, engine=engine, instruments=[recorder], strict=True, **slots, **options)


def padded(recorder):
    return sum(len(r.matches) for r in recorder.records if r.name == "pad_mm")


@pytest.mark.parametrize("engine", MODELS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_training(engine, dynamic):
    torch.manual_seed(0)
    model, recorder = MODELS[engine](), Recorder()
    fn = compiled(model, engine, recorder, dynamic=dynamic)
    for rows in (3, 6) if dynamic else (3,):
        x = torch.randn(2, rows, 7, requires_grad=True)
        wanted = model(x)
        gradients = torch.autograd.grad(wanted.square().sum(), [x, *model.parameters()])
        got = fn(x)
        check_same(got, wanted)
        mine = torch.autograd.grad(got.square().sum(), [x, *model.parameters()])
        for a, b in zip(mine, gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    products = {"aten": 12, "inductor": 3}[engine]
    assert padded(recorder) == products


@pytest.mark.parametrize(
    ("engine", "dtype"), [("aten", torch.float32), ("aten", torch.bfloat16), ("inductor", torch.bfloat16)]
)
def test_inference(engine, dtype):
    torch.manual_seed(0)
    model, recorder = MODELS[engine](dtype), Recorder()
    x = torch.randn(2, 3, 7, dtype=dtype)
    with torch.no_grad():
        check_same(compiled(model, engine, recorder)(x), model(x))
    assert padded(recorder) == {"aten": 4, "inductor": 1}[engine]


def test_the_exact_profile_pads_nothing():
    recorder = Recorder()
    x, w = torch.randn(6, 7), torch.randn(7, 5)
    fn = eductor.compile(
        torch.mm, joint_custom_post_pass=[FORCED], engine="aten", profile="exact", instruments=[recorder]
    )
    with pytest.warns(EductorWarning, match="only exact passes"):
        assert torch.equal(fn(x, w), x @ w)
    assert padded(recorder) == 0


def test_in_training_the_backward_pads_in_the_backward():
    """A padded copy of a saved value is made again, rather than saved beside it."""
    seen = []

    @graph_pass(stage="joint", numerics="exact")
    def look(graph, rewrite):
        seen.extend(is_backward(n) for n in graph.nodes if n.target is aten.constant_pad_nd.default)

    x, w = torch.randn(6, 7, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    slot = [FORCED, look]
    fn = eductor.compile(lambda x, w: (x @ w).exp().sum(), joint_custom_post_pass=slot, engine="aten", strict=True)
    fn(x, w).backward()
    assert seen.count(False) == 2
    assert seen.count(True) >= 3


# --------------------------------------------------------------------------------------------------- the decision


def test_on_a_cpu_products_are_not_even_read(monkeypatch):
    monkeypatch.setattr(THE_MODULE, "read_product", lambda *_: pytest.fail("it was read"))
    module = capture(lambda x, w: x @ w, [torch.randn(4097, 7), torch.randn(7, 5)], "aten")
    assert reasons(run_pass(pad_mm, "joint", module)) == ["alignment does not matter on the device 'cpu'"]


def on_cuda(monkeypatch, program, *shapes, device=H200, dtype=torch.bfloat16, pass_=pad_mm):
    """What becomes of a program on a GPU that need not be there: its values are fake."""
    monkeypatch.setattr(THE_MODULE, "device_of", lambda *_: device)
    with FakeTensorMode():
        inputs = [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]
        module = make_fx(program)(*inputs)
    return run_pass(pass_, "joint", module)


def test_the_record_says_why_a_product_was_padded(monkeypatch):
    run = on_cuda(monkeypatch, torch.mm, (4096, 4097), (4097, 4096))
    assert pads_of(run) == [[0, 7, 0, 0], [0, 0, 0, 7]]
    (note,) = notes(run)
    assert "us unpadded" in note
    assert note.endswith("with k by 7")


def test_the_reason_is_shown():
    x, w = torch.randn(6, 7), torch.randn(7, 5)
    told = eductor.explain(lambda x, w: x @ w, x, w, options={"joint_custom_post_pass": [FORCED], "engine": "aten"})
    assert "at mm, padding is forced" in told.diff("pad_mm")
    stages = [stage for graph in told.to_json()["graphs"] for stage in graph["stages"]]
    passes = [p for stage in stages for p in stage["passes"] if p["name"] == "pad_mm"]
    assert [match["note"] for p in passes for match in p["matches"]] == ["padding is forced"]


def test_the_record_says_why_a_product_was_left(monkeypatch):
    aligned = on_cuda(monkeypatch, torch.mm, (4097, 4096), (4096, 4096))
    assert reasons(aligned) == ["each row of its matrices begins at a multiple of 16 bytes"]
    (slim,) = reasons(on_cuda(monkeypatch, torch.mm, (16, 4097), (4097, 4096)))
    assert "memory-bound" in slim


def test_rows_of_a_transposed_factor_are_its_columns(monkeypatch):
    run = on_cuda(monkeypatch, lambda x, w: x.t() @ w, (4096, 4097), (4096, 4096))
    assert notes(run)[0].endswith("with m by 7")
    assert aten.clone.default not in targets(run.module)


def test_what_is_computed_pointwise_is_padded_for_free_where_it_fuses(monkeypatch):
    def program(x, w):
        return x.relu() @ w.relu()

    shapes = (2048, 513), (513, 2048)
    assert on_cuda(monkeypatch, program, *shapes).record.changed
    assert not on_cuda(monkeypatch, program, *shapes, device=dataclasses.replace(H200, fuses=False)).record.changed
    assert not on_cuda(monkeypatch, torch.mm, *shapes).record.changed, "inputs must be copied"
    from_products = on_cuda(monkeypatch, lambda x, y, w: (x @ y) @ w.relu(), (2048, 512), (512, 513), (513, 2048))
    assert "gains too little" in " ".join(reasons(from_products)), "so must what a product computes"


def test_logits_are_padded_where_nobody_needs_their_strides(monkeypatch):
    shapes = (4096, 256), (50257, 256)
    returned = on_cuda(monkeypatch, lambda x, w: x @ w.t(), *shapes)
    assert "gains too little" in reasons(returned)[0]
    read = on_cuda(monkeypatch, lambda x, w: (x @ w.t()).view(8, 512, 50257).relu().amax(-1), *shapes)
    assert notes(read)[0].endswith("with n by 7")
    assert aten.clone.default in targets(read.module)


def test_a_padded_result_is_aligned_for_the_next_product(monkeypatch):
    run = on_cuda(monkeypatch, lambda x, w, v: x @ w @ v, (4096, 4096), (4096, 4097), (4097, 4096))
    assert [note.rpartition("with ")[2] for note in notes(run)] == ["n by 7"]
    assert len(pads_of(run)) == 1


def test_the_memory_for_copies_is_limited(monkeypatch):
    shapes = (4096, 4097), (4097, 4096)
    limited = pad_mm.configured(memory_share=1e-5)
    assert "MiB are allowed" in reasons(on_cuda(monkeypatch, torch.mm, *shapes, pass_=limited))[0]


def test_other_dtypes_of_the_result_stay(monkeypatch):
    def program(x, w):
        return torch.mm(x, w, out_dtype=torch.float32)

    run = on_cuda(monkeypatch, program, (4096, 4097), (4097, 4096))
    assert run.record.changed
    (product,) = [n for n in run.module.graph.nodes if n.target is aten.mm.dtype]
    assert product.meta["val"].dtype is torch.float32


def test_it_measures_only_when_asked(monkeypatch):
    asked = []

    def measure(product, pads, *, where):
        asked.append(pads)
        return 1.0, 2.0

    monkeypatch.setattr(THE_MODULE, "measure_product", measure)
    shapes = (4096, 4097), (4097, 4096)
    assert on_cuda(monkeypatch, torch.mm, *shapes).record.changed
    assert not asked
    measuring = pad_mm.configured(measure=True)
    assert "as measured" in reasons(on_cuda(monkeypatch, torch.mm, *shapes, pass_=measuring))[0]
    assert asked == [Pads(k=7)]
    torch.use_deterministic_algorithms(True)
    try:
        assert on_cuda(monkeypatch, torch.mm, *shapes, pass_=measuring).record.changed
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(asked) == 1


def test_measuring_within_a_compile_disturbs_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    product = MatrixProduct(6, 7, 5, torch.float32, Matrix("k", 7), Matrix("n", 5), H200)
    found = []

    @graph_pass(stage="joint", numerics="exact")
    def measure(graph, rewrite):
        state = torch.get_rng_state()
        found.append(measure_product(product, Pads(k=1, n=3), where=torch.device("cpu")))
        assert torch.equal(state, torch.get_rng_state())

    x = torch.randn(6, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        eductor.compile(lambda x: x.sin().sum(), passes=[measure], engine="aten", strict=True)(x).backward()
    assert all(seconds > 0 for seconds in found[0])
    assert len(list(tmp_path.rglob("*.json"))) == 1
    assert measure_product(product, Pads(k=1, n=3), where=torch.device("cpu")) == found[0]


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_on_a_gpu(engine):
    """What pays on a GPU is padded there, and equals eager."""
    torch.manual_seed(0)
    x = torch.randn(4096, 4097, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(4097, 4096, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    recorder = Recorder()
    fn = eductor.compile(
        lambda x, w: (x.relu() @ w).relu(),
        joint_custom_post_pass=[pad_mm],
        engine=engine,
        instruments=[recorder],
        strict=True,
    )
    got, wanted = fn(x, w), (x.relu() @ w).relu()
    torch.testing.assert_close(got, wanted, rtol=2e-2, atol=0.5)
    mine, eager = (torch.autograd.grad(y.float().mean(), [x, w]) for y in (got, wanted))
    for a, b in zip(mine, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=1e-4)
    assert padded(recorder) >= 1
