"""Memory that somebody holds is not written, and what nobody holds does not keep a program from its replays."""

from __future__ import annotations

import pytest
import torch
from fake_device import installed
from greedy_engine import GREEDY

import eductor
from eductor.launches import take


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(take, "SMALL", 0)
    return installed(monkeypatch)


def compiled(fn, engine="aten"):
    return eductor.compile(fn, engine=engine, launches="always")


def trained(fn, weight, steps):
    for _ in range(steps):
        fn(torch.randn(4, 4), weight).sum().backward()
        weight.grad = None


def test_the_gradient_of_an_ordinary_backward_does_not_stay_in_saved_memory(device):
    fn, weight = compiled(lambda x, w: (x @ w).sin(), GREEDY), torch.randn(4, 4, requires_grad=True)
    trained(fn, weight, 3)
    x = torch.randn(4, 4)
    loss, expected = fn(x, weight).sum(), (x @ weight).sin().sum()
    device.capturing = True
    loss.backward()
    device.capturing = False
    held, weight.grad = weight.grad, None
    trained(fn, weight, 3)
    torch.testing.assert_close(held, *torch.autograd.grad(expected, weight))


def test_a_backward_is_not_captured_in_saved_memory_of_another(device):
    f, g = (compiled(fn) for fn in (lambda x, w: (x @ w).sin(), lambda x, w: (x @ w).cos()))
    weight, x = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    trained(f, weight, 1)
    trained(g, weight, 1)
    other = g(x, weight)
    trained(f, weight, 1)
    pending = f(x, weight)
    other.sum().backward()
    weight.grad = None
    pending.sum().backward()
    torch.testing.assert_close(weight.grad, *torch.autograd.grad((x @ weight).sin().sum(), weight))


def test_a_saved_output_that_nobody_holds_is_free(device):
    fn, weight = compiled(lambda x, w: (x @ w).exp()), torch.randn(4, 4, requires_grad=True)
    trained(fn, weight, 10)
    assert device.replays == 18
