"""The policy `compat` bans what torch's partitioner bans, says so, and saves as many bytes as it does."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._functorch import config as torch_config
from torch._functorch import partitioners as torch_partitioners
from torch._functorch.compile_utils import fx_graph_cse
from torch.utils.checkpoint import checkpoint

import eductor
from eductor.compat import lazy_module
from eductor.cost import bytes_of
from eductor.engines import INDUCTOR
from eductor.errors import BadOption, UnknownName
from eductor.graph.snapshot import copy_of
from eductor.options import BanName, Options
from eductor.partition import explain_saved, memory_curve, partition_fn
from eductor.partition.allowlist import ALLOWED, HEAVY, RANDOM
from eductor.partition.bans import BANS
from eductor.partition.node_info import classify

sys.path.insert(0, str(Path(__file__).parent.parent / "autograd"))
from tracing import joint_of

ALL = get_args(BanName)


def compat(**options):
    return Options(engine="inductor", partition_policy="compat", **options)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


# ------------------------------------------------------------------------------------------------------------ the bans


def running_sum(x, w):
    return (x.cumsum(0).exp() * x.sin()).sum()


def product(x, w):
    return (x @ w).sin().sum()


def read_by_a_product(x, w):
    return (x.sin() @ w).sum()


def row_sums(x, w):
    return (x * x.sum(-1, keepdim=True)).sum()


def near_and_far(x, w):
    h = x.sin()
    return ((h @ w).sin() + h.tanh()).sum()


def chain(x, w):
    x = x.sin()
    for _ in range(120):
        x = x.tanh()
    return x.sum()


PROGRAMS = {
    "not_in_allowlist": (running_sum, "cumsum"),
    "compute_heavy": (product, "mm"),
    "materialized_backward": (read_by_a_product, "sin"),
    "reductions": (row_sums, "sum"),
    "used_far_apart": (near_and_far, "tanh"),
    "long_fusible_chains": (chain, "tanh"),
}


def plan_of(ban, **options):
    program, _ = PROGRAMS[ban]
    return explain_saved(traced(program, leaf(16, 64), leaf(64, 64)), options=compat(**options))


def traced(program, *inputs):
    return joint_of(program, *inputs, decompositions=INDUCTOR.decompositions(Options()))


def banned_by(plan, ban):
    return [entry for entry in plan.saved if entry.reason.startswith(f"the ban {ban}: ")]


def operators(entries):
    return {entry.name.rstrip("0123456789").rstrip("_") for entry in entries}


def test_each_ban_is_a_row_of_the_table_with_a_reason_of_its_own():
    assert tuple(row.name for row in BANS) == ALL == tuple(PROGRAMS)
    assert len({row.reason for row in BANS}) == len(BANS)


@pytest.mark.parametrize("ban", ALL)
def test_a_ban_saves_what_is_computed_again_without_it_and_the_plan_says_which(ban):
    alone, none = plan_of(ban, bans=ban), plan_of(ban, bans=())
    operator = PROGRAMS[ban][1]
    assert operators(banned_by(alone, ban)) == {operator}
    assert operator not in operators(none.saved)
    assert operator in operators(none.again)
    assert alone.bytes > none.bytes


@pytest.mark.parametrize("ban", [ban for ban in ALL if ban != "compute_heavy"])
def test_without_one_ban_the_others_still_hold(ban):
    every, rest = plan_of(ban), plan_of(ban, bans=[other for other in ALL if other != ban])
    assert banned_by(every, ban)
    assert not banned_by(rest, ban)
    assert [entry.key for entry in every.saved] != [entry.key for entry in rest.saved]


def test_a_product_is_in_two_bans():
    assert banned_by(plan_of("compute_heavy"), "not_in_allowlist")
    rest = [ban for ban in ALL if ban != "not_in_allowlist"]
    assert banned_by(plan_of("compute_heavy", bans=rest), "compute_heavy")
    assert not banned_by(plan_of("compute_heavy", bans=rest[1:]), "compute_heavy")


@pytest.mark.parametrize("ban", ALL)
def test_aggressive_recomputation_keeps_the_bans_of_products_and_reductions(ban):
    plan = plan_of(ban, aggressive_recomputation=True)
    assert bool(banned_by(plan, ban)) == (ban in ("compute_heavy", "reductions"))


def test_an_item_of_a_banned_tuple_is_saved_by_the_ban_of_the_tuple():
    joint = joint_of(lambda x: F.layer_norm(x, [64]).sin().sum(), leaf(16, 64))
    entries = banned_by(explain_saved(joint, options=compat()), "not_in_allowlist")
    assert operators(entries) == {"getitem"}


def test_what_checkpointing_asks_for_is_computed_again_whatever_is_banned():
    def program(x, w):
        return checkpoint(lambda x: (x @ w).sin() @ w, x, use_reentrant=False).sum()

    plan = explain_saved(joint_of(program, leaf(8, 8), leaf(8, 8)), options=compat())
    assert {entry.reason for entry in plan.saved} == {"an input"}
    assert "mm" in operators(plan.again)


def test_sizes_are_saved_and_shapes_may_be_symbols():
    def program(x, w):
        return (x @ w).softmax(-1).view(-1, w.shape[1]).tanh().mean()

    plan = explain_saved(joint_of(program, leaf(12, 7), leaf(7, 9), dynamic=True), options=compat(bans=()))
    assert {entry.reason for entry in plan.saved} == {"an input", "a size"}
    assert {"mm", "_softmax", "tanh"} <= operators(plan.again)


# --------------------------------------------------------------------------------------------------------- the options


def test_bad_values_are_errors_that_name_the_allowed_ones():
    with pytest.raises(BadOption, match="one of priced, compat"):
        Options(partition_policy="stock")
    with pytest.raises(UnknownName, match=r"unknown ban 'reduction'. Did you mean 'reductions'\?"):
        compat(bans=["reduction"])
    with pytest.raises(BadOption, match="must be names of bans"):
        compat(bans=[3])
    with pytest.raises(BadOption, match="aggressive_recomputation='yes': it must be True or False"):
        compat(aggressive_recomputation="yes")


@pytest.mark.parametrize("options", [{"bans": ["reductions"]}, {"aggressive_recomputation": True}], ids=str)
def test_bans_without_the_policy_are_an_error(options):
    with pytest.raises(BadOption, match=r"they apply to partition_policy='compat'"):
        Options(**options)


def test_a_budget_is_an_error_that_says_how_to_save_less():
    with pytest.raises(BadOption, match=r"less memory needs fewer bans.*partition_policy='priced'"):
        compat(memory_budget=0.5)
    with pytest.raises(BadOption, match="fewer bans"):
        memory_curve(joint_of(chain, leaf(8, 8), leaf(8, 8)), options=compat())


# ----------------------------------------------------------------------------------------------------------- gradients


class Block(nn.Module):
    """A layer of a small transformer."""

    def __init__(self, width=32, dropout=0.0):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, -1)
        x = x + self.out(F.dropout((q @ k.mT / 4).softmax(-1), self.dropout, self.training) @ v)
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def transformer(dropout=0.0):
    return nn.Sequential(*(Block(dropout=dropout) for _ in range(3)))


def perceptron():
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.SiLU()) for _ in range(4)))


def convolutions():
    parts = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(*parts, nn.Flatten(1), nn.Linear(4 * 64, 8))


MODELS = {
    "transformer": (lambda: transformer(0.2), (2, 8, 32)),
    "perceptron": (perceptron, (8, 32)),
    "convolutions": (convolutions, (2, 4, 8, 8)),
}


def gradients(model, fn, x):
    torch.manual_seed(3)
    for _ in range(2):  # the second step sees what the first one wrote
        fn(x).square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters()), *model.buffers()]


@pytest.mark.parametrize("options", [{}, {"aggressive_recomputation": True}, {"bans": ()}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_eagers(name, options):
    make, shape = MODELS[name]
    torch.manual_seed(0)
    eager = make().double().train()
    model = copy.deepcopy(eager)
    x, y = (torch.ones(shape, dtype=torch.float64).cumsum(-1).requires_grad_() for _ in range(2))
    expected = gradients(eager, eager, x)
    kept = {"fallback_random": True, "strict": True, "partition_policy": "compat", **options}
    got = gradients(model, eductor.compile(model, engine="aten", **kept), y)
    torch.testing.assert_close(got, expected)


# ---------------------------------------------------------------------------------------------- beside torch's own


def test_the_lists_are_those_of_torch():
    theirs = torch_partitioners.get_default_op_list()
    cheap = [op for op in theirs.recomputable_ops if isinstance(op, torch._ops.OpOverloadPacket)]
    named = frozenset().union(*(kind.names for kind in ALLOWED))
    assert named == names(op for op in cheap if not is_tagged(op))
    assert HEAVY.names == names(theirs.compute_intensive_ops)
    assert RANDOM.names == names(theirs.random_ops)


def names(packets):
    return {packet._qualified_op_name for packet in packets}


def is_tagged(packet):
    return any(torch.Tag.pointwise in getattr(packet, form).tags for form in packet.overloads())


def joint_of_model(model, *shape):
    """A joint graph without repetitions, which torch's partitioner would drop first."""
    joint = traced(lambda x: model(x).square().mean(), leaf(*shape))
    return replace(joint, module=lazy_module(joint.module, fx_graph_cse(joint.module.graph)))


