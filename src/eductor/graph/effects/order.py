"""A stable topological sort of a graph that preserves the order of side effects."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

from torch.fx import Graph, Node

from eductor.errors import BadGraph
from eductor.graph.effects.graph_effects import Effects
from eductor.graph.effects.memory import ancestors as ancestors


def is_sorted(graph: Graph) -> bool:
    """Whether each node comes after all its operands."""
    seen: set[Node] = set()
    for node in graph.nodes:
        if not seen.issuperset(node.all_input_nodes):
            return False
        seen.add(node)
    return True


def sort_in_place(graph: Graph) -> None:
    """Sorts the nodes of a graph topologically."""
    for node, before in moves(graph):
        before.prepend(node)


def moves(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """The moves (node, before which node) that sort the graph; the caller makes each before it takes the next."""
    if is_sorted(graph):
        return
    at = next(iter(graph.nodes))
    for node in sorted_nodes(graph):
        if node is at:
            at = at.next
        else:
            yield node, at


def sorted_nodes(graph: Graph) -> list[Node]:
    """The nodes with operands first, otherwise in their present order; a cycle raises an error that names it.

    Nodes with effects (writes, barriers, random draws) keep their relative order, and no node passes a write to
    what it uses: such dependencies count like operands.
    """
    nodes = list(graph.nodes)
    position = {node: i for i, node in enumerate(nodes)}
    dependencies: dict[Node, set[Node]] = {node: set(node.all_input_nodes) for node in nodes}
    _add_effect_dependencies(graph, dependencies)
    sorter = TopologicalSorter(dependencies)
    try:
        sorter.prepare()
    except CycleError as error:
        raise BadGraph(f"the graph has a cycle: {' -> '.join(n.name for n in reversed(error.args[1]))}") from None
    ready: list[int] = []
    result: list[Node] = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, position[node])
        result.append(nodes[heapq.heappop(ready)])
        sorter.done(result[-1])
    return result


def _add_effect_dependencies(graph: Graph, dependencies: dict[Node, set[Node]]) -> None:
    """Makes each node depend on the last effect before it that concerns it, and each effect on what it must not pass."""
    effects = Effects(graph)
    position = {node: i for i, node in enumerate(graph.nodes)}
    needed = _first_needed(position)
    barrier: Node | None = None
    last: dict[str, Node] = {}
    since_barrier: list[Node] = []
    writer: dict[Node, Node] = {}
    users: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        effect = effects.of(node)
        if barrier is not None and node.op != "placeholder" and needed[node] > position[barrier]:
            dependencies[node].add(barrier)
        if effect.barrier or node.op == "output":
            dependencies[node].update(since_barrier)
            barrier, since_barrier = node, []
        else:
            since_barrier.append(node)
        if effect.ordered:
            dependencies[node].update([last[effect.ordered]] if effect.ordered in last else [])
            last[effect.ordered] = node
        used = effects.reads(node)
        dependencies[node].update(writer[place] for place in used if place in writer)
        for place in effects.writes(node):
            dependencies[node].update(users.pop(place, ()))
            writer[place] = node
        for place in used:
            users[place].append(node)
        dependencies[node].discard(node)


def _first_needed(position: dict[Node, int]) -> dict[Node, int]:
    """The first position of a node or anything computed from it: a late node needed before a barrier must pass it."""
    needed = dict(position)
    pending = list(position)
    while pending:
        node = pending.pop()
        for operand in node.all_input_nodes:
            if needed[node] < needed[operand]:
                needed[operand] = needed[node]
                pending.append(operand)
    return needed
