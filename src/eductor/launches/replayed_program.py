"""A program whose calls are replayed where that pays: what each call of its forward and its backward does."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from eductor import compat
from eductor.graph.no import No
from eductor.launches.buffers import why_no_buffer
from eductor.launches.decide import MOST_FAILURES, MOST_SHAPES
from eductor.launches.holds import Ticket
from eductor.launches.pool import Pool, pool_of
from eductor.launches.saved_values import SavedValues
from eductor.launches.shape import Defined, Shape
from eductor.launches.take import Take
from eductor.program.job import Run
from eductor.program.joint import Signature
from eductor.program.parts import Parts


@dataclass(slots=True)
class Launched:
    """One call of a forward, as its backward needs to know it."""

    shape: Shape | None
    ticket: Ticket | None = None


class ReplayedProgram:
    """The forward and the backwards of one program, run ordinarily or replayed."""

    def __init__(
        self,
        title: str,
        parts: Parts,
        signature: Signature,
        device: torch.device,
        *,
        always: bool,
        share: float,
    ) -> None:
        self._title = title
        self._static = signature.static
        self._writes = bool(signature.writes.forward)
        self._device = device
        self._always = always
        self._share = share
        self._trains = parts.backward is not None
        self._values = SavedValues(parts, signature.static, len(signature.analysis.returns))
        self._shapes: dict[tuple[Any, ...], Shape] = {}
        self._calls = 0
        self._sizes: list[int] | None = None
        """Which inputs of the forward are numbers: they choose the shape."""
        _live[next(_numbers)] = self

    @property
    def _pool(self) -> Pool:
        return pool_of(self._device)

    def forward(self, run: Run) -> Run:
        """A forward that returns one more value, the `Launched` of the call."""

        def call(inputs: list[Any]) -> Sequence[Any]:
            shape, pool = self._shape_of(inputs), self._pool
            if shape is None or shape.refusal is not None or not self._is_free(pool):
                return [*run(inputs), Launched(None)]
            with pool.unless_busy() as is_mine:
                if is_mine and self._may_replay(shape, pool, run, inputs):
                    return self._replayed(shape, pool, inputs)
            return [*self._ordinary(shape, pool, run, inputs), Launched(shape)]

        return call

    def inference(self, run: Run) -> Run:
        """A forward without a backward."""
        whole = self.forward(run)
        return lambda inputs: whole(inputs)[:-1]

    def backward(self, launched: Launched, defined: Defined, *, keeps: bool, run: Run) -> Run:
        """The backward of one call: replayed, or ordinary on what the call saved."""
        shape, ticket = launched.shape, launched.ticket
        if shape is None or (ticket is None and keeps):
            return run
        part = shape.backward(defined)
        if ticket is None:
            return lambda inputs: part.ordinary(run, inputs, self._pool.device)

        def call(inputs: list[Any]) -> Sequence[Any]:
            pool = self._pool
            with pool.lock:
                if not keeps and self._may_replay_backward(shape, pool, defined, ticket, run, inputs):
                    outputs = part.replay(inputs, pool.device)
                    inputs.clear()
                    shape.judge()
                    return outputs
                if not pool.device.is_capturing():  # the user's capture must not wait for what is not in it
                    pool.follow()
            self._values.restore(inputs, ticket.saved, pool.device)
            return self._values.own(part.ordinary(run, inputs, pool.device), ticket.saved)

        return call

    def to_json(self) -> dict[str, Any]:
        """What was decided for each set of sizes, and how often calls were replayed."""
        return {"graph": self._title, "shapes": [{"sizes": [*k], **s.to_json()} for k, s in self._shapes.items()]}

    def _shape_of(self, inputs: list[Any]) -> Shape | None:
        if self._sizes is None:
            self._sizes = [i for i, x in enumerate(inputs) if not isinstance(x, torch.Tensor)]
        key = tuple(inputs[i] for i in self._sizes)
        shape = self._shapes.get(key)
        if shape is None and len(self._shapes) < MOST_SHAPES:
            shape = Shape(self._title, trains=self._trains, always=self._always, share=self._share)
            shape.refuse(why_no_buffer(inputs, self._static, self._device))
            self._shapes[key] = shape
            self._pool.shapes.add(shape)
        self._calls += 1
        if shape is not None:
            shape.calls += 1
        return shape

    def _ordinary(self, shape: Shape, pool: Pool, run: Run, inputs: list[Any]) -> Sequence[Any]:
        """Runs the forward as compiled. If it runs out of memory, no take keeps any, and it runs again if it writes nothing."""
        again = list(inputs)  # which the caller holds, too
        try:
            return shape.forward.ordinary(run, inputs, pool.device)
        except torch.OutOfMemoryError:
            if not pool.let_go("an ordinary call ran out of memory") or self._writes:
                raise
        return run(again)

    def _is_free(self, pool: Pool) -> bool:
        """Whether a call may be replayed: no capture is under way, and no mode observes its operators."""
        if pool.obstacle is not None or pool.device.is_capturing() or compat.is_observed():
            return False
        return not (self._trains and compat.has_saved_tensors_hooks())

    def _may_replay(self, shape: Shape, pool: Pool, run: Run, inputs: list[Any]) -> bool:
        """Whether the forward is captured, and what a replay would overwrite is free."""
        take = shape.forward.take
        if take is None:
            return self._captures_forward(shape, pool, run, inputs)
        if (reason := take.unfit(inputs)) is not None:
            shape.start_over(reason)
            return False
        held = take.obstacles()
        if held:
            shape.block(pool.device, held)
        return not held

    def _captures_forward(self, shape: Shape, pool: Pool, run: Run, inputs: list[Any]) -> bool:
        if not shape.is_warm or 8 * shape.calls < self._calls:  # a short last batch, sizes that grow
            return False
        copied = sum(x.nbytes for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and i not in self._static)
        if not (shape.wants_capture(copied) and pool.can_capture()):
            return False
        pool.device.release_cache()  # what ordinary calls have left, which a capture could neither use nor free
        how = {"static": self._static, "hidden": self._values.hidden}
        shape.forward.take = self._capture(shape, pool, run, inputs, copied=shape.forward.copied, **how)
        return shape.forward.take is not None

    def _may_replay_backward(
        self, shape: Shape, pool: Pool, defined: Defined, ticket: Ticket, run: Run, inputs: list[Any]
    ) -> bool:
        """Whether the backward of a replayed forward is captured, and what a replay would overwrite is free."""
        forward, part = shape.forward.take, shape.backward(defined)
        if forward is None or forward.outputs.saved is not ticket.saved or not self._is_free(pool):
            return False
        if part.take is None:
            if not part.is_warm or ticket.saved.tensors is None or not pool.can_capture():
                return False
            how = self._values.of_backward(inputs, forward)
            part.take = self._capture(shape, pool, run, inputs, copied=part.copied, consumes=[ticket.saved], **how)
            return part.take is not None
        if (reason := part.take.unfit(inputs)) is not None:
            shape.start_over(reason)
            return False
        return not part.take.obstacles()

    def _capture(self, shape: Shape, pool: Pool, run: Run, inputs: list[Any], **how: Any) -> Take | None:
        """A take of a call with these inputs; None, with a refusal, if the capture fails."""
        before = pool.device.memory()
        pool.follow()
        try:
            with torch.inference_mode(False), torch.no_grad():  # later calls write to its buffers in any mode
                take = Take.capture(pool, run, inputs, **how)
        except Exception as error:  # what the graph itself raises, its ordinary run will raise again
            first = next(iter(str(error).splitlines()), type(error).__name__)
            shape.refuse(No(f"the capture failed: {first}"))
            pool.failures += 1
            if pool.failures == MOST_FAILURES:
                pool.obstacle = f"{MOST_FAILURES} captures failed"
            return None
        shape.captured(pool.device, before)
        return take

    def _replayed(self, shape: Shape, pool: Pool, inputs: list[Any]) -> list[Any]:
        take = shape.forward.take
        assert take is not None
        outputs = shape.forward.replay(inputs, pool.device)
        ticket = None
        if self._trains:
            ticket = take.outputs.saved.ticket()
            pool.hand_out([take.outputs.saved])
        inputs.clear()
        shape.judge()
        return [*outputs, Launched(shape, ticket)]


_numbers = count()
_live: weakref.WeakValueDictionary[int, ReplayedProgram] = weakref.WeakValueDictionary()


def live_programs() -> list[ReplayedProgram]:
    """The programs that can still be called, in the order in which they were compiled."""
    return list(_live.values())
