"""What a pass must leave behind: a sound graph, the same interface, nothing unreported, what its stage allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.fx import Graph, Node, map_arg

from eductor.graph.effects.legal import violations
from eductor.graph.effects.order import is_sorted
from eductor.graph.matches import Match
from eductor.graph.snapshot import Snapshot
from eductor.graph.text.printer import type_of
from eductor.graph.values import meta
from eductor.pipeline.base import Stage


class ContractBroken(Exception):
    """A pass did what it had promised not to do, at a node."""

    def __init__(self, message: str, node: Node | None = None) -> None:
        super().__init__(message)
        self.node = node


def check_whole(graph: Graph) -> None:
    """A graph has one output, and uses only nodes that it has."""
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
    """A graph ends in its output, stays sorted if it was, and torch finds nothing wrong with it."""
    last = next(iter(reversed(graph.nodes)))
    if last.op != "output":
        raise ContractBroken(f"{last.name} stands after the output", last)
    try:
        graph.lint()  # which finds nothing wrong only with a graph that is sorted
    except (RuntimeError, ValueError) as error:
        if is_sorted(graph) or is_sorted(before.graph()):
            raise ContractBroken(str(error).split("\n")[0]) from error


def check_reported(graph: Graph, before: Snapshot, matches: Sequence[Match]) -> None:
    """All that changed is among the events of the rewriter, or reads a node that was put in place of another."""
    events = [event for match in matches for event in match.events]
    touched = {event.node for event in events}
    stand_ins = {event.detail.removeprefix("by ") for event in events if event.kind == "replaced"}
    gone = tuple(f"{path}." for path in before.bodies_gone(graph))
    kinds = [event.kind for event in events if not event.node.startswith(gone)]
    behind_the_back = "it edited the graph behind the rewriter's back: use rewrite.insert, replace, update, move, erase"
    for path, node in _changed(graph, before):
        reads = (f"{path}{n.name}" for n in node.all_input_nodes)
        if f"{path}{node.name}" not in touched and stand_ins.isdisjoint(reads):
            raise ContractBroken(behind_the_back, None if path else node)
    if not events or kinds.count("created") - kinds.count("erased") != before.growth(graph):
        raise ContractBroken(behind_the_back)


def _changed(graph: Graph, before: Snapshot, path: str = "") -> Iterator[tuple[str, Node]]:
    """The nodes that are new or call something else, with those in bodies, each with the path to its graph."""
    yield from ((path, node) for node in before.changed_nodes(graph))
    for name, then, body in before.bodies(graph):
        yield from _changed(body.graph, then, f"{path}{name}.")


def check_bodies(graph: Graph, before: Snapshot, stage: Stage) -> None:
    """A body of a higher-order operator is sound, and takes and returns what it did."""
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
    """A pass breaks no law of its stage; one that was broken before is not its doing."""
    broken = violations(graph, stage, in_place=in_place)
    known = {(v.law, v.node.name) for v in violations(before.graph(), stage)} if broken else set()
    for v in broken:
        if (v.law, v.node.name) not in known:
            raise ContractBroken(f"{v.node.name} breaks the law {v.law!r} of the stage {stage}: {v.text}", v.node)


class Interface:
    """What a caller sees of a graph: the names and types of its inputs, the structure and types of its outputs."""

    def __init__(self, graph: Graph) -> None:
        self.inputs = {str(n.target): meta.value_of(n) for n in graph.find_nodes(op="placeholder")}
        self.structure, outputs = _outputs(graph)
        self.outputs = [meta.value_of(n) for n in outputs]

    def check(self, graph: Graph, stage: Stage, *, restrides: bool = False) -> None:
        """No pass changes the interface of its graph; one that may give outputs other strides sets them anew."""
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
    """What the graph returns, with an ellipsis for each node, and these nodes one by one."""
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
