"""Engines: found by name, as a function, from a package; what they are told, and what happens when they fail."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings

import pytest
import torch

import eductor
from eductor import BadOption, EductorWarning, UnknownName
from eductor.engines import ATEN, INDUCTOR, Compiled, Engine, Job, find_engine, has_code_generator
from eductor.engines.inductor.kernels import kernels_in
from eductor.options import Options


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_engines_are_found_by_name_and_as_functions():
    assert find_engine("aten") is ATEN
    assert find_engine("inductor") is INDUCTOR
    assert find_engine(print).name == "print"
    with pytest.raises(UnknownName, match=r"unknown engine 'atn'. Did you mean 'aten'\?"):
        find_engine("atn")


def test_an_engine_comes_with_a_package(tmp_path, monkeypatch):
    (tmp_path / "their_engine.py").write_text(
        "from torch.fx import Interpreter\n"
        "calls = []\n"
        "def theirs(job):\n"
        "    calls.append(job)\n"
        "    return lambda inputs: Interpreter(job.module).boxed_run(inputs)\n"
        "wrong = 3\n"
    )
    info = tmp_path / "their_engine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[eductor.engines]\ntheirs = their_engine:theirs\nwrong = their_engine:wrong\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    x = leaf(3)
    eductor.compile(torch.sin, engine="theirs", strict=True)(x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    assert [job.is_backward for job in sys.modules["their_engine"].calls] == [False, True]
    with pytest.raises(BadOption, match="must name a function or an Engine"):
        eductor.compile(torch.sin, engine="wrong")


def test_what_an_engine_is_told():
    jobs: list[Job] = []

    def engine(job):
        jobs.append(job)
        return ATEN(job)

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    eductor.compile(model, engine=engine, strict=True)(leaf(6, 4)).square().sum().backward()
    forward, backward = jobs
    names = [p.name for p in forward.module.graph.find_nodes(op="placeholder")]
    assert len(forward.inputs) == len(names)
    assert len(forward.static) == 7  # two weights, two biases, three buffers
    assert len(forward.written) == 3
    assert forward.visible == {0}
    assert not forward.is_inference
    assert backward.is_backward
    assert backward.saved
    assert backward.static < backward.saved
    assert backward.donated <= backward.saved - backward.static
    assert forward.shared is backward.shared


def test_an_engine_may_choose_the_layout_of_saved_values():
    seen = []

    def engine(job):
        run = ATEN(job).run
        if job.is_backward:
            seen.extend(x.stride() for x in job.inputs if isinstance(x, torch.Tensor))
            return Compiled(run)

        def call(inputs):
            outputs = list(run(inputs))
            outputs[1:] = [t.t().contiguous().t() if t.dim() == 2 else t for t in outputs[1:]]
            return outputs

        outputs = [n.meta["val"] for n in job.module.graph.output_node().args[0]]
        chosen = [None, *((1, t.shape[0]) if t.dim() == 2 else None for t in outputs[1:])]
        return Compiled(call, chosen)

    x = leaf(3, 4)
    eductor.compile(lambda x: (x * 2).exp().sum(), engine=engine, strict=True)(x).backward()
    assert (1, 3) in seen
    assert torch.allclose(x.grad, 2 * (x.detach() * 2).exp())


def test_a_failing_engine_leaves_the_result_alone():
    def engine(job):
        raise RuntimeError("no kernels today")

    x = leaf(3)
    with pytest.warns(EductorWarning, match="the engine 'engine' failed.*'aten'.*no kernels today"):
        eductor.compile(torch.sin, engine=engine)(x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    with pytest.raises(Exception, match="no kernels today") as caught:
        eductor.compile(lambda x: x.sin() + 1, engine=engine, strict=True)(x)
    assert "ahead-of-time autograd does not support" not in str(caught.value)


def test_an_engine_that_returns_nonsense_is_told_so():
    with pytest.warns(EductorWarning, match="it returned 3, not a function of a list of inputs"):
        eductor.compile(torch.sin, engine=lambda job: 3)(torch.ones(2))


def test_the_decompositions_are_the_engines_or_the_users():
    aten = torch.ops.aten
    table = torch._decomp.get_decompositions([aten.gelu])
    seen = []

    def look(job):
        seen.append({n.target for n in job.module.graph.nodes})
        return ATEN(job)

    gelu = torch.nn.functional.gelu
    eductor.compile(gelu, engine=Engine("look", look, lambda options: table))(torch.ones(2))
    torch._dynamo.reset()
    eductor.compile(gelu, engine=Engine("look", look, lambda options: table), decompositions={})(torch.ones(2))
    torch._dynamo.reset()
    eductor.compile(gelu, engine=look, decompositions=table)(torch.ones(2))
    assert [aten.gelu.default in targets for targets in seen] == [False, True, False]


def test_the_default_engine():
    from eductor.engines import choose_engine

    assert choose_engine(Options()) is (INDUCTOR if has_code_generator() else ATEN)
    assert choose_engine(Options(profile="exact")) is ATEN
    with pytest.raises(BadOption, match="round differently"):
        choose_engine(Options(profile="exact", engine="inductor"))
    with pytest.raises(BadOption, match="mode='reduce-overhead': the engine 'aten' has default"):
        choose_engine(Options(engine="aten", mode="reduce-overhead"))


def test_a_mode_comes_through_torch_compile():
    with pytest.raises(Exception, match="mode='fastest'"):
        torch.compile(torch.sin, backend="eductor", mode="fastest")(torch.ones(2))


# --------------------------------------------------------------------------------------------------- the engine inductor


def test_none_of_inductors_passes_run():
    from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad

    def forbidden(*args, **kwargs):
        raise AssertionError("a pass of Inductor ran")

    patch = pytest.MonkeyPatch()
    for module, name in (
        (joint_graph, "joint_graph_passes"),
        (post_grad, "post_grad_passes"),
        (pre_grad, "pre_grad_passes"),
    ):
        patch.setattr(module, name, forbidden)
    try:
        x, w = leaf(3, 4), leaf(4, 5)
        with warnings.catch_warnings():
            warnings.simplefilter("error", EductorWarning)
            eductor.compile(lambda x, w: torch.relu(x @ w).sum(), engine="inductor")(x, w).backward()
    finally:
        patch.undo()
    assert torch.allclose(w.grad, x.detach().t() @ (x.detach() @ w.detach() > 0).float())


def test_its_caches_make_a_second_start_warm():
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    def program(x):
        return (x.sin() * 3.25).exp().sum()

    with fresh_cache():
        for expected in (0, 2):
            torch._dynamo.reset()
            counters.clear()
            eductor.compile(program, engine="inductor", strict=True)(leaf(7)).backward()
            assert counters["inductor"]["fxgraph_cache_hit"] == expected


def test_a_kept_graph_is_never_that_of_a_backward_which_overwrites_what_was_saved():
    from torch._inductor.utils import fresh_cache

    def program(x, w):
        return ((x @ w).sin().exp() @ w).sin().exp().sum()

    x, w = leaf(32, 32), leaf(32, 32)
    with fresh_cache():
        eductor.compile(program, engine="inductor", strict=True)(x, w).backward()
        torch._dynamo.reset()
        loss = eductor.compile(program, engine="inductor", strict=True)(x, w)
        first = torch.autograd.grad(loss, (x, w), retain_graph=True)
        assert all(map(torch.equal, first, torch.autograd.grad(loss, (x, w))))


def test_seeded_randomness_is_fused_and_the_same_in_forward_and_backward():
    def program(x):
        return torch.nn.functional.dropout(x, 0.5).sum()

    x = torch.ones(1000, requires_grad=True)
    compiled = eductor.compile(program, engine="inductor", strict=True)
    torch.manual_seed(5)
    first = compiled(x)
    first.backward()
    assert torch.allclose(x.grad.sum(), first)
    assert set(x.grad.unique().tolist()) == {0.0, 2.0}
    torch.manual_seed(5)
    assert torch.equal(first, compiled(x))
    assert not torch.equal(first, compiled(x))


def test_the_private_calls_have_the_form_that_both_versions_know():
    """torch 2.11 and 2.13 differ in two optional arguments of compile_fx_inner; ours are in both."""
    from torch._inductor import config
    from torch._inductor.compile_fx import _CompileFxKwargs, compile_fx_inner
    from torch._inductor.virtualized import V

    assert list(inspect.signature(compile_fx_inner).parameters)[:2] == ["gm", "example_inputs"]
    ours = {"static_input_idxs", "is_backward", "is_inference", "graph_id", "cudagraphs", "boxed_forward_device_index"}
    assert ours <= set(_CompileFxKwargs.__annotations__)
    for name in ("use_pre_grad_passes", "use_joint_graph_passes", "use_post_grad_passes", "fallback_random"):
        assert isinstance(getattr(config, name), bool)
    assert hasattr(V, "set_fake_mode")


def test_the_first_graph_of_a_process_may_have_any_operator():
    """What Inductor loads with its first graph, its decompositions may take for loaded before."""
    script = """
