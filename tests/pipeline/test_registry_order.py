"""The printed order is the executed one, and the record tells what changed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from toys import (
    aten,
    graph_of,
    make_anew,
    only_rejects,
    plain_cos,
    plain_nothing,
    plain_tag,
    run,
    sin_to_cos,
    text_of,
    there_and_back,
)

import eductor
from eductor.cli import main
from eductor.graph import GraphView, Rewriter
from eductor.pipeline import STAGES, Context, Pipeline, Recorder, Registry, graph_pass


def run_everything(pipeline: Pipeline) -> list[str]:
    recorder = Recorder()
    for stage in STAGES:
        pipeline.run(stage, graph_of(stage=stage), Context(stage), [recorder])
    return [r.address for r in recorder.records]


@pytest.mark.parametrize("step", [s for s in Registry.built_in().steps() if s.is_built_in], ids=lambda s: s.address)
def test_a_row_says_as_the_declaration_whether_the_pass_is_on(step):
    assert step.on == step.load().on
    assert step.load().fn.__module__ == step.module  # a pass whose module is not imported is as shipped


def test_what_is_printed_is_what_runs(capsys):
    steps = Registry.default().steps()
    assert main(["passes", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [row["address"] for row in printed] == [s.address for s in steps]
    everything = Pipeline.default(enable=[s.name for s in steps if not s.is_slot])
    assert run_everything(everything) == [row["address"] for row in printed if row["kind"] == "pass"]


def test_what_is_printed_as_on_is_what_runs_by_default(capsys):
    main(["passes", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert run_everything(Pipeline.default()) == [row["address"] for row in printed if row["on"]]


def test_every_row_has_a_reason_and_a_pass_of_its_name():
    for step in Registry.default().steps():
        assert step.reason
        assert step.is_slot or (step.load().name == step.name and step.stage in step.load().stages)


def test_a_pass_is_imported_only_when_it_is_needed():
    code = (
        "import sys; import eductor; from eductor.pipeline import Registry; Registry.default().steps();"
        "print([m for m in sys.modules if m.startswith('eductor.passes.') and m.count('.') > 2])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_an_unknown_pass_is_an_error_that_suggests_one():
    with pytest.raises(
        eductor.UnknownName, match=r"pass of the stage joint 'remove_noop'.*Did you mean 'remove_noop_ops'"
    ):
        Registry.default().get("joint", "remove_noop")


# ------------------------------------------------------------------------------------------- changed, and not changed


@graph_pass(stage="joint", numerics="exact")
def raise_a_constant(graph: GraphView, rewrite: Rewriter) -> None:
    """Spells an integer as a float, which compares equal to it, and is another graph."""
    for node in graph.find(aten.mul):
        if type(node.args[1]) is int:
            rewrite.update(node, args=(node.args[0], float(node.args[1])))


@graph_pass(stage="joint", numerics="exact")
def move_up(graph: GraphView, rewrite: Rewriter) -> None:
    """Moves the last addition of a constant to the top."""
    first = next(n for n in graph.nodes if n.op == "call_function")
    for node in graph.find(aten.add):
        if node.args[1] == 1 and node is not first:
            rewrite.move(node, before=first)


def plain_constant(graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        node.args = (node.args[0], float(node.args[1]))


@pytest.mark.parametrize("pass_", [sin_to_cos, plain_cos, raise_a_constant, plain_constant, move_up])
def test_a_pass_that_changed_the_graph_appears_as_changed(pass_):
    module = graph_of()
    before = text_of(module)
    (record,) = run(module, pass_)
    assert text_of(module) != before
    assert (record.status, record.changed, record.reason) == ("changed", True, "")


@pytest.mark.parametrize("pass_", [only_rejects, make_anew, there_and_back, plain_nothing, plain_tag])
def test_a_pass_that_did_not_change_the_graph_never_counts_as_changed(pass_):
    module = graph_of()
    x = torch.randn(2, 3)
    expected = module(x)
    (record,) = run(module, pass_)
    assert (record.status, record.changed, record.matches) == ("unchanged", False, ())
    assert record.nodes_before == record.nodes_after
    assert torch.equal(module(x), expected)


def test_rejects_are_recorded_with_their_reason_and_node():
    module = graph_of()
    (record,) = run(module, only_rejects)
    assert [r.reason for r in record.rejects] == ["it is beautiful"] * 3
    assert [r.nodes for r in record.rejects] == [("sin",), ("sin_1",), ("sin_2",)]


def test_what_a_plain_function_wrote_into_meta_outlives_the_failure_of_a_later_pass():
    module = graph_of()

    @graph_pass(stage="joint", numerics="exact")
    def bad(graph: GraphView, rewrite: Rewriter) -> None:
        """Fails."""
        raise ValueError("no")

    with pytest.warns(eductor.EductorWarning):
        run(module, plain_tag, bad)
    assert all(n.meta["tag"] == "seen" for n in module.graph.nodes)


def test_a_second_run_of_the_default_pipeline_changes_nothing():
    module = graph_of(lambda x: x.clone() + x.view(x.shape))
    first, second = Recorder(), Recorder()
    eductor.joint_graph_passes(module, options={"instruments": first})
    eductor.joint_graph_passes(module, options={"instruments": second})
    assert first.changed() == ["joint/remove_noop_ops"]
    assert second.changed() == []
