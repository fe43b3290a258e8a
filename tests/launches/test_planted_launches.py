"""Each rule of replayed launches has a short program that goes wrong without it, and the fake device lets it."""

from __future__ import annotations

import pytest
import torch
from fake_device import Stream, installed
from greedy_engine import GREEDY

import eductor
from eductor import compat
from eductor.launches import pool as pool_module
from eductor.launches import take
from eductor.launches.buffers import Buffers
from eductor.launches.holds import Lease, Saved
from eductor.launches.pool import Pool
from eductor.launches.replayed_program import ReplayedProgram
from eductor.launches.saved_values import SavedValues
from eductor.launches.take import Take


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(take, "SMALL", 0)
    return installed(monkeypatch)


def compiled(fn, engine="aten", **options):
    return eductor.compile(fn, engine=engine, launches="always", **options)


def product(x, w):
    return (x @ w).sin()


def other(x, w):
    return (x @ w).cos()


def weight():
    return torch.randn(4, 4, requires_grad=True)


def trained(fn, w, steps=2):
    for _ in range(steps):
        fn(torch.randn(4, 4), w).sum().backward()
        w.grad = None


def expect(got, fn, *args):
    torch.testing.assert_close(got, fn(*args))


def expect_gradient(got, fn, x, w):
    torch.testing.assert_close(got, *torch.autograd.grad(fn(x, w).sum(), w))


# ----------------------------------------------------------------------------------------------------------- programs


def held_outputs(device):
    fn, w, kept = compiled(product), torch.randn(4, 4), []
    for _ in range(6):
        x = torch.randn(4, 4)
        kept.append((fn(x, w), x))
    for y, x in kept:
        expect(y, product, x, w)


def held_view(device):
    fn, w, x = compiled(product), torch.randn(4, 4), torch.randn(4, 4)
    fn(x, w)
    view = fn(x, w)[0].detach()
    fn(torch.randn(4, 4), w)
    expect(view, lambda x, w: product(x, w)[0], x, w)


def copied_outputs(device):
    take.SMALL = 2**18
    held_outputs(device)


def held_gradients(device):
    fn, w = compiled(product), weight()
    trained(fn, w)
    x = torch.randn(4, 4)
    fn(x, w).sum().backward()
    held, w.grad = w.grad, None
    trained(fn, w)
    expect_gradient(held, product, x, w)


def two_forwards(device):
    fn, w = compiled(product), weight()
    trained(fn, w)
    xs = [torch.randn(4, 4), torch.randn(4, 4)]
    for x, loss in [(x, fn(x, w).sum()) for x in xs]:
        w.grad = None
        loss.backward()
        expect_gradient(w.grad, product, x, w)


def pending_while_another_is_captured(device):
    f, g, w, x = compiled(product), compiled(other), weight(), torch.randn(4, 4)
    trained(f, w)
    pending = f(x, w)
    trained(g, w)
    pending.sum().backward()
    expect_gradient(w.grad, product, x, w)


def donated_memory(device):
    fn, w, x = compiled(product, GREEDY), weight(), torch.randn(4, 4)
    trained(fn, w)
    loss = fn(x, w).sum()
    device.capturing = True
    loss.backward()
    device.capturing = False
    held, w.grad = w.grad, None
    trained(fn, w)
    expect_gradient(held, product, x, w)


def moved_parameter(device):
    fn, w, x = compiled(lambda x: product(x, net)), torch.randn(4, 4), torch.randn(4, 4)
    net = torch.nn.Parameter(w, requires_grad=False)
    fn(x), fn(x)
    net.data = torch.randn(4, 4)
    expect(fn(x), product, x, net)


def several_sizes(device):
    fn, w = compiled(product, dynamic=True), torch.randn(4, 4)
    for n in (4, 4, 4, 5, 5, 5, 4):
        x = torch.randn(n, 4)
        expect(fn(x, w), product, x, w)


def inside_of_a_capture(device):
    fn, w, x = compiled(product), torch.randn(4, 4), torch.randn(4, 4)
    fn(x, w), fn(x, w)
    device.capturing = True
    expect(fn(x, w), product, x, w)


