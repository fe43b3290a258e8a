"""The custom slots: any number of passes, declared ones and plain functions, wherever the slot occurs."""

from __future__ import annotations

import functools

import pytest
import torch
from toys import aten, graph_of, named, only_rejects, plain_cos, plain_nothing, run, sin_to_cos

import eductor
from eductor.errors import BadPass, UnknownName
from eductor.options import SLOT_OPTIONS, Options
from eductor.passes.functional.remove_noop_ops import remove_noop_ops
from eductor.pipeline import STAGES, Context, Pipeline, Recorder


def logger(log: list, name: str):
    """A plain function of a graph that says that it ran."""

    def custom(graph: torch.fx.Graph) -> None:
        log.append(name)

    return custom


def run_stage(stage: str, module, **options) -> Recorder:
    recorder = Recorder()
    chosen = Options(**options)
    Pipeline.of(chosen).run(stage, module, Context(stage, chosen, is_inference=True), [recorder])
    return recorder


@pytest.mark.parametrize("slot", SLOT_OPTIONS)
def test_every_slot_of_the_documents_is_there_and_runs_its_passes(slot):
    stage = next(s for s in STAGES if slot.startswith(s))
    log: list[str] = []
    run_stage(stage, graph_of(stage=stage), **{slot: [logger(log, "x"), logger(log, "y")]})
    times = sum(s.name == slot for s in Pipeline.default().stage(stage))
    assert log == ["x", "y"] * times
    assert times == (2 if slot == "joint_custom_pre_pass" else 1)


def test_passes_of_a_slot_run_in_the_order_of_the_list():
    """By their place, not by their name."""
    log: list[str] = []

    def zebra(graph):
        log.append("zebra")

    def ant(graph):
        log.append("ant")

    run_stage("joint", graph_of(), joint_custom_post_pass=[zebra, ant, lambda g: log.append("lambda"), zebra])
    assert log == ["zebra", "ant", "lambda", "zebra"]


def test_functions_of_one_name_are_told_apart_by_number():
    log: list[str] = []
    recorder = run_stage("joint", graph_of(), joint_custom_post_pass=[logger(log, "x"), logger(log, "y")])
    assert [r.address for r in recorder.records if r.name == "custom"] == ["joint/custom", "joint/custom#2"]
    assert log == ["x", "y"]


def test_one_pass_may_stand_in_several_slots():
    log: list[str] = []
    one = logger(log, "x")
    recorder = run_stage(
        "joint", graph_of(), joint_custom_pre_pass=[one, only_rejects], joint_custom_post_pass=[one, only_rejects]
    )
    assert log == ["x"] * 3
    assert [r.address for r in recorder.records if r.name == "only_rejects"] == [
        "joint/only_rejects",
        "joint/only_rejects#2",
        "joint/only_rejects#3",
    ]


def test_a_built_in_pass_may_run_once_more_in_a_slot():
    recorder = run_stage("joint", graph_of(), joint_custom_post_pass=[remove_noop_ops])
    assert "joint/remove_noop_ops#2" in [r.address for r in recorder.records]


def test_a_slot_that_occurs_twice_sees_both_graphs():
    seen: list[int] = []
    program = lambda x: x.clone() + 1  # noqa: E731
    run_stage("joint", graph_of(program), joint_custom_pre_pass=lambda g: seen.append(len(g.nodes)))
    assert seen == [4, 3]


def test_one_of_two_slots_by_its_number():
    pipeline = Pipeline.default().with_pass(plain_nothing, at="joint_custom_pre_pass#2")
    names = [s.name for s in pipeline.stage("joint")]
    assert names.count("plain_nothing") == 1
    assert names[names.index("plain_nothing") - 2 :][:2] == ["constant_fold_uniform_value", "joint_custom_pre_pass"]


@pytest.mark.parametrize("inference", [True, False])
def test_a_plain_function_may_ask_for_is_inference(inference):
    told: list[bool] = []

    def by_keyword(graph, *, is_inference):
        told.append(is_inference)

    def by_position(graph, is_inference):
        told.append(is_inference)

    eductor.post_grad_passes(
        graph_of(), inference, options={"post_grad_custom_pre_pass": [by_keyword, by_position, lambda g: None]}
    )
    assert told == [inference] * 2


def test_callables_of_all_kinds():
    log: list[str] = []

    class Callable:
        """An object that is called."""

        def __call__(self, graph):
            log.append("object")

        def method(self, graph):
            log.append("method")

    partial = functools.partial(lambda log, graph: log.append("partial"), log)
    eager = [Callable(), Callable().method, partial, lambda g: log.append("lambda"), torch.fx.Graph.lint]
    recorder = run_stage("joint", graph_of(), joint_custom_post_pass=eager)
    assert log == ["object", "method", "partial", "lambda"]
    assert {"Callable", "method", "partial", "custom_pass", "lint"} <= {r.name for r in recorder.records}
    assert not any(r.status == "failed" for r in recorder.records)


