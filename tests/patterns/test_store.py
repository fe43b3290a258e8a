"""The store: a pattern that was written down and read again matches what the fresh one does."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pattern_tools import facts, graph_of, matches

from eductor.errors import BadPattern
from eductor.graph import GraphView
from eductor.observe.manual.manual import run_pass
from eductor.passes.joint.bmm_to_mm import bmm_to_mm
from eductor.patterns import (
    ANY,
    _serialize_pattern,
    const,
    fwd_only,
    gen_pattern,
    op,
    pattern_pass,
    precompile,
    var,
)
from eductor.patterns.language.pattern import Op, Outputs, Var, walk
from eductor.patterns.precompile import shipped, texts
from eductor.patterns.rules import Rules
from eductor.patterns.trace import search_function
from eductor.patterns.trace.search_function import Traced
from eductor.patterns.trace.store import Store, dumps, required_by
from eductor.patterns.trace.tracing import pattern_of, search_inputs
from eductor.pipeline import f32

aten = torch.ops.aten
X, Y, Z = (torch.linspace(-1, 2, 16).roll(i).reshape(4, 4).contiguous() for i in range(3))

STEPS = [
    lambda a, b, c, s: a.sin(),
    lambda a, b, c, s: a * s,
    lambda a, b, c, s: a / s,
    lambda a, b, c, s: a * 0.5,
    lambda a, b, c, s: a + 2,
    lambda a, b, c, s: a + b,
    lambda a, b, c, s: torch.add(a, b, alpha=2),
    lambda a, b, c, s: a * c,
    lambda a, b, c, s: a @ b,
    lambda a, b, c, s: a.reshape(a.shape[1], a.shape[0]),
    lambda a, b, c, s: a.reshape(-1, a.shape[0]),
    lambda a, b, c, s: a.t(),
    lambda a, b, c, s: a.softmax(-1),
    lambda a, b, c, s: a.softmax(0),
    lambda a, b, c, s: a.sum(1, keepdim=True) + a,
    lambda a, b, c, s: a.sum(0, keepdim=True) + a,
    lambda a, b, c, s: torch.where(a > 0, a, float("-inf")),
    lambda a, b, c, s: a.to(torch.float64).to(torch.float32),
    lambda a, b, c, s: a.masked_fill(b > c, 0.0),
    lambda a, b, c, s: torch.cat([a, b])[:4],
    lambda a, b, c, s: a + s,
    lambda a, b, c, s: a * (1 - s),
    lambda a, b, c, s: torch.full_like(a, 1.0) + a,
]
numbers = st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=4)


def built(drawn, s=None, flip=False):
    """A function of up to three matrices and a number that applies the steps one after another."""

    def fn(x, y, z, number):
        value, other = (y, x) if flip else (x, y)
        for i in drawn:
            value, other = STEPS[i](value, other, z, number), value
        return value

    if s is None:
        return fn
    return lambda x, y, z: fn(x, y, z, s).neg()


@functools.cache
def pattern_for(drawn):
    """The pattern, over those of the parameters that it uses; None where it cannot be one."""
    fn = built(drawn)
    for used in ("xyzs", "xyz", "xys", "xy", "xzs", "xz", "xs", "x"):
        names = [n if n != "s" else "number" for n in used]
        examples = [f32(4, 4) if n != "number" else 0.5 for n in names]
        defaults = {"x": None, "y": None, "z": None, "number": 0.5}
        scope = {"fn": fn, "defaults": defaults}
        source = f"lambda {', '.join(names)}: fn(**{{**defaults, {', '.join(f'{n!r}: {n}' for n in names)}}})"
        narrowed = eval(source, scope)
        try:
            found = pattern_of(narrowed, search_inputs(narrowed, examples))
        except BadPattern:
            continue
        return found if isinstance(found, (Op, Outputs)) else None  # what does nothing to a square matrix
    return None


def through_text(pattern, tmp):
    text = dumps({"it": pattern})
    assert text == dumps({"it": pattern})
    path = tmp / "patterns.json"
    path.write_text(text)
    store = Store(path)
    (variant,) = store.variants("it")
    again = variant.pattern
    assert dumps({"it": again}) == text
    return again, variant.required


@settings(max_examples=30, deadline=None)
@given(numbers, st.lists(numbers, min_size=1, max_size=2), st.sampled_from([0.5, 0.25, 2.0]))
def test_fresh_and_stored_patterns_match_the_same_graphs(tmp_path_factory, drawn, others, s):
    pattern = pattern_for(tuple(drawn))
    if pattern is None:
        return
    again, required = through_text(pattern, tmp_path_factory.mktemp("store"))
    assert required == required_by(pattern, frozenset())
    mutated = [[*drawn[:-1], (drawn[-1] + 1) % len(STEPS)], [*drawn, drawn[0]]]
    for steps in (drawn, *mutated, *others):
        for flip in (False, True):
            try:
                module = graph_of(built(tuple(steps), s, flip), [X, Y, Z])
            except RuntimeError:
                continue  # shapes that do not fit
            fresh = [facts(m) for m in matches(pattern, module)]
            stored = [facts(m) for m in matches(again, module)]
            assert fresh == stored, (drawn, steps)


def test_a_pattern_matches_the_function_that_it_was_traced_from(tmp_path):
    hit = 0
    for i in range(len(STEPS)):
        pattern = pattern_for((i, 0))
        if pattern is None:
            continue
        module = graph_of(built((i, 0), 0.5), [X, Y, Z])
        again, _ = through_text(pattern, tmp_path)
        assert matches(pattern, module), (i, module.graph)
        assert matches(again, module), i
        hit += 1
    assert hit >= 18


def test_written_patterns_are_text_that_can_be_read(tmp_path):
    pattern = pattern_for((1, 0))
    text = dumps({"scaled_sine": pattern})
    assert '"torch.ops.aten.sin", ["%0"]' in text or '"torch.ops.aten.sin", ["%1"]' in text
    assert '"$number"' in text
    assert text.endswith("\n")


def test_counts_of_users_survive(tmp_path):
    for users in (None, 1, 2, ANY):
        pattern = op(aten.exp, op(aten.sin, var("x"), users=users))
        again, _ = through_text(pattern, tmp_path)
        assert again.args[0].users == users


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), -0.0, 2, 2.0, True, None])
def test_constants_survive_with_their_types(tmp_path, value):
    again, _ = through_text(op(aten.pow, var("x"), value), tmp_path)
    got = again.args[1]
    assert (type(got), repr(got)) == (type(value), repr(value))


def test_dtypes_devices_and_words_survive(tmp_path):
    said = {"dtype": torch.bfloat16, "device": torch.device("cpu"), "layout": torch.strided}
    again, _ = through_text(op(aten.full, [2, const("n")], 1.0, **said), tmp_path)
    assert dict(again.kwargs) == said
    again, _ = through_text(op(aten.div, var("x"), var("y"), rounding_mode="floor"), tmp_path)
    assert dict(again.kwargs) == {"rounding_mode": "floor"}


def test_what_cannot_be_stored_says_so():
    with pytest.raises(BadPattern, match="cannot be stored"):
        dumps({"it": op(aten.add, var("x"), object())})


def test_another_version_of_the_file_is_as_if_it_were_not_there(tmp_path):
    path = tmp_path / "patterns.json"
    path.write_text('{"version": -1, "patterns": {"it": {}}}')
    assert "it" not in Store(path)
    assert "it" not in Store(tmp_path / "missing.json")


def test_a_variable_without_a_kind_is_a_tensor_again(tmp_path):
    pattern = op(aten.mul, var("x"), var("y"))
    again, _ = through_text(pattern, tmp_path)
    module = graph_of(lambda a: a * 2, [X])
    assert not matches(pattern, module)
    assert not matches(again, module)
    assert matches(again, graph_of(lambda a: a * a.sin(), [X]))


def test_a_condition_cannot_be_stored():
    with pytest.raises(BadPattern, match="has a condition"):
        dumps({"it": op(aten.sin, var("x", where=lambda v: v.dim() == 2))})


def test_a_variant_with_an_operator_that_is_not_there_is_not_made(tmp_path):
    text = dumps({"it": op(aten.sin, var("x"))}).replace("aten.sin", "nobody.sin")
    path = tmp_path / "patterns.json"
    path.write_text(text)
    (variant,) = Store(path).variants("it")
    assert variant.required == {"torch.ops.nobody.sin"}
    assert variant.pattern is None


def test_the_patterns_of_the_package_are_up_to_date():
    """`make patterns` writes them."""
    fresh = texts(shipped())
    assert fresh, "the package has search functions"
    stale = [path.name for path, text in fresh.items() if path.read_text() != text]
    assert not stale


def test_the_patterns_of_the_package_are_loaded_and_never_traced(monkeypatch):
    def traced(*given, **named):
        raise AssertionError("a search function of the package was traced")

    monkeypatch.setattr(search_function, "pattern_of", traced)
    stored = [rule for rule in shipped() if isinstance(rule.source, Traced)]
    assert stored
    for rule in stored:
        assert rule.source.is_stored, f"{rule.name}: run `make patterns`"
        assert rule.forms, rule.problem
    module = graph_of(torch.bmm, [torch.zeros(1, 4, 3), torch.zeros(1, 3, 5)])
    assert run_pass(bmm_to_mm, "joint", module).record.changed


def rows_rule(home):
    """A rule whose pattern is stored: some rows of a vector, drawn without replacement."""

    @pattern_pass(stage="joint", numerics="exact")
    def shuffled():
        """Says it otherwise."""

    def rows(x, count):
        return x[torch.randperm(x.shape[0])[:count]]

    rule = shuffled.replace(rows, rows, inputs=[f32(6), 4], name="rows", stored="own.rows")
    rule.source.home = home
    return rule


def test_precompile_writes_and_checks(capsys, monkeypatch, tmp_path):
    rule = rows_rule(tmp_path / "new")
    monkeypatch.setattr(precompile, "shipped", lambda: [rule])
    assert precompile.main(["--check"]) == 1
    assert "is stale: run `make patterns`" in capsys.readouterr().out
    assert precompile.main([]) == 0
    assert precompile.main(["--check"]) == 0


def test_nothing_is_traced_where_a_stored_pattern_cannot_be(tmp_path):
    def search(x, count):
        raise AssertionError("it is stored")

    rule = rows_rule(tmp_path)
    for path, text in texts([rule]).items():
        path.write_text(text)
    source = replace(rule.source, fn=search)
    rules = Rules([replace(rule, source=source)])
    assert not rules.index.candidates(GraphView(graph_of(lambda a: a.sin(), [X])))
    rows = graph_of(lambda a: a[torch.randperm(4)[:2]], [X])
    (found,) = rules.index.candidates(GraphView(rows))
    assert found.found.reason == "x has 2 dimensions, the pattern wants 1"


OWN = """
import torch
from eductor.patterns import PatternMatcherPass, fwd_only, gen_register_replacement, pattern_pass
from eductor.pipeline import f32

