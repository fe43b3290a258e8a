"""Bisection: the one rewrite that makes a program wrong, whatever is wrong with it, in few runs, with a file that shows it."""

from __future__ import annotations

import ast
import math
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch.fx import Interpreter

import eductor
from eductor import BadPass, NothingWrong, Pipeline, graph_pass

aten = torch.ops.aten

# Passes stand at the top level, so that a reproducer can import them.


@graph_pass(stage="post_grad", numerics="exact")
def third_is_wrong(graph, rewrite):
    """Turns the operands of a multiplication round; the third becomes a sum."""
    for i, node in enumerate(graph.find(aten.mul)):
        rewrite.update(node, args=(node.args[1], node.args[0]), target=aten.add.Tensor if i == 2 else None)


@graph_pass(stage="post_grad", numerics="exact")
def crashes(graph, rewrite):
    """Raises before it edits."""
    raise ValueError("planted at once")


@graph_pass(stage="post_grad", numerics="exact")
def crashes_in_the_middle(graph, rewrite):
    """Raises in its third match, after an edit."""
    for i, node in enumerate(graph.find(aten.sin)):
        rewrite.update(node, args=(rewrite.insert(aten.clone, node.args[0], before=node),))
        if i == 2:
            raise ValueError("planted in the middle")


@graph_pass(stage="joint", numerics="exact")
def wrong_gradients(graph, rewrite):
    """Takes the cosine of a derivative for a hyperbolic one, in the second place."""
    for i, node in enumerate(graph.find(aten.cos)):
        rewrite.update(node, target=aten.cosh.default if i == 1 else aten.cos.default)


@graph_pass(stage="post_grad", numerics="exact")
def wrong_backward(graph, rewrite, context):
    """Is wrong in backward graphs alone."""
    if context.graph.role == "backward":
        for node in graph.find(aten.cos):
            rewrite.update(node, target=aten.cosh.default)


@graph_pass(stage="pre_grad", numerics="exact")
def captured_wrong(graph, rewrite):
    """Takes a cosine for a sine, in the captured graph."""
    for node in list(graph.find(aten.sin)):
        rewrite.replace(node, torch.cos, *node.args)


@graph_pass(stage="post_grad", numerics="exact")
def for_the_engine(graph, rewrite):
    """Writes a sine in a way that the planted engine cannot take, in the second place."""
    for i, node in enumerate(graph.find(aten.sin)):
        clone = aten.clone if i != 1 else aten.alias_copy
        rewrite.update(node, args=(rewrite.insert(clone, node.args[0], before=node),))


@torch.library.custom_op("eductor_test_bisect::slow", mutates_args=())
def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.3)
    return x.clone()


@slow.register_fake
def _(x):
    return torch.empty_like(x)


@graph_pass(stage="post_grad", numerics="exact")
def sleeps(graph, rewrite):
    """Copies in front of each sine; the fourth copy takes its time."""
    for i, node in enumerate(graph.find(aten.sin)):
        op = torch.ops.eductor_test_bisect.slow.default if i == 3 else aten.clone
        rewrite.update(node, args=(rewrite.insert(op, node.args[0], before=node),))


def foreign(graph):
    """A plain function of a torch.fx graph."""
    for node in graph.nodes:
        if node.target is aten.sin.default:
            node.target = aten.cos.default


def harmless(graph):
    for node in list(graph.nodes):
        if node.target is aten.sin.default:
            with graph.inserting_before(node):
                node.args = (graph.call_function(aten.clone.default, node.args),)


def chain(x, y):
    for _ in range(5):
        x = (x * y).sin()
    return x


@pytest.fixture
def search(tmp_path):
    def search(fn, *args, check=None, repeats=1, **options):
        options = {"engine": "aten", "repro_dir": tmp_path, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("error", eductor.EductorWarning)  # a bisection is quiet
            found = eductor.bisect(fn, args, check=check, repeats=repeats, options=options)
        assert found.runs <= math.log2(max(found.rewrites, 1)) + 5
        return found

    return search


@pytest.fixture
def xy():
    return torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)


def reproduced(culprit):
    ast.parse(Path(culprit.reproducer).read_text())
    return subprocess.run([sys.executable, culprit.reproducer], capture_output=True, text=True, cwd="/", timeout=120)


