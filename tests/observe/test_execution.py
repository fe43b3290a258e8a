"""Graphs run on chosen inputs: what is written, drawn, shared and differentiated is seen, and nothing outside changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from eductor.graph import capture
from eductor.graph.values.value_comparison import bits_equal, unlike_bits, unlike_rounding
from eductor.verification.execution import RunMode, observe, why_not_run
from eductor.verification.samples import KINDS, CannotRun, fits, made_up

NAN, INF = float("nan"), float("inf")


def facts(module, inputs, *manner, **more):
    return dict(observe(module, inputs, *manner, **more).facts())


def test_inputs_and_attributes_are_not_written():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            return x.mul_(2) + self.count.add_(x)

    module, x = symbolic_trace(Model()), torch.ones(3)
    seen = facts(module, [x])
    assert seen["input 0 after the run"].tolist() == [2, 2, 2]
    assert seen["count after the run"].tolist() == [2, 2, 2]
    assert (x.tolist(), module.count.tolist()) == ([1, 1, 1], [0, 0, 0])


def test_sharing_is_seen():
    seen = facts(symbolic_trace(lambda x: (x[1:], x + 1)), [torch.randn(3)])
    assert "input 0" in str(seen["the memory of output 0"])
    assert "put" not in str(seen["the memory of output 1"])


def test_gradients_of_a_captured_graph_with_a_write():
    module = symbolic_trace(lambda x: x.mul_(3).sin())
    x = torch.randn(3, requires_grad=True)
    assert list(observe(module, [x], RunMode(captured=True, gradients=True)).gradients) == ["input 0"]
    assert observe(module, [x]).gradients == {}
    assert x.grad is None


def test_random_draws_are_replayed_whatever_was_drawn_before():
    module = symbolic_trace(lambda x: x + torch.rand_like(x))
    x, state = torch.zeros(5), torch.get_rng_state()
    first = facts(module, [x])["output 0"]
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(7)
    assert torch.equal(first, facts(module, [x])["output 0"])


def test_two_draws_are_two_draws():
    module = symbolic_trace(lambda x: (torch.rand_like(x), torch.rand_like(x)))
    a, b = observe(module, [torch.zeros(5)]).outputs
    assert not torch.equal(a, b)


def test_wide_and_kept_values():
    module = symbolic_trace(lambda x: (x + 1).mul_(2))
    seen = observe(module, [torch.ones(2, dtype=torch.float16)], wide=True, keep=True)
    assert seen.outputs[0].dtype == torch.float64
    assert seen.values["add"].tolist() == [2, 2]  # before the write
    assert seen.values["mul_"].tolist() == [4, 4]


def test_empty_memory_is_the_same_each_time():
    module = symbolic_trace(lambda x: torch.empty_like(x) * 1)
    assert torch.equal(*(observe(module, [torch.ones(99)]).outputs[0] for _ in range(2)))


def noisy(x):
    print("called")
    return x


torch.fx.wrap("noisy")


def test_foreign_functions_are_not_run():
    assert "noisy" in why_not_run(symbolic_trace(lambda x: noisy(x) + 1))
    assert why_not_run(symbolic_trace(lambda x: torch.relu(x) + 1)) == ""


def test_made_up_inputs_have_the_types_asked_for():
    spread = torch.randn(4, 3).t()
    module = capture(lambda x, i: x[0, i], [spread, torch.tensor([0, 1])])
    lists = list(made_up(module))
    assert len(lists) == len(KINDS)
    for x, i in lists:
        assert (x.shape, x.stride(), i.dtype) == (spread.shape, spread.stride(), torch.int64)
    assert any(x.isnan().any() and x.isinf().any() for x, _ in lists)
    zeros = [x for x, _ in lists if (x == 0).any()]
    assert any((x[x == 0].signbit()).any() for x in zeros)
    x, i = module.graph.find_nodes(op="placeholder")
    assert fits(torch.randn(3, 4), x)
    assert not fits(torch.randn(3, 5), x)
    assert not fits(torch.randn(3, 4).double(), x)


def test_an_input_of_unknown_type_cannot_be_made_up():
    with pytest.raises(CannotRun, match="is unknown"):
        next(made_up(symbolic_trace(lambda x: x + 1)))


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([0.0], [-0.0], False),
        ([NAN], [NAN], True),
        ([NAN], [1.0], False),
        ([INF], [-INF], False),
        ([1.0], [1.0], True),
        ([1], [1], True),
        ([1 + 0j], [1 - 0j], False),
        ([True], [False], False),
    ],
)
def test_bits(a, b, same):
    a, b = torch.tensor(a), torch.tensor(b)
    if a.is_complex():
        b = torch.complex(torch.tensor([1.0]), torch.tensor([-0.0]))
    assert bool(bits_equal(a, b).all()) is same
    assert (unlike_bits(a, b) == "") is same


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64), "dtype"),
        (torch.zeros(3), torch.zeros(4), "shape"),
        (torch.zeros(3, 4), torch.zeros(4, 3).t(), "strides"),
        (torch.zeros(3), torch.zeros(3, requires_grad=True), "requires_grad"),
        (torch.zeros(3), nn.Parameter(torch.zeros(3), requires_grad=False), "type"),
        (torch.zeros(3), torch.zeros(3).to_sparse(), "layout"),
        ([1, 2], [1, 2, 3], "2 values and 3"),
        (1, 1.0, "1 and 1.0"),
    ],
)
def test_types(a, b, said):
    assert said in unlike_bits(a, b)
    assert said in unlike_rounding(a, b)


def test_strides_that_nobody_sees_do_not_count():
    assert not unlike_bits(torch.zeros(1, 4), torch.zeros(4, 1).t())
    assert not unlike_bits(torch.zeros(0, 4), torch.zeros(4, 0).t())


def test_roundings_are_judged_by_the_float64_run():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    a = torch.tensor([1.0, 2.0]) * (1 + 1e-6)
    assert not unlike_rounding(a, a * (1 + 2e-6), truth)
    assert "grew" in unlike_rounding(a, a * (1 + 1e-4), truth)
    assert "infinite or NaN" in unlike_rounding(a, torch.tensor([NAN, 2.0]), truth)
    assert not unlike_rounding(a, a * (1 + 1e-5))  # without a judge
    assert unlike_rounding(a, a * (1 + 1e-2))


def test_float64_is_not_judged_as_if_a_run_in_it_did_not_round():
    a = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert not unlike_rounding(a, a * (1 + 2e-15), a)
    assert "grew" in unlike_rounding(a, a * (1 + 1e-13), a)


def test_the_narrowest_dtype_on_the_way_rounds_as_well():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    a, b = truth.float(), truth.float() * (1 + 4e-3)
    assert "grew" in unlike_rounding(a, b, truth)
    assert not unlike_rounding(a, b, truth, torch.bfloat16)
    assert unlike_rounding(a, b)
    assert not unlike_rounding(a, b, None, torch.bfloat16)


def test_what_came_nearer_to_the_float64_run_is_right():
    truth = torch.tensor([1e-4, 2e-4], dtype=torch.float64)
    assert not unlike_rounding(torch.tensor([0.5, -0.5]), truth.float(), truth)


@pytest.mark.parametrize(("was", "now"), [(NAN, 0.0), (INF, 3e38), (INF, -INF), (-INF, NAN)])
def test_what_is_no_number_in_float64_stays_so(was, now):
    a, b = torch.tensor([was, 1.0]), torch.tensor([now, 1.0])
    assert unlike_rounding(a, b, a.double())


def test_an_overflow_that_float64_does_not_have_may_go():
    a, b = torch.tensor([INF, 1.0]), torch.tensor([3e38, 1.0])
    assert not unlike_rounding(a, b, torch.tensor([3e38, 1.0], dtype=torch.float64))