def saved_by_torch(joint, **settings):
    module = lazy_module(joint.module, copy_of(joint.module.graph))
    count, static = len(joint.analysis.returns), sorted(joint.static)
    with torch_config.patch(settings):
        _, backward = torch_partitioners.min_cut_rematerialization_partition(
            module, None, num_fwd_outputs=count, static_lifetime_input_indices=static
        )
    return handed_over(joint, backward)


def saved_by_us(joint, **options):
    return handed_over(joint, partition_fn(joint, options=compat(**options)).backward)


def handed_over(joint, backward):
    """The bytes of what a backward takes, inputs of the forward and views of them aside: torch saves views, too."""
    nodes = {node.name: node for node in joint.module.graph.nodes}
    taken = [nodes[node.name] for node in backward.graph.find_nodes(op="placeholder")]
    return sum(bytes_of(node) for node in taken if classify(joint).base(node).op != "placeholder")


SETTINGS = {
    "as it is": ({}, {}),
    "aggressive": ({"aggressive_recomputation": True}, {"aggressive_recomputation": True}),
    **{
        f"without {ban}": ({"bans": [b for b in ALL if b != ban]}, {f"ban_recompute_{ban}": False})
        for ban in ALL
        if ban != "compute_heavy"
    },
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("make", [transformer, perceptron], ids=["transformer", "perceptron"])
def test_as_many_bytes_are_saved_as_by_torch(make, setting):
    ours, theirs = SETTINGS[setting]
    joint = joint_of_model(make(), 4, 16, 32)
    assert saved_by_us(joint, **ours) == saved_by_torch(joint, **theirs) > 0


def test_a_mask_that_the_backward_makes_is_not_made_in_the_forward():
    """torch's partitioner makes it there: of each element it saves one byte, we save the four that the mask is made of."""
    layer = nn.Linear(32, 32)
    joint = joint_of_model(lambda x: layer(x).relu().sum(-1), 16, 32)
    sums = 4 * 16
    assert (saved_by_us(joint), saved_by_torch(joint)) == (4 * 16 * 32 + sums, 16 * 32 + sums)
