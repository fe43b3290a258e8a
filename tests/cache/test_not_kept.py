"""What is compiled anew in each process, because no key tells all that it depends on; and a cache that fails."""

from __future__ import annotations

import functools
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import eductor
from eductor.cache import Store
from eductor.engines import Engine
from eductor.patterns import (
    Arg,
    CallFunction,
    PatternMatcherPass,
    op,
    pattern_pass,
    register_graph_pattern,
    var,
)
from eductor.pipeline.base import f32, graph_pass
from eductor.pipeline.rule_pass import rule_pass

aten = torch.ops.aten
number = 3.0
"""A global on which what users write may depend."""


@pytest.fixture
def other_number(monkeypatch):
    return lambda value: monkeypatch.setitem(globals(), "number", value)


def run(fn, *args, **options):
    torch._dynamo.reset()
    return eductor.compile(fn, engine=options.pop("engine", "aten"), **options)(*args)


def other_factor(graph, rewrite):
    """Multiplies by another number."""
    for node in graph.find(aten.mul):
        if node.args[1] != number:
            rewrite.replace(node, aten.mul.Tensor, node.args[0], number)


def test_a_pass_that_states_no_version(store, resumed, other_number):
    pass_ = graph_pass(stage="joint", numerics="changes", on=False)(other_factor)
    assert run(lambda x: x * 2, torch.ones(1), passes=[pass_]).item() == 3
    other_number(4.0)
    assert run(lambda x: x * 2, torch.ones(1), passes=[pass_]).item() == 4
    assert store.entries() == []


def elsewhere(fn):
    """As if it came with another package."""
    fn.__module__ = "elsewhere.passes"
    return fn


def a_pass_of_a_package(kind, whose):
    """A pass that states a version, with a rule of somebody who reads a global."""

    @(rule_pass if kind == "rules" else pattern_pass)(stage="joint", numerics="changes", on=False, version="1")
    @elsewhere
    def factors():
        """Multiplies by other numbers."""

    if kind == "rules":

        @factors.rule(aten.mul)
        @whose
        def other(graph, rewrite, node):
            if node.args[1] != number:
                rewrite.replace(node, aten.mul.Tensor, node.args[0], number)

    else:

        @factors.rule(op(aten.mul, var("x"), 2))
        @whose
        def another(match, graph, rewrite):
            rewrite.replace(match.output, aten.mul.Tensor, match["x"], number)

    return factors


@pytest.mark.parametrize("kind", ["rules", "patterns"])
def test_a_rule_that_is_added_to_a_pass_of_a_package(store, resumed, other_number, kind):
    """The version of a pass tells nothing of what others add to it."""
    pass_ = a_pass_of_a_package(kind, lambda fn: fn)
    assert run(lambda x: x * 2, torch.ones(1), passes=[pass_]).item() == 3
    other_number(4.0)
    assert run(lambda x: x * 2, torch.ones(1), passes=[pass_]).item() == 4
    assert store.entries() == []


def test_patterns_that_are_declared_by_torchs_names(store, resumed, other_number):
    patterns = PatternMatcherPass(pass_name="factors")

    @register_graph_pattern(CallFunction(aten.mul.Tensor, Arg(), 2), pass_dict=patterns)
    def other(match, x):
        match.replace_by_example(lambda x: x * number, [x])

    assert run(lambda x: x * 2, torch.ones(1), joint_custom_post_pass=[patterns]).item() == 3
    other_number(4.0)
    assert run(lambda x: x * 2, torch.ones(1), joint_custom_post_pass=[patterns]).item() == 4
    assert store.entries() == []


@elsewhere
def shipped(x):
    return x * 3


@elsewhere
def any_search(x):
    return x * 2


SHIPPED = {
    "search": lambda p: p.replace(lambda x: x * 2, shipped, inputs=[f32(1)]),
    "check": lambda p: p.replace(any_search, shipped, inputs=[f32(1)], check=lambda match: number == 3.0),
    "where": lambda p: p.replace(op(aten.mul, var("x", lambda x: number == 3.0), 2), shipped),
}


@pytest.mark.parametrize("whose", SHIPPED)
def test_a_rule_with_one_function_of_another_package(store, caplog, whose):
    @pattern_pass(stage="joint", numerics="changes", on=False, version="1")
    @elsewhere
    def factors():
        """Multiplies by other numbers."""

    caplog.set_level("INFO", logger="eductor")
    SHIPPED[whose](factors)
    assert run(lambda x: x * 2, torch.ones(1), passes=[factors]).item() == 3
    assert store.entries() == []
    assert "the pass joint/factors, whose rule shipped has a function of another package" in caplog.text


def test_one_rule_more_is_another_key(store, resumed):
    """Also where its functions come with the pass, whose version stays."""

    @pattern_pass(stage="joint", numerics="changes", on=False, version="1")
    @elsewhere
    def factors():
        """Multiplies by other numbers."""

    assert run(lambda x: x * 2, torch.ones(1), passes=[factors]).item() == 2
    factors.replace(any_search, shipped, inputs=[f32(1)])
    assert run(lambda x: x * 2, torch.ones(1), passes=[factors]).item() == 3
    assert len(store.entries()) == 2


