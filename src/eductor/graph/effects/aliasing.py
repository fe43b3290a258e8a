"""Whether replacing a value by an equal one, which may share other memory, is safe."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node

from eductor.compat import must_not_be_written, wants_recompute
from eductor.graph.effects.effect import tensors_among
from eductor.graph.effects.memory import Memory, ancestors
from eductor.graph.no import No
from eductor.graph.values.meta import UNKNOWN, difference, is_backward, requires_grad, tensor_of, value_of


def may_alias(memory: Memory, old: Node, new: Node) -> Literal[True] | No:
    """Whether `new` may replace `old`: not observable in gradients, outputs, what the caller holds, or writes."""
    asked = _Replacement(memory, old, new, memory.place(old), memory.place(new), _is_same_memory(memory, old, new))
    return asked.keeps_gradients() and asked.keeps_outputs() and asked.is_held_safely() and asked.survives_writes()


@dataclass(frozen=True, slots=True)
class _Replacement:
    """The replacement of one value by another, with the place of each; `same` if both are one view of one memory."""

    memory: Memory
    old: Node
    new: Node
    old_place: Node
    new_place: Node
    same: bool

    # --------------------------------------------------------------------------------- the cases, in this order

    def keeps_gradients(self) -> Literal[True] | No:
        """Both values require grad, or neither does."""
        old, new = self.old, self.new
        if requires_grad(value_of(old)) != requires_grad(value_of(new)):
            return No(f"only one of {old.name} and {new.name} requires grad", old, new)
        return True

    def keeps_outputs(self) -> Literal[True] | No:
        """Outputs stay distinct tensors, stay writable, and keep their aliases."""
        old, new = self.old, self.new
        if self.old_place not in self.memory.outputs():
            return True
        if self._merges_outputs():
            return No(f"{old.name} is a separate output, {new.name} is an input or another output", old, new)
        if _locks(value_of(old), value_of(new)) and leaves(self.memory, old):
            reason = f"{old.name} leaves the graph and may be written, autograd forbids writing {new.name}"
            return No(reason, old, new)
        if not self.same and self._changes_sharing():
            return No(f"{old.name} leaves the graph, and its aliases would change", old, new)
        return True

    def is_held_safely(self) -> Literal[True] | No:
        """The caller cannot write one of the values where the backward needs the other one."""
        old, new = self.old, self.new
        if self.same:
            return True
        if not is_backward(old) and self._is_held_while(self._is_read_later):
            reason = f"the backward reads {old.name} or {new.name} while the caller holds the other"
            return No(reason, old, new)
        if self._is_held_while(self._may_be_saved):  # before autograd, what the backward reads is not known yet
            reason = f"autograd may save {old.name} or {new.name} while the caller holds the other"
            return No(reason, old, new)
        return True

    def survives_writes(self) -> Literal[True] | No:
        """Nothing after the old value writes one of them while the other is used."""
        old, new, memory = self.old, self.new, self.memory
        for mark in memory.marks_between(old, None):
            effect = memory.of(mark)
            written = memory.writes(mark) if effect.writes else set()
            if effect.reshapes and not written.isdisjoint((self.old_place, self.new_place)):
                return No(f"{mark.name} changes the geometry of {old.name} or {new.name}", mark, old, new)
            if self.same:
                continue
            if self.old_place in written:
                return No(f"{mark.name} writes {old.name}", mark, old)
            if self.new_place in written or effect.opaque:
                if self._is_used_from(mark):
                    return No(f"{mark.name} may write {new.name} while {old.name} is in use", mark, new, old)
                if self._may_be_saved(self.old_place):
                    reason = f"{mark.name} may write {new.name}, which autograd may have saved as {old.name}"
                    return No(reason, mark, new, old)
        return True

    # --------------------------------------------------------------------------------------------------- helpers

    def _merges_outputs(self) -> bool:
        """Whether a separate output would become an input, or the same tensor as another output."""
        memory, old = self.memory, self.old
        candidates = [
            _identical(memory, n) for place in {self.old_place, self.new_place} for n in memory.outputs().get(place, ())
        ]
        others = [found for found in candidates if old not in found]
        if len(others) == len(candidates):
            return False
        known = _identical(memory, self.new)
        is_held = any(n.op in ("placeholder", "get_attr") or memory.of(n).opaque for n in known)
        return is_held or any(known & found for found in others)

    def _changes_sharing(self) -> bool:
        """Whether an output made of `old` shares memory with something held outside, or would if made of `new`."""
        places = {self.old_place, self.new_place}
        made = self.memory.made_of(self.old)
        outputs = [n for place in places for n in self.memory.outputs().get(place, ())]
        leaves = any(n in made for n in outputs)
        return leaves and (not places.isdisjoint(self.memory.external) or any(n not in made for n in outputs))

    def _is_held_while(self, is_needed: Callable[[Node], bool]) -> bool:
        """Whether the caller holds one of the two places after the forward while the other is needed."""
        held_other = self._is_held_between(self.new_place) and is_needed(self.old_place)
        return held_other or (self._is_held_between(self.old_place) and is_needed(self.new_place))

    def _is_held_between(self, place: Node) -> bool:
        return place in self.memory.external or any(not is_backward(n) for n in self.memory.outputs().get(place, ()))

    def _is_read_later(self, place: Node) -> bool:
        """Whether the backward reads it, or recomputes from it because of the user's checkpointing."""
        return any(is_backward(user) or wants_recompute(user) for n in self.memory.values_in(place) for user in n.users)

    def _may_be_saved(self, place: Node) -> bool:
        """Whether autograd may save a value of a place for backward: something differentiable is computed from it."""
        users = (user for n in self.memory.values_in(place) for user in n.users)
        return any(requires_grad(v) for user in users for v in _flat(value_of(user)))

    def _is_used_from(self, mark: Node) -> bool:
        """Whether the memory of the old value is used at or after a node, or leaves the graph."""
        return any(not user < mark for n in self.memory.values_in(self.old_place) for user in n.users)


