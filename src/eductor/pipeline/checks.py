"""Checks the graph after a pass: sound, with the same interface, all edits reported, and legal in its stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.fx import Graph, Node, map_arg

from eductor.graph import Snapshot, is_sorted, type_of, violations
from eductor.graph.matches import Match
from eductor.graph.values import meta
from eductor.pipeline.base import Stage


class ContractBroken(Exception):
    """A pass broke its contract, at a node."""

    def __init__(self, message: str, node: Node | None = None) -> None:
        super().__init__(message)
        self.node = node


def check_whole(graph: Graph) -> None:
    """Checks that a graph has one output, and uses only its own nodes."""
    nodes = list(graph.nodes)
    outputs = [n for n in nodes if n.op == "output"]
    if len(outputs) != 1:
        raise ContractBroken(f"the graph has {len(outputs)} outputs, not one", outputs[0] if outputs else None)
    here = set(nodes)
    for node in nodes:
        missing = next((operand for operand in node.all_input_nodes if operand not in here), None)
        if missing is not None:
            raise ContractBroken(f"{node.name} uses {missing.name}, which is not in the graph", node)


def check_sound(graph: Graph, before: Snapshot) -> None:
    """Checks that a graph ends in its output, stays sorted if it was, and passes `Graph.lint`."""
    last = next(iter(reversed(graph.nodes)))
    if last.op != "output":
        raise ContractBroken(f"{last.name} is after the output", last)
    try:
        graph.lint()  # which fails for any unsorted graph
    except (RuntimeError, ValueError) as error:
        if is_sorted(graph) or is_sorted(before.graph()):
            raise ContractBroken(str(error).split("\n")[0]) from error


def check_reported(graph: Graph, before: Snapshot, matches: Sequence[Match]) -> None:
    """Checks that each changed node has an event of the rewriter, or reads a replacement."""
    events = [event for match in matches for event in match.events]
    touched = {event.node for event in events}
    replacements = {event.detail.removeprefix("by ") for event in events if event.kind == "replaced"}
    gone = tuple(f"{path}." for path in before.bodies_gone(graph))
    kinds = [event.kind for event in events if not event.node.startswith(gone)]
    behind_the_back = "it edited the graph behind the rewriter's back: use rewrite.insert, replace, update, move, erase"
    for path, node in _changed(graph, before):
        reads = (f"{path}{n.name}" for n in node.all_input_nodes)
        if f"{path}{node.name}" not in touched and replacements.isdisjoint(reads):
            raise ContractBroken(behind_the_back, None if path else node)
    if not events or kinds.count("created") - kinds.count("erased") != before.growth(graph):
        raise ContractBroken(behind_the_back)


def _changed(graph: Graph, before: Snapshot, path: str = "") -> Iterator[tuple[str, Node]]:
    """The nodes that are new or whose call changed, in bodies, too, each with the path to its graph."""
    yield from ((path, node) for node in before.changed_nodes(graph))
    for name, then, body in before.bodies(graph):
        yield from _changed(body.graph, then, f"{path}{name}.")


def check_bodies(graph: Graph, before: Snapshot, stage: Stage) -> None:
    """Checks that each changed body of a higher-order operator is sound, with the same interface."""
    for path, then, body in before.bodies(graph):
        if then.is_same(body.graph):
            continue
        try:
            check_sound(body.graph, then)
            Interface(then.graph()).check(body.graph, stage)
            check_bodies(body.graph, then, stage)
        except ContractBroken as broken:
            raise ContractBroken(f"in {path}: {broken}") from broken


def check_stage(graph: Graph, before: Snapshot, stage: Stage, *, in_place: bool = False) -> None:
    """Checks that a pass breaks no law of its stage that was not broken before it."""
    broken = violations(graph, stage, in_place=in_place)
    known = {(v.law, v.node.name) for v in violations(before.graph(), stage)} if broken else set()
    for v in broken:
        if (v.law, v.node.name) not in known:
            raise ContractBroken(f"{v.node.name} breaks the law {v.law!r} of the stage {stage}: {v.text}", v.node)


class Interface:
    """The interface of a graph: the names and types of its inputs, the structure and types of its outputs."""

    def __init__(self, graph: Graph) -> None:
        self.inputs = {str(n.target): meta.value_of(n) for n in graph.find_nodes(op="placeholder")}
        self.structure, outputs = _outputs(graph)
        self.outputs = [meta.value_of(n) for n in outputs]

    def check(self, graph: Graph, stage: Stage, *, restrides: bool = False) -> None:
        """Checks that the interface is unchanged; with `restrides`, strides of outputs may change, and are updated here."""
        now = Interface(graph)
        if list(now.inputs) != list(self.inputs):
            raise ContractBroken(f"the inputs were ({', '.join(self.inputs)}) and are now ({', '.join(now.inputs)})")
        if now.structure != self.structure:
            raise ContractBroken(f"the outputs were {self.structure} and are now {now.structure}", graph.output_node())
        for name, old in self.inputs.items():
            _check_value(f"the input {name}", old, now.inputs[name], stage)
        for i, (old, new) in enumerate(zip(self.outputs, now.outputs, strict=True)):
            if not (restrides and meta.is_alike_but_for_strides(old, new)):
                _check_value(f"the output {i}", old, new, stage, graph.output_node())
        self.outputs = now.outputs


def _outputs(graph: Graph) -> tuple[Any, list[Node]]:
    """The structure that the graph returns, with an ellipsis for each node, and these nodes."""
    nodes: list[Node] = []

    def keep(node: Node) -> Any:
        nodes.append(node)
        return ...

    return map_arg(graph.output_node().args[0], keep), nodes


def _check_value(what: str, old: Any, new: Any, stage: Stage, node: Node | None = None) -> None:
    if old is new or old is meta.UNKNOWN or new is meta.UNKNOWN:
        return
    unlike = meta.difference(old, new)
    if not unlike and stage == "pre_grad" and meta.requires_grad(old) != meta.requires_grad(new):
        unlike = "requires_grad"
    if unlike:
        raise ContractBroken(f"{what} was {type_of(old)} and is now {type_of(new)}: {unlike}", node)
