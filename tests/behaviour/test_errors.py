"""Errors inside of a model: eager's type and message, nothing left half done, and the next call works."""

from __future__ import annotations

import functools

import pytest
import torch

import eductor
from behaviour.programs import Mlp, assert_same, both

exact = functools.partial(eductor.compile, profile="exact")


def error_of(call):
    try:
        call()
    except Exception as error:
        return error
    pytest.fail("nothing was raised")


class Guarded(torch.nn.Module):
    """Raises by itself where it does not like its input."""

    def __init__(self):
        super().__init__()
        self.inner = Mlp()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        if x.shape[1] != 8:
            raise ValueError(f"width {x.shape[1]}: it must be 8")
        return self.inner(x)


def test_errors_that_a_model_raises_are_its_own():
    def script(compile):
        model = Guarded()
        step = compile(model)
        good, bad = torch.randn(4, 8), torch.randn(4, 7)
        seen = [step(good), error_of(lambda: step(bad)), step(good), error_of(lambda: step(bad))]
        return seen, model.calls.clone()

    assert_same(*both(script, exact))


RAISING = {
    "embedding": (lambda x, k: torch.nn.functional.embedding(k, x), torch.tensor([1, 9])),
    "index": (lambda x, k: x[k] * 2, torch.tensor([1, 9])),
    "gather": (lambda x, k: x.gather(0, k), torch.full((1, 3), 9)),
    "cross_entropy": (lambda x, k: torch.nn.functional.cross_entropy(x, k), torch.tensor([0, 1, 9])),
    "cholesky": (lambda x, k: torch.linalg.cholesky(x @ x.t() + k * torch.eye(3)), torch.tensor(-99.0)),
    "inverse": (lambda x, k: torch.linalg.inv(x * k), torch.tensor(0.0)),
    "multinomial": (lambda x, k: torch.multinomial(x.abs() * k, 1), torch.tensor(-1.0)),
    "one_hot": (lambda x, k: torch.nn.functional.one_hot(k, 3) * x.sum(), torch.tensor([0, -2])),
}
GOOD = {name: torch.tensor(1.0) for name in ("cholesky", "inverse", "multinomial")} | {
    "gather": torch.zeros(1, 3).long()
}


@pytest.mark.parametrize("name", RAISING)
def test_errors_of_kernels_are_eagers(name):
    """Torch's kernels in Python may put the operator's name in front of the message."""
    program, bad = RAISING[name]
    good = GOOD.get(name, torch.zeros_like(bad))

    def script(compile):
        x = torch.randn(3, 3, requires_grad=True)
        step = compile(lambda x, k: program(x, k))
        first, error, again = step(x, good), error_of(lambda: step(x, bad)), step(x, good)
        if again.requires_grad:
            again.sum().backward()
        return (first.detach(), type(error), again.detach(), x.grad), str(error)

    (expected, message), (got, our_message) = both(script, exact)
    assert_same(expected, got)
    assert our_message.removeprefix(f"{name}: ") == message


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_an_error_leaves_parameters_and_the_next_call_as_they_were(engine):
    def script(compile):
        model = torch.nn.Sequential(torch.nn.Embedding(8, 8), Mlp())
        step = compile(model)
        good, bad = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 99])
        first = step(good)
        error = error_of(lambda: step(bad))
        step(good).sum().backward()
        return first, isinstance(error, (IndexError, RuntimeError)), [p.grad for p in model.parameters()]

    assert_same(*both(script, functools.partial(eductor.compile, engine=engine)), close=True)


def test_shapes_that_do_not_fit_are_named_as_with_inductor():
    def message(compile):
        torch._dynamo.reset()
        return error_of(lambda: compile(lambda a, b: (a @ b).sin())(torch.randn(2, 3), torch.randn(4, 5)))

    inductor, ours = message(torch.compile), message(exact)
    assert type(ours) is type(inductor)
    assert str(ours) == str(inductor)


class Refuses(torch.autograd.Function):
    """Raises in the backward, once the switch is on."""

    broken = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if Refuses.broken:
            raise ValueError("no way back")
        return grad * 2


