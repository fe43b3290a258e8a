"""Nothing leaks out of a compile, or from one thread into another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from toys import aten, graph_of, sin_to_cos

import eductor
from eductor.graph import GraphView, Rewriter, capture
from eductor.pipeline import Pipeline, Recorder, Registry, graph_pass

WORKERS = 6


def constant_pass(value: float, barrier: threading.Barrier, stage: str):
    """A pass that replaces a sine by a multiplication with a number of its own, while others do the same elsewhere."""

    @graph_pass(stage=stage, numerics="changes", on=False, name=f"mine_{int(value)}")
    def mine(graph: GraphView, rewrite: Rewriter) -> None:
        """Multiplies."""
        barrier.wait(timeout=30)
        for node in graph.find(aten.sin):
            rewrite.replace(node, aten.mul, node.args[0], value)
        barrier.wait(timeout=30)

    return mine


def in_threads(job):
    with ThreadPoolExecutor(WORKERS) as pool:
        return [f.result(timeout=60) for f in [pool.submit(job, i) for i in range(WORKERS)]]


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_threads_see_only_their_own_passes(stage):
    """All of them stand inside their pass at the same time."""
    barrier = threading.Barrier(WORKERS)
    modules = [graph_of(lambda x: x.sin() + 1, torch.ones(3), stage=stage) for _ in range(WORKERS)]

    def job(i: int):
        recorder = Recorder()
        options = {"passes": [constant_pass(float(i), barrier, stage)], "instruments": [recorder]}
        if stage == "pre_grad":
            eductor.pre_grad_passes(modules[i], options=options)
        elif stage == "joint":
            eductor.joint_graph_passes(modules[i], options=options)
        else:
            eductor.post_grad_passes(modules[i], True, options=options)
        return recorder

    for i, recorder in enumerate(in_threads(job)):
        assert [r.name for r in recorder.records if r.name.startswith("mine")] == [f"mine_{i}"]
        assert f"{stage}/mine_{i}" in recorder.changed()
        (result,) = torch.utils._pytree.tree_leaves(modules[i](torch.ones(3)))
        assert torch.equal(result, torch.full((3,), i + 1.0))


def test_threads_compile_with_their_own_options():
    def program(x):
        return torch.sin(x) + 1

    def job(i: int):
        def custom(graph: torch.fx.Graph) -> None:
            for node in graph.find_nodes(op="call_function", target=torch.sin):
                node.target, node.args = torch.mul, (node.args[0], float(i))

        recorder = Recorder()
        compiled = eductor.compile(program, pre_grad_custom_pass=[custom], instruments=[recorder])
        return compiled(torch.ones(3)), [r.name for r in recorder.records].count("custom")

    for i, (result, ran) in enumerate(in_threads(job)):
        assert torch.equal(result, torch.full((3,), i + 1.0))
        assert ran == 1


def test_one_thread_fails_and_the_others_do_not_notice(tmp_path):
    barrier = threading.Barrier(WORKERS)
    modules = [graph_of() for _ in range(WORKERS)]

    @graph_pass(stage="joint", numerics="exact", name="fails")
    def fails(graph: GraphView, rewrite: Rewriter) -> None:
        """Fails in the middle of an edit."""
        (node, *_) = graph.find(aten.sin)
        rewrite.insert(aten.cos, node.args[0], before=node)
        barrier.wait(timeout=30)
        raise ValueError("only here")

    @graph_pass(stage="joint", numerics="exact", name="works")
    def works(graph: GraphView, rewrite: Rewriter) -> None:
        """Waits for the one that fails."""
        barrier.wait(timeout=30)

    def job(i: int):
        recorder = Recorder()
        options = {
            "passes": [fails if i == 0 else works],
            "instruments": [recorder],
            "strict": True,
            "repro_dir": tmp_path,
        }
        try:
            eductor.joint_graph_passes(modules[i], options=options)
        except eductor.PassFailed:
            return "failed"
        return [r.status for r in recorder.records if r.name == "works"]

    assert in_threads(job) == ["failed"] + [["unchanged"]] * (WORKERS - 1)


def test_after_a_compile_with_options_nothing_is_different():
    registry, text, key = Registry.default(), Pipeline.default().text(), Pipeline.default().cache_key()

    def program(x):
        return torch.sin(x) + 1

    x = torch.ones(3)

    def plain(graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.sin):
            node.target = torch.cos

    options = {
        "pre_grad_custom_pass": [plain],
        "disable": ["normalize_node_kwargs_pass"],
        "enable": ["remove_noop_ops"],
        "debug": True,
    }
    changed = eductor.compile(program, **options)
    assert torch.equal(changed(x), x.cos() + 1)
    torch._dynamo.reset()
    recorder = Recorder()
    assert torch.equal(eductor.compile(program, instruments=[recorder])(x), program(x))
    ran = [r.name for r in recorder.records if r.stage == "pre_grad"]
    assert ran == [s.name for s in Pipeline.default().stage("pre_grad") if not s.is_slot]
    assert Registry.default() is registry
    assert (Pipeline.default().text(), Pipeline.default().cache_key()) == (text, key)


def test_the_callers_lists_are_not_kept():
    """What a caller does with a list after the call is no business of the compile."""
    mine: list = [sin_to_cos]
    options = eductor.Options(passes=mine, joint_custom_pre_pass=mine)
    mine.clear()
    assert options.passes == (sin_to_cos,)
    assert any(s.name == "sin_to_cos" for s in Pipeline.of(options).steps)


def test_a_run_restores_grad_mode_and_autocast():
    """Fake values are computed under the switches that the graph contains; those are not left on."""

    def program(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.mm(x, w)
        with torch.no_grad():
            return y.float().sin()

    module = capture(program, [torch.ones(2, 2), torch.ones(2, 2)])
    before = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
    eductor.pre_grad_passes(module, options={"pre_grad_custom_pass": [swap_operands]})
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == before


def swap_operands(graph: torch.fx.Graph) -> None:
    """Touches each call, so that all fake values are computed again."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is torch.mm:
            node.args, node.kwargs = (node.args[0],), {"mat2": node.args[1]}
