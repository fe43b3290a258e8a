"""Random programs of forwards, backwards and what a caller does between them, beside the same program in plain eager."""

from __future__ import annotations

import copy
import random
from itertools import count
from types import FunctionType, SimpleNamespace

import torch
from fake_device import FakeDevice
from greedy_engine import FUSING, GREEDY
from torch import nn

import eductor
from eductor.launches import live_programs, replayed_graph, take
from eductor.launches.pool import Pool, _pools

CPU = torch.device("cpu")
WIDTH = 6
_numbers = count()
"""Each compiled function has code of its own, as Dynamo counts compiles by code."""


class ItsOwnGradient(torch.autograd.Function):
    """The gradient is a value that the forward saved."""

    @staticmethod
    def forward(ctx, x):
        y = x.sin()
        ctx.save_for_backward(y)
        return y.cos()

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return y


class Net(nn.Module):
    """A net with everything that the functions below use."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.bias = nn.BatchNorm1d(WIDTH), nn.Parameter(torch.ones(WIDTH))


def plain(net, x):
    return (net.second(torch.tanh(net.first(x))),)


def two_outputs(net, x):
    h = net.first(x)
    return h.exp(), (net.second(h) * net.bias).sum()


def shared_memory(net, x):
    y = net.first(x).sin()
    return y, y[1:], y.t()


def parts_of_inputs(net, x):
    return x[1:], x + net.bias, net.bias


def written_buffers(net, x):
    return (net.norm(net.first(x)).exp(),)


def in_pieces(net, x):
    h = net.first(x).sin()
    torch._dynamo.graph_break()
    return h, net.second(h.tanh()) * h


def dropout(net, x):
    return (torch.dropout(net.first(x).sin(), 0.5, True) + torch.rand_like(x),)


def own_gradient(net, x):
    return (ItsOwnGradient.apply(net.first(x)).exp(),)


FUNCTIONS = (plain, two_outputs, shared_memory, parts_of_inputs, written_buffers, in_pieces, dropout, own_gradient)


class Pair:
    """One function on a net, compiled, and the same on a twin in eager."""

    def __init__(self, fn, **options):
        torch.manual_seed(0)
        self.net = Net().double()
        self.twin = copy.deepcopy(self.net)
        self.start = copy.deepcopy(self.net.state_dict())
        self.name = fn.__name__
        own = FunctionType(fn.__code__.replace(co_name=f"{fn.__name__}_{next(_numbers)}"), fn.__globals__)
        fast = eductor.compile(own, **options)
        self.fast = lambda x: fast(self.net, x)
        self.eager = lambda x: fn(self.twin, x)

    def renew(self):
        for net in (self.net, self.twin):
            net.load_state_dict(self.start)
            net.zero_grad()

    def parameters(self):
        return list(zip(self.net.parameters(), self.twin.parameters(), strict=True))


def few_pairs():
    """Each function once."""
    return [Pair(fn, engine=("aten", GREEDY)[k % 2], dynamic=True, launches="always") for k, fn in enumerate(FUNCTIONS)]


def many_pairs():
    """Each function with both engines, sizes known and not; some only where it pays."""
    ways = [{"engine": "aten", "dynamic": True}, {"engine": GREEDY, "dynamic": False}]
    made = [Pair(fn, launches="always", **way) for fn in FUNCTIONS for way in ways]
    return made + [Pair(fn, engine=FUSING, dynamic=True) for fn in (plain, two_outputs)]


class Steps:
    """The random program of one seed; `run` raises where the two differ."""

    def __init__(self, seed, pairs, monkeypatch):
        self.random = random.Random(seed)
        self.pairs = self.random.sample(pairs, self.random.randint(1, 2))
        self.wanting = [pair for pair in self.pairs if self.random.random() < 0.5]
        """Those that are given inputs that require gradients."""
        self.device = FakeDevice()
        self.pending, self.held, self.done = [], [], []
        _forget_takes()
        monkeypatch.setitem(_pools, CPU, Pool(self.device))
        monkeypatch.setattr(take, "SMALL", self.random.choice([0, 0, 8 * WIDTH, 2**18]))
        ticks, slow = count(), self.random.uniform(0, 2e-3)
        monkeypatch.setattr(replayed_graph, "time", SimpleNamespace(perf_counter=lambda: next(ticks) ** 0.5 * slow))
        for pair in self.pairs:
            pair.renew()
        torch.manual_seed(seed)

    def run(self, length=60):
        actions = {
            self.forward: 4,
            self.backward: 5,
            self.train: self.random.choice([0, 10, 30]),
            self.evaluate: 2,
            self.drop: 4,
            self.write: 1,
            self.step: 2,
            self.forget_gradients: 3,
            self.hold_gradients: 1,
            self.move_parameters: 0.3,
            self.fail: 0.3,
        }
        for _ in range(length):
            (action,) = self.random.choices(list(actions), list(actions.values()))
            self.done.append(action.__name__)
            self.device.capturing = self.random.random() < 0.05
            action()
            if self.random.random() < 0.2:
                self.compare()
        self.compare()

    def forward(self):
        pair = self.random.choice(self.pairs)
        x = torch.randn(4 if self.random.random() < 0.85 else 5, WIDTH, dtype=torch.double)
        wants = pair in self.wanting
        inputs = [x.clone().requires_grad_(wants), x.clone().requires_grad_(wants)]
        drawn = torch.get_rng_state()
        got = pair.fast(inputs[0])
        after = torch.get_rng_state()
        torch.set_rng_state(drawn)
        expected = pair.eager(inputs[1])
        assert torch.equal(after, torch.get_rng_state()), "other random numbers are left"
        outputs = list(zip(got, expected, strict=True))
        self.done[-1] += f" {pair.name} {len(x)}"
        if torch.is_grad_enabled():
            self.pending.append((pair, inputs, outputs))
        for a, b in outputs:
            if self.random.random() < 0.3:
                self.held.append((a, b))
            elif self.random.random() < 0.3 and a.dim():
                self.held.append((a.detach()[1:], b.detach()[1:]))
        compared = self.random.choice(outputs)
        torch.testing.assert_close(*compared)

    def train(self):
        """A step as most programs have it."""
        self.pending.clear()
        self.forward()
        self.backward()
        self.forget_gradients()

    def evaluate(self):
        mode = self.random.choice([torch.no_grad, torch.inference_mode])
        with mode():
            self.forward()

    def backward(self):
        if not self.pending:
            return
        k = self.random.randrange(len(self.pending))
        pair, inputs, outputs = self.pending[k]
        keeps = self.random.random() < 0.2
        if not keeps:
            del self.pending[k]
        used = [o for o in outputs if o[0].requires_grad]
        used = used if self.random.random() < 0.5 else self.random.sample(used, min(len(used), 1))
        factor = torch.randn((), dtype=torch.double)
        losses = [sum((factor * o[side]).sin().sum() for o in used) for side in (0, 1)]
        if not used:
            return
        if self.random.random() < 0.2:
            sources = [[p for p in (*net.parameters(), x) if p.requires_grad] for net, x in self._sides(pair, inputs)]
            found = [
                torch.autograd.grad(loss, s, retain_graph=keeps, allow_unused=True)
                for loss, s in zip(losses, sources, strict=True)
            ]
            self.held += [(a, b) for a, b in zip(*found, strict=True) if a is not None or b is not None]
            return
        for loss in losses:
            loss.backward(retain_graph=keeps)
        self.done[-1] += f" {pair.name} {k}{' keeps' if keeps else ''}"
        if inputs[0].grad is not None:
            self.held.append((inputs[0].grad, inputs[1].grad))

    def _sides(self, pair, inputs):
        return [(pair.net, inputs[0]), (pair.twin, inputs[1])]

    def drop(self):
        for kept in (self.held, self.pending):
            if kept and self.random.random() < 0.7:
                del kept[self.random.randrange(len(kept)) :]

    def write(self):
        """The caller writes to what he holds, unless a pending backward needs it."""
        if self.held and not self.pending:
            for x in self.random.choice(self.held):
                if not x.is_inference():
                    with torch.no_grad():
                        x.mul_(2)

    def step(self):
        """An optimizer's step; pending backwards would see the new parameters."""
        if self.pending:
            return
        for pair in self.pairs:
            with torch.no_grad():
                for p in (p for both in pair.parameters() for p in both if p.grad is not None):
                    p.sub_(p.grad.clamp(-1, 1), alpha=0.01)

    def forget_gradients(self):
        to_none = self.random.random() < 0.7
        for pair in self.pairs:
            pair.net.zero_grad(set_to_none=to_none)
            pair.twin.zero_grad(set_to_none=to_none)

    def hold_gradients(self):
        pair = self.random.choice(self.pairs)
        self.held += [(p.grad, q.grad) for p, q in pair.parameters() if p.grad is not None]

    def move_parameters(self):
        for p in (p for both in self.random.choice(self.pairs).parameters() for p in both):
            p.data = p.data.clone()

    def fail(self):
        self.device.failures = [None, "planted"] if self.random.random() < 0.5 else ["planted"]

    @torch.no_grad()
    def compare(self):
        for pair in self.pairs:
            for p, q in (*pair.parameters(), *zip(pair.net.buffers(), pair.twin.buffers(), strict=True)):
                _close(p, q)
                _close(p.grad, q.grad)
        for a, b in self.held:
            _close(a, b)


def _close(a, b):
    assert (a is None) == (b is None), f"one of {a} and {b} is undefined"
    if a is not None:
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def _forget_takes():
    """As if each program had just been compiled."""
    for program in live_programs():
        program._shapes, program._calls = {}, 0