def test_an_error_in_the_backward_of_a_function():
    refuses = torch._dynamo.disable(Refuses.apply)

    def script(compile):
        model = Mlp()
        step, x = compile(lambda x: refuses(model(x)).sin()), torch.randn(4, 8)
        Refuses.broken = True
        error = error_of(step(x).sum().backward)
        grads = [p.grad for p in model.parameters()]
        Refuses.broken = False
        step(x).sum().backward()
        return error, grads, [p.grad for p in model.parameters()]

    assert_same(*both(script, exact))


def test_an_error_in_a_hook_of_a_gradient():
    def script(compile):
        model = Mlp()
        step, x = compile(model), torch.randn(4, 8)
        handle = model.up.weight.register_hook(lambda grad: 1 / 0)
        error = error_of(step(x).sum().backward)
        handle.remove()
        model.zero_grad()
        step(x).sum().backward()
        return error, [p.grad for p in model.parameters()]

    assert_same(*both(script, exact))


def test_a_gradient_of_another_shape_is_refused_as_in_eager():
    def script(compile):
        step = compile(lambda x, y: (torch.linalg.cholesky(x) * y).sum())
        x = torch.eye(3).requires_grad_()
        loss = step(x, torch.ones(3, 3))
        error = error_of(lambda: loss.backward(torch.ones(2)))
        step(x, torch.ones(3, 3)).backward()
        return error, x.grad

    assert_same(*both(script, exact))


def test_a_second_backward_is_refused_as_in_eager():
    def script(compile):
        model = Mlp()
        loss = compile(model)(torch.randn(4, 8)).sum()
        loss.backward()
        return error_of(loss.backward), [p.grad for p in model.parameters()]

    assert_same(*both(script, exact))


def test_an_output_that_was_written_before_the_backward_is_refused_as_in_eager():
    def script(compile):
        x = torch.randn(3, requires_grad=True)
        out = compile(lambda x: x.exp())(x)
        out.mul_(2)
        error = error_of(out.sum().backward)
        return type(error), "modified by an inplace operation" in str(error)

    assert_same(*both(script, exact))


def test_an_interrupted_call_leaves_the_compiled_function_usable():
    class Stop(BaseException):
        pass

    def script(compile):
        model, stop = Mlp(), [True]

        @torch._dynamo.disable
        def interrupts(x):
            if stop[0]:
                raise Stop("now")
            return x

        step, x = compile(lambda x: interrupts(model(x)).sin()), torch.randn(4, 8)
        with pytest.raises(Stop, match="now"):
            step(x)
        stop[0] = False
        step(x).sum().backward()
        return [p.grad for p in model.parameters()]

    assert_same(*both(script, exact))


@pytest.mark.parametrize("trains", [False, True])
def test_a_warning_names_the_line_of_the_user(trains):
    def failing(job):
        raise ValueError("no")

    run = eductor.compile(lambda x: x.sin(), engine=failing)
    with pytest.warns(eductor.EductorWarning) as caught:
        run(torch.ones(3, requires_grad=trains)).sum().backward() if trains else run(torch.ones(3))
    assert {w.filename for w in caught} == {__file__}


@pytest.mark.parametrize("wrong", [lambda outputs: outputs[:-1], lambda outputs: [*outputs, None], lambda outputs: 3])
@pytest.mark.parametrize("trains", [False, True])
def test_an_engine_that_returns_a_wrong_number_of_outputs(wrong, trains):
    def engine(job):
        return lambda inputs: wrong(list(job.module(*inputs)))

    x = torch.ones(3, requires_grad=trains)
    with pytest.raises(eductor.EductorError, match=r"'engine' returned .* for a forward graph with \d outputs"):
        eductor.compile(lambda x: (x.sin(), x.cos()), engine=engine)(x)


def test_an_engine_that_returns_too_few_gradients():
    def engine(job):
        return lambda inputs: list(job.module(*inputs))[: -1 if job.is_backward else None]

    x = torch.ones(3, requires_grad=True)
    y = eductor.compile(lambda x: x.sin(), engine=engine)(x)
    with pytest.raises(eductor.EductorError, match="0 values for a backward graph with 1 outputs"):
        y.sum().backward()