def test_wrong_values(search, xy):
    found = search(chain, *xy, passes=[third_is_wrong])
    assert found.address == "post_grad/third_is_wrong@2"
    assert (found.rewrite.graph.role, found.rewrite.number) == ("forward", 2)
    assert "output 0 differs" in found.reason
    assert len(found.module.graph.nodes) <= 10
    shown = str(found)
    assert "post_grad/third_is_wrong@2 on the forward graph 1" in shown
    assert f"python {found.reproducer}" in shown
    again = reproduced(found)
    assert again.returncode == 1, again.stderr
    assert "numbers: output 0 differs" in again.stderr
    assert "with 2 matches of post_grad/third_is_wrong: nothing is wrong" in again.stderr
    assert "add" in again.stdout
    text = Path(found.reproducer).read_text()
    assert "third_is_wrong[:2]" in text
    assert "third_is_wrong[:3]" in text


def test_wrong_gradients(search, xy):
    found = search(chain, *xy, passes=[wrong_gradients])
    assert found.address == "joint/wrong_gradients@1"
    assert found.rewrite.graph.role == "joint"
    assert "gradient" in found.reason


def test_a_crash_before_the_first_edit(search, xy):
    found = search(chain, *xy, passes=[crashes])
    assert found.address == "post_grad/crashes"
    assert "planted at once" in found.reason
    again = reproduced(found)
    assert again.returncode == 1
    assert "planted at once" in again.stderr


def test_a_crash_in_the_middle_of_a_match(search, xy):
    found = search(chain, *xy, passes=[crashes_in_the_middle])
    assert found.address == "post_grad/crashes_in_the_middle@2"
    assert "planted in the middle" in found.reason


def test_the_reproducer_of_a_crash_shows_no_change(search, xy):
    assert "higher-order" not in reproduced(search(chain, *xy, passes=[crashes])).stdout


def test_a_wrong_backward_graph(search, xy):
    found = search(chain, *xy, passes=[wrong_backward])
    assert found.address.startswith("post_grad/wrong_backward@0")
    assert found.rewrite.graph.role == "backward"


def test_the_reproducer_of_a_wrong_backward_graph(search, xy):
    assert reproduced(search(chain, *xy, passes=[wrong_backward])).returncode == 1


def picky(job):
    """An engine that fails on one operator."""
    if any(node.target is aten.alias_copy.default for node in job.module.graph.nodes):
        raise NotImplementedError("alias_copy")
    return Interpreter(job.module).boxed_run


def test_an_engine_that_fails_because_of_a_rewrite(search, xy):
    found = search(chain, *xy, passes=[for_the_engine], engine=picky)
    assert found.address == "post_grad/for_the_engine@1"
    assert "alias_copy" in found.reason


def refusing(job):
    raise NotImplementedError("everything")


def test_an_engine_that_always_fails(search, xy):
    assert search(chain, *xy, engine=refusing).address == "engine"


def doubling(job):
    run = Interpreter(job.module).boxed_run
    return lambda inputs: [x * 2 if isinstance(x, torch.Tensor) and i == 0 else x for i, x in enumerate(run(inputs))]


def test_a_wrong_engine(search, xy):
    found = search(chain, *xy, engine=doubling)
    assert (found.address, found.rewrite) == ("engine", None)


def test_a_wrong_capture(search):
    def program(x):
        return x + 1 if torch.compiler.is_compiling() else x

    assert search(program, torch.ones(3)).address == "capture"


def test_slowness_by_a_check(search, xy):
    def check(compiled):
        compiled(*xy)
        started = time.perf_counter()
        compiled(*xy)
        return time.perf_counter() - started < 0.25

    found = search(chain, check=check, passes=[sleeps])
    assert found.address == "post_grad/sleeps@3"
    assert "the check returned false" in found.reason
    assert any("was not reduced" in note for note in found.notes)
    again = reproduced(found)
    assert "slow" in again.stdout
    assert "Traceback" not in again.stderr


@pytest.mark.parametrize("answer", [True, None, 1])
def test_a_check_that_is_content(search, xy, answer):
    with pytest.raises(NothingWrong):
        search(chain, check=lambda compiled: answer, passes=[third_is_wrong])


def test_a_check_that_raises(search, xy):
    def check(compiled):
        assert torch.allclose(compiled(*xy), chain(*xy)), "not close"

    found = search(chain, check=check, passes=[third_is_wrong])
    assert found.address == "post_grad/third_is_wrong@2"
    assert "AssertionError: not close" in found.reason


def test_a_flaky_check(search, xy):
    asked = iter(range(10**6))

    def check(compiled):
        return next(asked) % 3 != 0 or torch.allclose(compiled(*xy), chain(*xy))

    assert search(chain, check=check, repeats=3, passes=[third_is_wrong]).address == "post_grad/third_is_wrong@2"


def test_nothing_wrong(search, xy):
    with pytest.raises(NothingWrong, match="nothing to bisect"):
        search(chain, *xy)


def test_a_plain_function_is_one_rewrite(search, xy):
    found = search(chain, *xy, post_grad_custom_post_pass=[foreign])
    assert found.address == "post_grad/foreign"
    assert reproduced(found).returncode == 1


