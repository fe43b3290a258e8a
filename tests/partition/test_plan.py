"""A plan says what is saved and why, goes to JSON and back, and parts the same graph again."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from eductor.cost import device_of
from eductor.errors import BadOption
from eductor.options import Options
from eductor.partition import BudgetStep, Plan, explain_saved, memory_curve, partition_fn
from eductor.partition.curve import step_for
from eductor.partition.liveness import Liveness
from eductor.partition.node_info import classify
from eductor.partition.prices import priced
from eductor.partition.problem import Choice

sys.path.insert(0, str(Path(__file__).parent.parent / "autograd"))
from tracing import joint_of, targets

aten = torch.ops.aten

FUSING, PLAIN = Options(engine="inductor"), Options(engine="aten")


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def network(x, w, v):
    return (F.dropout(F.gelu(x @ w), 0.2) @ v).softmax(-1).sum()


def network_joint():
    return joint_of(network, leaf(8, 8), leaf(8, 16), leaf(16, 8))


def by_operator(joint, entries):
    """The reasons of a plan, by the operator of each value."""
    nodes = {node.name: node for node in joint.module.graph.nodes}
    return {nodes[e.name].target if nodes[e.name].op == "call_function" else nodes[e.name].op: e for e in entries}


def test_each_value_has_its_bytes_and_a_reason():
    joint = network_joint()
    plan = explain_saved(joint, options=FUSING)
    saved = by_operator(joint, plan.saved)
    assert saved[aten.mm.default].reason == "a matrix product"
    assert saved[aten.mm.default].bytes == 4 * 8 * 16
    assert saved["placeholder"].reason == "an input"
    assert saved["placeholder"].bytes == 0
    random = [e for e in plan.saved if "random" in e.reason]
    assert random
    assert all(e.instead is None for e in random)
    assert plan.bytes == sum(e.bytes for e in plan.saved)
    text = str(plan)
    assert "must not be recomputed: draws random numbers" in text
    assert f"{plan.bytes:,} bytes are saved" in text


def test_less_budget_computes_more_again_and_says_why():
    def program(x, w):
        for _ in range(4):
            x = ((x @ w).sin() @ w).softmax(-1)
        return x.sum()

    joint = joint_of(program, leaf(8, 8), leaf(8, 8))
    plans = [explain_saved(joint, options=Options(engine="aten", memory_budget=b)) for b in (1, 0.5, 0)]
    assert plans[0].bytes > plans[1].bytes > plans[2].bytes
    assert plans[0].seconds < plans[1].seconds < plans[2].seconds
    assert "to save memory" in {e.reason for e in plans[2].again}


def test_a_plan_goes_to_json_and_back_and_is_replayed():
    joint = network_joint()
    plan = explain_saved(joint, options=Options(engine="aten", memory_budget=0.5))
    again = Plan.from_json(json.dumps(plan.to_json()))
    assert again == plan
    other = network_joint()  # the same program, traced anew
    replayed = partition_fn(other, plan=again)
    known = partition_fn(joint, options=Options(engine="aten", memory_budget=0.5))
    assert targets(replayed.forward) == targets(known.forward)
    assert targets(replayed.backward) == targets(known.backward)
    assert replayed.saved == known.saved


def test_a_plan_of_another_graph_is_an_error():
    plan = explain_saved(network_joint(), options=PLAIN)
    with pytest.raises(BadOption, match=r"the plan has .*made for another graph"):
        partition_fn(joint_of(lambda x: x.sin().sum(), leaf(3)), plan=plan)
    with pytest.raises(BadOption, match="not a plan of the format 1"):
        Plan.from_json("{}")


def test_a_pointwise_value_is_computed_again_where_it_fuses_and_kept_where_it_does_not():
    def program(x, w):
        return ((x @ w).relu() * x).square().sum()

    joint = joint_of(program, leaf(8, 8), leaf(8, 8))
    fused, plain = (explain_saved(joint, options=o) for o in (FUSING, PLAIN))
    assert by_operator(joint, fused.again)[aten.mul.Tensor].reason == "fuses into its reader"
    assert aten.mul.Tensor in by_operator(joint, plain.saved)
    assert fused.bytes < plain.bytes


def test_a_weight_in_another_dtype_is_made_again_where_that_fuses():
    layer = torch.nn.Linear(8, 8, bias=False)

    def program(x):
        return (x @ layer.weight.to(torch.bfloat16)).float().sum()

    joint = joint_of(program, leaf(4, 8).to(torch.bfloat16))
    fused, plain = (explain_saved(joint, options=o).bytes for o in (FUSING, PLAIN))
    assert fused == 0
    assert plain == 2 * 8 * 8


def test_all_is_saved_that_the_backward_reads_if_nothing_is_to_be_computed_again():
    def program(x, w):
        return ((x @ w).relu() * x).square().sum()

    joint = joint_of(program, leaf(8, 8), leaf(8, 8))
    plan = explain_saved(joint, options=Options(engine="inductor", recompute=False))
    assert {e.reason for e in plan.again} == {"a view"}


def test_the_input_of_a_region_is_saved_and_what_is_inside_is_not():
    def program(x, w):
        for _ in range(3):
            x = checkpoint(lambda x: (x @ w).sin() @ w, x, use_reentrant=False)
        return x.sum()

    joint = joint_of(program, leaf(4, 4), leaf(4, 4))
    for options in (FUSING, PLAIN, Options(engine="aten", memory_budget=0.5)):
        plan = explain_saved(joint, options=options)
        reasons = [e.reason for e in plan.saved if e.bytes]
        assert reasons == ["an input of a checkpointed region"] * 2
        assert "requested by its checkpointing" in {e.reason for e in plan.again}


def checkpointed_joint(saves):
    """Two matrix products whose results a policy saves, or would like to."""

    def policy(ctx, op, *args, **kwargs):
        return saves if op is aten.mm.default else CheckpointPolicy.MUST_RECOMPUTE

    def block(x, w):
        return ((x @ w).sin() @ w).cos()

    def program(x, w):
        context = functools.partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(block, x, w, use_reentrant=False, context_fn=context).sum()

    return joint_of(program, leaf(4, 4), leaf(4, 4))


def test_what_checkpointing_prefers_to_save_is_saved_if_there_is_room_for_it():
    joint = checkpointed_joint(CheckpointPolicy.PREFER_SAVE)
    full, half, none = (
        explain_saved(joint, options=Options(engine="aten", memory_budget=b)).bytes for b in (1, 0.5, 0)
    )
    assert (full, half, none) == (2 * 64, 64, 0)


def test_selective_checkpointing_is_honoured_at_each_budget():
    joint = checkpointed_joint(CheckpointPolicy.MUST_SAVE)
    for budget in (1, 0.3, 0):
        plan = explain_saved(joint, options=Options(engine="inductor", memory_budget=budget))
        saved = [e.reason for e in plan.saved if e.bytes]
        assert saved == ["requested by its checkpointing"] * len(saved)
        assert len(saved) == 2
        assert aten.sin.default in by_operator(joint, plan.again)


def layers(x, w):
    for _ in range(8):
        x = torch.layer_norm(x + F.gelu(x @ w) @ w.t(), [16])
    return x.sum()


def attention(x, w):
    for _ in range(4):
        x = x + torch.softmax(x @ w @ x.t(), -1) @ x.tanh()
    return x.sum()


def uneven(x, w):
    wide = (x @ w).relu()
    for _ in range(3):
        x = (x @ w).sigmoid() + wide.mean()
    return (x * wide.exp()).sum()


@pytest.mark.parametrize("options", [FUSING, PLAIN], ids=["fusing", "plain"])
@pytest.mark.parametrize("program", [layers, attention, uneven])
def test_bytes_and_peak_fall_along_the_curve_and_time_rises(program, options):
    steps = memory_curve(joint_of(program, leaf(32, 16), leaf(16, 16)), options=options)
    sizes, peaks, times = zip(*((s.bytes, s.peak, s.picoseconds) for s in steps), strict=True)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert list(peaks) == sorted(peaks, reverse=True)
    assert list(times) == sorted(times)
    assert sizes[-1] == 0
    assert all(step.bytes <= step.budget * sizes[0] for step in steps)


def test_with_nothing_saved_the_backward_makes_ahead_what_a_larger_budget_saves():
    joint = joint_of(layers, leaf(32, 16), leaf(16, 16))
    *_, last = memory_curve(joint, options=PLAIN)
    assert last.choice.ahead
    info = classify(joint)
    found = priced(info, device_of(torch.device("cpu"), PLAIN))
    once = Liveness(info, device_of(torch.device("cpu"), PLAIN)).peak(found.chosen(last.choice.kept))
    assert last.peak < 0.8 * once
    plan = explain_saved(joint, options=replace(PLAIN, memory_budget=0))
    assert (plan.bytes, plan.peak) == (last.bytes, last.peak)
    assert {e.name for e in plan.again if e.ahead} == {n.name for n in found.chosen(last.choice.ahead)}
    twice = targets(partition_fn(joint, plan=Plan.from_json(plan.to_json())).backward).count(aten.gelu.default)
    assert 8 < twice <= 16


def test_a_budget_counts_as_the_next_smaller_one_on_the_curve():
    none = Choice(frozenset(), frozenset())
    steps = [BudgetStep(b, none, 0, 0, 0) for b in (1.0, 0.75, 0.5, 0.0)]
    assert [step_for(steps, b).budget for b in (1, 0.9, 0.75, 0.6, 0.1, 0)] == [1, 0.75, 0.75, 0.5, 0, 0]


def test_the_peak_counts_what_is_held_at_once():
    """Of `sin` and `cos` one is needed at a time, but what is saved is held to the end."""

    def program(x):
        return (x.sin().cos().tanh() * 2).sum()

    joint = joint_of(program, leaf(1000))
    info = classify(joint)
    device = device_of(torch.device("cpu"), PLAIN)
    liveness = Liveness(info, device)
    alone, more = liveness.peak([]), liveness.peak(info.asked)
    assert alone == 5 * 4000  # three values that are made again, the gradient, and the one that it becomes
    assert more == 4 * 4000  # the two that are saved, the gradient, and the one that it becomes
    assert Liveness(info, replace(device, fuses=True)).peak([]) < alone
