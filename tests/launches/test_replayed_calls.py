"""Replayed launches on a fake device: the caller sees eager's semantics, whatever he holds."""

from __future__ import annotations

import pytest
import torch
from fake_device import installed
from torch import nn

import eductor
from eductor.launches.decide import Times
from eductor.launches.shape import Shape


@pytest.fixture
def device(monkeypatch):
    return installed(monkeypatch)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))


def compiled(fn):
    return eductor.compile(fn, engine="aten", launches="always")


def test_outputs_that_the_caller_keeps_are_never_overwritten(device):
    net = model().requires_grad_(False)
    fast, kept = compiled(net), []
    for _ in range(10):
        x = torch.randn(4, 8)
        kept.append((fast(x), net(x)))
    assert device.replays > 7
    for got, expected in kept:
        torch.testing.assert_close(got, expected)


def test_training_steps(device):
    net, twin = model(), model()
    fast = compiled(lambda x: net(x).square().mean())
    optimizers = [torch.optim.AdamW(m.parameters()) for m in (net, twin)]
    for _ in range(10):
        x = torch.randn(4, 8)
        losses = fast(x), twin(x).square().mean()
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(*losses)
    assert device.replays > 12


def test_a_large_output_that_the_caller_resizes(device):
    fast = compiled(torch.sin)
    for k in range(6):
        x = torch.full((300, 300), float(k))
        y = fast(x)
        assert torch.equal(y, x.sin())
        y.resize_(400, 400).fill_(9)


def test_an_operator_that_waits_for_the_device(device):
    fast = compiled(lambda x: torch.linalg.solve(x, x))
    for _ in range(4):
        fast(torch.eye(4))
    assert not device.captures


def test_takes_that_do_not_pay_are_dropped(device):
    shape = Shape("slow", trains=False, always=False, share=0.05)
    shape._ordinary = Times(1e-3, 1e-3)
    shape.forward.replays, shape.forward._replayed = 4, [(1e-3, lambda: 1e-3)] * 4
    shape.judge()
    assert "replayed it takes 1.00 ms" in str(shape.refusal)


def test_explain_says_whether_launches_are_replayed(device):
    x, options = torch.randn(4, 8), {"launches": "always"}
    assert "launches replayed where that pays" in str(eductor.explain(torch.sin, x, options=options))
    text = str(eductor.explain(torch.histc, x, options=options))
    assert "launches not replayed: aten.histc.default waits for the device" in text
