"""Whether a call may write an operand in place: its old contents are dead, and no other change is observable.

An input may be written only where the graph writes it back at its end: until then only the graph sees its contents, and
the `copy_` overwrites early writes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import torch
from torch.fx import Node, map_arg

from eductor.graph import Bound, GraphView, No, difference, known_equal, tensor_of, value_of
from eductor.passes.post_grad.inplace.places import Places
from eductor.passes.post_grad.inplace.views import SCATTERS, ScatteredParts, covers, has_no_overlap

aten = torch.ops.aten

# They read the metadata of their operand, not its contents.
_METADATA_ONLY = (
    *(aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default),
    *(aten.empty_like.default, aten.full_like.default, aten.zeros_like.default, aten.ones_like.default),
    *(aten.new_empty.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
)
_OVERWRITING = (aten.copy.default, aten.fill.Scalar, aten.fill.Tensor)


@dataclass(frozen=True)
class Write:
    """A call that would write `part` of `operand`, which would replace its `results`."""

    call: Node
    operand: Node
    results: Collection[Node]
    part: torch.Tensor
    known: Collection[Node] = ()
    """Other operands that are allowed to share the memory."""


class Safety:
    """Checks writes against the current alias sets of the graph."""

    def __init__(self, graph: GraphView, places: Places, parts: ScatteredParts, *, inputs_disjoint: bool) -> None:
        self._graph = graph
        self._places = places
        self._parts = parts
        self._inputs_apart = inputs_disjoint
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
            return No(f"{write.operand.name} is not a plain strided tensor", write.operand)
        return True if has_no_overlap(part) else No(f"elements of {write.operand.name} may overlap", write.operand)

    def _operands_allow(self, write: Write) -> Literal[True] | No:
        """Whether no other operand, read while the call writes, shares the memory."""
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
                f"{write.operand.name} may share memory with {', '.join(n.name for n in holders[:2])}",
                write.operand,
            )
        if not self._inputs_apart:
            return No(f"{holders[0].name} may share memory with other inputs of the backward", holders[0])
        if self._write_back(write) is None:
            return No(f"the graph does not write back to {holders[0].name}", holders[0])
        if self._graph.is_call(write.call, aten.as_strided_scatter) and not covers(tensor_of(holders[0]), write.part):
            return No(f"it may write outside of {holders[0].name}", holders[0])
        return True

    def _is_unread_later(self, write: Write) -> Literal[True] | No:
        """Whether no later use reads the old contents."""
        back = self._write_back(write)
        for node, user in self._places.uses_after(write.operand, write.call):
            is_over = back is not None and _is_written_by_then(node, user, back)
            if is_over or not self._reads(user, node) or self._reads_around(user, node, write):
                continue
            reads = "the graph returns" if user.op == "output" else f"{user.name} reads"
            return No(f"{reads} the old contents of {node.name}", node)
        return True

    def _reads(self, user: Node, node: Node) -> bool:
        """Whether a node reads the contents of another one; a view does not, its users do."""
        if self._graph.effects.of(user).is_view or user.target in _METADATA_ONLY:
            return False
        return not (user.target in _OVERWRITING and user.args[:1] == (node,) and node not in user.args[1:])

    def _reads_around(self, user: Node, node: Node, write: Write) -> bool:
        """Whether a scatter reads only elements outside of the written part, because it overwrites that part."""
        part, bound = self._parts.of(user), self._graph.bind(user)
        if part is None or not isinstance(bound, Bound) or bound["self"] is not node or bound["src"] is node:
            return False
        if self._places.root(node) != self._places.root(write.operand):
            return False
        written = [write.part, *map(value_of, self._places.views(write.operand))]
        return any(difference(part, inside) is None for inside in written)

    def _results_allow(self, write: Write) -> Literal[True] | No:
        """Whether the results get no observable aliases and keep their layout."""
        back = self._write_back(write)
        whole = self._places.views(write.operand)
        for result in write.results:
            if not (verdict := self._same_layout_or_copied(write, result)):
                return verdict
            for node, user in self._places.uses_after(result, write.call):
                if user.op == "output" and back is not None:
                    return No(f"{node.name} is returned, and would alias {back.args[0]}", node)
                if user.op == "output" and len(whole) > 1:
                    return No(f"{node.name} is returned, and would be a view of {whole[-1].name}", node, whole[-1])
                if back is not None and not (verdict := self._write_back_allows(write, back, result, node, user)):
                    return verdict
        return True

    def _same_layout_or_copied(self, write: Write, result: Node) -> Literal[True] | No:
        """Whether a result has the layout of the operand, or all its users accept any strides."""
        unlike = difference(value_of(result), value_of(write.operand))
        if not unlike:
            return True
        new, old = tensor_of(result), tensor_of(write.operand)
        is_same_kind = new is not None and old is not None and new.dtype == old.dtype
        if not is_same_kind or not known_equal(tuple(new.shape), tuple(old.shape)):  # type: ignore[union-attr]
            return No(f"the result differs from the operand: {unlike}")
        copied = all(self._accepts_any_strides(user, result) for user in result.users)
        return True if copied else No(f"the strides of the result would change: {unlike}")

    def _write_back_allows(self, write: Write, back: Node, result: Node, node: Node, user: Node) -> Literal[True] | No:
        """Whether a use is right although the write-back overwrites the memory of the result."""
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

    def _accepts_any_strides(self, user: Node, result: Node) -> bool:
        """Whether a node works on any strides, because it copies the elements."""
        bound = self._graph.bind(user)
        return isinstance(bound, Bound) and bound.packet in SCATTERS and bound["self"] is not result

    def _write_back(self, write: Write) -> Node | None:
        """The later `copy_` that overwrites the whole memory of the operand, where that belongs to an input."""
        holders = self._places.held_outside(write.operand)
        back = self._write_backs.get(holders[0]) if len(holders) == 1 else None
        return back if back is not None and write.call < back else None


def _is_written_by_then(node: Node, user: Node, back: Node) -> bool:
    """Whether a use of an input is its write-back, or comes after it."""
    if node is not back.args[0]:
        return False
    return back.args[1] is not node if user is back else back < user


def is_write_back(node: Node) -> bool:
    """Whether a node writes a new value to an input or an attribute."""
    place = node.args[0] if node.target is aten.copy_.default else None
    return isinstance(place, Node) and place.op in ("placeholder", "get_attr")