import torch, eductor
pool = eductor.compile(lambda x: torch.nn.functional.max_pool2d(x, 3, 2, 1).sum(), engine="inductor", strict=True)
pool(torch.randn(1, 2, 8, 8, requires_grad=True)).backward()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_input_that_is_the_negative_of_its_memory():
    def program(x, m):
        return (x * m.exp()).sum()

    x, m = torch.randn(8, 6, requires_grad=True), torch.randn(8, 6, dtype=torch.complex64).conj().imag
    assert m.is_neg()
    (expected,) = torch.autograd.grad(program(x, m), x)
    out = eductor.compile(program, engine="inductor", strict=True)(x, m)
    out.backward()
    torch.testing.assert_close(out, program(x, m))
    torch.testing.assert_close(x.grad, expected)


def test_a_graph_whose_inputs_are_numbers():
    def program(n):
        return torch.ones(3, n + 1) * n, torch.arange(n).expand(2, n)

    compiled = eductor.compile(program, engine="inductor", dynamic=True, strict=True)
    for n in (5, 7):
        for ours, eagers in zip(compiled(n), program(n), strict=True):
            assert torch.equal(ours, eagers)
            assert ours.stride() == eagers.stride()


def test_kernels_are_read_out_of_generated_python():
    text = """
# kernel path: /tmp/a.py
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton

@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel):
    pass
''', device_str='cuda')

cpp_fused_mul_1 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel(float* p) {}
''')


async_compile.wait(globals())
"""
    origins = {"extern_kernels.mm:12": ["mm"], "cpp_fused_mul_1:3": ["mul"], "triton_poi_fused_add_0:2": ["add", "neg"]}
    found = kernels_in(text, origins)
    assert [(k.name, k.language, k.nodes) for k in found] == [
        ("triton_poi_fused_add_0", "triton", ("add", "neg")),
        ("cpp_fused_mul_1", "cpp", ("mul",)),
        ("extern_kernels.mm", "extern", ("mm",)),
    ]
    assert found[0].code.startswith("import triton\n")
    assert found[1].code == 'extern "C" void kernel(float* p) {}'
    assert found[2].code is None
