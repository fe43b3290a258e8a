"""The nodes of one graph through the passes of a stage: each has a stable id, and the ids of its origins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.graph.provenance import PROVENANCE, Provenance
from eductor.graph.snapshot import Snapshot
from eductor.graph.text.printer import assignment, path_of
from eductor.graph.values.meta import CAME_FROM, UNKNOWN
from eductor.observe.report.state import NodeData
from eductor.observe.report.tables import Modules, RuleSources, Sources


@dataclass
class Tables:
    """Tables shared by all graphs of a report."""

    sources: Sources = field(default_factory=Sources)
    modules: Modules = field(default_factory=Modules)
    rules: RuleSources = field(default_factory=RuleSources)
    ids: Iterable[int] = field(default_factory=lambda: count(1))


class Chain:
    """Tracks a graph through one stage: the id of each node and name, and the last data of each node."""

    def __init__(self, tables: Tables, earlier: Chain | None, *, is_same_graph: bool = False) -> None:
        """`is_same_graph`: the earlier stage ended with this same graph, so each node originates from its namesake there."""
        self.names: dict[str, int] = {}
        """Ids by name, including erased nodes."""
        self.recorded: dict[int, NodeData] = {}
        self.by_pass = ""
        """The running pass: it created new nodes without provenance."""
        self._tables = tables
        self._earlier = earlier
        self._is_same_graph = is_same_graph
        self._name_of: dict[int, str] = {}
        self._ids: dict[Node, int] = {}
        self._seen: dict[int, tuple[Any, ...]] = {}

    def start(self, snapshot: Snapshot) -> dict[int, NodeData]:
        """Records the input graph of the stage."""
        rows = list(zip(snapshot.rows(), snapshot.metas(), strict=True))
        lines = self._lines(rows)
        return {self._id(node): self.record(node, call, meta, lines[node]) for (node, *call), meta in rows}

    def _lines(self, rows: Sequence[tuple[Any, Mapping[str, Any]]]) -> dict[Node, int | None]:
        """The source line of each node: its own, or that of its origin, or of its first reader.

        A node without readers, such as a switch of the grad mode, takes the line of the next node, or else of the previous.
        """
        readers: dict[Node, list[Node]] = {}
        for (node, _, _, args, kwargs), _ in rows:
            map_arg((args, kwargs), lambda n: readers.setdefault(n, []).append(node))  # noqa: B023
        lines = {node: self._line(self._id(node), meta) for (node, *_), meta in rows}
        near: int | None = None
        for (node, *_), _ in reversed(rows):
            if lines[node] is None:
                lines[node] = next((lines[r] for r in readers.get(node, ()) if lines.get(r) is not None), near)
            near = lines[node]
        for (node, *_), _ in rows:
            lines[node] = near = lines[node] if lines[node] is not None else near
        return lines

    def _line(self, id: int, meta: Mapping[str, Any]) -> int | None:
        own = self._tables.sources.of(meta)
        known = (self._latest(i).get("source") for i in self._from(id, meta))
        return own if own is not None else next((line for line in known if line is not None), None)

    def goes_on(self, snapshot: Snapshot) -> None:
        """Maps new nodes to old ids by name, after an undone pass recreated the graph."""
        nodes = [node for node, *_ in snapshot.rows()]
        if nodes and not any(node in self._ids for node in nodes):
            for node in nodes:
                if node.name in self.names:
                    self._ids[node] = self.names[node.name]

    def whole(self, snapshot: Snapshot) -> dict[int, NodeData]:
        """Records all nodes of a snapshot, by id, in order."""
        rows = zip(snapshot.rows(), snapshot.metas(), strict=True)
        return {self._id(node): self.record(node, call, meta) for (node, *call), meta in rows}

    def id(self, node: Node | None) -> int | None:
        """The id of a node; None for the root before the first one."""
        return None if node is None or node.op == "root" else self._id(node)

    def record(self, node: Node, call: Sequence[Any], meta: Mapping[str, Any], line: int | None = None) -> NodeData:
        """The data of a node; the same object as before if nothing changed."""
        id = self._id(node)
        value = meta.get("val", meta.get("example_value", UNKNOWN))
        seen = (*call, value, meta.get(PROVENANCE))
        old = self.recorded.get(id)
        if old is not None and all(a is b for a, b in zip(seen, self._seen[id], strict=True)):
            return old
        self._seen[id] = seen
        new = self._data(id, node.name, call, meta, value, line if old is None else old["source"])
        if old is not None:
            new["from"] = old["from"]
            new["made"] = new["made"] or old["made"]
            if new == old:
                return old
        self.recorded[id] = new
        return new

    def _data(
        self, id: int, name: str, call: Sequence[Any], meta: Mapping[str, Any], value: Any, line: int | None
    ) -> NodeData:
        op, target, args, kwargs = call
        inputs: dict[int, None] = {}
        map_arg((args, kwargs), lambda n: inputs.setdefault(self._id(n)))
        made, origins = self._made(meta.get(PROVENANCE), is_new=id not in self.recorded), self._from(id, meta)
        lines = (self._line(id, meta), line, *(self._latest(i).get("source") for i in inputs))
        module = self._tables.modules.of(meta)
        return {
            "id": id,
            "name": name,
            "op": op,
            "target": path_of(target) if callable(target) else str(target),
            "code": f"# {name}: an input" if op == "placeholder" else assignment(name, op, target, args, kwargs),
            "inputs": list(inputs),
            **described(value if op != "output" else None),
            "source": next((number for number in lines if number is not None), None),
            "module": module,
            "made": made,
            "from": origins,
        }

    def _latest(self, id: int) -> NodeData:
        return self.recorded.get(id) or (self._earlier._latest(id) if self._earlier is not None else {})

    def _made(self, provenance: Provenance | None, *, is_new: bool) -> dict[str, Any] | None:
        """The match that created or last changed a node; a pass without the rewriter may only have copied metadata."""
        address = provenance.address if provenance is not None else ""
        made_by = address.partition("@")[0].partition(":")[0]
        if not address or (is_new and self.by_pass and made_by != self.by_pass):
            return {"pass": self.by_pass, "match": None} if self.by_pass else None
        return {"pass": made_by, "match": address if "@" in address else None}

    def _from(self, id: int, meta: Mapping[str, Any]) -> list[int]:
        """The nodes of this stage from which a match created it; else its counterparts in the previous stage."""
        provenance = meta.get(PROVENANCE)
        if self.by_pass and provenance is not None:
            here = dict.fromkeys(self.names[name] for name in provenance.sources if name in self.names)
            return [i for i in here if i != id]
        names = (self._name_of[id],) if self._is_same_graph else meta.get(CAME_FROM, ())
        return [self._earlier.names[n] for n in names if n in self._earlier.names] if self._earlier is not None else []

    def _id(self, node: Node) -> int:
        if node not in self._ids:
            self._ids[node] = next(self._tables.ids)  # type: ignore[call-overload]
            self.names[node.name] = self._ids[node]
            self._name_of[self._ids[node]] = node.name
        return self._ids[node]


NOTHING: dict[str, Any] = {"value": None, "shape": None, "dtype": None, "stride": None, "device": None, "bytes": None}


def described(value: Any) -> dict[str, Any]:
    """The fields of a node that describe its value."""
    if isinstance(value, torch.Tensor):
        is_strided = value.layout is torch.strided
        return {
            "value": _text(value),
            "shape": [str(n) for n in value.shape],
            "dtype": _dtype(value),
            "stride": [str(n) for n in value.stride()] if is_strided else None,
            "device": str(value.device),
            "bytes": _bytes(value),
        }
    if value is UNKNOWN or value is None:
        return NOTHING
    sizes = [_bytes(v) for v in value if isinstance(v, torch.Tensor)] if isinstance(value, (list, tuple)) else [None]
    known = None if not sizes or None in sizes else sum(n for n in sizes if n is not None)
    return {**NOTHING, "value": _text(value), "bytes": known}


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_text, value))})"
    return str(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else type(value).__name__


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _bytes(value: torch.Tensor) -> int | None:
    if not all(isinstance(n, int) for n in value.shape):
        return None
    return value.numel() * value.element_size()
