"""The stage lower belongs to the engine: its passes, their order, and which of them it cannot do without."""

from __future__ import annotations

import pytest
import torch
from torch.fx import GraphModule

import eductor
from eductor.cache import Question
from eductor.engines import ATEN, INDUCTOR, Engine
from eductor.errors import BadPass, EductorWarning, UnknownName
from eductor.graph.capture import capture
from eductor.graph.snapshot import own_module
from eductor.options import Options
from eductor.passes.joint import without_numbers
from eductor.pipeline import Pipeline, Recorder, Row, graph_pass

aten = torch.ops.aten


def swapping(name: str, old, new):
    """A pass that calls one function in place of another, which is wrong."""

    @graph_pass(stage="lower", numerics="exact", name=name)
    def swap(graph, rewrite):
        for node in graph.find(old):
            rewrite.replace(node, new, *node.args)

    return swap


sin_to_cos, cos_to_tanh = swapping("sin_to_cos", aten.sin, aten.cos), swapping("cos_to_tanh", aten.cos, aten.tanh)


@graph_pass(stage="lower", numerics="exact")
def broken(graph, rewrite):
    """Fails."""
    raise ValueError("no engine today")


def engine(*lower) -> Engine:
    return Engine("mine", ATEN.compile, lower=lower)


def lowered(engine, **options) -> list[str]:
    """The passes of the stage in the pipeline of a compile."""
    return [s.name for s in Pipeline.of(Options(**options), engine.lower).stage("lower") if not s.is_slot]


def test_each_engine_has_its_own_passes():
    assert lowered(ATEN) == []
    assert lowered(INDUCTOR) == [row.name for row in INDUCTOR.lower if not row.is_slot]
    mine = engine("keep_draws_in_order", sin_to_cos, "fill_constants")
    assert lowered(mine) == ["keep_draws_in_order", "sin_to_cos", "fill_constants"]
    with pytest.raises(UnknownName, match="fill_constants"):
        lowered(engine("fill_constant"))


def test_passes_of_another_engine_leave_a_pipeline_that_is_given():
    given = Pipeline.default()
    assert lowered(ATEN, pipeline=given) == lowered(ATEN, pipeline=given.text()) == []
    assert lowered(engine("call_wide_cats"), pipeline=given) == ["call_wide_cats"]


def test_an_engines_passes_run_in_its_order_on_a_copy_of_the_graph():
    recorder, seen = Recorder(keep_graphs=True), []

    def run(job):
        seen.append([n.target for n in job.module.graph.nodes if n.op == "call_function"])
        return ATEN(job)

    mine = Engine("mine", run, lower=(sin_to_cos, cos_to_tanh))
    x = torch.randn(3)
    got = eductor.compile(torch.sin, engine=mine, strict=True, instruments=[recorder])(x)
    assert torch.equal(got, x.tanh())
    assert seen == [[aten.tanh.default]]
    assert recorder.changed() == ["lower/sin_to_cos", "lower/cos_to_tanh"]
    assert [s.name for s in recorder.stages][-3:] == ["lower", "engine", "link"]


def test_the_slot_is_there_for_each_engine():
    for chosen in ("aten", engine(cos_to_tanh)):
        x = torch.randn(3)
        got = eductor.compile(torch.sin, engine=chosen, strict=True, lower_custom_pass=[sin_to_cos])(x)
        assert torch.equal(got, x.cos() if chosen == "aten" else x.tanh())


REQUIRED = [s.address for s in Pipeline.default().steps if s.required]


@pytest.mark.parametrize("address", REQUIRED)
def test_what_the_engine_cannot_do_without_stays(address):
    name = address.rpartition("/")[2]
    for change in (
        lambda: Pipeline.default().without(address),
        lambda: Pipeline.default().without(name),
        lambda: Pipeline.default(disable=[name]),
        lambda: Pipeline.of(Options(disable=[name])),
        lambda: Pipeline.default().limited(name, 1),
        lambda: Pipeline.default().replaced(name, sin_to_cos),
        lambda: Pipeline.parse(f"{address.partition('/')[0]}({name}[:1])"),
    ):
        with pytest.raises(BadPass, match="the engine requires it"):
            change()
    for pipeline in (Pipeline.default().only("joint/pad_mm"), "joint(pad_mm)", ""):
        kept = [s.address for s in Pipeline.of(Options(pipeline=pipeline), INDUCTOR.lower).steps if s.required]
        assert kept == REQUIRED


