"""Passes made of rules: by operator, one rule a candidate, each match with an address, and stopping after k of them."""

from __future__ import annotations

import operator

import pytest
import torch
from toys import aten, graph_of, run, text_of

from eductor.graph import GraphView, Rewriter, capture, first_difference
from eductor.pipeline import Context, RulePass, rule_pass


def trig(*tried: list) -> RulePass:
    """Two rules on sines and one on cosines. With a list, they write down where they were tried."""

    @rule_pass(stage="joint", numerics="changes", on=False)
    def trig() -> None:
        """Plays with sines."""

    def note(rule: str, node: torch.fx.Node) -> None:
        for log in tried:
            log.append((rule, node.name))

    @trig.rule(aten.sin)
    def of_product(graph: GraphView, rewrite: Rewriter, node: torch.fx.Node) -> None:
        note("of_product", node)
        if not graph.is_call(node.args[0], aten.mul):
            rewrite.reject("no product", node)
            return
        rewrite.replace(node, aten.tanh, node.args[0])

    @trig.rule(aten.sin, aten.sinh)
    def any_sine(graph: GraphView, rewrite: Rewriter, node: torch.fx.Node) -> None:
        note("any_sine", node)
        first = rewrite.insert(aten.relu, node.args[0], before=node)
        rewrite.replace(node, aten.abs, first)

    @trig.rule(aten.cos)
    def cosine(graph: GraphView, rewrite: Rewriter, node: torch.fx.Node) -> None:
        note("cosine", node)

    return trig


def program(x):
    return (x * 2).sin() + x.sin() + x.cos() + (x * 3).sin() + x.sinh()


def test_rules_are_tried_on_their_operators_in_the_order_of_the_graph():
    tried: list = []
    run(graph_of(program), trig(tried))
    assert tried == [
        ("of_product", "sin"),
        ("of_product", "sin_1"),
        ("any_sine", "sin_1"),
        ("cosine", "cos"),
        ("of_product", "sin_2"),
        ("any_sine", "sinh"),
    ]


def test_each_rule_is_tried_once_in_the_order_of_declaration():
    """Though `x[0]` is both a call of getitem and one of aten.select."""
    tried: list = []

    @rule_pass(stage="pre_grad", numerics="exact")
    def indexed() -> None:
        """Looks at indices."""

    for name, operators in {
        "callable": [operator.getitem],
        "both": [aten.select, operator.getitem],
        "overload": [aten.select.int],
        "other": [aten.slice, torch.add],
    }.items():
        indexed.rule(*operators, name=name)(lambda graph, rewrite, node, name=name: tried.append(name))
    run(graph_of(lambda x: x[0].sin(), stage="pre_grad"), indexed, stage="pre_grad")
    assert tried == ["callable", "both", "overload"]


def test_only_one_rule_is_applied_to_a_candidate():
    """Even where the first one leaves the node that it looked at."""

    @rule_pass(stage="joint", numerics="exact")
    def greedy() -> None:
        """Two rules that always apply."""

    def clamp(graph, rewrite, node):
        rewrite.insert(aten.relu, node.args[0], before=node)

    greedy.rule(aten.sin, name="first")(clamp)
    greedy.rule(aten.sin, name="second")(clamp)
    (record,) = run(graph_of(), greedy)
    assert [m.address for m in record.matches] == [f"joint/greedy:first@{i}" for i in range(3)]


def test_addresses_count_the_matches_of_each_rule():
    (record,) = run(graph_of(program), trig())
    assert [(m.address, m.rule, m.node) for m in record.matches] == [
        ("joint/trig:of_product@0", "of_product", "sin"),
        ("joint/trig:any_sine@0", "any_sine", "sin_1"),
        ("joint/trig:of_product@1", "of_product", "sin_2"),
        ("joint/trig:any_sine@1", "any_sine", "sinh"),
    ]
    assert {e.address for m in record.matches for e in m.events} == {m.address for m in record.matches}
    assert [(r.rule, r.nodes) for r in record.rejects] == [("of_product", ("sin_1",))]


