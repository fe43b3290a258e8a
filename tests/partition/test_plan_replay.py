"""Plans are edited, given to a compile, and done only where they may be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import eductor
from eductor.errors import BadOption, EductorWarning, UnknownName
from eductor.partition import Plan, explain_saved, partition_fn, read_plans, write_plans

sys.path.insert(0, str(Path(__file__).parent.parent / "autograd"))
from tracing import joint_of, targets

aten = torch.ops.aten

PLAIN = {"engine": "aten"}


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def network(x, w):
    return ((x @ w).exp() * x).sigmoid().tanh().square().sum()


def network_joint():
    return joint_of(network, leaf(8, 8), leaf(8, 8))


def dropping(x, w):
    return (F.dropout(x @ w, 0.5).sin().exp() @ w).sum()


def names(entries):
    return {entry.name for entry in entries}


def explained(fn, *inputs, **options):
    told = eductor.explain(fn, *inputs, options={**PLAIN, **options}).explain_saved()
    return list(told.values())


def gradients(fn, inputs):
    torch.manual_seed(1)
    return torch.autograd.grad(fn(*inputs), inputs)


# -------------------------------------------------------------------------------------------------------------- editing


def test_a_plan_is_edited_by_names_and_the_backward_follows():
    joint = network_joint()
    plan = explain_saved(joint, options=PLAIN)
    assert names(plan.saved) == {"primals_1", "primals_2", "exp", "sigmoid", "tanh"}
    assert "mm" in names(plan.others)
    edited = plan.recomputing("tanh", "exp").saving("mm")
    parts, done = partition_fn(joint, plan=edited), explain_saved(joint, plan=edited, options=PLAIN)
    assert {aten.tanh.default, aten.exp.default} <= set(targets(parts.backward))
    assert aten.sigmoid.default not in targets(parts.backward)
    assert names(done.saved) == {"primals_1", "primals_2", "mm", "sigmoid"}
    assert {e.name for e in done.again if e.reason == "requested by an edit"} == {"tanh", "exp"}
    assert parts.facts()["saved_bytes"] == done.bytes == edited.bytes < plan.bytes


def test_what_an_edit_needs_besides_is_computed_again_and_what_nobody_needs_is_not_saved():
    joint = network_joint()
    plan = explain_saved(joint, options=PLAIN).recomputing("exp", "sigmoid").saving("mul")
    done = explain_saved(joint, plan=plan, options=PLAIN)
    assert names(e for e in done.again if e.reason != "a view") == {"mm", "exp", "sigmoid"}
    assert names(done.saved) == {"primals_1", "primals_2", "mul", "tanh"}
    assert names(explain_saved(joint, plan=plan.saving("sigmoid"), options=PLAIN).others) == {"mul"}


def test_edits_change_costs_and_are_undone_by_their_opposite():
    plan = explain_saved(network_joint(), options=PLAIN)
    (exp,) = (e for e in plan.saved if e.name == "exp")
    (moved,) = (e for e in plan.recomputing("exp").again if e.name == "exp")
    assert (moved.seconds, moved.instead) == (exp.instead, exp.seconds)
    back = plan.recomputing("exp").saving("exp")
    assert {(e.name, e.seconds) for e in back.saved} == {(e.name, e.seconds) for e in plan.saved}
    assert plan.saving("exp").saved == plan.saved
    assert Plan.from_json(back.to_json()) == back
    assert "with a peak of" in str(plan)
    assert "with a peak of" not in str(back)


def test_an_edit_of_what_is_not_there_names_what_is():
    plan = explain_saved(network_joint(), options=PLAIN)
    with pytest.raises(
        UnknownName, match=r"unknown value of the plan 'sin'. Did you mean 'sigmoid'.*Known: .*exp, mm, mul"
    ):
        plan.saving("sin")


def test_what_draws_random_numbers_is_never_computed_again():
    joint = joint_of(dropping, leaf(4, 4), leaf(4, 4))
    plan = explain_saved(joint, options=PLAIN)
    random = [e.name for e in plan.saved if "random" in e.reason]
    assert len(random) == 2  # the mask, and the result
    with pytest.raises(BadOption, match=f"{random[0]} cannot be recomputed. .*draws random numbers"):
        plan.recomputing(random[0])
    by_hand = plan.to_json()
    by_hand["saved"] = [e for e in by_hand["saved"] if e["name"] not in random]
    for use in (partition_fn, explain_saved):
        with pytest.raises(BadOption, match=r"native_dropout must not be recomputed: .*random numbers") as error:
            use(joint, plan=Plan.from_json(by_hand))
        assert any(f"`plan.saving({name!r})`" in str(error.value) for name in random)


def test_an_edit_that_would_draw_again_says_what_to_save_for_it():
    joint = joint_of(lambda x: F.dropout(x, 0.5).exp().sum(), leaf(4, 4))
    plan = explain_saved(joint, options=PLAIN).recomputing("exp")
    with pytest.raises(BadOption, match=r"backward needs exp, which is recomputed from it.* random numbers") as error:
        partition_fn(joint, plan=plan)
    assert "Save getitem, with `plan.saving('getitem')`" in str(error.value)
    parts = partition_fn(joint, plan=plan.saving("getitem"))
    assert aten.exp.default in targets(parts.backward)
    assert aten.native_dropout.default not in targets(parts.backward)


def test_what_is_computed_ahead_is_replayed():
    def layers(x, w):
        for _ in range(8):
            x = torch.layer_norm(x + F.gelu(x @ w) @ w.t(), [16])
        return x.sum()

    joint = joint_of(layers, leaf(32, 16), leaf(16, 16))
    plan = explain_saved(joint, options={**PLAIN, "memory_budget": 0})
    ahead = [e.name for e in plan.again if e.ahead]
    assert ahead
    assert explain_saved(joint, plan=plan, options=PLAIN) == plan
    known = partition_fn(joint, options={**PLAIN, "memory_budget": 0})
    assert targets(partition_fn(joint, plan=plan).backward) == targets(known.backward)
    saved = explain_saved(joint, plan=plan.saving(ahead[-1]), options=PLAIN)
    assert (names(saved.saved) - names(plan.saved), ahead[-1] in names(saved.again)) == ({ahead[-1]}, False)


def test_an_input_that_eager_does_not_hold_is_saved_as_a_copy_or_not_at_all():
    joint = joint_of(lambda x, w: (x + w).exp().sum(), leaf(4, 4), leaf(4, 4))
    plan = explain_saved(joint, options=PLAIN).recomputing("exp")
    with pytest.raises(BadOption, match=r"does not save primals_\d, and the backward needs exp"):
        partition_fn(joint, plan=plan)
    done = explain_saved(joint, plan=plan.saving("primals_1", "primals_2"), options=PLAIN)
    assert done.bytes == 2 * 4 * 16  # both, as copies


def test_what_the_caller_gets_and_eager_holds_stays_saved():
    joint = joint_of(lambda x, w: (x @ w).exp(), leaf(4, 4), leaf(4, 4))
    plan = explain_saved(joint, options=PLAIN)
    with pytest.raises(BadOption, match=r"exp cannot be recomputed.* saved by eager as well"):
        plan.recomputing("exp")


def test_what_writes_a_buffer_is_never_computed_again():
    norm = torch.nn.BatchNorm1d(4)

    def program(x, w):
        return norm(x @ w).exp().sum()

    joint = joint_of(program, leaf(4, 4), leaf(4, 4))
    plan = explain_saved(joint, options=PLAIN)
    by_hand = plan.to_json()
    by_hand["saved"] = [e for e in by_hand["saved"] if not e["name"].startswith(("getitem", "exp"))]
    with pytest.raises(BadOption, match=r"must not be recomputed: "):
        partition_fn(joint, plan=Plan.from_json(by_hand))


def test_a_view_is_not_saved_but_what_it_is_of():
    joint = joint_of(lambda x, w: (x @ w).exp().t().sin().sum(), leaf(4, 4), leaf(4, 4))
    plan = explain_saved(joint, options=PLAIN)
    with pytest.raises(BadOption, match=r"t cannot be saved. Its reason in the plan: a view"):
        plan.saving("t")
    by_hand = plan.to_json()
    by_hand["saved"] += [e for e in by_hand["again"] if e["name"] == "t"]
    with pytest.raises(BadOption, match=r"the plan saves t, which is not saved as it is: it is a view. Save exp"):
        partition_fn(joint, plan=Plan.from_json(by_hand))


# ------------------------------------------------------------------------------------------------ as an option of a compile

SCRIPT = """
import json, sys, torch, eductor
from eductor.partition import read_plans, write_plans
sys.path.insert(0, sys.argv[1])
from test_plan_replay import explained, gradients, inputs_of_two, two_graphs

