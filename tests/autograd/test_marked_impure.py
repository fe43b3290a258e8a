"""Operators that were marked with `torch.fx.node.has_side_effect`: they run as often and in the order as in eager."""

from __future__ import annotations

import pytest
import torch
from torch.fx.node import _side_effectful_functions, has_side_effect

import eductor
from eductor.graph.effects.effect import ACT
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.values.evaluate import propagate

calls: list[str] = []


def _noting(name):
    @torch.library.custom_op(f"eductor_marked::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        calls.append(name)
        return x.sin()

    op.register_fake(lambda x: torch.empty_like(x))
    op.register_autograd(lambda ctx, gradient: gradient * 2)
    return op


first, second = _noting("first"), _noting("second")


@pytest.fixture(autouse=True)
def marked():
    targets = [torch.ops.eductor_marked.first.default, torch.ops.eductor_marked.second.default]
    for target in targets:
        has_side_effect(target)
    calls.clear()
    yield
    _side_effectful_functions.difference_update(targets)


def program(x):
    second(x)
    y = first(x).exp()
    first(x * 2)
    second(x)
    return y * x


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("options", [{"engine": "aten"}, {"profile": "exact"}, {"engine": "inductor"}], ids=str)
def test_they_run_as_in_eager(options, trains):
    x = torch.randn(5, requires_grad=trains)

    def outcome(fn):
        calls.clear()
        y = fn(x)
        return y, torch.autograd.grad(y.sum(), x)[0] if trains else None, tuple(calls)

    expected, run = outcome(program), eductor.compile(program, strict=True, **options)
    for _ in range(2):
        got = outcome(run)
        torch.testing.assert_close(got[:2], expected[:2])
        assert got[2] == expected[2] == ("second", "first", "first", "second")


def test_a_mark_made_later_counts():
    module = torch.fx.symbolic_trace(lambda x: torch.cosh(x))
    propagate(module, [torch.randn(3)])
    (node,) = module.graph.find_nodes(op="call_function", target=torch.cosh)
    assert effect_of(node).removable
    has_side_effect(torch.cosh)
    try:
        assert effect_of(node).kept == effect_of(node).ordered == ACT
    finally:
        _side_effectful_functions.discard(torch.cosh)
