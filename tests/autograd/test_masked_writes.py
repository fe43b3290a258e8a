"""Gradients of values that are written through a mask: the graph compiles, though eager's indexing depends on the mask."""

from __future__ import annotations

import functools

import pytest
import torch

import eductor

MASK = torch.tensor([[True, False, True], [False, True, True]])
compiled_by = functools.partial(eductor.compile, strict=True)


def whole(x, values):
    y = x * 2
    y[MASK] = values
    return y.sin()


def rows(x, values):
    y = x * 2
    y[MASK[:, 0]] = values
    return y.sin()


def columns(x, values):
    y = x * 2
    y[:, MASK[1]] = values
    return y.sin()


def in_a_view(x, values):
    y = torch.stack([x, x * 2], 1)
    y[:, 1][MASK] = values
    return y.sin()


def transposed(x, values):
    y = (x * 2).t()
    y[MASK.t()] = values
    return y.sin()


def added(x, values):
    return torch.index_put(x, (MASK,), values, accumulate=True).sin() + torch.index_put(x, (MASK,), values)


CASES = [
    *((program, shape) for program in (whole, in_a_view, transposed, added) for shape in ((), (1,), (4,))),
    *((rows, shape) for shape in ((), (3,), (1, 3), (1, 1))),
    *((columns, shape) for shape in ((), (2,), (2, 1), (1, 2), (2, 2))),
]


def observed(call, shape):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(size, generator=generator).requires_grad_() for size in ((2, 3), shape)]
    result = call(*inputs)
    result.backward(torch.arange(1.0, result.numel() + 1).view(result.shape))
    return [result, *(x.grad for x in inputs)]


def all_cases(call):
    return [observed(call(program), shape) for program, shape in CASES]


@pytest.mark.parametrize("dynamic", [False, True])
def test_values_and_gradients(dynamic):
    def compiled(program):
        torch._dynamo.reset()
        return compiled_by(program, engine="aten", dynamic=dynamic)

    for case, expected, got in zip(CASES, all_cases(lambda program: program), all_cases(compiled), strict=True):
        torch.testing.assert_close(got, expected, msg=str(case))
        assert [x.stride() for x in got] == [x.stride() for x in expected], case


@pytest.mark.parametrize(("program", "shape"), [(whole, ()), (in_a_view, (4,)), (columns, (2, 2))])
def test_values_and_gradients_on_inductor(program, shape):
    torch.testing.assert_close(observed(compiled_by(program), shape), observed(program, shape))


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_a_wrong_number_of_values_raises_as_in_eager(engine):
    for call in (whole, compiled_by(whole, engine=engine)):
        with pytest.raises(RuntimeError, match=r"value tensor of shape \[3\] cannot be broadcast"):
            call(torch.ones(2, 3), torch.ones(3, requires_grad=True))


def test_elements_outside_of_the_mask_do_not_reach_the_gradient():
    x, value = torch.full((2, 3), float("inf")), torch.tensor(2.0, requires_grad=True)
    compiled_by(lambda x, value: whole(x, value) * x, engine="aten")(torch.where(MASK, 1.0, x), value).sum().backward()
    torch.testing.assert_close(value.grad, 4 * torch.tensor(2.0).cos())


def test_exact_writes_element_by_element_and_refuses_to_sum():
    exact = functools.partial(eductor.compile, profile="exact")
    assert all(map(torch.equal, observed(exact(whole, strict=True), (4,)), observed(whole, (4,))))
    with pytest.warns(eductor.EductorWarning, match="written through a mask in the profile 'exact'"):
        got = observed(exact(whole), ())
    assert all(map(torch.equal, got, observed(whole, ())))
