"""A pipeline is a value: every method makes another one, and its text form reads back."""

from __future__ import annotations

import ast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import aten, graph_of, named, plain_cos, plain_nothing, run, sin_to_cos

from eductor.errors import BadPass, OrderConflict, UnknownName
from eductor.graph import GraphView, Rewriter
from eductor.options import Options
from eductor.pipeline import Context, Pipeline, Recorder, Registry, graph_pass


@graph_pass(stage="joint", numerics="exact", after="remove_noop_ops")
def leveled(graph: GraphView, rewrite: Rewriter, *, level: int = 1, mode: str = "a") -> None:
    """Says its options."""
    rewrite.reject(f"level {level}, mode {mode}")


def names(pipeline: Pipeline, stage: str = "joint") -> list[str]:
    return [s.name for s in pipeline.stage(stage)]


JOINT = names(Pipeline.default())


# ----------------------------------------------------------------------------------------------------------- a value


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.without("remove_noop_ops"),
        lambda p: p.only("joint/remove_noop_ops"),
        lambda p: p.with_pass(leveled),
        lambda p: p.with_pass(leveled, before="remove_noop_ops"),
        lambda p: p.with_pass(leveled, at="joint_custom_pre_pass"),
        lambda p: p.with_pass(plain_cos, at="joint_custom_pre_pass"),
        lambda p: p.replaced("joint/remove_noop_ops", leveled),
    ],
)
def test_no_method_changes_the_original(change):
    original = Pipeline.default()
    steps, text, key = original.steps, original.text(), original.cache_key()
    changed = change(original)
    assert changed.text() != text
    assert (original.steps, original.text(), original.cache_key()) == (steps, text, key)
    assert Pipeline.default().text() == text


def test_a_pipeline_cannot_be_changed_in_place():
    with pytest.raises(AttributeError):
        Pipeline.default().steps = ()  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Pipeline.default().steps[0].name = "other"  # type: ignore[misc]


def test_configured_and_placed_passes_are_copies():
    again = leveled.configured(level=2)
    assert (leveled.options, again.options) == ({}, {"level": 2})
    assert again.configured(mode="b").options == {"level": 2, "mode": "b"}
    assert (leveled.placed(before="x").after, leveled.after) == ((), ("remove_noop_ops",))


# ------------------------------------------------------------------------------------------------- dropping, by exact name


def test_a_name_means_all_of_that_name_in_all_stages():
    assert not any(s.name == "remove_noop_ops" for s in Pipeline.default().without("remove_noop_ops").steps)
    assert {s.address for s in Pipeline.default().only("remove_noop_ops").steps} == {
        "joint/remove_noop_ops",
        "post_grad/remove_noop_ops",
    }


def test_a_stage_and_a_number_mean_one():
    one = Pipeline.default().without("joint/remove_noop_ops")
    assert [s.address for s in one.steps if s.name == "remove_noop_ops"] == ["post_grad/remove_noop_ops"]
    second = Pipeline.default().without("joint_custom_pre_pass#2")
    places = [i for i, n in enumerate(JOINT) if n == "joint_custom_pre_pass"]
    assert names(second) == [n for i, n in enumerate(JOINT) if i != places[1]]


@pytest.mark.parametrize(
    "wrong",
    [
        *("remove_noop", "noop", "remove_noop_ops ", "", "#2", "remove_noop_ops#", "remove_noop_ops#0", "*"),
        *("remove_noop_ops#2", "pre_grad/remove_noop_ops", "joint/", "joint", "joint/remove", "/remove_noop_ops"),
    ],
)
@pytest.mark.parametrize("method", ["without", "only"])
def test_a_part_of_a_name_means_nothing(wrong, method):
    with pytest.raises(UnknownName):
        getattr(Pipeline.default(), method)(wrong)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownName, match=r"unknown pass 'remove_nop_ops'. Did you mean 'remove_noop_ops'\?"):
        Pipeline.default().without("remove_nop_ops")


def test_numbers_follow_the_pipeline_at_hand():
    """So that `name#2` means what one sees, and the text says all there is to know."""
    first_gone = Pipeline.default().without("joint_custom_pre_pass#1")
    assert [s.address for s in first_gone.steps if s.name == "joint_custom_pre_pass"] == ["joint/joint_custom_pre_pass"]


