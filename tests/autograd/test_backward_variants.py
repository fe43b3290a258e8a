"""The backward for undefined gradients is compiled like any other graph: instruments see its passes, and may undo them."""

from __future__ import annotations

import threading

import pytest
import torch

import eductor
from eductor.observe.explain.explain import Explanation
from eductor.pipeline import Instrument, graph_pass
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
SOME = {"engine": "aten", "cache": False}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def program(x):
    return x.sin(), x.cos() * 2


def backward(compiled, *used):
    """The gradient of a sum of the used outputs."""
    x = torch.linspace(0, 1, 5).requires_grad_()
    outputs = compiled(x)
    sum(outputs[i].sum() for i in used).backward()
    return x.grad


def variants(recorder, stage):
    """The stage's passes over each backward, by the variant's name."""
    return {
        s.variant: {r.name: r.status for r in recorder.records if r.stage_at == at}
        for at, s in enumerate(recorder.stages)
        if (s.name, s.role) == (stage, "backward")
    }


@graph_pass(stage="post_grad", numerics="exact")
def confuses_cosines(graph, rewrite):
    """Replaces cosines by sines."""
    for node in graph.find(aten.cos):
        rewrite.replace(node, aten.sin.default, node.args[0])


@graph_pass(stage="post_grad", numerics="exact")
def confuses_variants(graph, rewrite, *, context):
    """Replaces cosines by sines in the backward for undefined gradients."""
    for node in graph.find(aten.cos) if context.graph.variant else ():
        rewrite.replace(node, aten.sin.default, node.args[0])


def test_the_record_has_the_passes_of_each_variant():
    recorder = eductor.Recorder(keep_graphs=True)
    compiled = eductor.compile(program, instruments=[recorder], **SOME)
    backward(compiled, 0)
    seen = variants(recorder, "post_grad")
    assert list(seen) == ["", "without tangents_2"]
    assert seen[""].keys() == seen["without tangents_2"].keys()
    start = next(s.start for s in recorder.stages if s.variant and s.name == "post_grad")
    assert not any(n.name == "tangents_2" for n in start.graph().nodes)
    assert list(variants(recorder, "engine")) == ["without tangents_2"]
    backward(compiled, 1)
    backward(compiled, 0, 1)
    assert list(variants(recorder, "post_grad")) == ["", "without tangents_2", "without tangents_1"]
    assert list(variants(recorder, "engine")) == ["without tangents_2", "without tangents_1", ""]
    assert {s.graph for s in recorder.stages} == {1}


def test_an_explanation_shows_each_variant_with_its_own_passes():
    explanation = Explanation()
    compiled = eductor.compile(program, instruments=[explanation.recorder], **SOME)
    backward(compiled, 1)
    views = [v for v in explanation.stages(1) if (v.stage.name, v.stage.role) == ("post_grad", "backward")]
    assert [v.stage.variant for v in views] == ["", "without tangents_1"]
    assert all(len({r.address for r in v.passes}) == len(v.passes) > 5 for v in views)


def test_what_a_cache_on_disk_has_is_compiled_again_for_an_instrument(monkeypatch, tmp_path):
    monkeypatch.setenv("EDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EDUCTOR_CACHE_MIB", "64")
    for instruments in ((), (eductor.Recorder(),)):
        torch._dynamo.reset()
        backward(eductor.compile(program, engine="aten", instruments=instruments), 0)
    assert variants(instruments[0], "post_grad")["without tangents_2"]


def test_a_compile_with_limited_passes_is_not_cached(monkeypatch, tmp_path):
    class Nothing(Instrument):
        def most_matches(self, run):
            return 0

    monkeypatch.setenv("EDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EDUCTOR_CACHE_MIB", "64")
    backward(eductor.compile(program, engine="aten", instruments=[Nothing()]), 0)
    assert not list(tmp_path.iterdir())


def test_verification_undoes_a_faulty_pass_in_a_variant():
    compiled = eductor.compile(program, passes=[confuses_cosines], verify="each", **SOME)
    with pytest.warns(eductor.EductorWarning, match="confuses_cosines failed"):
        assert torch.equal(backward(compiled, 0), torch.linspace(0, 1, 5).cos())


def test_a_finding_names_the_variant():
    verifier = Verifier()
    compiled = eductor.compile(program, passes=[confuses_cosines], instruments=[verifier], **SOME)
    with pytest.warns(eductor.EductorWarning, match="confuses_cosines failed"):
        assert torch.equal(backward(compiled, 0), torch.linspace(0, 1, 5).cos())
    assert "without tangents_2" in [f.graph.variant for f in verifier.findings]


def test_a_bisection_finds_a_fault_in_a_variant():
    def check(compiled):
        return torch.equal(backward(compiled, 0), torch.linspace(0, 1, 5).cos())

    culprit = eductor.bisect(program, check=check, options={"passes": [confuses_variants], **SOME})
    assert culprit.address == "post_grad/confuses_variants@0"
    assert "without tangents_2" in str(culprit)


def test_disabled_and_limited_passes_do_not_run_in_a_variant():
    class First(Instrument):
        """Allows a pass nothing in graphs of variants."""

        def most_matches(self, run):
            return 0 if run.context.graph.variant else None

    recorder = eductor.Recorder()
    backward(eductor.compile(program, disable=["remove_noop_ops"], instruments=[recorder], **SOME), 0)
    assert all("remove_noop_ops" not in passes for passes in variants(recorder, "post_grad").values())
    torch._dynamo.reset()
    recorder = eductor.Recorder()
    backward(eductor.compile(program, instruments=[First(), recorder], **SOME), 0)
    assert set(variants(recorder, "post_grad")["without tangents_2"].values()) == {"skipped"}


def test_backwards_in_two_threads_are_recorded_apart():
    """Every record names the stage in which its pass ran, although both compiles happen at calls."""
    recorder = eductor.Recorder(keep_graphs=True)
    compiled = [eductor.compile(fn, instruments=[recorder], **SOME) for fn in (program, lambda x: (x.exp(), x.tan()))]
    inputs = [torch.linspace(0, 1, 5).requires_grad_() for _ in compiled]
    outputs = [fn(x) for fn, x in zip(compiled, inputs, strict=True)]
    threads = [threading.Thread(target=lambda found=found: found[0].sum().backward()) for found in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(x.grad is not None for x in inputs)
    for record in recorder.records:
        stage = recorder.stages[record.stage_at]
        assert (record.stage, record.graph, record.role, record.variant) == (
            stage.name,
            stage.graph,
            stage.role,
            stage.variant,
        )
    assert sum(bool(s.variant) and s.name == "post_grad" for s in recorder.stages) == 2
