"""Random programs of cats, splits, slices and views: the passes of cats keep values, strides and aliasing."""

from __future__ import annotations

import pytest
import torch
from after_autograd import ran
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eductor.graph.values.value_comparison import is_bitwise_equal
from eductor.passes.concats.claims import (
    move_view_after_cat_aten_pass,
    select_cat_aten_pass,
    split_cat_aten_pass,
    unbind_stack_aten_pass,
)
from eductor.passes.post_grad.pass_patterns import pass_patterns
from eductor.passes.post_grad.reorder_for_locality import reorder_for_locality

PASSES = (
    *(reorder_for_locality, pass_patterns, split_cat_aten_pass, select_cat_aten_pass, unbind_stack_aten_pass),
    move_view_after_cat_aten_pass,
)
STEPS = st.lists(st.tuples(st.integers(0, 6), *[st.integers(0, 11)] * 4), min_size=3, max_size=14)


def program_of(steps, results):
    """A program that always fits: a step that does not is left out."""

    def program(x, y):
        values = [x, y]
        for kind, a, b, c, d in steps:
            p, q = values[a % len(values)], values[b % len(values)]
            dim = c % p.dim()
            size = p.shape[dim]
            if kind == 0 and q.dim() == p.dim() and all(p.shape[i] == q.shape[i] for i in range(p.dim()) if i != dim):
                values.append(torch.cat([p, q] if d % 2 else [p, q, p], dim - p.dim() * (d % 3 == 0)))
            elif kind == 1 and size > 1:
                start = d % size
                values.append(p.narrow(dim, start, max(1, (size - start) // (1 + b % 2))))
            elif kind == 2 and size > 1:
                values.extend(p.split(1 + d % size, dim))
            elif kind == 3:
                values.append(p.sin() if d % 2 else p * 2)
            elif kind == 4 and p.dim() == 2:
                values.append(p.t())
            elif kind == 5 and p.numel() < 200:
                pieces = p.split(1 + d % size, dim)
                values.append(torch.cat(pieces if b % 2 else pieces[::-1], dim))
            elif kind == 6 and p.numel() < 200 and p.dim() == 2:
                values.append(torch.stack(p.unbind(dim), d % 2))
        picked = [values[r % len(values)] for r in results]
        return [value + 0 if value is x or value is y else value for value in picked]

    return program


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.lists(st.integers(0, 30), min_size=1, max_size=3), st.sampled_from(PASSES))
def test_cats_of_pieces_of_cats(steps, results, pass_):
    check(steps, results, pass_)


@pytest.mark.slow
@settings(max_examples=1200, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.lists(st.integers(0, 30), min_size=1, max_size=3), st.sampled_from(PASSES))
def test_cats_of_pieces_of_cats_at_length(steps, results, pass_):
    check(steps, results, pass_)


def check(steps, results, pass_):
    program, inputs = program_of(steps, results), [torch.randn(4, 6), torch.randn(4, 3)]
    module = ran(pass_, program, *inputs).module
    for a, b in zip(module(*inputs), program(*inputs), strict=True):
        assert is_bitwise_equal(a, b)
        assert a.stride() == b.stride()
