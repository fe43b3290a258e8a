"""Builds the jobs of a program: what an engine may assume about its forward graph and its backward graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.graph.effects.bases import base_node
from eductor.graph.values.meta import known_equal, output_of, value_of
from eductor.program.job import Compiled, Job
from eductor.program.program import Program


def forward_job(program: Program) -> Job:
    """The forward graph of a program."""
    signature, module = program.signature, program.parts.forward
    return Job(
        module,
        _values(module),
        is_inference=not signature.tangents,
        static=signature.static,
        written=frozenset(signature.writes.forward),
        visible=frozenset(range(len(signature.analysis.returns))),
    )


def backward_job(
    program: Program,
    forward: Compiled,
    module: GraphModule,
    defined: Sequence[bool],
    *,
    keeps_saved: bool,
    shared: dict[str, Any],
) -> Job:
    """A backward graph of a program, which takes the defined tangents."""
    parts = program.parts
    sizes, saved = len(parts.sizes), len(parts.sizes) + len(parts.saved)
    destinations = frozenset(range(saved, saved + len(parts.destinations)))
    return Job(
        module,
        [*_saved_values(program, forward), *_values(module)[saved:]],
        is_inference=False,
        is_backward=True,
        static=_static(program) | destinations,
        saved=frozenset(range(sizes, saved)),
        undefined=tuple(i for i, is_defined in enumerate(defined) if not is_defined),
        written=destinations,
        visible=frozenset(range(len(output_of(module)))),
        donated=frozenset() if keeps_saved else _unshared(program),
        shared=shared,
    )


def _values(module: GraphModule) -> list[Any]:
    return [value_of(p) for p in module.graph.find_nodes(op="placeholder")]


def _saved_values(program: Program, forward: Compiled) -> list[Any]:
    """Fake values of saved sizes and tensors, with the strides that the engine chose for them."""
    parts = program.parts
    assert parts.backward is not None
    values = _values(parts.backward)[: len(parts.sizes) + len(parts.saved)]
    for k, place in enumerate(parts.saved, start=len(parts.sizes)):
        strides = forward.strides[place.index] if forward.strides is not None and place.source == "output" else None
        value = values[k]
        if strides is not None and not known_equal(tuple(value.stride()), tuple(strides)):
            with value.fake_mode:
                values[k] = torch.empty_strided(value.shape, tuple(strides), dtype=value.dtype, device=value.device)
    return values


def _unshared(program: Program) -> frozenset[int]:
    """Inputs of the backward that share no memory with anything the caller has."""
    parts = program.parts
    outputs, count = output_of(parts.forward), len(program.signature.analysis.returns)
    returned = {base_node(n) for n in outputs[:count] if isinstance(n, Node)}
    return frozenset(
        len(parts.sizes) + k
        for k, place in enumerate(parts.saved)
        if place.source == "output"
        and place.index >= count
        and base_node(outputs[place.index]) not in returned
        and base_node(outputs[place.index]).op != "placeholder"
    )


def _static(program: Program) -> frozenset[int]:
    """Inputs of the backward that are parameters or buffers."""
    places = enumerate(program.parts.saved, start=len(program.parts.sizes))
    return frozenset(k for k, place in places if place.source == "input" and place.index in program.signature.static)
