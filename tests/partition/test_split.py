"""The split of a joint graph: what is saved, what is made again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from eductor.graph.effects.legal import violations
from eductor.partition import partition_fn

sys.path.insert(0, str(Path(__file__).parent.parent / "autograd"))
from tracing import joint_of, targets

aten = torch.ops.aten


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def parts_of(fn, *inputs, **options):
    parts = partition_fn(joint_of(fn, *inputs, **options))
    assert violations(parts.forward.graph, "post_grad") == []
    if parts.backward is not None:
        assert violations(parts.backward.graph, "post_grad") == []
        taken = len(parts.backward.graph.find_nodes(op="placeholder"))
        assert taken >= len(parts.sizes) + len(parts.saved) + len(parts.destinations)
    return parts


def test_inference_has_no_backward():
    parts = parts_of(lambda x: x.sin(), torch.randn(3))
    assert parts.backward is None
    assert targets(parts.forward) == [aten.sin.default]


def test_the_backward_computes_what_it_alone_needs():
    parts = parts_of(lambda x: x.sin().sum(), leaf(3))
    assert aten.cos.default in targets(parts.backward)
    assert aten.cos.default not in targets(parts.forward)
    assert [s.source for s in parts.saved] == ["input"]


def test_a_view_is_made_again_and_its_base_is_saved():
    parts = parts_of(lambda x, w: (x @ w.t()).sum(), leaf(3, 4), leaf(5, 4))
    assert {s.source for s in parts.saved} == {"input"}
    assert aten.t.default in targets(parts.backward)


def test_a_saved_input_that_is_overwritten_is_copied():
    def program(x, buf):
        y = x * buf.clone()
        buf.mul_(0.5)
        return y.sum()

    parts = parts_of(program, leaf(3), torch.ones(3))
    assert targets(parts.forward).count(aten.clone.default) >= 1
    assert all(s.source == "output" for s in parts.saved)
    last = targets(parts.forward)[-1]
    assert last is aten.copy_.default


def test_checkpointed_values_are_made_again_and_random_numbers_are_not():
    def block(x, w):
        return F.dropout(torch.tanh(x @ w), 0.5).exp()

    def program(x, w):
        return checkpoint(block, x, w, use_reentrant=False).sum()

    parts = parts_of(program, leaf(3, 4), leaf(4, 4))
    draws = {aten.bernoulli_.float, aten.native_dropout.default, aten.bernoulli.p, aten.rand_like.default}
    again = targets(parts.backward)
    assert aten.tanh.default in again
    assert aten.mm.default in again
    assert not draws & set(again)
    plain = parts_of(lambda x, w: block(x, w).sum(), leaf(3, 4), leaf(4, 4))
    assert aten.tanh.default not in targets(plain.backward)
    assert len(plain.saved) > len(parts.saved)


def test_sizes_are_saved_and_not_the_tensors_they_are_of():
    def program(x, y):
        return (x.sum() * y.shape[0]).exp()

    parts = parts_of(program, leaf(5, 6), torch.randn(7, 2), dynamic=True)
    assert parts.sizes
    values = [p.meta["val"] for p in parts.backward.graph.find_nodes(op="placeholder")]
    symbols = {str(v) for v in values if isinstance(v, torch.SymInt)}
    mentioned = {s for v in values if isinstance(v, torch.Tensor) for n in v.shape for s in [str(n)] if not s.isdigit()}
    assert mentioned <= symbols
    assert not any(isinstance(v, torch.Tensor) and tuple(map(str, v.shape))[-1:] == ("2",) for v in values)


def test_unused_random_numbers_are_still_drawn():
    def program(x):
        F.dropout(x, 0.5)
        return x * 2

    joint = joint_of(program, leaf(3))
    drawn = [n for n in joint.module.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())]
    if not drawn:
        pytest.skip("Dynamo leaves it out")
    assert [t for t in targets(partition_fn(joint).forward) if torch.Tag.nondeterministic_seeded in t.tags]