def test_what_only_another_engine_needs_may_be_disabled():
    assert Pipeline.of(Options(disable=["call_wide_cats", "fill_constants"]), ATEN.lower)
    assert "call_wide_cats" not in lowered(INDUCTOR, disable=["call_wide_cats"])


def test_a_required_pass_that_fails_leaves_the_graph_to_aten():
    mine, x = engine(Row("broken", "it must", pass_=broken, required=True)), torch.randn(3)
    said = r"(?s)the engine 'mine' failed on the forward graph.*engine 'aten'.*lower/broken failed.*no engine today"
    with pytest.warns(EductorWarning, match=said):
        assert torch.equal(eductor.compile(torch.sin, engine=mine)(x), x.sin())
    with pytest.raises(Exception, match="lower/broken failed"):
        eductor.compile(torch.sin, engine=mine, strict=True)(x)


def test_a_pass_that_is_not_required_is_undone_alone():
    x = torch.randn(3)
    with pytest.warns(EductorWarning, match=r"(?s)lower/broken failed.*The compile continues without it"):
        got = eductor.compile(torch.sin, engine=engine(broken, sin_to_cos))(x)
    assert torch.equal(got, x.cos())


@pytest.mark.parametrize("required", [False, True])
def test_verification_finds_a_wrong_pass_of_the_engine(required):
    mine = engine(Row("sin_to_cos", "it must", pass_=sin_to_cos, required=required))
    report = eductor.verify(torch.sin, torch.randn(3), options={"engine": mine})
    assert [(f.address, f.check) for f in report.findings] == [("lower/sin_to_cos", "numbers")]
    assert not report.differences


def test_bisection_finds_a_wrong_pass_of_the_engine():
    found = eductor.bisect(lambda x: x.sin() + x.sinh(), [torch.randn(3)], options={"engine": engine(sin_to_cos)})
    assert found.address == "lower/sin_to_cos@0"
    assert found.module is not None


def test_bisection_suspects_what_the_engine_cannot_do_without():
    mine = engine(Row("sin_to_cos", "it must", pass_=sin_to_cos, required=True))
    found = eductor.bisect(torch.sin, [torch.randn(3)], options={"engine": mine})
    assert found.address == "engine"
    assert any("lower/sin_to_cos@0" in note for note in found.notes)


def test_a_copy_of_a_module_has_bodies_of_its_own():
    body = GraphModule({}, torch.fx.symbolic_trace(lambda x: x + 1).graph)
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.higher_order.invoke_subgraph, (graph.get_attr("body"), "b", x)))
    module = GraphModule({"body": body}, graph)
    copy = own_module(module)
    assert copy.body is not module.body
    assert [n.name for n in copy.body.graph.nodes] == [n.name for n in body.graph.nodes]


def test_a_required_pass_that_fails_before_the_split_leaves_the_graph_as_captured(monkeypatch):
    def fail(*_):
        raise ValueError("no number today")

    monkeypatch.setattr(without_numbers, "_takes_a_tensor", fail)
    compiled = eductor.compile(lambda x, n: x * n, engine="inductor", dynamic=True)
    x = torch.randn(3)
    with pytest.warns(EductorWarning, match=r"(?s)joint/without_numbers failed.*no number today.*runs uncompiled"):
        torch.testing.assert_close([compiled(x, n) for n in (1.5, 2.5)], [x * 1.5, x * 2.5])


def test_the_key_of_kept_graphs_knows_nothing_of_the_engines_passes():
    module, x = capture(lambda x: x.sin(), [torch.randn(3)], "torch"), torch.randn(3)
    engines = engine(), engine(sin_to_cos)
    keys = {Question.of(module, [x], Options(), Pipeline.of(Options(), e.lower), e).key for e in engines}
    assert len(keys) == 1
