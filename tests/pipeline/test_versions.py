"""A pass that is edited has another version, and a pipeline with it another key."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from toys import named, plain_cos

from eductor.graph import GraphView, Rewriter
from eductor.pipeline import Pass, Pipeline, graph_pass, rule_pass
from eductor.pipeline.base import as_pass

SOURCE = """
from eductor.pipeline import graph_pass

def helper():
    return 1

@graph_pass(stage="joint", numerics="exact")
def mine(graph, rewrite, *, level=1):
    "Does nothing."
    helper()
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes a module, imports it anew, and returns its pass."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(source: str) -> Pass:
        file = tmp_path / "edited_module.py"
        file.write_text(textwrap.dedent(source))
        os.utime(file, (time.time(), time.time()))
        importlib.invalidate_caches()
        sys.modules.pop("edited_module", None)
        return importlib.import_module("edited_module").mine

    yield load
    sys.modules.pop("edited_module", None)


def key(pass_: Pass) -> str:
    return Pipeline.default().with_pass(pass_).cache_key()


def test_the_same_source_has_the_same_version(load):
    first, second = load(SOURCE), load(SOURCE)
    assert first is not second
    assert (first.version, key(first)) == (second.version, key(second))


@pytest.mark.parametrize(
    ("old", "new"),
    [("helper()\n", "helper() + 1\n"), ("return 1", "return 2"), ("level=1", "level=2"), ("import", "import ")],
)
def test_an_edit_changes_version_and_key(load, old, new):
    """An edit of the function, of a helper in its file, even of a comment or a space: rather once too often."""
    first, second = load(SOURCE), load(SOURCE.replace(old, new))
    assert first.version != second.version
    assert key(first) != key(second)


def test_the_version_is_of_the_code_that_runs_not_of_a_later_edit(load, tmp_path):
    """A process that holds the old code must not label what it makes with the new version."""
    old = load(SOURCE)
    version = old.version
    (tmp_path / "edited_module.py").write_text(SOURCE.replace("return 1", "return 100"))
    assert old.version == version


def test_options_change_the_key_and_not_the_version(load):
    mine = load(SOURCE)
    assert mine.configured(level=2).version == mine.version
    assert len({key(mine), key(mine.configured(level=2)), key(mine.configured(level=3))}) == 3
    assert key(mine.configured(level=2)) == key(mine.configured(level=2))


def test_a_given_version_wins(load):
    first = load(SOURCE.replace('numerics="exact"', 'numerics="exact", version="7"'))
    second = load(SOURCE.replace('numerics="exact"', 'numerics="exact", version="7"').replace("return 1", "return 2"))
    assert first.version == second.version == "7"
    assert key(first) == key(second)
    assert key(first) != key(load(SOURCE.replace('numerics="exact"', 'numerics="exact", version="8"')))


def made_by_exec(body: str, **scope):
    exec(f"def made(graph):\n    {body}\n", scope)
    return scope["made"]


@pytest.mark.parametrize("scope", [{}, {"__name__": __name__}, {"__name__": "nowhere"}])
def test_functions_without_source_have_a_version_of_their_code(scope):
    one, same, two = (as_pass(made_by_exec(body, **scope)) for body in ("return 1", "return 1", "return 2"))
    assert one.version == same.version != two.version
    nested = [as_pass(made_by_exec(f"return lambda: (lambda: {n})", **scope)).version for n in (1, 2)]
    assert nested[0] != nested[1]
    called = [as_pass(made_by_exec(f"graph.{name}()", **scope)).version for name in ("lint", "print_tabular")]
    assert called[0] != called[1]


def test_lambdas_of_one_line_differ():
    one, two = (lambda g: g.lint(), lambda g: g.eliminate_dead_code())
    assert as_pass(one).version != as_pass(two).version
    first, second = (lambda g, n=1: n), (lambda g, n=2: n)
    assert as_pass(first).version != as_pass(second).version


def test_functions_made_in_one_place_differ_by_what_they_close_over():
    def make(n):
        def made(graph):
            return n

        return made

    assert as_pass(make(1)).version == as_pass(make(1)).version
    assert as_pass(make(1)).version != as_pass(make(2)).version
    assert as_pass(make(make(1))).version != as_pass(make(make(2))).version
    assert as_pass(make(torch.float32)).version != as_pass(make(torch.float16)).version
    assert as_pass(make([1, {"a": 2}])).version != as_pass(make([1, {"a": 3}])).version

    def declare(n):
        @graph_pass(stage="joint", numerics="exact", name="mine")
        def mine(graph: GraphView, rewrite: Rewriter) -> None:
            """Closes over a number."""
            rewrite.reject(str(n))

        return mine

    assert key(declare(1)) == key(declare(1)) != key(declare(2))


def test_objects_differ_by_their_state():
    class Custom:
        def __init__(self, n):
            self.n = n

        def __call__(self, graph):
            return self.n

        def method(self, graph):
            return self.n

    assert as_pass(Custom(1)).version == as_pass(Custom(1)).version != as_pass(Custom(2)).version
    assert as_pass(Custom(1).method).version == as_pass(Custom(1).method).version != as_pass(Custom(2).method).version
    partials = [functools.partial(lambda n, graph: n, n) for n in (1, 1, 2)]
    assert as_pass(partials[0]).version == as_pass(partials[1]).version != as_pass(partials[2]).version


def test_a_function_that_refers_to_itself_has_a_version():
    def make():
        @graph_pass(stage="joint", numerics="exact")
        def again(graph: GraphView, rewrite: Rewriter) -> None:
            """Knows itself."""
            assert again is not None

        loop: list = []
        loop.append(loop)
        return again, as_pass(lambda g: loop)

    assert all(p.version for p in make())


def test_rules_count_wherever_they_are_written():
    def declare(*bodies):
        @rule_pass(stage="joint", numerics="exact", name="ruled")
        def ruled():
            """Has rules."""

        for i, (operator, body) in enumerate(bodies):
            scope: dict = {}
            exec(f"def rule(graph, rewrite, node):\n    {body}\n", scope)
            ruled.rule(operator, name=f"rule_{i}")(scope["rule"])
        return ruled

    sin, cos = torch.ops.aten.sin, torch.ops.aten.cos
    versions = [
        declare().version,
        declare((sin, "return 1")).version,
        declare((sin, "return 2")).version,
        declare((cos, "return 1")).version,
        declare((sin, "return 1"), (sin, "return 1")).version,
    ]
    assert len(set(versions)) == len(versions)
    assert declare((sin, "return 1")).version == versions[1]


def test_keys_are_the_same_in_every_process():
    """Of built-in passes and of functions that hold sets, whatever the seed of the hashes."""
    code = """
from eductor.pipeline import Pipeline
def make(names):
    def custom(graph):
        return "x" in {"a", "b", "c", "x"} and names
    return custom
print(Pipeline.default().with_pass(make({"p", "q", "r", "s"}), at="joint_custom_pre_pass").cache_key())
"""
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    first, second = (job.communicate()[0] for job in jobs)
    assert first == second != ""


def test_the_key_knows_the_order():
    one, two = named("one"), named("two")
    base = Pipeline.default()
    slot = "joint_custom_post_pass"
    forth = base.with_pass(one, at=slot).with_pass(two, at=slot).cache_key()
    back = base.with_pass(two, at=slot).with_pass(one, at=slot).cache_key()
    assert forth != back
    assert base.with_pass(plain_cos, at=slot).cache_key() != base.cache_key()