def test_nodes_know_the_rule_and_match_that_made_them():
    module = graph_of(program)
    run(module, trig())
    made = {n.name: n.meta["eductor"].address for n in module.graph.nodes if "eductor" in n.meta}
    assert made["tanh_default"] == "joint/trig:of_product@0"
    assert made["relu_default"] == made["abs_default"] == "joint/trig:any_sine@0"


def test_a_rule_sees_what_rules_before_it_made():
    @rule_pass(stage="joint", numerics="exact")
    def chain() -> None:
        """Turns sines into cosines, and those into tangents."""

    @chain.rule(aten.sin)
    def first(graph, rewrite, node):
        rewrite.replace(node, aten.cos, node.args[0])

    @chain.rule(aten.cos)
    def second(graph, rewrite, node):
        rewrite.replace(node, aten.tan, node.args[0])

    module = graph_of(lambda x: x.sin() + 1)
    (record,) = run(module, chain)
    assert [m.address for m in record.matches] == ["joint/chain:first@0", "joint/chain:second@0"]
    assert module.graph.find_nodes(op="call_function", target=aten.tan.default)


def test_a_rule_pass_without_rules_does_nothing():
    @rule_pass(stage="joint", numerics="exact")
    def empty() -> None:
        """Has no rules."""

    (record,) = run(graph_of(), empty)
    assert record.status == "unchanged"


def test_a_rule_that_raises_is_undone_and_named(tmp_path):
    @rule_pass(stage="joint", numerics="exact")
    def breaks() -> None:
        """Fails at its second match."""

    @breaks.rule(aten.sin)
    def ordinary(graph, rewrite, node):
        if node.name == "sin_1":
            raise ValueError("not this one")
        rewrite.replace(node, aten.cos, node.args[0])

    module = graph_of()
    before = text_of(module)
    with pytest.warns(Warning, match=r"(?s)joint/breaks failed: ValueError: not this one.*-> +sin_1 = "):
        (record,) = run(module, breaks, repro_dir=tmp_path)
    assert (record.status, record.matches) == ("failed", ())
    assert text_of(module) == before


def apply(pass_: RulePass, limit: int | None) -> tuple[torch.fx.GraphModule, list[str]]:
    """Runs a pass by hand, with at most so many matches."""
    module = graph_of(program)
    view = GraphView(module)
    rewriter = Rewriter(view, f"joint/{pass_.name}", limit=limit)
    view.scope = rewriter
    pass_.run(view, rewriter, Context("joint"))
    rewriter.finish()
    module.graph.lint()
    module.recompile()
    return module, [m.address for m in rewriter.matches]


def test_a_limit_gives_growing_prefixes():
    _, everything = apply(trig(), None)
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    results = []
    for k in range(len(everything) + 2):
        module, matches = apply(trig(), k)
        assert matches == everything[:k]
        results.append(module)
    stages = [
        lambda x: (x * 2).sin() + x.sin() + x.cos() + (x * 3).sin() + x.sinh(),
        lambda x: (x * 2).tanh() + x.sin() + x.cos() + (x * 3).sin() + x.sinh(),
        lambda x: (x * 2).tanh() + x.relu().abs() + x.cos() + (x * 3).sin() + x.sinh(),
        lambda x: (x * 2).tanh() + x.relu().abs() + x.cos() + (x * 3).tanh() + x.sinh(),
        lambda x: (x * 2).tanh() + x.relu().abs() + x.cos() + (x * 3).tanh() + x.relu().abs(),
    ]
    for module, stage in zip(results, [*stages, stages[-1]], strict=True):
        assert first_difference(module.graph, capture(stage, [x], "aten").graph) is None
        assert torch.equal(module(x), stage(x))
