"""A device that captures and replays on the CPU, and breaks what a real one might overwrite.

A capture runs the function, undoes what it wrote, and places the outputs in memory of the pool. A replay runs it again on
the same addresses, and fills all memory of the pool with NaN that was free when the graph was captured: a real allocator
may have put its values there. Memory is taken while a storage over it lives; an address alone takes none.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from contextlib import contextmanager

import torch

from eductor import compat
from eductor.launches import candidates, pool
from eductor.launches.pool import Pool


class Block:
    """Memory of the pool; what it holds of it counts for nobody."""

    def __init__(self, size):
        self.storage = torch.UntypedStorage(max(size, 1))
        self.address = self.storage.data_ptr()

    def is_taken(self):
        return compat.storage_owners(self.storage) > 0 or sys.getrefcount(self.storage) > 2

    def bytes(self):
        return torch.empty(0, dtype=torch.uint8).set_(self.storage)

    def is_whole(self):
        """Whether the caller has not resized it."""
        return self.storage.data_ptr() == self.address

    def destroy(self):
        if self.is_whole():
            self.bytes().fill_(255)


class FakeGraph:
    def __init__(self, device, run, arguments):
        self.device, self.run = device, run
        given = {x.untyped_storage().data_ptr() for x in arguments if isinstance(x, torch.Tensor)}
        self.inputs = [device.kept(x) for x in arguments]
        taken_before = device.taken()
        with _undone(self.inputs, device):
            self.outputs = list(run(arguments))
        placed, self.blocks = {}, {}
        for k, x in enumerate(self.outputs):
            if isinstance(x, torch.Tensor) and (at := x.untyped_storage().data_ptr()) not in given:
                if at not in placed:
                    placed[at] = device.block(x.untyped_storage().nbytes()).storage
                self.blocks[k] = device.arena[placed[at].data_ptr()]
                self.outputs[k] = device.tensor_over(placed[at], compat.form_of(x))
        self.spared = (taken_before & device.taken()) | {block.address for block in self.blocks.values()}
        device.graphs += 1
        weakref.finalize(self, device.destroyed_graph)

    def taken_outputs(self):
        outputs, self.outputs = self.outputs, None
        return outputs

    def replay(self):
        self.device.replays += 1
        self.device.now += self.device.replay_seconds
        self.device.expect_order()
        self.device.launches = False
        fresh = self.run([self.device.again(x) for x in self.inputs])
        self.device.launches = True
        values = [(block, _bytes(fresh[k]).clone()) for k, block in self.blocks.items()]
        self.device.destroy_all_but(self.spared)
        for block, value in values:
            if block.is_whole():
                block.bytes()[: len(value)] = value


def _bytes(x):
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())


@contextmanager
def _undone(inputs, device):
    """What is run inside leaves no trace in its inputs and draws no random numbers. Inputs hold no indices yet."""
    tensors = [device.again(x) for x in inputs if isinstance(x, tuple)]
    memory = [_bytes(x) for x in tensors]
    before, drawn = [m.clone() for m in memory], torch.get_rng_state()
    for x, m in zip(tensors, memory, strict=True):
        if not x.is_floating_point():
            m.zero_()
    try:
        yield
    finally:
        for m, content in zip(memory, before, strict=True):
            m.copy_(content)
        torch.set_rng_state(drawn)


class Stream:
    def __init__(self):
        self.awaited = None

    def wait_stream(self, other):
        self.awaited = other


class FakeDevice:
    """`failures` are the messages of the next captures, None for one that succeeds. Its clock is `now`, which replays move by
    `replay_seconds`; the device itself is `device_seconds` behind the host, and `is_done` when its times are known."""

    def __init__(self):
        self.arena = {}
        self.graphs = self.replays = self.captures = 0
        self.failures = []
        self.capturing = False
        self.used = (2**20, 2**40, 0)
        self.now = self.replay_seconds = self.device_seconds = 0.0
        self.is_done = self.launches = True
        """Whether the host launches kernels, which no replay does."""
        self.current, self.last = Stream(), None

    def block(self, size):
        made = Block(size)
        self.arena[made.address] = made
        return made

    def taken(self):
        """The addresses of what somebody has, as the book of an allocator knows it."""
        return {address for address, block in self.arena.items() if block.is_taken()}

    def destroy_all_but(self, addresses):
        for address, block in self.arena.items():
            if address not in addresses:
                block.destroy()

    def destroyed_graph(self):
        """With its last graph, a pool is given up."""
        self.graphs -= 1
        if not self.graphs:
            self.destroy_all_but(self.taken())

    def expect_order(self):
        """A replay follows what was done before in the pool, and is no part of somebody's capture."""
        assert not self.capturing, "somebody captures"
        assert self.last in (None, self.current, self.current.awaited), "another stream may still use the pool"
        self.last = self.current

    def kept(self, x):
        """An argument as a captured graph knows it: in the pool by its address alone."""
        if not isinstance(x, torch.Tensor):
            return x
        storage = x.untyped_storage()
        block = self.arena.get(storage.data_ptr())
        return (None if block is not None and block.is_whole() else storage, compat.form_of(x))

    def again(self, x):
        if not isinstance(x, tuple):
            return x
        storage, form = x
        storage = self.unowned(form["data_ptr"], form["nbytes"]) if storage is None else storage
        return self.tensor_over(storage, form)

    def capture(self, run, arguments):
        if self.failures and (failure := self.failures.pop(0)) is not None:
            with _undone([self.kept(x) for x in arguments], self):
                run(arguments)
            raise compat.CaptureFailed(failure)
        self.captures += 1
        graph = FakeGraph(self, run, arguments)
        return graph, graph.taken_outputs()

    def is_capturing(self):
        return self.capturing

    def stream(self):
        return self.current

    def timer(self):
        started = self.now

        def end():
            seconds = self.now - started + self.device_seconds
            return lambda: seconds if self.is_done else None

        return end

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
        raw = (ctypes.c_char * max(size, 1)).from_address(address)
        return torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()

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