# ------------------------------------------------------------------------------------------------------------ placing


def test_a_pass_goes_where_it_asks_to_be():
    placed = names(Pipeline.default().with_pass(leveled))
    assert placed[placed.index("leveled") - 1] == "remove_noop_ops"


def test_after_and_before_are_direct_neighbours():
    mine = named("mine")
    after = names(Pipeline.default().with_pass(mine, after="replace_random_passes"))
    assert after[after.index("mine") - 1] == "replace_random_passes"
    before = names(Pipeline.default().with_pass(mine, before="replace_random_passes"))
    assert before[before.index("mine") + 1] == "replace_random_passes"


def test_repeated_rows_are_after_the_last_and_before_the_first():
    placed = names(Pipeline.default().with_pass(named("mine"), before="joint_custom_pre_pass"))
    assert placed.index("mine") < placed.index("joint_custom_pre_pass")
    placed = names(Pipeline.default().with_pass(named("mine"), after="joint_custom_pre_pass"))
    assert "joint_custom_pre_pass" not in placed[placed.index("mine") :]
    placed = names(Pipeline.default().with_pass(named("mine"), after="joint_custom_pre_pass#1"))
    assert placed[placed.index("joint_custom_pre_pass") + 1] == "mine"


def test_a_pass_for_two_stages_goes_where_its_neighbour_is():
    both = Pipeline.default().with_pass(sin_to_cos, after="remove_noop_ops")
    assert [s.stage for s in both.steps if s.name == "sin_to_cos"] == ["joint", "post_grad"]
    one = Pipeline.default().with_pass(sin_to_cos, after="post_grad/remove_noop_ops")
    assert [s.stage for s in one.steps if s.name == "sin_to_cos"] == ["post_grad"]
    one = Pipeline.default().with_pass(sin_to_cos, after="eliminate_dead_code")
    assert [s.stage for s in one.steps if s.name == "sin_to_cos"] == ["post_grad"]


def test_without_a_wish_a_pass_stands_in_the_slot_at_the_end():
    placed = names(Pipeline.default().with_pass(named("mine")))
    assert placed[placed.index("mine") - 1] == "joint_custom_post_pass"
    assert names(Pipeline.default().only("joint/remove_noop_ops").with_pass(named("mine"))) == [
        "remove_noop_ops",
        "mine",
    ]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda p: p.with_pass(named("mine"), after="remove_nop_ops"), UnknownName, "Did you mean 'remove_noop_ops'"),
        (lambda p: p.with_pass(named("mine"), at="remove_noop_ops"), UnknownName, "slot of the stage joint"),
        (lambda p: p.with_pass(named("mine"), at="joint_custom"), UnknownName, "joint_custom"),
        (lambda p: p.with_pass(named("mine"), after="eliminate_dead_code"), UnknownName, "eliminate_dead_code"),
        (lambda p: p.with_pass(named("remove_noop_ops")), BadPass, "one from eductor, one from pipeline"),
        (lambda p: p.with_pass(named("joint_custom_pre_pass")), BadPass, "joint_custom_pre_pass"),
        (lambda p: p.with_pass(named("a"), after="remove_noop_ops", at="joint_custom_pre_pass"), BadPass, "slot"),
        (lambda p: p.with_pass(plain_cos), BadPass, "say where"),
        (lambda p: p.with_pass("plain_cos", at="joint_custom_pre_pass"), BadPass, "not a pass"),
        (
            lambda p: p.with_pass(named("mine"), after="stable_topological_sort", before="remove_noop_ops"),
            OrderConflict,
            "'mine'.*after 'stable_topological_sort'.*before 'remove_noop_ops'|'mine'.*before 'remove_noop_ops'.*after",
        ),
        (lambda p: p.replaced("remove_nop_ops", leveled), UnknownName, "Did you mean 'remove_noop_ops'"),
        (lambda p: p.replaced("remove_noop_ops", leveled), BadPass, "post_grad/remove_noop_ops: it is for joint"),
        (lambda p: p.replaced("joint_custom_pre_pass", leveled), BadPass, "is a slot"),
        (lambda p: p.replaced("replace_random_passes", named("remove_noop_ops")), BadPass, "already has a pass"),
    ],
)
def test_a_place_that_is_none_is_an_error(call, error, says):
    with pytest.raises(error, match=says):
        call(Pipeline.default())


