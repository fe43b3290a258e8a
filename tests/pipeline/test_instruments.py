"""Who looks on is called in order, with what happened, and may veto."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from toys import aten, graph_of, named, plain_cos, run, sin_to_cos, steps_of

import eductor
from eductor.errors import EductorWarning, PassFailed
from eductor.graph import GraphView, Rewriter, is_equal
from eductor.graph.matches import Match
from eductor.pipeline import Context, Instrument, PassRun, Pipeline, Recorder, Timer, graph_pass


class Log(Instrument):
    """Writes down every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattribute__(self, name: str) -> Any:
        if name.split("_")[0] not in ("before", "after", "failed", "skipped"):
            return super().__getattribute__(name)
        return lambda *args: self.calls.append((name, *map(self.describe, args)))

    @staticmethod
    def describe(arg: Any) -> str:
        if isinstance(arg, PassRun):
            return f"{arg.address} {arg.status}"
        if isinstance(arg, Match):
            return arg.address
        return arg if isinstance(arg, str) else "GraphModule" if isinstance(arg, GraphModule) else type(arg).__name__


@graph_pass(stage="joint", numerics="exact")
def fails_at_second(graph: GraphView, rewrite: Rewriter) -> None:
    """Edits one sine, and fails in the middle of the second."""
    for i, node in enumerate(graph.find(aten.sin)):
        new = rewrite.insert(aten.cos, node.args[0], before=node)
        if i == 1:
            raise ValueError("halfway")
        rewrite.replace(node, new)


def test_the_order_of_calls():
    log = Log()
    skipped = named("skipped", when=lambda context: "not today")
    run(graph_of(lambda x: x.sin() + 1), named("idle"), skipped, sin_to_cos, plain_cos, instruments=[log])
    assert log.calls == [
        ("before_pipeline", "joint", "GraphModule"),
        ("before_pass", "joint/idle running"),
        ("after_pass", "joint/idle unchanged"),
        ("skipped_pass", "joint/skipped skipped"),
        ("before_pass", "joint/sin_to_cos running"),
        ("before_match", "joint/sin_to_cos running", "joint/sin_to_cos@0"),
        ("after_match", "joint/sin_to_cos running", "joint/sin_to_cos@0"),
        ("after_pass", "joint/sin_to_cos changed"),
        ("before_pass", "joint/plain_cos running"),
        ("after_pass", "joint/plain_cos unchanged"),
        ("after_pipeline", "joint", "GraphModule"),
    ]


@pytest.mark.parametrize("strict", [False, True])
def test_the_order_of_calls_when_a_pass_fails(strict, tmp_path):
    log = Log()
    module = graph_of()
    with pytest.raises(PassFailed) if strict else pytest.warns(EductorWarning):
        run(module, fails_at_second, named("next"), instruments=[log], strict=strict, repro_dir=tmp_path)
    assert log.calls == [
        ("before_pipeline", "joint", "GraphModule"),
        ("before_pass", "joint/fails_at_second running"),
        ("before_match", "joint/fails_at_second running", "joint/fails_at_second@0"),
        ("after_match", "joint/fails_at_second running", "joint/fails_at_second@0"),
        ("before_match", "joint/fails_at_second running", "joint/fails_at_second@1"),
        ("failed_match", "joint/fails_at_second running", "joint/fails_at_second@1", "ValueError"),
        ("failed_pass", "joint/fails_at_second failed", "ValueError"),
        *(
            [("failed_pipeline", "joint", "PassFailed")]
            if strict
            else [
                ("before_pass", "joint/next running"),
                ("after_pass", "joint/next unchanged"),
                ("after_pipeline", "joint", "GraphModule"),
            ]
        ),
    ]


def test_a_match_outside_of_any_iteration_fails_with_its_pass(tmp_path):
    @graph_pass(stage="joint", numerics="exact")
    def fails(graph: GraphView, rewrite: Rewriter) -> None:
        """Edits the first call, and fails."""
        rewrite.insert(aten.cos, next(graph.nodes), before=graph.output)
        raise ValueError("halfway")

    log = Log()
    with pytest.warns(EductorWarning):
        run(graph_of(), fails, instruments=[log], repro_dir=tmp_path)
    assert [call[0] for call in log.calls[1:-1]] == ["before_pass", "before_match", "failed_match", "failed_pass"]


