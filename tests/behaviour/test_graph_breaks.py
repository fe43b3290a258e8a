"""Code that Dynamo cannot capture whole: prints, branches on values, side effects, generators."""

from __future__ import annotations

import functools

import pytest
import torch

import eductor
from behaviour.programs import Mlp, assert_same, both

exact = functools.partial(eductor.compile, profile="exact")


def prints(model, x, log):
    h = model(x)
    print("mean", round(h.mean().item(), 4))
    return h * 2


def branches(model, x, log):
    h = model(x)
    if h.sum() > 0:
        return h.sin()
    return h.cos() * 3


def loops_until(model, x, log):
    while x.abs().max() > 0.5:
        x = x * 0.5
        log.append(x.shape)
    return model(x)


def takes_numbers(model, x, log):
    k = int(x.abs().sum().item()) % 3 + 1
    return model(x[:k]) * k


def chooses_rows(model, x, log):
    return model(x[x[:, 0] > 0]).sum(0)


def catches(model, x, log):
    try:
        if x.sum().item() > 0:
            raise ValueError("positive")
        return model(x)
    except ValueError as error:
        log.append(str(error))
        return model(-x)


def leaves_traces(model, x, log):
    h = model(x)
    log.append(h.detach().sum())
    torch._dynamo.graph_break()
    doubled = h.clone()
    doubled.mul_(2)
    return doubled + x.sum()


def writes_before_the_break(model, x, log):
    view = x[1:]
    view.add_(1)
    print(len(log))
    return model(x) + view.sum()


BREAKS = [prints, branches, loops_until, takes_numbers, chooses_rows, catches, leaves_traces, writes_before_the_break]


@pytest.mark.parametrize("program", BREAKS, ids=lambda p: p.__name__)
def test_code_that_breaks_graphs_behaves_as_in_eager(program, capsys):
    def script(compile):
        model, log = Mlp(), []
        step = compile(lambda x: program(model, x, log))
        seen = []
        for sign in (1, -1, 1):
            for n in (4, 5):
                x = torch.randn(n, 8) * sign + sign * 0.3
                out = step(x)
                out.sum().backward()
                seen += [out.detach(), x]
        return seen, log, [p.grad for p in model.parameters()], capsys.readouterr().out

    assert_same(*both(script, exact))


def test_what_breaks_a_graph_is_an_error_where_the_whole_must_be_one():
    def program(x):
        return x.sin() if x.sum() > 0 else x.cos()

    with pytest.raises(torch._dynamo.exc.Unsupported, match="Data-dependent branching"):
        eductor.compile(program, fullgraph=True)(torch.ones(3))
    assert torch.equal(exact(program)(torch.ones(3)), torch.ones(3).sin())


def test_a_model_with_a_part_that_is_not_compiled():
    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = Mlp(), torch.nn.Linear(3, 3)
            self.two.forward = torch._dynamo.disable(self.two.forward)

        def forward(self, x):
            return self.two(self.one(x)).tanh()

    def script(compile):
        model = Outer()
        out = compile(model)(torch.randn(4, 8))
        out.sum().backward()
        return out.detach(), [p.grad for p in model.parameters()]

    assert_same(*both(script, exact))


def test_hooks_on_modules_and_tensors_run_as_in_eager():
    def script(compile):
        model, log = Mlp(), []
        model.up.register_forward_hook(lambda module, args, out: log.append(out.detach().sum()) or out * 2)
        model.norm.weight.register_hook(lambda grad: grad * 3)
        out = compile(model)(torch.randn(4, 8))
        out.register_hook(lambda grad: grad * 5)
        out.sum().backward()
        return out.detach(), log, [p.grad for p in model.parameters()]

    assert_same(*both(script, exact))