def test_a_plain_function_changes_the_graph_and_its_fake_values_follow():
    def to_integers(graph: torch.fx.Graph) -> None:
        """Leaves out a conversion: what depends on it has another dtype until the conversion back."""
        (node,) = graph.find_nodes(op="call_function", target=aten._to_copy.default)[:1]
        node.kwargs = {"dtype": torch.float64}

    module = graph_of(lambda x: ((x.to(torch.float16) + 1) * 2).to(torch.float32), torch.ones(3))
    recorder = run_stage("joint", module, joint_custom_pre_pass=to_integers)
    assert "joint/to_integers" in recorder.changed()
    add, mul = (module.graph.find_nodes(op="call_function", target=t)[0] for t in (aten.add.Tensor, aten.mul.Tensor))
    assert add.meta["val"].dtype is mul.meta["val"].dtype is torch.float64
    assert torch.equal(module(torch.ones(3)), torch.full((3,), 4.0))


def test_a_plain_function_may_insert_out_of_order():
    def at_the_end(graph: torch.fx.Graph) -> None:
        """Makes a node and never asks where it lands."""
        (sin,) = graph.find_nodes(op="call_function", target=aten.sin.default)
        new = graph.call_function(aten.cos.default, sin.args)
        sin.replace_all_uses_with(new)
        graph.erase_node(sin)

    module = graph_of(lambda x: x.sin() * 2)
    recorder = run_stage("joint", module, joint_custom_post_pass=at_the_end)
    assert "joint/at_the_end" in recorder.changed()
    x = torch.randn(2, 3)
    assert torch.equal(module(x), x.cos() * 2)
    assert all(n.meta.get("val") is not None for n in module.graph.nodes if n.op == "call_function")


def test_the_next_pass_sees_what_a_plain_function_did():
    """Though the view of the graph was built before."""

    def to_sin(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.cos.default):
            node.target = aten.sin.default

    module = graph_of(lambda x: x.cos() + 1)
    records = run(module, only_rejects, to_sin, sin_to_cos, only_rejects)
    assert [(r.status, len(r.rejects)) for r in records] == [
        ("unchanged", 0),
        ("changed", 0),
        ("changed", 0),
        ("unchanged", 0),
    ]


def test_with_pass_fills_a_slot_after_what_is_there():
    pipeline = Pipeline.default()
    for p in (plain_cos, named("mine"), plain_nothing):
        pipeline = pipeline.with_pass(p, at="joint_custom_post_pass")
    names = [s.name for s in pipeline.stage("joint")]
    at = names.index("joint_custom_post_pass")
    assert names[at + 1 : at + 4] == ["plain_cos", "mine", "plain_nothing"]
    assert not any(s.name == "mine" for s in pipeline.stage("post_grad"))


def test_slots_of_the_options_come_after_those_of_the_pipeline():
    pipeline = Pipeline.default().with_pass(plain_cos, at="joint_custom_post_pass")
    chosen = Pipeline.of(Options(pipeline=pipeline, joint_custom_post_pass=[plain_nothing]))
    names = [s.name for s in chosen.stage("joint")]
    at = names.index("joint_custom_post_pass")
    assert names[at + 1 : at + 3] == ["plain_cos", "plain_nothing"]


def test_a_pass_of_two_stages_in_a_slot_runs_in_that_slot_alone():
    pipeline = Pipeline.of(Options(joint_custom_pre_pass=[sin_to_cos]))
    assert {s.stage for s in pipeline.steps if s.name == "sin_to_cos"} == {"joint"}


def test_passes_of_a_slot_can_be_switched_off_by_name():
    log: list[str] = []
    run_stage(
        "joint", graph_of(), joint_custom_post_pass=[logger(log, "x"), lambda g: log.append("y")], disable="custom"
    )
    assert log == ["y"]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        (
            {"joint_custom_pre_pass": [named("mine", stage="post_grad")]},
            BadPass,
            "declared for post_grad, not for joint",
        ),
        ({"joint_custom_pre_pass": [3]}, BadPass, "3 is not a pass"),
        ({"joint_custom_pre_pass": "plain_cos"}, BadPass, "'plain_cos' is not a pass"),
        ({"passes": [plain_cos]}, BadPass, "put a plain function of a torch.fx.Graph into one of the slots"),
        ({"joint_custom_pre_pass": [named("remove_noop_ops")]}, BadPass, "one from eductor, one from options"),
        (
            {"pipeline": "joint(remove_noop_ops)", "joint_custom_pre_pass": [plain_cos]},
            UnknownName,
            "slot of the stage",
        ),
    ],
)
def test_what_does_not_belong_into_a_slot(options, error, says):
    with pytest.raises(error, match=says):
        Pipeline.of(Options(**options))


def test_a_slot_may_be_none_or_empty():
    expected = Pipeline.default().text()
    assert Pipeline.of(Options(joint_custom_pre_pass=None, joint_custom_post_pass=())).text() == expected
