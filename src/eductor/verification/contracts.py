"""Static checks of a pass: metadata, and the order of reads, writes and random draws."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor import ops
from eductor.compat import is_transform
from eductor.graph import Effects, provenance_of
from eductor.graph.reading.asserts import holds_for_certain
from eductor.graph.values import meta
from eductor.graph.values.evaluate import reevaluated
from eductor.pipeline.checks import ContractBroken
from eductor.verification.seeded_draws import origin_of


def check_metadata(before: GraphModule, after: GraphModule) -> None:
    """Checks that the fake value of each changed node is what its operands evaluate to."""
    old = {n.name: n for n in before.graph.nodes}
    changed = [n for n in after.graph.nodes if not _is_unchanged(n, old.get(n.name))]
    nodes = dict.fromkeys([*changed, *(user for node in changed for user in node.users)])
    try:
        stale = _stale(after, nodes)
    except Exception as error:
        _stale(before, dict.fromkeys(before.graph.nodes))  # raises as well if the graph could not be evaluated before
        raise ContractBroken(f"it can no longer be evaluated: {error!r}") from error
    if not stale:
        return
    # What was stale in the graph before is not the pass's fault.
    known = _stale(before, dict.fromkeys(old[n.name] for n in stale if n.name in old))
    known_by_name = {n.name: unlike for n, unlike in known.items()}
    for node, unlike in stale.items():
        if known_by_name.get(node.name) != unlike:
            raise ContractBroken(f"the metadata of {node.name} is stale: {unlike} when re-evaluated", node)


def _stale(module: GraphModule, nodes: dict[Node, None]) -> dict[Node, str]:
    """The nodes whose fake value differs from what they evaluate to, with the difference."""
    if any(is_transform(n.target) for n in module.graph.nodes):
        return {}
    values = ((node, meta.value_of(node), new) for node, new in reevaluated(module, nodes))
    return {n: unlike for n, old, new in values if old is not meta.UNKNOWN and (unlike := meta.difference(old, new))}


def _is_unchanged(node: Node, old: Node | None) -> bool:
    if old is None or (node.op, node.target) != (old.op, old.target):
        return False
    operands = [n.name for n in node.all_input_nodes] == [n.name for n in old.all_input_nodes]
    return operands and meta.value_of(node) is meta.value_of(old)


def check_effects(before: Graph, after: Graph) -> None:
    """Checks that no read moves past a write of its memory, no effect past another, and nothing is drawn twice."""
    old, new = Effects(before, inputs_distinct=True), Effects(after, inputs_distinct=True)
    names = {n.name: n for n in before.nodes}
    _check_kept(before, after, old)
    drawn: dict[str, Node] = {}
    seeded: dict[Any, Node] = {}
    readers = _readers_by_place(new)
    last: Node | None = None
    for node in after.nodes:
        effect = new.of(node)
        if (effect.random and node.target is not torch.ops.eductor.seeds.default) or _source(node) is not None:
            twin = drawn.setdefault(origin_of(node), node)
            if twin is not node and (_source(node) is None or _source(node) != _source(twin)):
                raise ContractBroken(f"{node.name} draws again what {twin.name} drew", node)
            twin = seeded.setdefault(_source(node) or node.name, node)
            if origin_of(twin) != origin_of(node):
                raise ContractBroken(f"{node.name} draws the same numbers as {twin.name}", node)
        if not (effect.writes or effect.barrier or effect.random) or node.name not in names:
            continue
        if last is not None and names[node.name] < names[last.name]:
            raise ContractBroken(f"{node.name} is now after {last.name}, but was before it", node)
        last = node
        if effect.writes:
            _check_readers(node, readers, names, old, new)


def _source(node: Node) -> tuple[Any, Any] | None:
    """The seed of a seeded draw; the same seed gives the same numbers."""
    return node.args[:2] if node.target in ops.random.SEEDED else None  # type: ignore[return-value]


def _readers_by_place(effects: Effects) -> dict[Node, list[Node]]:
    found: dict[Node, list[Node]] = {}
    for node in effects.graph.nodes:
        for place in effects.reads(node):
            found.setdefault(place, []).append(node)
    return found


def _check_readers(
    write: Node, readers: dict[Node, list[Node]], names: dict[str, Node], old: Effects, new: Effects
) -> None:
    """Checks that no reader of what a node writes moved past it."""
    was = names[write.name]
    then_written = old.writes(was)
    for reader in (node for place in new.writes(write) for node in readers.get(place, ())):
        then = names.get(reader.name)
        if reader is write or then is None or (reader < write) == (then < was):
            continue
        if old.reads(then) & then_written:
            raise ContractBroken(f"{reader.name} was moved past {write.name}, which writes what it reads", reader)


def _check_kept(before: Graph, after: Graph, old: Effects) -> None:
    """Checks that nodes with side effects (prints, asserts, communication), or replacements of them, are still there."""
    there = {n.name for n in after.nodes} | {source for n in after.nodes for source in _sources(n)}
    for node in before.nodes:
        effect = old.of(node)
        if (effect.kept or effect.opaque) and node.name not in there and not holds_for_certain(node):
            raise ContractBroken(f"{node.name} was removed, which is {effect.kept or effect.barrier}")


def _sources(node: Node) -> tuple[str, ...]:
    made = provenance_of(node)
    return () if made is None else made.sources
