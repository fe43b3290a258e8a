"""Which inputs of a backward come from where, when its forward was replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from eductor.launches.device import Device
from eductor.launches.holds import Saved
from eductor.launches.take import Take
from eductor.program.parts import Parts


class SavedValues:
    """The saved values of a program: those that no caller sees lie in memory of the forward's take."""

    def __init__(self, parts: Parts, static: frozenset[int], returns: int) -> None:
        first = len(parts.sizes)
        places = list(enumerate(parts.saved, start=first))
        self.hidden = {p.index: k for k, p in places if p.source == "output" and p.index >= returns}
        """The input of the backward that each output is which the forward saves and does not return."""
        self._returned = [k for k, p in places if p.source == "output" and p.index < returns]
        inputs = {k: p.index for k, p in places if p.source == "input"}
        self._copied = {k: i for k, i in inputs.items() if i not in static}
        """The input of the forward that each input of the backward is, which the forward's take has a copy of."""
        destinations = range(first + len(parts.saved), first + len(parts.saved) + len(parts.destinations))
        self._static = frozenset((*(k for k, i in inputs.items() if i in static), *destinations))

    def of_backward(self, inputs: list[Any], forward: Take) -> dict[str, Any]:
        """Where a captured backward finds its inputs: see `Take.capture`. Returned values that are not copied stay where
        the forward's take writes them."""
        saved, leases = forward.outputs.saved, {lease.storage.data_ptr() for lease in forward.outputs.leases}
        seen = [k for k in (*self._returned, *self.hidden.values()) if inputs[k] is not None]
        in_place = {k for k in seen if inputs[k].untyped_storage().data_ptr() in leases}

        def fixed() -> Mapping[int, torch.Tensor]:
            tensors, saved.tensors = saved.tensors or {}, None
            found = {self.hidden[i]: tensor for i, tensor in tensors.items() if i in self.hidden}
            return found | {k: forward.buffers.values[i] for k, i in self._copied.items()}

        return {"static": self._static | in_place, "fixed": fixed}

    def restore(self, inputs: list[Any], saved: Saved, device: Device) -> None:
        """Puts the values that a replayed forward saved among the inputs of an ordinary backward."""
        for i, form in saved.forms.items():
            if saved.tensors is not None:
                inputs[self.hidden[i]] = saved.tensors[i]
            else:
                storage = device.unowned(form["data_ptr"], form["nbytes"])
                inputs[self.hidden[i]] = device.tensor_over(storage, form)

    @staticmethod
    def own(gradients: Sequence[Any], saved: Saved) -> list[Any]:
        """The gradients of an ordinary backward. Those in memory of the forward's take, which an engine may use for
        them after its last reader, are copied: the next replay writes there."""
        memory = {form["data_ptr"] for form in saved.forms.values()}
        return [
            g.clone() if isinstance(g, torch.Tensor) and g.untyped_storage().data_ptr() in memory else g
            for g in gradients
        ]