def leaves(memory: Memory, node: Node) -> bool:
    """Whether an output is, or may be a view of, a node's value."""
    made = memory.made_of(node)
    return any(output in made for output in memory.outputs().get(memory.place(node), ()))


def _identical(memory: Memory, node: Node) -> set[Node]:
    """The values that may be the very same tensor: an operator that need not copy may return its argument."""

    def sources(value: Node) -> Iterable[Node]:
        effect = memory.of(value)
        if effect.is_view and not _picks(value):
            return ()
        return tensors_among(value.all_input_nodes) if effect.opaque else effect.shares

    return ancestors([node], sources)


def _is_same_memory(memory: Memory, old: Node, new: Node) -> bool:
    """Whether both are known to be the same view of the same memory."""
    a, b = value_of(old), value_of(new)
    known = a is not UNKNOWN and difference(a, b) is None and requires_grad(a) == requires_grad(b)
    return known and _base(memory, old) == _base(memory, new)


def _base(memory: Memory, node: Node) -> tuple[Any, ...]:
    """The value that a view is known to alias; for one of several results, which one."""
    picked: list[Any] = []
    while (effect := memory.of(node)).is_view and effect.shares:
        if _picks(node):
            picked.append(node.args[1])
        node = effect.shares[0]
    return (node, picked) if tensor_of(node) is None else (node,)


def _flat(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _locks(old: Any, new: Any) -> bool:
    """Whether autograd allows writing the first of two tensors, and forbids writing the second."""
    both = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
    return both and must_not_be_written(new) and not must_not_be_written(old)


def _picks(node: Node) -> bool:
    """Whether a node picks an element of a sequence: that very tensor, not a view."""
    return node.target is operator.getitem and tensor_of(node.args[0]) is None
