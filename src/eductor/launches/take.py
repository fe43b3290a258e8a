"""A take: one captured graph, with the memory that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from eductor.launches.buffers import Buffers
from eductor.launches.holds import SMALL, Hold
from eductor.launches.outputs import Outputs
from eductor.launches.pool import Pool
from eductor.program.job import Run


class Take:
    """A captured forward or backward."""

    def __init__(self, pool: Pool, graph: Any, buffers: Buffers, outputs: Outputs, knows: frozenset[int]) -> None:
        self._pool = pool
        self._graph = graph
        self.buffers = buffers
        self.outputs = outputs
        self._knows = knows
        """The numbers of what it does not overwrite, as the book had it at the capture, and of what it consumes."""

    @staticmethod
    def capture(
        pool: Pool,
        run: Run,
        given: list[Any],
        *,
        static: Collection[int],
        fixed: Callable[[], Mapping[int, torch.Tensor]] = dict,
        hidden: Collection[int] = (),
        copied: Collection[int] = (),
        consumes: Sequence[Hold] = (),
    ) -> Take:
        """Captures a compiled graph with the inputs of a call. Only the graph holds the tensors of `fixed` while it runs,
        so that their memory is free after their last use."""
        buffers = Buffers(pool.device, given, static, fixed())
        arguments, memory = list(buffers.values), buffers.given()
        buffers.let_go()
        knows = pool.book()
        graph, values = pool.device.capture(run, arguments)
        outputs = Outputs(pool.device, graph, values, memory, hidden)
        del values
        for number, lease in enumerate(outputs.leases):
            lease.settle()
            if lease.size <= SMALL or number in copied:
                lease.copy_out(pool.device)
        pool.add([*outputs.leases, outputs.saved])
        return Take(pool, graph, buffers, outputs, knows.union(hold.number for hold in consumes))

    def unfit(self, given: list[Any]) -> str | None:
        """Why it can no longer be replayed for such calls."""
        if not self.buffers.fit(given):
            return "parameters or buffers move in memory, or inputs change their form"
        if not all(lease.is_whole() for lease in self.outputs.leases):
            return "outputs are resized, or sent to other processes"
        return None

    def obstacles(self) -> list[Hold]:
        """The memory in use that a replay would overwrite."""
        return self._pool.held(self._knows)

    def replay(self, given: list[Any]) -> list[Any]:
        """Runs it on the inputs of a call."""
        self._pool.follow(self.outputs.leases)
        self.buffers.fill(given)
        self._graph.replay()
        made = self.outputs.made(given)
        self._pool.hand_out(self.outputs.leases)
        return made