@pattern_pass(stage="joint", numerics="exact")
def mine():
    "Says it otherwise."

def search(x, c):
    return (x * c).sin()

mine.replace(search, lambda x, c: torch.sin(c * x), inputs=[f32(4), 0.5], name="mine", stored="own.scaled_sine")

def twice(x):
    return x.tanh().tanh()

ported = PatternMatcherPass()
gen_register_replacement("twice", twice, torch.tanh, [torch.empty(4)], fwd_only, ported)
"""


def test_patterns_of_ones_own_lie_beside_their_module(tmp_path, monkeypatch, capsys):
    (tmp_path / "own_patterns.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert precompile.main(["--check", "own_patterns"]) == 1
    assert precompile.main(["own_patterns"]) == 0
    assert precompile.main(["--check", "own_patterns"]) == 0
    assert {p.name for p in tmp_path.glob("*.json")} == {"own.json", "user.json"}
    assert list(Store(tmp_path / "own.json")) == ["scaled_sine"]
    assert list(Store(tmp_path / "user.json")) == ["twice"]


def test_a_pattern_can_be_generated_and_serialized(tmp_path, monkeypatch):
    (tmp_path / "own_search.py").write_text("def search(x):\n    return x.tanh().tanh()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    from own_search import search

    assert matches(gen_pattern(search, [X], fwd_only), graph_of(lambda a: a.tanh().tanh(), [X]))
    for name in ("first", "second"):
        _serialize_pattern(name, search, [X], fwd_only)
    assert sorted(Store(tmp_path / "user.json")) == ["first", "second"]


def test_exclusive_names_hold_for_a_stored_pattern(tmp_path):
    path = tmp_path / "patterns.json"
    path.write_text(dumps({"it": op(aten.mul, var("a"), var("b"))}))
    (variant,) = Store(path).variants("it", ("a",))
    assert {p.name: p.exclusive for p in walk(variant.pattern) if isinstance(p, Var)} == {"a": True, "b": False}