def test_a_replaced_pass_stands_where_the_other_stood_and_runs_instead():
    mine = named("mine")
    placed = names(Pipeline.default().replaced("joint/remove_noop_ops", mine))
    assert placed == ["mine" if n == "remove_noop_ops" else n for n in JOINT]
    recorder = Recorder()
    pipeline = Pipeline.default().replaced("replace_random_passes", sin_to_cos)
    module = graph_of()
    pipeline.run("joint", module, Context("joint"), [recorder])
    assert recorder.changed() == ["joint/sin_to_cos"]
    assert not module.graph.find_nodes(op="call_function", target=aten.sin.default)


def test_a_pass_can_be_replaced_by_a_plain_function():
    pipeline = Pipeline.default().replaced("joint/remove_noop_ops", plain_cos)
    recorder = Recorder()
    pipeline.run("joint", graph_of(), Context("joint"), [recorder])
    assert recorder.changed() == ["joint/plain_cos"]


def test_a_pass_can_be_replaced_by_itself_with_other_options():
    pipeline = Pipeline.default().with_pass(leveled).replaced("leveled", leveled.configured(level=7))
    assert "leveled(level=7)" in pipeline.text()


# ------------------------------------------------------------------------------------------------------- the text form


def test_the_default_pipeline_reads_back():
    pipeline = Pipeline.default()
    again = Pipeline.parse(pipeline.text())
    assert again.text() == pipeline.text() == str(pipeline)
    assert again.cache_key() == pipeline.cache_key()
    assert [s.address for s in again.steps] == [s.address for s in pipeline.steps]


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=5,
)


@given(
    level=LITERALS,
    mode=LITERALS,
    dropped=st.sets(st.sampled_from(sorted({s.address for s in Pipeline.default().steps}))),
)
@settings(max_examples=60, deadline=None)
def test_any_pipeline_with_any_options_reads_back(level, mode, dropped):
    registry = Registry.default().with_passes([leveled])
    pipeline = Pipeline.default(registry).replaced("leveled", leveled.configured(level=level, mode=mode))
    required = {s.address for s in pipeline.steps if s.required}  # only `only` leaves those out
    pipeline = pipeline.without(*dropped - required)
    pipeline = pipeline.only(*(s.address for s in pipeline.steps if s.address not in dropped & required))
    again = Pipeline.parse(pipeline.text(), registry)
    assert again.text() == pipeline.text()
    assert again.cache_key() == pipeline.cache_key()
    assert next(s for s in again.steps if s.name == "leveled").load().options == {"level": level, "mode": mode}


def test_options_reach_the_pass():
    (record,) = run(graph_of(), leveled.configured(level=3))
    assert [r.reason for r in record.rejects] == ["level 3, mode a"]


@pytest.mark.parametrize(
    "text", ["", "joint()", "joint(remove_noop_ops),", " joint( remove_noop_ops ,\n ) ", "joint(remove_noop_ops())"]
)
def test_short_and_spacious_texts(text):
    assert names(Pipeline.parse(text)) in ([], ["remove_noop_ops"])


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("joint(remove_noop)", UnknownName, "Did you mean 'remove_noop_ops'"),
        ("jont(remove_noop_ops)", UnknownName, "unknown stage 'jont'. Did you mean 'joint'"),
        ("pre_grad(remove_noop_ops)", UnknownName, "pass of the stage pre_grad"),
        ("joint(leveled(levl=2))", UnknownName, "option of the pass leveled 'levl'. Did you mean 'level'"),
        ("joint(leveled(level=torch))", BadPass, "literal"),
        ("joint(leveled(level=f()))", BadPass, "literal"),
        ("joint(leveled(**{'level': 2}))", UnknownName, "option of the pass leveled"),
        ("joint(leveled(2))", BadPass, "neither the name of a pass"),
        ("joint(joint_custom_pre_pass(level=2))", BadPass, "slot"),
        ("joint(remove_noop_ops", BadPass, "form stage"),
        ("joint(remove_noop_ops#2)", BadPass, "form stage"),
        ("joint(a], [b)", BadPass, "form stage"),
        ("joint()], [joint()", BadPass, "form stage"),
        ("remove_noop_ops", BadPass, "form stage"),
        ("joint(x=1)", BadPass, "form stage"),
        ("joint(1)", BadPass, "neither the name of a pass"),
        ("joint(*remove_noop_ops)", BadPass, "neither the name of a pass"),
        ("joint.x(remove_noop_ops)", BadPass, "form stage"),
        ("joint(remove_noop_ops\0)", BadPass, "form stage"),
        ("joint(class)", BadPass, "form stage"),
    ],
)
def test_a_text_that_cannot_be_read_is_an_error_that_helps(text, error, says):
    with pytest.raises(error, match=says):
        Pipeline.parse(text, Registry.default().with_passes([leveled]))