def test_a_failing_condition_begins_and_fails(tmp_path):
    log = Log()
    with pytest.warns(EductorWarning):
        run(graph_of(), named("mine", when=lambda context: 1 / 0), instruments=[log], repro_dir=tmp_path)
    assert log.calls[1:3] == [
        ("before_pass", "joint/mine running"),
        ("failed_pass", "joint/mine failed", "ZeroDivisionError"),
    ]


def test_instruments_see_the_graph_before_and_after():
    class Look(Instrument):
        def before_pass(self, run):
            self.seen = is_equal(run.before.graph(), run.module.graph)

        def after_pass(self, run):
            self.before, self.after = (
                len(run.before.graph().find_nodes(op="call_function", target=aten.sin.default)),
                len(run.module.graph.find_nodes(op="call_function", target=aten.sin.default)),
            )
            self.matches = [(m.address, m.node, [e.kind for e in m.events]) for m in run.matches]

    look = Look()
    run(graph_of(lambda x: x.sin() + 1), sin_to_cos, instruments=[look])
    assert (look.seen, look.before, look.after) == (True, 1, 0)
    assert look.matches == [("joint/sin_to_cos@0", "sin", ["created", "replaced", "erased"])]


# --------------------------------------------------------------------------------------------------------------- veto


class Veto(Instrument):
    """A verifier that is never content."""

    def after_pass(self, run):
        if run.status == "changed":
            raise ArithmeticError(f"{run.address} is wrong by 3 ulp")


@pytest.mark.parametrize("first", [True, False])
def test_an_instrument_that_raises_undoes_the_pass(first, tmp_path):
    """Those who had been told of the success are told of the failure; no record says both."""
    module, recorder, timer = graph_of(), Recorder(), Timer()
    expected = module(torch.ones(2, 3))
    around = [Veto(), recorder, timer] if first else [recorder, timer, Veto()]
    context = Context("joint", eductor.Options(repro_dir=tmp_path))
    pipeline = steps_of(named("idle"), sin_to_cos, named("next"))
    with pytest.warns(EductorWarning, match="joint/sin_to_cos failed: ArithmeticError: .* is wrong by 3 ulp"):
        pipeline.run("joint", module, context, around)
    assert [(r.name, r.status) for r in recorder.records] == [
        ("idle", "unchanged"),
        ("sin_to_cos", "failed"),
        ("next", "unchanged"),
    ]
    assert recorder.changed() == []
    assert recorder.records[1].nodes_before == recorder.records[1].nodes_after
    assert timer.seconds["joint/sin_to_cos"] == recorder.records[1].seconds
    assert torch.equal(module(torch.ones(2, 3)), expected)
    assert len(list(tmp_path.glob("*.py"))) == 1


def test_a_veto_is_an_error_in_strict_mode(tmp_path):
    with pytest.raises(
        PassFailed, match=r"(?s)joint/sin_to_cos failed: ArithmeticError.*cos.*python .*joint-sin_to_cos"
    ):
        run(graph_of(), sin_to_cos, instruments=[Veto()], strict=True, repro_dir=tmp_path)


def test_an_instrument_that_raises_at_a_match_fails_the_pass(tmp_path):
    class Picky(Instrument):
        def after_match(self, run, match):
            raise RuntimeError(f"I do not like {match.address}")

    module = graph_of()
    with pytest.warns(EductorWarning, match="I do not like joint/sin_to_cos@0"):
        (record,) = run(module, sin_to_cos, instruments=[Picky()], repro_dir=tmp_path)
    assert record.status == "failed"
    assert not module.graph.find_nodes(op="call_function", target=aten.cos.default)


# ------------------------------------------------------------------------------------------------ timer and recorder


