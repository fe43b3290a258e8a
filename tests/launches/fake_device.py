"""A device that captures and replays on the CPU, and breaks what a real one might overwrite.

A capture runs the function and keeps its memory. A replay runs it again on the memory of the same inputs, and fills all
memory of the pool with NaN that was not taken when the graph was captured: a real allocator may have put its values there.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch

from eductor import compat
from eductor.launches import candidates, pool
from eductor.launches.pool import Pool


class FakeGraph:
    def __init__(self, device, run, arguments):
        self.device, self.run = device, run
        self.inputs = [_kept(x) for x in arguments]
        before = device.taken()
        with _nothing_happens(arguments):
            self.outputs = list(run(arguments))
        self.places = {}
        for k, x in enumerate(self.outputs):
            if isinstance(x, torch.Tensor):
                self.places[k] = x.data_ptr() - x.element_size() * x.storage_offset()
                device.arena[self.places[k]] = x.untyped_storage()
        self.spared = (before & device.taken()) | {*self.places.values()}

    def taken_outputs(self):
        outputs, self.outputs = self.outputs, None
        return outputs

    def replay(self):
        self.device.replays += 1
        fresh = self.run([_again(x) for x in self.inputs])
        values = {k: _bytes(fresh[k].untyped_storage()).clone() for k in self.places}
        for address, storage in self.device.arena.items():
            if address not in self.spared:
                _bytes(storage).fill_(255)
        for k, address in self.places.items():
            _bytes(self.device.arena[address]).copy_(values[k])


@contextmanager
def _nothing_happens(arguments):
    """What a real capture leaves as it is: written inputs and random numbers. Inputs hold no indices yet."""
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    held = {x.untyped_storage(): _bytes(x.untyped_storage()).clone() for x in tensors}
    for x in tensors:
        if not x.is_floating_point():
            _bytes(x.untyped_storage()).zero_()
    with torch.random.fork_rng(devices=[]):
        yield
    for storage, values in held.items():
        _bytes(storage).copy_(values)


def _kept(x):
    return (x.untyped_storage(), compat.form_of(x)) if isinstance(x, torch.Tensor) else x


def _again(x):
    return FakeDevice.tensor_over(None, *x) if isinstance(x, tuple) else x


def _bytes(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage)


class Stream:
    def wait_stream(self, other):
        self.waited = other


class FakeDevice:
    """`failures` are the messages of the next captures, None for one that succeeds."""

    def __init__(self):
        self.arena = {}
        self.replays = self.captures = 0
        self.failures = []
        self.capturing = False
        self.used = (0, 2**40, 0)
        self.current = Stream()

    def taken(self):
        """The addresses of what somebody has, besides this device."""
        found = set()
        for address in self.arena:
            storage = self.arena[address]
            if compat.storage_owners(storage) or sys.getrefcount(storage) > 3:
                found.add(address)
        return found

    def capture(self, run, arguments):
        if self.failures and (failure := self.failures.pop(0)) is not None:
            raise compat.CaptureFailed(failure)
        self.captures += 1
        graph = FakeGraph(self, run, arguments)
        return graph, graph.taken_outputs()

    def is_capturing(self):
        return self.capturing

    def stream(self):
        return self.current

    def timer(self):
        return lambda: lambda: 0.0

    def empty(self, sizes):
        return [torch.empty(size, dtype=torch.uint8) for size in sizes]

    def memory(self):
        return self.used

    def release_cache(self):
        pass

    def tensor_over(self, storage, form):
        made = torch.empty(0, dtype=form["dtype"]).set_(storage, form["storage_offset"], form["size"], form["stride"])
        if not made.is_inference():
            compat.set_versions([made], [0])
        return made

    def unowned(self, address, size):
        return self.arena[address]

    def forget(self):
        pass

    def same_addresses(self, tensors, addresses, positions):
        return all(tensors[i].data_ptr() == addresses[i] for i in positions)

    def obstacle(self):
        return None


def installed(monkeypatch):
    """A fake device in place of the CPU."""
    device = FakeDevice()
    monkeypatch.setattr(candidates, "DEVICES", ("cpu",))
    monkeypatch.setitem(pool._pools, torch.device("cpu"), Pool(device))
    return device
