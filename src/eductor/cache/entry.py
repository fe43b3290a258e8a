"""Serializes a compiled program to plain data, and reads it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch.fx import GraphModule

from eductor.autograd.captured import Fakes
from eductor.cache.graphs import graph_from_data, graph_to_data
from eductor.cache.values import NotKept, Symbols, value_from_data, value_to_data
from eductor.graph import No
from eductor.packing import Hoisted, with_prologue
from eductor.program.analysis import Analysis, Input, Output, Return
from eductor.program.joint import Signature, Tangent, Views, Writes
from eductor.program.parts import Parts, Saved
from eductor.program.program import Program, ReplayNeeds


@dataclass(frozen=True, slots=True)
class Packing:
    """The prologue that computes packed values, with the indices of the inputs that it reads and that the graph writes."""

    prologue: GraphModule
    uncounted: tuple[int, ...]
    sources: tuple[int, ...]
    written: tuple[int, ...]

    @staticmethod
    def of(hoisted: Hoisted) -> Packing:
        sources, written = (tuple(map(_number, places)) for places in (hoisted.sources, hoisted.written))
        return Packing(hoisted.prologue, tuple(hoisted.kept.uncounted), sources, written)


def _number(source: int | torch.Tensor) -> int:
    if not isinstance(source, int):
        raise NotKept("a packed value computed from a tensor that the module holds")
    return source


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached compile: its program, packing, and guards on sizes."""

    program: Program
    packing: Packing | None
    guards: tuple[Any, ...] = ()

    @staticmethod
    def of(program: Program, hoisted: Hoisted | None, guards: tuple[Any, ...]) -> Entry:
        return Entry(program, Packing.of(hoisted) if hoisted is not None else None, guards)

    def hoisted(self, module: GraphModule) -> Hoisted | None:
        """A captured graph with the cached prologue; None without packing."""
        p = self.packing
        return with_prologue(module, p.prologue, p.uncounted, p.sources, p.written) if p is not None else None


def write(entry: Entry, symbols: Symbols) -> dict[str, Any]:
    """An entry as plain data; raises `NotKept` if a part cannot be serialized."""
    program = entry.program
    if program.function_graph is not None:
        raise NotKept("a torch.autograd.Function")
    return {
        "guards": [symbols.spell(guard) for guard in entry.guards],
        "packing": _packing_to_data(entry.packing, symbols) if entry.packing else None,
        "signature": _signature_to_data(program.signature, symbols),
        "parts": _parts_to_data(program.parts, symbols),
        "replay": _replay_to_data(program.replay) if program.replay else None,
    }


def read(data: dict[str, Any], fakes: Fakes, symbols: Symbols) -> Entry | None:
    """Reads an entry for these inputs, and installs its guards; None if they do not hold for the inputs' sizes."""
    conditions = [symbols.read(guard) for guard in data["guards"]]
    if not all(_holds(condition) for condition in conditions):
        return None
    for condition in conditions:
        bool(condition)  # installs a guard
    program = Program(
        _signature_from_data(data["signature"], fakes, symbols),
        _parts_from_data(data["parts"], fakes, symbols),
        _replay_from_data(data["replay"]) if data["replay"] else None,
    )
    packing = _packing_from_data(data["packing"], fakes, symbols) if data["packing"] else None
    return Entry(program, packing)


def _replay_to_data(needs: ReplayNeeds) -> dict[str, Any]:
    may_run = True if needs.may_run else str(needs.may_run)
    return {"is_random": needs.is_random, "watched": needs.watched, "let_go": needs.let_go, "may_run": may_run}


def _replay_from_data(data: dict[str, Any]) -> ReplayNeeds:
    may_run: Literal[True] | No = True if data["may_run"] is True else No(data["may_run"])
    return ReplayNeeds(data["is_random"], tuple(data["watched"]), tuple(data["let_go"]), may_run)


def _holds(condition: Any) -> bool:
    """Whether a condition holds for the sizes of this call; installs no guard."""
    return bool(condition.node.hint if isinstance(condition, torch.SymBool) else condition)