def test_a_timer_adds_up_over_graphs_and_counts_no_instruments(tmp_path):
    import time

    class Slow(Instrument):
        def before_pass(self, run):
            time.sleep(0.05)

        def after_pass(self, run):
            time.sleep(0.05)

    def sleepy(graph):
        time.sleep(0.02)

    timer, recorder = Timer(), Recorder()
    pipeline = steps_of(sleepy, named("idle"), named("skipped", when=lambda c: False))
    for _ in range(2):
        pipeline.run("joint", graph_of(), Context("joint"), [Slow(), timer, Slow(), recorder])
    assert list(timer.seconds) == ["joint/sleepy", "joint/idle"]
    assert 0.04 <= timer.seconds["joint/sleepy"] < 0.09
    assert timer.seconds["joint/idle"] < 0.02
    assert timer.seconds["joint/sleepy"] == pytest.approx(
        sum(r.seconds for r in recorder.records if r.name == "sleepy")
    )
    assert [r.seconds for r in recorder.records if r.name == "skipped"] == [0.0, 0.0]


def test_the_recorder_tells_graphs_apart_that_were_given_by_hand():
    recorder = Recorder()
    first, second = graph_of(), graph_of()
    for stage, graph in [("joint", first), ("post_grad", first), ("joint", second), ("post_grad", first)]:
        Pipeline.default().run(stage, graph, Context(stage), [recorder])
    graphs = [(r.stage, r.graph) for r in recorder.records]
    assert list(dict.fromkeys(graphs)) == [("joint", 1), ("post_grad", 1), ("joint", 2)]
    assert recorder.graphs == 2


def test_the_recorder_tells_the_graphs_of_a_program_apart():
    """A graph break makes two frames, another dtype a recompile; each has a forward and a backward."""
    recorder = Recorder()

    def program(x):
        y = x.clone() * 2
        torch._dynamo.graph_break()
        return y.clone() + 1

    compiled = eductor.compile(program, engine="aten", instruments=[recorder], dynamic=False)
    for x in (torch.randn(3, requires_grad=True), torch.randn(3, dtype=torch.float64, requires_grad=True)):
        compiled(x).sum().backward()
    assert recorder.graphs == 4
    ids = {s.graph: s.compile_id for s in recorder.stages}
    assert [ids[i] for i in (1, 2, 3, 4)] == ["0/0", "1/0", "0/1", "1/1"]
    assert [(s.name, s.role) for s in recorder.stages if s.graph == 1] == [
        ("pre_grad", "captured"),
        ("autograd", "captured"),
        ("joint", "joint"),
        ("partition", "joint"),
        ("post_grad", "forward"),
        ("post_grad", "backward"),
        ("engine", "forward"),
        ("link", "captured"),
        ("engine", "backward"),
    ]
    roles = {(r.stage, r.role) for r in recorder.records}
    assert roles == {
        ("pre_grad", "captured"),
        ("joint", "joint"),
        ("partition", "joint"),
        ("post_grad", "forward"),
        ("post_grad", "backward"),
    }
    assert all(s.seconds > 0 for s in recorder.stages)
    (parted,) = [s.facts for s in recorder.stages if s.name == "partition" and s.graph == 1]
    assert min(parted["forward_nodes"], parted["backward_nodes"]) > 2


def test_a_record_says_what_happened():
    module = graph_of(lambda x: (x.sin() + x.clone()).sin())
    recorder = Recorder()
    Pipeline.default().with_pass(sin_to_cos).run("joint", module, Context("joint"), [recorder])
    by_name = {r.name: r for r in recorder.records}
    clean, cos = by_name["remove_noop_ops"], by_name["sin_to_cos"]
    assert (clean.address, clean.stage, clean.status, clean.nodes_after - clean.nodes_before) == (
        "joint/remove_noop_ops",
        "joint",
        "changed",
        -1,
    )
    assert [m.address for m in clean.matches] == ["joint/remove_noop_ops:copy@0"]
    assert [m.address for m in cos.matches] == ["joint/sin_to_cos@0", "joint/sin_to_cos@1"]
    assert recorder.changed() == ["joint/remove_noop_ops", "joint/sin_to_cos"]
    assert all(r.seconds >= 0 for r in recorder.records)


def test_a_compile_without_instruments_works_as_well(tmp_path):
    module = graph_of()
    eductor.joint_graph_passes(module, options={"passes": [sin_to_cos]})
    assert not module.graph.find_nodes(op="call_function", target=aten.sin.default)
    with pytest.warns(EductorWarning, match="fails_at_second"):
        eductor.joint_graph_passes(graph_of(), options={"passes": [fails_at_second], "repro_dir": tmp_path})