@pytest.mark.parametrize("value", [torch.float32, float("nan"), float("inf"), object(), ast, {1: torch}])
def test_an_option_that_has_no_text_is_refused(value):
    with pytest.raises(BadPass, match="literal"):
        leveled.configured(level=value)


# ---------------------------------------------------------------------------------------------------- through options


@graph_pass(stage=("joint", "post_grad"), numerics="exact", on=False, after="remove_noop_ops")
def asleep(graph: GraphView, rewrite: Rewriter) -> None:
    """Off by default."""


SLEEPY = Registry.default().with_passes([asleep], "a plug-in")


@pytest.fixture
def sleepy(monkeypatch):
    """A registry in which a plug-in has a pass that is off by default."""
    monkeypatch.setattr(Registry, "default", staticmethod(lambda: SLEEPY))


def addresses(pipeline: Pipeline, name: str) -> list[str]:
    return [s.address for s in pipeline.steps if s.name == name]


@pytest.mark.parametrize("base", [None, "value", "text"])
@pytest.mark.parametrize(
    ("enable", "expected"),
    [
        ((), []),
        (["asleep"], ["joint/asleep", "post_grad/asleep"]),
        (["joint/asleep"], ["joint/asleep"]),
        ("post_grad/asleep", ["post_grad/asleep"]),
        (["asleep#1", "remove_noop_ops"], ["joint/asleep", "post_grad/asleep"]),
    ],
)
@pytest.mark.usefixtures("sleepy")
def test_enable_by_exact_name(base, enable, expected):
    given = {None: None, "value": Pipeline.default(), "text": Pipeline.default().text()}[base]
    pipeline = Pipeline.of(Options(pipeline=given, enable=enable))
    assert addresses(pipeline, "asleep") == expected
    for stage in {a.split("/")[0] for a in expected}:
        assert names(pipeline, stage)[names(pipeline, stage).index("asleep") - 1] == "remove_noop_ops"
    assert [s.name for s in pipeline.steps if s.name != "asleep"] == [s.name for s in Pipeline.default().steps]


@pytest.mark.parametrize("base", [None, "value", "text"])
def test_what_is_enabled_after_a_slot_stands_after_what_fills_it(base, monkeypatch):
    registry = Registry.default().with_passes([named("late", on=False, after="joint_custom_post_pass")], "a plug-in")
    monkeypatch.setattr(Registry, "default", staticmethod(lambda: registry))
    given = {None: None, "value": Pipeline.default(), "text": Pipeline.default().text()}[base]
    chosen = names(Pipeline.of(Options(pipeline=given, enable="late", joint_custom_post_pass=[plain_cos])))
    at = chosen.index("joint_custom_post_pass")
    assert chosen[at : at + 3] == ["joint_custom_post_pass", "plain_cos", "late"]


@pytest.mark.parametrize("base", [None, "value", "text"])
@pytest.mark.usefixtures("sleepy")
def test_disable_by_exact_name(base):
    given = {None: None, "value": Pipeline.default(), "text": Pipeline.default().text()}[base]
    pipeline = Pipeline.of(Options(pipeline=given, disable="joint/remove_noop_ops, joint_custom_pre_pass#2"))
    assert addresses(pipeline, "remove_noop_ops") == ["post_grad/remove_noop_ops"]
    assert addresses(pipeline, "joint_custom_pre_pass") == ["joint/joint_custom_pre_pass"]


