"""A pass that is declared wrongly is refused where it is declared, with what to do."""

from __future__ import annotations

import inspect

import pytest
import torch
from toys import aten, graph_of, named, run

from eductor.errors import BadPass, UnknownName
from eductor.graph import GraphView, Rewriter
from eductor.pipeline import Context, Contract, f32, graph_pass, i64, rule_pass


def nothing(graph, rewrite):
    """Does nothing."""


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"numerics": "perfect"}, r"'nothing': numerics 'perfect' is unknown. Known: exact, reassociates"),
        ({"numerics": ["exact"]}, r"numerics \['exact'\] is unknown"),
        ({"numerics": None}, "numerics None is unknown"),
        ({"stage": "prejoint"}, r"stage 'prejoint' is unknown. Stages: pre_grad, joint, partition, post_grad, lower"),
        ({"stage": ("joint", "postgrad")}, "stage 'postgrad' is unknown"),
        ({"stage": ()}, "stage .* is unknown"),
        ({"stage": None}, "stage None is unknown"),
        ({"numerics": "changes"}, "cannot be on by default: declare `on=False`"),
        ({"name": "my-pass"}, "a name that is an identifier, not 'my-pass': give `name=`"),
        ({"name": ""}, "a name that is an identifier, not ''"),
        ({"name": "joint/mine"}, "identifier"),
        ({"name": "mine#2"}, "identifier"),
        ({"name": "class"}, "identifier, not 'class'"),
        ({"name": "None"}, "identifier, not 'None'"),
        ({"name": 3}, "identifier, not 3"),
        ({"slot": "joint_custom_pre_pass", "after": "x"}, "give slot=, or after= and before="),
        ({"after": "post_grad/x"}, "asks for 'post_grad/x', but it runs in joint"),
        ({"before": "nowhere/x"}, "asks for 'nowhere/x', but it runs in joint"),
    ],
)
def test_a_wrong_declaration(declared, says):
    with pytest.raises(BadPass, match=says):
        graph_pass(**{"stage": "joint", "numerics": "exact", **declared})(nothing)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda graph, rewrite: None, "a name that is an identifier, not '<lambda>'"),
        (3, "3 is not a pass"),
        (lambda: None, "takes the graph and the rewriter"),
        (lambda graph: None, "takes the graph and the rewriter"),
        (lambda graph, rewrite, other: None, "its other parameters are options, and keyword-only"),
        (lambda graph, rewrite, *, level: None, "its option 'level' needs a default"),
    ],
)
def test_a_wrong_function(fn, says):
    with pytest.raises(BadPass, match=says):
        graph_pass(stage="joint", numerics="exact", name=None if "identifier" in says else "mine")(fn)


def test_what_a_function_may_take():
    for fn in (
        lambda graph, rewrite: None,
        lambda graph, rewrite, context: None,
        lambda graph, rewrite, *, context: None,
        lambda graph, rewrite, *, context, level=1: None,
        lambda graph, rewrite, unused=1: None,
        lambda *both: None,
    ):
        declared = graph_pass(stage="joint", numerics="exact", name="mine")(fn)
        (record,) = run(graph_of(), declared)
        assert record.status == "unchanged", inspect.signature(fn)


def test_the_context_is_not_an_option():
    seen: list[Context] = []

    @graph_pass(stage="joint", numerics="exact")
    def mine(graph: GraphView, rewrite: Rewriter, *, context: Context, level: int = 1) -> None:
        """Looks at the context."""
        seen.append(context)

    assert list(mine.parameters) == ["level"]
    with pytest.raises(UnknownName, match="option of the pass mine 'context'"):
        mine.configured(context=1)
    run(graph_of(), mine.configured(level=3), is_inference=True)
    assert seen[0].is_inference


def test_an_unknown_option_of_a_pass_suggests_the_nearest():
    @graph_pass(stage="joint", numerics="exact")
    def mine(graph: GraphView, rewrite: Rewriter, *, threshold: int = 1) -> None:
        """Has an option."""

    with pytest.raises(UnknownName, match=r"'treshold'. Did you mean 'threshold'\? Known: threshold"):
        mine.configured(treshold=2)


