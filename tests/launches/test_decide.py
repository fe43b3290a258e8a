"""When launches are captured, and when takes are kept: by figures alone, and in calls by a clock that tests set."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_device import installed

import eductor
from eductor.engines import ATEN, Engine
from eductor.launches import replayed_graph
from eductor.launches.decide import MOST_CAPTURES, MOST_SHAPES, Times, fits, worth_capturing, worth_keeping

MS, MIB = 1e-3, 2**20

WORTH_CAPTURING = [
    # host, elapsed, bytes copied, why not
    (10, 10, 0, None),
    (0.07, 0.07, 0, None),
    (0.06, 0.06, 0, "less than 0.05 ms"),
    (6, 10, 0, None),
    (5.9, 10, 0, "the device is the limit: 10.00 ms there, 5.90 ms on the host"),
    (1, 1, 400 * 10**6, None),
    (1, 1, 500 * 10**6, "it would save 0.00 ms"),
    (10, 10, 4_800 * 10**6, "of 10.00 ms, less than 0.50 ms"),
]

WORTH_KEEPING = [
    # ordinary host and elapsed, replayed host and elapsed, why not
    ((10, 10), (1, 6), None),
    ((10, 10), (1, 9.4), None),
    ((10, 10), (1, 9.6), "replayed it takes 9.60 ms, ordinarily 10.00 ms"),
    ((10, 8), (9.6, 1), "replayed it takes 9.60 ms"),
    ((10, 10), (12, 12), "replayed it takes 12.00 ms"),
]

FITS = [
    # needed, peak, share, whether it fits
    (1000, 1000, 0.05, True),
    (1000 + 50 + 64, 1000, 0.05, True),
    (1000 + 50 + 65, 1000, 0.05, False),
    (64, 0, 0, True),
    (65, 0, 0, False),
    (2064, 1000, 1.0, True),
]


@pytest.mark.parametrize(("host", "elapsed", "copied", "why_not"), WORTH_CAPTURING)
def test_worth_capturing(host, elapsed, copied, why_not):
    _same(worth_capturing(Times(host * MS, elapsed * MS), copied), why_not)


@pytest.mark.parametrize(("ordinary", "replayed", "why_not"), WORTH_KEEPING)
def test_worth_keeping(ordinary, replayed, why_not):
    _same(worth_keeping(*(Times(host * MS, elapsed * MS) for host, elapsed in (ordinary, replayed))), why_not)


@pytest.mark.parametrize(("needed", "peak", "share", "does"), FITS)
def test_fits(needed, peak, share, does):
    _same(fits(needed * MIB, peak * MIB, share), None if does else f"it would need {needed} MiB")


def _same(found, expected):
    assert (found is None) == (expected is None)
    assert expected is None or expected in str(found)


def test_the_median_counts():
    assert Times.median([Times(9, 1), Times(1, 2), Times(2, 9)]) == Times(2, 2)


# ------------------------------------------------------------------------------------------------------------ in calls


@pytest.fixture
def device(monkeypatch):
    made = installed(monkeypatch)
    monkeypatch.setattr(replayed_graph, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


def compiled(device, fn, seconds=10 * MS, **options):
    """A function whose ordinary calls take this long on the host."""

    def slow(job):
        run = ATEN(job).run

        def call(inputs):
            device.now += seconds * device.launches
            return run(inputs)

        return call

    return eductor.compile(fn, engine=Engine("slow", slow, fuses=True), **options)


def shapes():
    return eductor.launches_report()[-1]["shapes"]


def test_ordinary_calls_until_all_is_measured(device):
    fn = compiled(device, torch.sin)
    replays = [fn(torch.randn(4)) is None or device.replays for _ in range(6)]
    assert replays == [0, 0, 0, 1, 2, 3]


def test_always_needs_one_ordinary_call(device):
    fn = compiled(device, torch.sin, launches="always")
    assert [fn(torch.randn(4)) is None or device.replays for _ in range(3)] == [0, 1, 2]


def test_a_trial_that_pays_is_kept(device):
    fn, device.replay_seconds = compiled(device, torch.sin), MS
    for _ in range(12):
        fn(torch.randn(4))
    assert (shapes()[0]["state"], device.replays, device.captures) == ("replayed", 9, 1)


def test_a_trial_that_does_not_pay_is_dropped(device):
    fn, device.replay_seconds = compiled(device, torch.sin), 11 * MS
    for _ in range(12):
        fn(torch.randn(4))
    assert "replayed it takes 11.00 ms, ordinarily 10.00 ms" in shapes()[0]["reason"]
    assert (device.replays, device.captures) == (4, 1)


def test_always_keeps_what_does_not_pay(device):
    fn, device.replay_seconds = compiled(device, torch.sin, launches="always"), 11 * MS
    for _ in range(12):
        fn(torch.randn(4))
    assert device.replays == 11


def test_a_device_that_is_the_limit(device):
    fn, device.device_seconds = compiled(device, torch.sin), 10 * MS
    for _ in range(6):
        fn(torch.randn(4))
    assert "the device is the limit: 20.00 ms there, 10.00 ms on the host" in shapes()[0]["reason"]
    assert not device.captures


def test_times_that_are_not_known_yet(device):
    fn, device.is_done = compiled(device, torch.sin), False
    for _ in range(6):
        fn(torch.randn(4))
    assert not device.captures
    device.is_done = True
    fn(torch.randn(4))
    assert device.captures == 1


def test_a_forward_and_its_backward_are_measured_together(device):
    fn, w = compiled(device, lambda x, w: (x @ w).sin()), torch.randn(4, 4, requires_grad=True)
    for k in range(8):
        fn(torch.randn(4, 4), w).sum().backward()
        w.grad = None
        assert device.replays == 2 * max(k - 2, 0)


def test_a_program_that_needs_too_much_memory(device):
    grown = iter(range(0, 100 * 128 * MIB, 128 * MIB))
    device.memory = lambda: (MIB, 2 * MIB, next(grown))
    fn = compiled(device, torch.sin)
    for _ in range(12):
        fn(torch.randn(4))
    assert "it would need 129 MiB, more than 66" in shapes()[0]["reason"]


def test_sizes_that_come_rarely(device):
    fn = compiled(device, torch.sin, launches="always", dynamic=True)
    for n in [4] * 20 + [5] * 2:
        fn(torch.randn(n))
    assert [s["captures"] for s in shapes()] == [1, 0]
    for n in [5] * 2:
        fn(torch.randn(n))
    assert [s["captures"] for s in shapes()] == [1, 1]


def test_more_sizes_than_are_captured(device):
    fn = compiled(device, torch.sin, launches="always", dynamic=True)
    for n in [n for n in range(4, 12) for _ in range(3)]:
        fn(torch.randn(n))
    assert len(shapes()) == MOST_SHAPES
    assert device.captures == MOST_SHAPES


def test_parameters_that_always_move(device):
    p = torch.nn.Parameter(torch.randn(4), requires_grad=False)
    fn = compiled(device, lambda x: x * p, launches="always")
    for _ in range(12):
        p.data = torch.cat([p.data, p.data])[2:6] + 1
        fn(torch.randn(4))
    assert device.captures == MOST_CAPTURES
    assert "move in memory" in shapes()[0]["reason"]


def test_three_failed_captures_switch_it_off(device):
    device.failures = ["planted"] * 3
    for fn in (torch.sin, torch.cos, torch.tan, torch.tanh):
        fast, x = compiled(device, fn, launches="always"), torch.randn(4)
        for _ in range(4):
            torch.testing.assert_close(fast(x), fn(x))
    reasons = [program["shapes"][0]["reason"] for program in eductor.launches_report()[-3:-1]]
    assert reasons == ["the capture failed: planted"] * 2
    assert not device.captures


def test_never(device):
    fn = compiled(device, torch.sin, launches="never")
    for _ in range(6):
        fn(torch.randn(4))
    assert not device.captures
