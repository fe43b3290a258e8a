"""What a graph reads, writes and aliases; what nothing may move across; may this move, may this alias.

Every tensor lives in a *place*: values that may share memory share a place. What each node does is told by
`node_effects`.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.fx import Graph, Node

from eductor.compat import must_not_be_written, sort_key, wants_recompute
from eductor.graph.effects.node_effects import PURE, Effect, effect_of, may_be_tensor, tensors_among
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound, bind
from eductor.graph.values.meta import UNKNOWN, difference, is_backward, requires_grad, tensor_of, value_of


class Effects:
    """The effects of a whole graph, kept up to date by the rewriter.

    `inputs_distinct` says that no two inputs share memory, which somebody must guard; otherwise they may.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        inputs_distinct: bool = False,
        bind: Callable[[Node], Bound | No] = bind,
    ) -> None:
        self.graph = graph
        self._bind = bind
        self.inputs_distinct = inputs_distinct
        self._effects: dict[Node, Effect] = {}
        self._parents: dict[Node, Node] = {}
        self._members: dict[Node, list[Node]] = {}
        self._marks: list[Node] = []
        self._external: set[Node] = set()
        self._stranger: Node | None = None
        self._outputs_by_place: dict[Node, list[Node]] | None = None
        for node in graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Takes a node in, or reads it anew."""
        if node in self._effects:
            self.remove(node)
        effect = self._effects[node] = effect_of(node, self._bind)
        if node.op == "output":
            self._outputs_by_place = None
        self._parents.setdefault(node, node)
        if effect is PURE and node.op not in ("placeholder", "get_attr"):
            return
        is_opaque = effect.opaque
        for operand in tensors_among(node.all_input_nodes) if is_opaque else effect.shares:
            self._join(node, operand)
        if is_opaque or (node.op in ("placeholder", "get_attr") and may_be_tensor(node)):
            self._external.add(self.place(node))
            if is_opaque or not self.inputs_distinct:
                self._stranger = self._stranger or node
                self._join(node, self._stranger)
        if _is_mark(effect):
            bisect.insort(self._marks, node, key=sort_key)

    def rewired(self, node: Node, *, alike: bool) -> None:
        """Reads a node anew that has other operands, unless it touches no memory: with operands `alike` it does not."""
        if not alike or self._effects[node] is not PURE or node.op == "output":
            self.add(node)

    def moved(self, node: Node) -> None:
        """A node stands elsewhere: among what may touch memory, the order is that of the graph."""
        if _is_mark(self._effects[node]):
            self._marks.remove(node)
            bisect.insort(self._marks, node, key=sort_key)

    def remove(self, node: Node) -> None:
        """Forgets an erased node."""
        if _is_mark(self._effects.pop(node)):
            self._marks.remove(node)

    def of(self, node: Node) -> Effect:
        return self._effects[node]

    def place(self, node: Node) -> Node:
        """The representative of all values that may share memory with a node's."""
        while (parent := self._parents[node]) is not node:
            self._parents[node] = self._parents[parent]
            node = parent
        return node

    def reads(self, node: Node) -> set[Node]:
        """The places whose contents a node looks at."""
        return {self.place(n) for n in node.all_input_nodes}

    def writes(self, node: Node) -> set[Node]:
        """The places whose contents a node changes."""
        return {self.place(n) for n in self.of(node).writes}

    def escapes(self, node: Node) -> Literal[True] | No:
        """Yes if somebody outside of the graph can hold the memory of a node's value: an input, output, opaque call."""
        place = self.place(node)
        held = place in self._external or place in self._outputs()
        return True if held else No(f"nothing outside of the graph shares memory with {node.name}")

    def writes_before(self, node: Node) -> bool:
        """Whether anything is written in front of a node at all; in a functional graph nothing is."""
        return any(self.of(mark).writes or self.of(mark).opaque for mark in self._marks if mark < node)

    def leaves(self, node: Node) -> bool:
        """Whether an output is, or may be a view of, a node's value."""
        made = self._made_of(node)
        return any(output in made for output in self._outputs().get(self.place(node), ()))

    def may_move(self, node: Node, before: Node) -> Literal[True] | No:
        """May the node stand directly before another one instead of where it is?"""
        if node.op in ("placeholder", "output") or before.op == "placeholder":
            return No("inputs come first and the output last")
        operand = next((n for n in node.all_input_nodes if not n < before), None)
        if operand is not None:
            return No(f"its operand {operand.name} is defined only at or after {before.name}")
        user = next((u for u in node.users if u < before), None)
        if user is not None:
            return No(f"its user {user.name} stands before {before.name}")
        first, last = (before, node) if before < node else (node, before)
        effect = self.of(node)
        if effect.barrier:
            return No(f"{node.name} is {effect.barrier}")
        reads, writes = self.reads(node), self.writes(node)
        for other in self.marks_between(first, last):
            if other is node:
                continue
            mark = self.of(other)
            if mark.barrier:
                return No(f"{other.name} stands between: {mark.barrier}")
            if mark.ordered and mark.ordered == effect.ordered:
                return No(f"{other.name} stands between, and {mark.ordered} as well")
            if self.writes(other) & reads:
                return No(f"{other.name} writes between what {node.name} uses")
        reader = (
            next((n for n in _from(first, last) if n is not node and self.reads(n) & writes), None) if writes else None
        )
        return True if reader is None else No(f"{reader.name} reads between what {node.name} writes")

    def may_alias(self, old: Node, new: Node) -> Literal[True] | No:
        """May `new` stand for `old` everywhere, though `old` may have had memory of its own?

        It is for the caller to know that both are equal where `old` stands.
        """
        mine, other = self.place(old), self.place(new)
        same = self._is_same_memory(old, new)
        if requires_grad(value_of(old)) != requires_grad(value_of(new)):
            return No(f"autograd follows only one of {old.name} and {new.name}")
        if mine in self._outputs():
            if self._would_be_another_tensor(old, new):
                return No(f"{old.name} is an output of its own, {new.name} is an input or another output")
            if _is_freer(value_of(old), value_of(new)) and self.leaves(old):
                return No(f"{old.name} leaves the graph and may be written, autograd forbids to write {new.name}")
            if not same and self._would_share_otherwise(old, new):
                return No(f"{old.name} leaves the graph, and with whom it shares memory would change")
        if not same and not is_backward(old) and self._would_be_seen_between(mine, other):
            return No(f"the backward reads {old.name} or {new.name}, and the caller holds the other one meanwhile")
        if not same and self._would_be_saved_and_held(mine, other):
            return No(f"autograd may save {old.name} or {new.name}, and the caller holds the other one meanwhile")
        for mark in self.marks_between(old, None):
            effect = self.of(mark)
            written = self.writes(mark) if effect.writes else set()
            if effect.reshapes and not written.isdisjoint((mine, other)):
                return No(f"{mark.name} changes the geometry of {old.name} or {new.name}")
            if same:
                continue
            if mine in written:
                return No(f"{mark.name} writes {old.name}")
            if other in written or effect.opaque:
                if self._is_used_from(mine, mark):
                    return No(f"{mark.name} may write {new.name} while {old.name} is in use")
                if self._may_be_saved(mine):
                    return No(f"{mark.name} may write {new.name}, which autograd may have saved as {old.name}")
        return True

    def same_region(self, nodes: Iterable[Node]) -> Literal[True] | No:
        """Does no barrier stand between these nodes: no switch of grad mode or autocast, no unknown call?"""
        first, *others = nodes
        barrier = self._last_barrier(first)
        apart = next((n for n in others if self._last_barrier(n) is not barrier), None)
        return True if apart is None else No(f"a barrier stands between {first.name} and {apart.name}")

    def unwritten(self, nodes: Iterable[Node], first: Node, last: Node) -> Literal[True] | No:
        """Does nothing from one node up to another one write the memory of these values?"""
        places = {self.place(n) for n in nodes}
        for mark in self.marks_between(first, last):
            if not places.isdisjoint(self.writes(mark)) or self.of(mark).opaque:
                return No(f"{mark.name} stands between and may write what is read")
        return True

    def same_kind(self, nodes: Iterable[Node]) -> Literal[True] | No:
        """May these values be computed together: same dtype, device, layout, class, requires_grad, no barrier between?"""
        nodes = list(nodes)
        facts: dict[str, Any] = {}
        for node in nodes:
            value = tensor_of(node)
            if value is None:
                return No(f"{node.name} is not known to be a tensor")
            here = {
                "dtype": value.dtype,
                "device": value.device,
                "layout": value.layout,
                "class": type(value),
                "requires_grad": requires_grad(value),
                "the barrier before it": self._last_barrier(node),
            }
            for what, fact in here.items():
                if facts.setdefault(what, fact) != fact:
                    return No(f"{node.name} differs from {nodes[0].name} in {what}")
        return True

    def _would_be_another_tensor(self, old: Node, new: Node) -> bool:
        """Whether an output that was a tensor of its own would be an input, or the same tensor as another output."""
        mine, other = self.place(old), self.place(new)
        may_be = [self._may_be(n) for place in {mine, other} for n in self._outputs().get(place, ())]
        others = [found for found in may_be if old not in found]
        if len(others) == len(may_be):
            return False
        known = self._may_be(new)
        is_held = any(n.op in ("placeholder", "get_attr") or self.of(n).opaque for n in known)
        return is_held or any(known & found for found in others)

    def _would_share_otherwise(self, old: Node, new: Node) -> bool:
        """Whether an output made of `old` shares memory with something held outside, or would with `new` in its place."""
        places = {self.place(old), self.place(new)}
        made = self._made_of(old)
        outputs = [n for place in places for n in self._outputs().get(place, ())]
        leaves = any(n in made for n in outputs)
        return leaves and (not places.isdisjoint(self._external) or any(n not in made for n in outputs))

    def _would_be_seen_between(self, mine: Node, other: Node) -> bool:
        """Whether a caller who writes one of two places after the forward would write what the backward reads."""
        return (self._is_held_between(other) and self._is_read_later(mine)) or (
            self._is_held_between(mine) and self._is_read_later(other)
        )

    def _would_be_saved_and_held(self, mine: Node, other: Node) -> bool:
        """The same before autograd, where nobody knows yet what the backward reads."""
        return (self._is_held_between(other) and self._may_be_saved(mine)) or (
            self._is_held_between(mine) and self._may_be_saved(other)
        )

    def _is_held_between(self, place: Node) -> bool:
        return place in self._external or any(not is_backward(n) for n in self._outputs().get(place, ()))

    def _is_read_later(self, place: Node) -> bool:
        """Whether the backward reads it, or computes something again from it because of the user's checkpointing."""
        return any(is_backward(user) or wants_recompute(user) for n in self._in(place) for user in n.users)

    def _may_be(self, node: Node) -> set[Node]:
        """The values that may be the very same tensor: what need not copy may return its argument."""
        found = {node}
        pending = [node]
        while pending:
            value = pending.pop()
            effect = self.of(value)
            if not effect.is_view or _picks(value):
                new = set(tensors_among(value.all_input_nodes) if effect.opaque else effect.shares) - found
                found |= new
                pending.extend(new)
        return found

    def _is_same_memory(self, old: Node, new: Node) -> bool:
        """Whether both are, for certain, the same view of the same memory."""
        a, b = value_of(old), value_of(new)
        known = a is not UNKNOWN and difference(a, b) is None and requires_grad(a) == requires_grad(b)
        return known and self._memory(old) == self._memory(new)

    def _memory(self, node: Node) -> tuple[Any, ...]:
        """The value on whose memory a view is, as far as that is certain; of several results, which one."""
        picked: list[Any] = []
        while (effect := self.of(node)).is_view and effect.shares:
            if _picks(node):
                picked.append(node.args[1])
            node = effect.shares[0]
        return (node, picked) if tensor_of(node) is None else (node,)

    def _outputs(self) -> dict[Node, list[Node]]:
        """The outputs of the graph by their places."""
        if self._outputs_by_place is None:
            self._outputs_by_place = {}
            for node in self.graph.output_node().all_input_nodes:
                self._outputs_by_place.setdefault(self.place(node), []).append(node)
        return self._outputs_by_place

    def _made_of(self, node: Node) -> set[Node]:
        """A node, and what may share its memory because it was computed from it."""
        found = {node}
        pending = [node]
        while pending:
            value = pending.pop()
            for user in value.users:
                if user not in found and (value in self.of(user).shares or self.of(user).opaque):
                    found.add(user)
                    pending.append(user)
        return found

    def marks_between(self, first: Node, last: Node | None) -> Iterator[Node]:
        """The nodes with effects from `first` up to `last`, or to the end."""
        start = bisect.bisect_left(self._marks, sort_key(first), key=sort_key)
        return itertools.takewhile(lambda m: last is None or m < last, itertools.islice(self._marks, start, None))

    def _is_used_from(self, place: Node, mark: Node) -> bool:
        """Whether a value in a place is used at or after a node, or leaves the graph."""
        return any(not user < mark for n in self._in(place) for user in n.users)

    def _may_be_saved(self, place: Node) -> bool:
        """Whether autograd may keep a value in a place for its backward: something differentiable is computed from it."""
        users = (user for n in self._in(place) for user in n.users)
        return any(requires_grad(v) for user in users for v in _flat(value_of(user)))

    def _last_barrier(self, node: Node) -> Node | None:
        end = bisect.bisect_left(self._marks, sort_key(node), key=sort_key)
        return next((m for m in reversed(self._marks[:end]) if self.of(m).barrier), None)

    def _in(self, place: Node) -> Sequence[Node]:
        """The values in a place; only a place of several has a list of them, of which a large graph has few."""
        return self._members.get(place, (place,))

    def _join(self, a: Node, b: Node) -> None:
        self._parents.setdefault(b, b)  # in a graph that is not sorted, it may come later
        a, b = self.place(a), self.place(b)
        if a is b:
            return
        if len(self._in(a)) > len(self._in(b)):
            a, b = b, a
        self._parents[a] = b
        if self._outputs_by_place and (moved := self._outputs_by_place.pop(a, None)):
            self._outputs_by_place.setdefault(b, []).extend(moved)
        self._members.setdefault(b, [b]).extend(self._members.pop(a, (a,)))
        if a in self._external:
            self._external.add(b)


def _flat(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


def _is_freer(old: Any, new: Any) -> bool:
    """Whether autograd lets somebody write the first of two tensors, and not the second."""
    both = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
    return both and must_not_be_written(new) and not must_not_be_written(old)


def _picks(node: Node) -> bool:
    """Whether a node is an element of a sequence: the tensor that is in it, not a view."""
    return node.target is operator.getitem and tensor_of(node.args[0]) is None


def _is_mark(effect: Effect) -> bool:
    return bool(effect.writes or effect.barrier or effect.ordered)


def _from(first: Node, last: Node) -> Iterator[Node]:
    while first is not last:
        yield first
        first = first.next