def several_streams(device):
    fn, w, x = compiled(product), torch.randn(4, 4), torch.randn(4, 4)
    for _ in range(4):
        device.current = Stream()
        expect(fn(x, w), product, x, w)


def use_on_another_stream(device):
    fn, w, x, side = compiled(product), torch.randn(4, 4), torch.randn(4, 4), Stream()
    fn(x, w)
    pool_module.pool_of(x.device).note_use(fn(x, w), side)
    fn(x, w)
    assert device.current.awaited is side


def held_losses(device):
    fn, w, losses = compiled(lambda x, w: product(x, w).sum()), weight(), []
    take.SMALL = 2**18
    for _ in range(10):
        losses.append(fn(torch.randn(4, 4), w))
        losses[-1].backward()
        w.grad = None
    assert device.replays == 18


def retained_graph(device):
    fn, w, x = compiled(product), weight(), torch.randn(4, 4)
    trained(fn, w)
    y = fn(x, w).sum()
    for keeps in (True, True, False):
        w.grad = None
        y.backward(retain_graph=keeps)
        expect_gradient(w.grad, product, x, w)


def input_as_output(device):
    fn, w = compiled(lambda x, w: (x, x[1:], product(x, w))), torch.randn(4, 4)
    for _ in range(4):
        x = torch.randn(4, 4)
        same, part, _ = fn(x, w)
        x.mul_(2)
        expect(same, lambda x: x, x)
        expect(part, lambda x: x[1:], x)


PROGRAMS = (
    held_outputs,
    held_view,
    copied_outputs,
    held_gradients,
    two_forwards,
    pending_while_another_is_captured,
    donated_memory,
    moved_parameter,
    several_sizes,
    inside_of_a_capture,
    several_streams,
    use_on_another_stream,
    held_losses,
    retained_graph,
    input_as_output,
)

# ------------------------------------------------------------------------------------------------------------- faults


class All(frozenset):
    """Contains every number."""

    def __contains__(self, number):
        return True

    def union(self, numbers):
        return self


def nothing(*args, **kwargs):
    return None


FAULTS = {
    "nobody holds an output": (Lease, "is_held", lambda self: False, held_outputs),
    "nobody holds a view": (Lease, "is_held", lambda self: False, held_view),
    "nobody holds a gradient": (Lease, "is_held", lambda self: False, held_gradients),
    "no backward is pending": (Saved, "is_held", lambda self: False, two_forwards),
    "nothing is in the way": (Take, "obstacles", lambda self: [], held_outputs),
    "a backward is never in the way": (Take, "obstacles", lambda self: [], two_forwards),
    "nothing is handed out": (Pool, "hand_out", nothing, held_gradients),
    "the book has everything": (Pool, "book", lambda self: All(), held_outputs),
    "the book has all saved values": (Saved, "in_book", True, pending_while_another_is_captured),
    "anything can be captured": (Pool, "can_capture", lambda self: True, pending_while_another_is_captured),
    "outputs are not copied": (compat, "copy_all", nothing, copied_outputs),
    "inputs are not copied": (Buffers, "fill", nothing, held_outputs),
    "parameters stay where they are": (Buffers, "fit", lambda self, given: True, moved_parameter),
    "gradients stay in saved memory": (SavedValues, "own", lambda self, gradients, saved: [*gradients], donated_memory),
    "saved values are not restored": (SavedValues, "restore", nothing, retained_graph),
    "nobody captures": (ReplayedProgram, "_is_free", lambda self, pool: True, inside_of_a_capture),
    "streams do not wait": (Pool, "follow", nothing, several_streams),
    "nobody uses another stream": (Pool, "note_use", nothing, use_on_another_stream),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_programs_are_right(device, program):
    program(device)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(device, monkeypatch, fault):
    place, name, planted, program = FAULTS[fault]
    monkeypatch.setattr(place, name, planted)
    with pytest.raises((AssertionError, RuntimeError, TypeError, AttributeError)):
        program(device)
