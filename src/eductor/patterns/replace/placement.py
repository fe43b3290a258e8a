"""Finds a place for a replacement: after its operands, before its users, and not across a write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch.fx import Node

from eductor.graph import Effects, No
from eductor.graph.effects.order import ancestors
from eductor.patterns.match.match import Match
from eductor.patterns.match.transparent import transparent


@dataclass(frozen=True, slots=True)
class Result:
    """An old result, and what its replacement needs of the old graph."""

    old: Node
    needs: tuple[Node, ...]


def places(match: Match, results: Sequence[Result], effects: Effects) -> dict[Node, Node] | No:
    """In front of which node the replacement of each old result goes, or why there is no such place."""
    found: dict[Node, Node] = {}
    for result in results:
        place = _place(match, result)
        if isinstance(place, No):
            return place
        found[result.old] = place
    if not (may := _reads_what_it_read(match, effects) and _may_move(match, _spans(match, found), effects)):
        return may
    for result in results:
        for needed in result.needs if effects.writes_before(found[result.old]) else ():
            writer = _writer(match, [needed], _first_read(match, needed), found[result.old], effects)
            if writer is not None:
                return No(f"{writer.name} writes {needed.name} between the nodes of the match", writer)
    return found


def may_be_done_at_its_end(match: Match, effects: Effects) -> Literal[True] | No:
    """Whether the work of a match can be done at its last node: no write and no barrier is between its nodes."""
    spans = dict.fromkeys(match.nodes[:-1], match.nodes[-1])
    return _reads_what_it_read(match, effects) and _may_move(match, spans, effects)


def _reads_what_it_read(match: Match, effects: Effects) -> Literal[True] | No:
    """Whether no other node writes a value inside of the match before it is used."""
    for node in match.nodes if effects.writes_before(match.nodes[-1]) else ():
        for operand in node.all_input_nodes:
            for value in _passed(match, operand):
                writer = _writer(match, [value], value, node, effects)
                if writer is not None:
                    return No(f"{writer.name} writes {value.name} before {node.name} reads it", writer)
    return True


def _passed(match: Match, operand: Node) -> Iterator[Node]:
    """What a node of the match is given: another node of it, or copies of an input that the match passes over."""
    if operand in match.nodes:
        yield operand
    named = match.named()
    while operand not in named and (inner := transparent(operand, match.form.tolerated)) is not None:
        yield operand
        operand = inner


def _first_read(match: Match, needed: Node) -> Node:
    """Where a value is first read for the match: by one of its nodes, or by a copy before it that the match passes over."""
    found = [match.nodes[0]]
    for operand in {n for node in match.nodes for n in node.all_input_nodes}:
        found += [n for n in _passed(match, operand) if transparent(n, match.form.tolerated) is needed]
    return min(found)


def _place(match: Match, result: Result) -> Node | No:
    old = result.old
    late = [n for n in result.needs if not n < old]
    if not late:
        return old
    inside = set(match.nodes)
    users = [u for u in old.users if u not in inside]
    first = min(users, default=None)
    too_late = next((n for n in late if first is not None and not n < first), None)
    if first is None or too_late is not None:
        named = too_late or late[0]
        return No(
            f"what replaces {old.name} needs {named.name}, which is computed only after a user of {old.name}", named
        )
    return first


def _spans(match: Match, found: Mapping[Node, Node]) -> dict[Node, Node]:
    """Each node of the match with the place at which its work is done afterwards: that of the first result it is part of."""
    inside, spans = set(match.nodes), dict[Node, Node]()
    for old, place in sorted(found.items(), key=lambda item: item[1], reverse=True):
        part = ancestors([old], lambda node: node.all_input_nodes if node in inside else ())
        spans.update(dict.fromkeys(part & inside, place))
    last = max(found.values())
    return {node: spans.get(node, last) for node in match.nodes}


def _may_move(match: Match, spans: Mapping[Node, Node], effects: Effects) -> Literal[True] | No:
    """Whether the work of each node can be done at a place instead: nothing between them observes it."""
    answers = (_may_move_one(match, node, place, effects) for node, place in spans.items())
    return next((no for no in answers if not no), True)


def _may_move_one(match: Match, node: Node, place: Node, effects: Effects) -> Literal[True] | No:
    effect = effects.of(node)
    for other in effects.marks_between(node, place):
        mark = effects.of(other)
        if other in match.nodes:
            continue
        if mark.barrier:
            return No(f"{other.name} is between the nodes of the match: {mark.barrier}", other)
        if mark.ordered and mark.ordered == effect.ordered:
            return No(f"{other.name} is between the nodes of the match, and {mark.ordered} as {node.name} does", other)
    passed = list(_outside(match, node, place)) if effect.barrier or effect.writes else []
    if effect.barrier and passed:
        return No(f"{node.name} is {effect.barrier}, and {passed[0].name} is between it and the replacement", node)
    reader = next((n for n in passed if effects.reads(n) & effects.writes(node)), None)
    if reader is not None:
        return No(f"{reader.name} reads, between the nodes of the match, what {node.name} writes", reader)
    writer = _writer(match, node.all_input_nodes, node, place, effects)
    return (
        No(f"{writer.name} writes, between the nodes of the match, what {node.name} reads", writer) if writer else True
    )


def _outside(match: Match, first: Node, last: Node) -> Iterator[Node]:
    """The calls between two nodes that are not of the match."""
    node = first.next if first is not last else last
    while node is not last and node.op != "root":
        if node not in match.nodes and node.op not in ("placeholder", "get_attr"):
            yield node
        node = node.next


def _writer(match: Match, read: Sequence[Node], first: Node, last: Node, effects: Effects) -> Node | None:
    """The first node between two others that writes what is read, other than those of the match."""
    held = {effects.place(n) for n in read}
    marks = effects.marks_between(first, last)
    return next((m for m in marks if m not in match.nodes and effects.writes(m) & held), None)