plans = read_plans(sys.argv[2]) if len(sys.argv) > 3 else []
write_plans(sys.argv[-1], explained(two_graphs, *inputs_of_two(), plans=plans, memory_budget=1 if plans else 0.4))
"""


def two_graphs(x, w):
    x = F.layer_norm((x @ w).exp().sin(), [8]) @ w
    torch._dynamo.graph_break()
    return (F.gelu(x).cos() @ w).softmax(-1).square().sum()


def inputs_of_two():
    return torch.randn(16, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)


def test_plans_of_one_process_are_done_in_another(tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for files in ([first], [first, second]):
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "no plan fits" not in done.stderr
    given, found = read_plans(first), read_plans(second)
    assert len(given) == 2
    assert found == given
    assert given != explained(two_graphs, *inputs_of_two())
    assert given == explained(two_graphs, *inputs_of_two(), memory_budget=0.4)


def test_an_edited_plan_holds_and_gradients_are_those_of_eager():
    inputs = inputs_of_two()
    plans = explained(two_graphs, *inputs)
    edited = [plan.recomputing(*(e.name for e in plan.saved if e.bytes and e.instead is not None)) for plan in plans]
    torch._dynamo.reset()
    done = explained(two_graphs, *inputs, plans=edited)
    assert [plan.bytes for plan in done] == [0, 0]
    assert all(plan.bytes for plan in plans)
    torch._dynamo.reset()
    compiled = eductor.compile(two_graphs, plans=edited, strict=True, **PLAIN)
    for expected, found in zip(gradients(two_graphs, inputs), gradients(compiled, inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_an_edited_plan_draws_the_random_numbers_of_eager_once():
    inputs, options = inputs_of_two(), {**PLAIN, "fallback_random": True}
    (plan,) = explained(dropping, *inputs, **options)
    edited = plan.recomputing(*(e.name for e in plan.saved if e.instead is not None))
    assert edited.bytes < plan.bytes
    torch._dynamo.reset()
    compiled = eductor.compile(dropping, plans=[edited], strict=True, **options)
    for expected, found in zip(gradients(dropping, inputs), gradients(compiled, inputs), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_graph_that_no_plan_fits_is_partitioned_as_usual_with_a_warning():
    inputs = inputs_of_two()
    (plan,) = explained(network, leaf(8, 8), leaf(8, 8))
    torch._dynamo.reset()
    with pytest.warns(EductorWarning, match=r"no plan fits the joint graph .* plan has \d+, and \d+ others"):
        found = explained(dropping, *inputs, plans=plan)
    torch._dynamo.reset()
    assert found == explained(dropping, *inputs)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"no plan fits the joint graph .*Recreate it"):
        eductor.compile(dropping, plans=plan, strict=True, **PLAIN)(*inputs)


def test_a_plan_that_may_not_be_done_is_an_error_of_the_compile():
    inputs = inputs_of_two()
    (plan,) = explained(dropping, *inputs, fallback_random=True)
    by_hand = plan.to_json()
    by_hand["others"] += by_hand["saved"]
    by_hand["saved"] = []
    torch._dynamo.reset()
    with pytest.raises(Exception, match="must not be recomputed: draws random numbers"):
        eductor.compile(dropping, plans=[Plan.from_json(by_hand)], fallback_random=True, **PLAIN)(*inputs)


def test_what_is_no_plan_is_refused_at_once(tmp_path):
    with pytest.raises(BadOption, match=r"option plans: 'plans.json' is not a plan. .*read_plans"):
        eductor.compile(network, plans="plans.json")
    with pytest.raises(BadOption, match="is not a file of plans"):
        read_plans(tmp_path / "missing.json")
    write_plans(tmp_path / "empty.json", [])
    assert read_plans(tmp_path / "empty.json") == []


def test_inference_needs_no_plan(recwarn):
    (plan,) = explained(network, leaf(8, 8), leaf(8, 8))
    torch._dynamo.reset()
    eductor.compile(torch.sin, plans=plan, strict=True, **PLAIN)(torch.ones(3))
    assert not [w for w in recwarn if issubclass(w.category, EductorWarning)]
