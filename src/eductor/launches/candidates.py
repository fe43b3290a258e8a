"""Which programs are candidates for replayed launches, as far as it is known before their first call."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from eductor.graph.no import No
from eductor.graph.values.meta import tensor_of
from eductor.launches.graph_refusals import why_not_captured
from eductor.launches.replayed_program import ReplayedProgram
from eductor.options import Options
from eductor.program.parts import Program


def candidate(program: Program, options: Options, title: str, *, fuses: bool) -> ReplayedProgram | No | None:
    """A program with its takes, or why all its calls will be ordinary; None for graphs without a GPU.

    `fuses`: its engine makes few launches of many.
    """
    parts, signature = program.parts, program.signature
    device = _device(parts.forward)
    if device is None:
        return None
    if options.launches == "never":
        return No("launches='never'")
    if not (fuses or options.always_replays):
        return No("its engine launches the kernels of eager; launches='always' replays those, too")
    for graph in (parts.forward, parts.backward):
        refusal = why_not_captured(graph, device) if graph is not None else None
        if refusal is not None:
            return refusal
    written = {*signature.writes.forward, *signature.writes.backward, *parts.destinations}
    moving = sorted(written - signature.static)
    if moving:
        return No(f"input {moving[0]} is written, and is no parameter or buffer")
    always, share = options.always_replays, options.launches_memory
    return ReplayedProgram(title, parts, signature, device, always=always, share=share)


def _device(module: GraphModule) -> torch.device | None:
    """The GPU of the first tensor that lies on one."""
    values = (tensor_of(node) for node in module.graph.nodes)
    return next((v.device for v in values if v is not None and v.device.type in DEVICES), None)


DEVICES = ("cuda",)
"""The types of devices that capture launches."""