def test_several_plain_functions(search, xy):
    found = search(chain, *xy, post_grad_custom_post_pass=[harmless, foreign], joint_custom_post_pass=[harmless])
    assert found.address == "post_grad/foreign"


def test_the_second_graph_of_a_break(search):
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.sin()

    found = search(broken, torch.randn(3), passes=[captured_wrong])
    assert found.address == "pre_grad/captured_wrong@0"
    assert (found.rewrite.graph.number, found.rewrite.graph.role) == (2, "captured")


def test_a_recompile(search):
    def check(compiled):
        for size in (3, 4):
            x = torch.randn(size, 2)
            assert torch.equal(compiled(x), x.sin() if size == 4 else x * 2)

    def program(x):
        return x.sin() if x.shape[0] == 4 else x * 2

    found = search(program, check=check, passes=[captured_wrong])
    assert found.address == "pre_grad/captured_wrong@0"
    assert found.rewrite.graph.number == 2


def test_many_rewrites_need_few_runs(search):
    def long(x):
        for i in range(60):
            x = (x * (1 + i / 100)).sin()
        return x

    @graph_pass(stage="post_grad", numerics="exact")
    def fortieth(graph, rewrite):
        """Is wrong in one place."""
        for i, node in enumerate(graph.find(aten.sin)):
            rewrite.update(node, target=aten.cos.default if i == 40 else aten.sin.default)

    @graph_pass(stage="post_grad", numerics="exact")
    def many(graph, rewrite):
        """Turns the operands round, which is right."""
        for node in graph.find(aten.mul):
            rewrite.update(node, args=(rewrite.insert(aten.clone, node.args[0], before=node), *node.args[1:]))

    found = search(long, torch.randn(3), passes=[many, fortieth])
    assert found.address == "post_grad/fortieth@40"
    assert found.rewrites > 100
    assert found.runs <= math.log2(found.rewrites) + 5
    assert len(found.module.graph.nodes) <= 10


def test_nothing_of_the_user_is_touched(search):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Tanh())
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(4, 3, requires_grad=True)
    state = torch.get_rng_state()
    with pytest.raises(NothingWrong):
        search(model, x)
    assert all(torch.equal(kept[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert x.grad is None
    assert torch.equal(state, torch.get_rng_state())


def test_random_programs(search):
    def program(x):
        return torch.nn.functional.dropout(x, 0.5).sin() * x

    found = search(program, torch.randn(50, requires_grad=True), post_grad_custom_post_pass=[foreign])
    assert found.address == "post_grad/foreign"


# ------------------------------------------------------------------------------------------------------ limits


def test_a_limit_in_the_text_of_a_pipeline():
    pipeline = Pipeline.of(eductor.Options())
    name = next(s.name for s in pipeline.steps if not s.is_slot)
    limited = pipeline.limited(name, 3)
    assert f"{name}[:3]" in limited.text()
    read = Pipeline.parse(limited.text())
    assert read.text() == limited.text()
    assert [s.limit for s in read.steps if s.name == name] == [3]
    assert limited.cache_key() != pipeline.cache_key()


@pytest.mark.parametrize("text", ["a[3]", "a[1:3]", "a[:x]", "a[::2]", "a[:-1]", "a[:True]"])
def test_a_bad_limit_in_a_text(text):
    name = next(s for s in Pipeline.of(eductor.Options()).steps if not s.is_slot)
    with pytest.raises(BadPass):
        Pipeline.parse(f"{name.stage}({text.replace('a', name.name, 1)})")


@pytest.mark.parametrize("matches", [-1, 1.5, "2", True])
def test_a_bad_limit(matches):
    pipeline = Pipeline.of(eductor.Options())
    with pytest.raises(BadPass, match="0 or more"):
        pipeline.limited(next(s.name for s in pipeline.steps if not s.is_slot), matches)


@pytest.mark.parametrize("matches", range(4))
def test_a_limited_pass_makes_its_first_matches(matches):
    options = eductor.Options(passes=[third_is_wrong])
    pipeline = Pipeline.of(options).limited("third_is_wrong", matches)
    recorder = eductor.Recorder()
    compiled = eductor.compile(chain, engine="aten", pipeline=pipeline, instruments=[recorder])
    x, y = torch.randn(3), torch.randn(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        right = torch.allclose(compiled(x, y), chain(x, y))
    (record,) = (r for r in recorder.records if r.name == "third_is_wrong")
    assert len(record.matches) == matches
    assert right is (matches < 3)


def test_repeats_below_one(search, xy):
    with pytest.raises(eductor.EductorError, match="repeats"):
        search(chain, *xy, repeats=0, passes=[third_is_wrong])