@pytest.mark.parametrize("kind", ["rules", "patterns"])
def test_a_rule_that_comes_with_its_pass_is_told_by_its_version(store, resumed, kind):
    pass_ = a_pass_of_a_package(kind, elsewhere)
    for _ in range(2):
        assert run(lambda x: x * 2, torch.ones(1), passes=[pass_]).item() == 3
    assert len(store.entries()) == 1


def test_a_plain_function_in_a_slot_runs_each_time(store):
    seen = []

    def looks(graph):
        seen.append(len(graph.nodes))

    for _ in range(2):
        run(torch.sin, torch.ones(1), post_grad_custom_post_pass=[looks])
    assert len(seen) == 2
    assert store.entries() == []


def test_when_a_pass_runs_is_part_of_the_key(store, resumed):
    def on_if(wanted):
        versioned = functools.partial(graph_pass, stage="joint", numerics="changes", on=False, version="1")
        return versioned(when=lambda context: wanted)(other_factor)

    assert run(lambda x: x * 2, torch.ones(1), passes=[on_if(True)]).item() == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(lambda x: x * 2, torch.ones(1), passes=[on_if(False)]).item() == 2
    assert not resumed()


def test_a_pass_that_changes_the_captured_graph(store):
    """Gradients of gradients come from that graph: a warm start, in which no pass runs, would have others."""

    @graph_pass(stage="pre_grad", numerics="changes", on=False, version="1")
    def cosine(graph, rewrite):
        """Takes the cosine for the sine."""
        for node in graph.find(aten.sin):
            rewrite.replace(node, torch.cos, *node.args)

    def second():
        x = torch.linspace(0, 1, 4).requires_grad_()
        (g,) = torch.autograd.grad(run(lambda x: torch.sin(x), x, passes=[cosine]).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)[0]

    assert torch.equal(second(), second())
    assert store.entries() == []


def test_a_decomposition_of_a_user(store, other_number):
    def scaled(x):
        return aten.mul.Tensor(x, number)

    def value():
        return run(torch.sin, torch.ones(1), decompositions={aten.sin.default: scaled}).item()

    assert value() == 3
    other_number(5.0)
    assert value() == 5
    assert store.entries() == []


def test_the_decompositions_of_a_foreign_engine(store):
    engine = Engine("mine", lambda job: lambda inputs: job.module(*inputs), lambda options: {})
    run(torch.sin, torch.ones(1), engine=engine)
    assert store.entries() == []


def test_torchs_own_table_is_kept(store, resumed):
    table = torch._decomp.core_aten_decompositions()
    for _ in range(2):
        run(torch.nn.functional.gelu, torch.ones(2), decompositions=dict(table))
    assert resumed() == 1


def test_an_operator_of_another_library_that_is_called_by_its_name_alone(store):
    """It may be made of operators of torch, of which alone the final graph knows."""
    with torch.library._scoped_library("eductor_test_not_kept", "FRAGMENT") as library:
        library.define("scaled(Tensor x) -> Tensor")
        library.impl("scaled", lambda x: x * number, "CompositeImplicitAutograd")
        assert run(lambda x: torch.ops.eductor_test_not_kept.scaled(x) + 1, torch.ones(1)).item() == 4
    assert store.entries() == []


def test_a_region_that_says_what_to_save(store):
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def fn(x):
        return checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False, context_fn=contexts)

    run(fn, torch.ones(3, requires_grad=True)).sum().backward()
    assert store.entries() == []


def test_a_compile_that_warned_of_anything(store):
    for _ in range(2):
        with pytest.warns(eductor.EductorWarning, match="no module of this graph matches"):
            run(torch.nn.Linear(2, 2), torch.ones(1, 2), memory_budget={"other": 0.5})
    assert store.entries() == []


@contextmanager
def precise_products(precision):
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = precision
    try:
        yield
    finally:
        matmul.fp32_precision = before


@pytest.mark.parametrize("setting", [precise_products, torch.backends.flags], ids=["products", "all"])
def test_settings_of_precision_that_torchs_old_question_refuses(store, setting):
    with warnings.catch_warnings():
        warnings.simplefilter("error", eductor.EductorWarning)
        run(torch.sin, torch.ones(1))
        with setting("tf32"):
            run(torch.sin, torch.ones(1))
    assert len(store.entries()) == 2


@pytest.mark.parametrize("broken", ["get", "put"])
def test_a_cache_that_fails_costs_nothing_but_time(store, monkeypatch, broken):
    def fail(*args):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(Store, broken, fail)
    recorder = eductor.Recorder()
    x = torch.linspace(0, 1, 3)
    if broken == "put":
        with pytest.warns(eductor.EductorWarning, match="not cached on disk: RuntimeError"):
            out = run(torch.sin, x, instruments=[recorder])
        assert recorder.records
    else:
        with pytest.warns(eductor.EductorWarning, match="on purpose"):
            out = run(torch.sin, x)
    assert torch.equal(out, x.sin())


def test_a_conjugated_buffer(store):
    class Held(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("z", torch.ones(2, dtype=torch.complex64).conj())

        def forward(self, x):
            return x * self.z

    with warnings.catch_warnings():
        warnings.simplefilter("error", eductor.EductorWarning)
        assert torch.equal(run(Held(), torch.ones(2)), torch.ones(2, dtype=torch.complex64))