@pytest.mark.parametrize("base", [None, "value", "text"])
@pytest.mark.usefixtures("sleepy")
def test_disabling_what_is_off_anyway_is_no_mistake(base):
    given = {None: None, "value": Pipeline.default(), "text": Pipeline.default().text()}[base]
    assert not addresses(Pipeline.of(Options(pipeline=given, disable=["asleep"])), "asleep")
    assert not addresses(Pipeline.of(Options(pipeline=given, enable="asleep", disable="asleep")), "asleep")
    assert not addresses(Pipeline.default(disable=["asleep"]), "asleep")


@pytest.mark.parametrize("base", [None, Pipeline.default(), "joint(remove_noop_ops)"])
@pytest.mark.parametrize("which", ["enable", "disable"])
def test_an_unknown_name_in_the_options_is_an_error(base, which):
    with pytest.raises(UnknownName, match="Did you mean 'remove_noop_ops'"):
        Pipeline.of(Options(pipeline=base, **{which: ["remove_noop"]}))


@pytest.mark.parametrize("base", [None, Pipeline.default(), Pipeline.default().text()])
def test_own_passes_stand_where_they_ask_whatever_their_order(base):
    first, second = named("zebra", after="remove_noop_ops"), named("ant", after="zebra")
    for passes in ([first, second], [second, first]):
        placed = names(Pipeline.of(Options(pipeline=base, passes=passes)))
        at = placed.index("zebra")
        assert placed[at - 1 : at + 2] == ["remove_noop_ops", "zebra", "ant"]


@pytest.mark.parametrize("base", [None, Pipeline.default(), Pipeline.default().text()])
def test_own_passes_that_ask_for_the_same_stand_by_name(base):
    first, second = named("zebra", after="remove_noop_ops"), named("ant", after="remove_noop_ops")
    orders = [
        names(Pipeline.of(Options(pipeline=base, passes=passes))) for passes in ([first, second], [second, first])
    ]
    assert orders[0] == orders[1]
    assert orders[0].index("zebra") == orders[0].index("ant") + 1


def test_a_text_may_name_own_passes_and_slot_functions_once():
    text = "joint(plain_cos, leveled(level=4), joint_custom_pre_pass, remove_noop_ops)"
    options = Options(pipeline=text, passes=[leveled], joint_custom_pre_pass=[plain_cos, plain_nothing])
    expected = ["plain_cos", "leveled", "joint_custom_pre_pass", "plain_nothing", "remove_noop_ops"]
    assert names(Pipeline.of(options)) == [*expected[:1], "without_numbers", *expected[1:]]
    with pytest.raises(BadPass, match="two passes of that name"):
        Pipeline.of(Options(pipeline="joint(custom_pass)", joint_custom_pre_pass=[lambda g: None, lambda g: None]))


def test_what_a_pipeline_prints_with_options_reads_back_with_them():
    options = {"passes": [leveled], "joint_custom_pre_pass": [plain_cos]}
    printed = Pipeline.of(Options(**options)).text()
    assert printed.count("plain_cos") == 2
    assert Pipeline.of(Options(pipeline=printed, **options)).text() == printed


def test_a_pass_that_is_given_runs_though_it_is_off_by_default():
    pipeline = Pipeline.of(Options(passes=[sin_to_cos]))
    assert addresses(pipeline, "sin_to_cos") == ["joint/sin_to_cos", "post_grad/sin_to_cos"]


def test_the_key_changes_with_name_place_version_and_options():
    keys = [
        Pipeline.default(),
        Pipeline.default().without("remove_noop_ops"),
        Pipeline.default().with_pass(leveled),
        Pipeline.default().with_pass(leveled, before="remove_noop_ops"),
        Pipeline.default().with_pass(leveled.configured(level=2)),
        Pipeline.default().with_pass(named("leveled", version="1")),
        Pipeline.default().with_pass(named("leveled", version="2")),
        Pipeline.default().with_pass(named("other", version="2")),
    ]
    assert len({p.cache_key() for p in keys}) == len(keys)
    assert Pipeline.default().with_pass(leveled).cache_key() == keys[2].cache_key()
