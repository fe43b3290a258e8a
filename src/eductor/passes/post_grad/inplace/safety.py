"""Whether a call may write an operand in place: nobody reads the old contents later, and nothing else becomes visible.

An input may be written only where the graph writes it back at its end: then its contents in between are nobody's but
the graph's, and whatever is written early is written over by the `copy_`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx import Node, map_arg

from eductor.graph.no import No
from eductor.graph.reading.bind import Bound
from eductor.graph.values.meta import difference, known_equal, tensor_of, value_of
from eductor.graph.view import GraphView
from eductor.passes.post_grad.inplace.geometry import covers, lies_apart
from eductor.passes.post_grad.inplace.places import Places
from eductor.passes.post_grad.inplace.views import SCATTERS, Parts

aten = torch.ops.aten

# They look at the form of their operand, not at its contents; of those that overwrite it, at nothing else of it.
_ASKING_THE_FORM = (
    *(aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default),
    *(aten.empty_like.default, aten.full_like.default, aten.zeros_like.default, aten.ones_like.default),
    *(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
)
_OVERWRITING = (aten.copy.default, aten.fill.Scalar, aten.fill.Tensor)


@dataclass(frozen=True)
class Write:
    """A call that would write `operand`; its `results` would be that operand. `part` is what it writes of it."""

    call: Node
    operand: Node
    results: Collection[Node]
    part: torch.Tensor
    known: Collection[Node] = ()
    """Other operands that share the memory, and may."""


class Safety:
    """Judges writes; the places are those of the graph as it stands."""

    def __init__(self, graph: GraphView, places: Places, parts: Parts, *, inputs_apart: bool) -> None:
        self._graph = graph
        self._places = places
        self._parts = parts
        self._inputs_apart = inputs_apart
        self._write_backs = {node.args[0]: node for node in graph.nodes if is_write_back(node)}

    def may_write(self, write: Write) -> Literal[True] | No:
        """Whether an operand may be written in place."""
        tensor = tensor_of(write.operand)
        if tensor is None or not isinstance(write.part, torch.Tensor):
            return No(f"{write.operand.name} is not known to be a tensor", write.operand)
        return (
            self._is_writable(write)
            and self._operands_allow(write)
            and self._outside_allows(write)
            and self._is_unread_later(write)
            and self._results_allow(write)
        )

    def _is_writable(self, write: Write) -> Literal[True] | No:
        part = write.part
        if part.layout is not torch.strided or part.is_conj() or part.is_neg():
            return No(f"{write.operand.name} does not lie in plain memory", write.operand)
        return True if lies_apart(part) else No(f"elements of {write.operand.name} may lie in one place", write.operand)

    def _operands_allow(self, write: Write) -> Literal[True] | No:
        """The other operands of the call are read while it writes."""
        given: list[Node] = []
        map_arg((write.call.args, write.call.kwargs), given.append)
        others = [n for n in given if n is not write.operand and n not in write.known]
        shared = next((n for n in others if self._places.share(n, write.operand)), None)
        if given.count(write.operand) > 1:
            return No(f"{write.operand.name} is another operand of the call, too", write.operand)
        return No(f"the operand {shared.name} shares its memory", shared) if shared is not None else True

    def _outside_allows(self, write: Write) -> Literal[True] | No:
        holders = self._places.held_outside(write.operand)
        if not holders:
            return True
        if len(holders) > 1 or self._graph.effects.of(holders[0]).opaque:
            return No(
                f"the memory of {write.operand.name} may be that of {', '.join(n.name for n in holders[:2])}",
                write.operand,
            )
        if not self._inputs_apart:
            return No(f"{holders[0].name} may share memory with other inputs of the backward", holders[0])
        if self._write_back(write) is None:
            return No(f"the graph does not write back to {holders[0].name}", holders[0])
        if self._graph.is_call(write.call, aten.as_strided_scatter) and not covers(tensor_of(holders[0]), write.part):
            return No(f"it may write memory around {holders[0].name}", holders[0])
        return True

    def _is_unread_later(self, write: Write) -> Literal[True] | No:
        """Whether the old contents are read after the write through the result alone."""
        back = self._write_back(write)
        for node, user in self._places.uses_after(write.operand, write.call):
            is_over = back is not None and _is_written_by_then(node, user, back)
            if is_over or not self._reads(user, node) or self._reads_around(user, node, write):
                continue
            reads = "the graph returns" if user.op == "output" else f"{user.name} reads"
            return No(f"{reads} what was in {node.name} before", node)
        return True

    def _reads(self, user: Node, node: Node) -> bool:
        """Whether a node looks at the contents of another one; what a view shows is read by those who use the view."""
        if self._graph.effects.of(user).is_view or user.target in _ASKING_THE_FORM:
            return False
        return not (user.target in _OVERWRITING and user.args[:1] == (node,) and node not in user.args[1:])

    def _reads_around(self, user: Node, node: Node, write: Write) -> bool:
        """Whether a scatter reads only what lies around the written part: it puts something else in the place of that."""
        part, bound = self._parts.of(user), self._graph.bind(user)
        if part is None or not isinstance(bound, Bound) or bound["self"] is not node or bound["src"] is node:
            return False
        if self._places.root(node) != self._places.root(write.operand):
            return False
        written = [write.part, *map(value_of, self._places.views(write.operand))]
        return any(difference(part, inside) is None for inside in written)

    def _results_allow(self, write: Write) -> Literal[True] | No:
        """Whether the results share no memory that they did not share, and keep their layout."""
        back = self._write_back(write)
        whole = self._places.views(write.operand)
        for result in write.results:
            if not (verdict := self._is_alike(write, result)):
                return verdict
            for node, user in self._places.uses_after(result, write.call):
                if user.op == "output" and back is not None:
                    return No(f"{node.name} leaves the graph, and would be {back.args[0]}", node)
                if user.op == "output" and len(whole) > 1:
                    return No(f"{node.name} leaves the graph, and would be a part of {whole[-1].name}", node, whole[-1])
                if back is not None and not (verdict := self._write_back_allows(write, back, result, node, user)):
                    return verdict
        return True

    def _is_alike(self, write: Write, result: Node) -> Literal[True] | No:
        """Only users that copy elements one by one may be given a value of another layout."""
        unlike = difference(value_of(result), value_of(write.operand))
        if not unlike:
            return True
        new, old = tensor_of(result), tensor_of(write.operand)
        is_same_kind = new is not None and old is not None and new.dtype == old.dtype
        if not is_same_kind or not known_equal(tuple(new.shape), tuple(old.shape)):  # type: ignore[union-attr]
            return No(f"the result is another tensor: {unlike}")
        copied = all(self._takes_any_form(user, result) for user in result.users)
        return True if copied else No(f"the result would lie otherwise: {unlike}")

    def _write_back_allows(self, write: Write, back: Node, result: Node, node: Node, user: Node) -> Literal[True] | No:
        """After the write-back the memory of a result holds what was written back."""
        place = back.args[0]
        assert isinstance(place, Node)
        is_itself = (
            difference(value_of(node), value_of(place)) is None
            and difference(value_of(result), value_of(write.operand)) is None
        )
        if user is back and node is back.args[1]:
            is_whole = is_itself and self._places.root(write.operand) == (place,)
            return True if is_whole else No(f"{back.name} would copy {place.name} within its own memory", back, place)
        if back < user and self._reads(user, node) and not (back.args[1] is node and is_itself):
            return No(f"{user.name} reads {node.name} after {place.name} is written back", user, node, place)
        return True

    def _takes_any_form(self, user: Node, result: Node) -> bool:
        """Whether a node does the same with a value of other strides: it copies the elements."""
        bound = self._graph.bind(user)
        return isinstance(bound, Bound) and bound.packet in SCATTERS and bound["self"] is not result

    def _write_back(self, write: Write) -> Node | None:
        """The `copy_` that writes over the whole memory of the operand later on, where that is an input's."""
        holders = self._places.held_outside(write.operand)
        back = self._write_backs.get(holders[0]) if len(holders) == 1 else None
        return back if back is not None and write.call < back else None


def _is_written_by_then(node: Node, user: Node, back: Node) -> bool:
    """Whether a use of an input is its write-back, or comes after that."""
    if node is not back.args[0]:
        return False
    return back.args[1] is not node if user is back else back < user


def is_write_back(node: Node) -> bool:
    """Whether a node writes a new value to an input or an attribute."""
    place = node.args[0] if node.target is aten.copy_.default else None
    return isinstance(place, Node) and place.op in ("placeholder", "get_attr")