def test_a_stage_may_be_one_or_several():
    assert named("a", stage="joint").stages == ("joint",)
    assert named("a", stage=["joint", "post_grad"]).stages == ("joint", "post_grad")
    assert named("a", stage=("joint", "joint")).stages == ("joint",)


def test_a_contract_reads_as_a_sentence():
    assert str(Contract("exact")) == "exact (bitwise the same result)"
    mine = named("a", numerics="reassociates", devices="cuda", inference_only=True)
    assert str(mine.contract) == (
        "reassociates (the same mathematics with other roundings); only on cuda; only for inference"
    )


def test_the_purpose_is_the_first_line_of_the_docstring():
    @graph_pass(stage="joint", numerics="exact")
    def documented(graph: GraphView, rewrite: Rewriter) -> None:
        """Says this.

        And much more.
        """

    @graph_pass(stage="joint", numerics="exact")
    def bare(graph: GraphView, rewrite: Rewriter) -> None: ...

    assert documented.purpose == "Says this."
    assert bare.purpose == __doc__.split("\n")[0]
    assert repr(documented) == "<pass joint/documented>"


# ----------------------------------------------------------------------------------------------------------- examples


@pytest.mark.parametrize(
    "example",
    [
        lambda x: x,
        lambda x=3: x,
        lambda x, y=f32(2): x,
        lambda *xs: xs,
        lambda x=torch.ones(2): x,
        lambda x=f32: x,
    ],
)
def test_an_example_needs_types_for_its_inputs(example):
    with pytest.raises(BadPass, match=r"pass 'mine', example '<lambda>': give each parameter a default such as f32"):
        named("mine").example(example)
    with pytest.raises(BadPass, match="default such as f32"):
        named("mine").refuses("no")(example)


def test_a_refusal_states_its_reason():
    mine = named("mine")
    with pytest.raises(BadPass, match=r"a refusal states its reason: @mine.refuses\('the reason'\)"):

        @mine.refuses
        def refused(x=f32(2)):
            return x

    for empty in ("", "  ", None):
        with pytest.raises(BadPass, match="states its reason"):
            mine.refuses(empty)
    assert mine.refusals == []


def test_examples_are_kept_with_their_inputs():
    mine = named("mine")

    @mine.example
    def first(x=f32(2, 3), y=i64(4)):
        return x, y

    @mine.refuses("too small")
    def second(x=f32(1)):
        return x

    (kept,), (refused,) = mine.examples, mine.refusals
    x, y = kept.make_inputs()
    assert (kept.name, x.shape, x.dtype, y.shape, y.dtype) == ("first", (2, 3), torch.float32, (4,), torch.int64)
    assert torch.equal(x, kept.make_inputs()[0])
    assert (refused.name, refused.because) == ("second", "too small")
    assert first()[0] == f32(2, 3)


# --------------------------------------------------------------------------------------------------------- rule passes


def test_a_rule_pass_takes_no_parameters_and_its_rules_need_operators_and_names():
    with pytest.raises(BadPass, match="its rules do the work, so its own function takes no parameters"):

        @rule_pass(stage="joint", numerics="exact")
        def wrong(*, level: int = 1) -> None:
            """Has an option that no rule would see."""

    @rule_pass(stage="joint", numerics="exact")
    def ruled() -> None:
        """Has rules."""

    with pytest.raises(BadPass, match="the rule 'aimless' needs the operators"):

        @ruled.rule()
        def aimless(graph, rewrite, node): ...

    with pytest.raises(BadPass, match="a rule needs a name that is an identifier, not '<lambda>'"):
        ruled.rule(aten.sin)(lambda graph, rewrite, node: None)
    ruled.rule(aten.sin, name="twin")(lambda graph, rewrite, node: None)
    with pytest.raises(BadPass, match="two rules called 'twin'"):
        ruled.rule(aten.cos, name="twin")(lambda graph, rewrite, node: None)
    assert [r.name for r in ruled.rules] == ["twin"]