def _signature_to_data(signature: Signature, symbols: Symbols) -> dict[str, Any]:
    analysis = signature.analysis
    for output in analysis.outputs:
        if not isinstance(output.value, (bool, int, float, str, type(None))):
            raise NotKept(f"the output {output.value!r}")
    return {
        "inputs": [asdict(given) for given in analysis.inputs],
        "outputs": [asdict(output) for output in analysis.outputs],
        "returns": [asdict(result) for result in analysis.returns],
        "values": [value_to_data(value, symbols) for value in analysis.values],
        "grad_mode": analysis.grad_mode,
        "makes_inference_tensors": analysis.makes_inference_tensors,
        "tangents": [(t.of, t.strides, str(t.memory_format).removeprefix("torch.")) for t in signature.tangents],
        "gradients": signature.gradients,
        "writes": asdict(signature.writes),
        "views": [
            {"places": views.places, "graph": graph_to_data(views.module, symbols)} if views else None
            for views in signature.views
        ],
        "static": sorted(signature.static),
    }


def _signature_from_data(data: dict[str, Any], fakes: Fakes, symbols: Symbols) -> Signature:
    analysis = Analysis(
        tuple(Input(**given) for given in data["inputs"]),
        tuple(Output(**output) for output in data["outputs"]),
        tuple(Return(**result) for result in data["returns"]),
        tuple(value_from_data(value, symbols, fakes.mode) for value in data["values"]),
        data["grad_mode"],
        data["makes_inference_tensors"],
    )
    tangents = [
        Tangent(of, None if strides is None else tuple(strides), getattr(torch, memory_format))
        for of, strides, memory_format in data["tangents"]
    ]
    with_gradient, without = (
        Views(tuple((kind, i) for kind, i in v["places"]), graph_from_data(v["graph"], symbols, fakes.mode))
        if v
        else None
        for v in data["views"]
    )
    writes = Writes(tuple(data["writes"]["forward"]), tuple(data["writes"]["backward"]))
    gradients, static = tuple(data["gradients"]), frozenset(data["static"])
    return Signature(analysis, tuple(tangents), gradients, writes, (with_gradient, without), static)


def _parts_to_data(parts: Parts, symbols: Symbols) -> dict[str, Any]:
    functional = parts.functional() if parts.functional is not None else None
    graphs = {"forward": parts.forward, "backward": parts.backward, "functional": functional}
    return {
        **{name: graph_to_data(graph, symbols) if graph is not None else None for name, graph in graphs.items()},
        "sizes": [asdict(place) for place in parts.sizes],
        "saved": [asdict(place) for place in parts.saved],
        "destinations": parts.destinations,
        "trusts_parameters": parts.trusts_parameters,
    }


def _parts_from_data(data: dict[str, Any], fakes: Fakes, symbols: Symbols) -> Parts:
    def graph(name: str) -> GraphModule | None:
        return graph_from_data(data[name], symbols, fakes.mode) if data[name] else None

    forward = graph("forward")
    assert forward is not None
    return Parts(
        forward,
        graph("backward"),
        sizes=_places(data["sizes"]),
        saved=_places(data["saved"]),
        destinations=tuple(data["destinations"]),
        trusts_parameters=data["trusts_parameters"],
        functional=partial(graph_from_data, data["functional"], symbols, fakes.mode) if data["functional"] else None,
    )


def _places(data: Sequence[dict[str, Any]]) -> tuple[Saved, ...]:
    return tuple(Saved(**place) for place in data)


def _packing_to_data(packing: Packing, symbols: Symbols) -> dict[str, Any]:
    return {
        "prologue": graph_to_data(packing.prologue, symbols),
        "uncounted": packing.uncounted,
        "sources": packing.sources,
        "written": packing.written,
    }


def _packing_from_data(data: dict[str, Any], fakes: Fakes, symbols: Symbols) -> Packing:
    numbers = (tuple(data[name]) for name in ("uncounted", "sources", "written"))
    return Packing(graph_from_data(data["prologue"], symbols, fakes.mode), *numbers)
