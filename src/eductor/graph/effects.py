"""What a node reads, writes and aliases; what nothing may move across; may this move, may this alias.

Every tensor lives in a *place*: values that may share memory share a place. A place is found by the schema of the
operator: an argument marked `Tensor(a!)` is written, a result marked `Tensor(a)` lives where the argument does. What
the schema does not tell (an operator written in terms of others, a Python callable) is assumed to do the worst.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from eductor.compat import MAYBE_ALIASING_TAG, HigherOrderOperator, OpOverload, is_composite, sort_key
from eductor.graph.bind import Bound, bind
from eductor.graph.meta import is_context_switch, tensor_of, value_of
from eductor.graph.schema import parameters

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Verdict:
    """Yes, or no with the reason."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason


YES = Verdict()


@dataclass(frozen=True, slots=True)
class Effect:
    """What one node does besides computing its result.

    `writes` are the operands it changes, `shares` those with which its result may share memory (and does, for a view).
    Nothing moves across a `barrier`; a switch (of grad mode, autocast) is one that touches no memory. A node that is
    `kept` has no effect on others, but must stay.
    """

    writes: tuple[Node, ...] = ()
    shares: tuple[Node, ...] = ()
    barrier: str = ""
    random: bool = False
    kept: str = ""
    is_view: bool = False
    is_switch: bool = False

    @property
    def removable(self) -> bool:
        """Whether nobody would notice if a node without users were gone."""
        return not (self.writes or self.barrier or self.random or self.kept)


PURE = Effect()

# Operators that only check something: they must stay, and may be passed by.
_CHECKS = {
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::_functional_assert_async",
    "aten::_functional_assert_scalar",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
}

# Written in terms of others, yet known to return new memory: what models use everywhere.
_FRESH = {
    f"aten::{name}"
    for name in (
        *("linear", "matmul", "conv1d", "conv2d", "conv3d", "layer_norm", "group_norm", "rms_norm", "softmax"),
        *("log_softmax", "cross_entropy_loss", "embedding", "scaled_dot_product_attention", "where", "stack", "cat"),
        *("hstack", "vstack", "dstack", "tile", "outer", "one_hot", "gelu", "silu", "relu6", "selu", "batch_norm"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "repeat_interleave", "clone", "pad", "square", "floor_divide"),
    )
}

# Factories draw nothing and read nothing, but a generator does.
_RANDOM_METHODS = {"manual_seed", "seed", "set_rng_state", "get_rng_state"}


def effect_of(node: Node) -> Effect:
    """What a node does besides computing its result: by schema first, by spelling next, the worst otherwise."""
    if node.op in ("placeholder", "get_attr", "output"):
        return PURE
    if node.op == "call_module":
        return Effect(barrier=f"a call of the module {node.target}")
    target = node.target
    if target is operator.getitem and not isinstance(value_of(node.args[0]), torch.Tensor):
        return Effect(shares=tuple(node.all_input_nodes), is_view=True)
    if target is operator.getitem:
        return _indexing(node)
    if target in (operator.setitem, "__setitem__") and isinstance(node.args[0], Node):
        return Effect(writes=(node.args[0],), kept="an assignment to an index")
    if is_context_switch(target):
        return Effect(barrier="a switch of grad mode or autocast", is_switch=True)
    if isinstance(target, HigherOrderOperator):
        return Effect(barrier=f"the higher-order operator {target}")
    bound = bind(node)
    if isinstance(bound, Bound):
        return _by_schema(node, bound)
    if _is_arithmetic_on_sizes(node):
        return PURE
    return _unknown(node, bound.reason)


def _by_schema(node: Node, bound: Bound) -> Effect:
    op = bound.op
    name = op._schema.name
    writes = [bound[p.name] for p in parameters(op) if p.written]
    shares = [bound[p.name] for p in parameters(op) if p.aliased]
    if name in ("aten::batch_norm", "aten::instance_norm") and bound.get("training", bound.get("use_input_stats")):
        writes += [bound["running_mean"], bound["running_var"]]
    if name in ("aten::native_batch_norm", "aten::cudnn_batch_norm") and bound["training"]:
        writes += [bound["running_mean"], bound["running_var"]]
    if name == "aten::embedding_renorm_":
        writes.append(bound["self"])
    is_view = bool(shares) and not writes and not is_composite(op)
    if not writes and not shares and name not in _FRESH and _schema_may_lie(op):
        shares = [bound[p.name] for p in parameters(op)]
    shares += writes
    random = torch.Tag.nondeterministic_seeded in op.tags and not _is_inactive_dropout(bound)
    effectful = not op.namespace.startswith(("aten", "prims", "eductor")) and not op._schema.returns
    kept = name if name in _CHECKS or (effectful and not writes) else ""
    return Effect(_nodes(writes), _nodes(shares), "", random, kept, is_view)


def _schema_may_lie(op: OpOverload) -> bool:
    """An operator written in terms of others may return one of its arguments, or a view, without saying so."""
    returns_tensor = any("Tensor" in str(r.type) for r in op._schema.returns)
    return returns_tensor and (MAYBE_ALIASING_TAG in op.tags or (op.namespace == "aten" and is_composite(op)))


def _is_inactive_dropout(bound: Bound) -> bool:
    return bound.get("train", bound.get("training")) is False


def _indexing(node: Node) -> Effect:
    """Indexing by integers, slices and None is a view; by tensors, lists and booleans a copy."""
    index = node.args[1]
    parts = index if isinstance(index, tuple) else (index,)
    copies = any(isinstance(p, (list, bool)) or tensor_of(p) is not None for p in parts)
    return PURE if copies else Effect(shares=_nodes([node.args[0]]), is_view=True)


def _is_arithmetic_on_sizes(node: Node) -> bool:
    operands = [value_of(n) for n in node.all_input_nodes]
    sizes = all(isinstance(v, (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)) for v in operands)
    module = getattr(node.target, "__module__", "")
    return bool(operands) and sizes and module in ("_operator", "math", "builtins", "torch")


def _unknown(node: Node, reason: str) -> Effect:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name in _RANDOM_METHODS:
        return Effect(barrier="a change of the state of random numbers")
    return Effect(barrier=f"an unknown callable ({reason})")


def _nodes(values: Iterable[Any]) -> tuple[Node, ...]:
    found: dict[Node, None] = {}
    for value in values:
        if isinstance(value, Node):
            found[value] = None
        elif isinstance(value, (list, tuple)):
            found.update(dict.fromkeys(_nodes(value)))
    return tuple(found)


class Effects:
    """The effects of a whole graph, kept up to date by the rewriter.

    `inputs_distinct` says that no two inputs share memory, which somebody must guard; otherwise they may.
    """

    def __init__(self, graph: Graph, *, inputs_distinct: bool = False) -> None:
        self.graph = graph
        self.inputs_distinct = inputs_distinct
        self._effects: dict[Node, Effect] = {}
        self._parents: dict[Node, Node] = {}
        self._members: dict[Node, list[Node]] = {}
        self._marks: list[Node] = []
        self._external: set[Node] = set()
        self._input: Node | None = None
        self._output_places: set[Node] | None = None
        for node in graph.nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Takes a node in, or reads it anew."""
        effect = self._effects[node] = effect_of(node)
        self._output_places = None
        for known in (node, *node.all_input_nodes):
            if known not in self._parents:
                self._parents[known] = known
                self._members[known] = [known]
        if node.op in ("placeholder", "get_attr") and _may_be_tensor(node):
            self._external.add(self.place(node))
            self._input = self._input or node
            if not self.inputs_distinct:
                self._join(node, self._input)
        shared = node.all_input_nodes if effect.barrier and not effect.is_switch else effect.shares
        for operand in shared:
            self._join(node, operand)
        if effect.writes or effect.barrier or effect.random:
            i = bisect.bisect_left(self._marks, sort_key(node), key=sort_key)
            if i == len(self._marks) or self._marks[i] is not node:
                self._marks.insert(i, node)

    def remove(self, node: Node) -> None:
        """Forgets an erased node."""
        effect = self._effects.pop(node)
        self._output_places = None
        if effect.writes or effect.barrier or effect.random:
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

    def escapes(self, node: Node) -> Verdict:
        """Yes if somebody outside of the graph can hold the memory of a node's value: an output shares it."""
        held = self.place(node) in self._places_of_outputs()
        return YES if held else Verdict(f"no output shares memory with {node.name}")

    def may_move(self, node: Node, before: Node) -> Verdict:
        """May the node stand directly before another one instead of where it is?"""
        earlier = before < node
        operand = next((n for n in node.all_input_nodes if not n < before), None)
        if operand is not None:
            return Verdict(f"its operand {operand.name} is defined only at or after {before.name}")
        user = next((u for u in node.users if u < before), None)
        if user is not None:
            return Verdict(f"its user {user.name} stands before {before.name}")
        first, last = (before, node) if earlier else (node, before)
        effect = self.of(node)
        if effect.barrier:
            return Verdict(f"{node.name} is {effect.barrier}")
        reads, writes = self.reads(node), self.writes(node)
        for other in self._marks_between(first, last):
            if other is node:
                continue
            mark = self.of(other)
            if mark.barrier:
                return Verdict(f"{other.name} stands between: {mark.barrier}")
            if mark.random and effect.random:
                return Verdict(f"{other.name} draws random numbers between")
            if self.writes(other) & (reads | writes):
                return Verdict(f"{other.name} writes between what {node.name} uses")
        reader = (
            next((n for n in _from(first, last) if n is not node and self.reads(n) & writes), None) if writes else None
        )
        return YES if reader is None else Verdict(f"{reader.name} reads between what {node.name} writes")

    def may_alias(self, old: Node, new: Node) -> Verdict:
        """May `new` stand for `old` everywhere, though `old` may have had memory of its own?"""
        outputs = self.graph.output_node().all_input_nodes
        if old in outputs and (new.op in ("placeholder", "get_attr") or new in outputs):
            return Verdict(f"{old.name} is an output of its own, {new.name} is an input or another output")
        mine, other = self.place(old), self.place(new)
        if mine is other and self.of(old).is_view:
            return YES
        escaping = self._places_of_outputs()
        if mine in escaping and (other in self._external or (other in escaping and other is not mine)):
            return Verdict(f"{old.name} leaves the graph, and would share memory with {new.name}")
        for mark in self._marks_between(old, None):
            effect = self.of(mark)
            written = self.writes(mark)
            if mine in written:
                return Verdict(f"{mark.name} writes {old.name}")
            opaque = effect.barrier and not effect.is_switch
            if (other in written or opaque) and self._is_used_from(mine, mark):
                return Verdict(f"{mark.name} may write {new.name} while {old.name} is in use")
        return YES

    def same_kind(self, nodes: Iterable[Node]) -> Verdict:
        """May these values be computed together: same dtype, device, layout, class, requires_grad, switches around them?"""
        nodes = list(nodes)
        facts: dict[str, Any] = {}
        for node in nodes:
            value = tensor_of(node)
            if value is None:
                return Verdict(f"{node.name} is not known to be a tensor")
            here = {
                "dtype": value.dtype,
                "device": value.device,
                "layout": value.layout,
                "class": type(value),
                "requires_grad": value.requires_grad,
                "grad mode or autocast": self._switches_before(node),
            }
            for what, fact in here.items():
                if facts.setdefault(what, fact) != fact:
                    return Verdict(f"{node.name} differs from {nodes[0].name} in {what}")
        return YES

    def _places_of_outputs(self) -> set[Node]:
        if self._output_places is None:
            self._output_places = {self.place(n) for n in self.graph.output_node().all_input_nodes}
        return self._output_places

    def _marks_between(self, first: Node, last: Node | None) -> Iterator[Node]:
        """The nodes with effects from `first` up to `last`, or to the end."""
        start = bisect.bisect_left(self._marks, sort_key(first), key=sort_key)
        return itertools.takewhile(lambda m: last is None or m < last, itertools.islice(self._marks, start, None))

    def _is_used_from(self, place: Node, mark: Node) -> bool:
        """Whether a value in a place is used at or after a node, or leaves the graph."""
        return any(not user < mark for n in self._members[place] for user in n.users)

    def _switches_before(self, node: Node) -> tuple[str, ...]:
        return tuple(m.name for m in self._marks if self.of(m).is_switch and m < node)

    def _join(self, a: Node, b: Node) -> None:
        a, b = self.place(a), self.place(b)
        if a is b:
            return
        if len(self._members[a]) > len(self._members[b]):
            a, b = b, a
        self._parents[a] = b
        self._members[b] += self._members.pop(a)
        if a in self._external:
            self._external.add(b)


def _from(first: Node, last: Node) -> Iterator[Node]:
    while first is not last:
        yield first
        first = first.next


def _may_be_tensor(node: Node) -> bool:
    value = value_of(node)
    return not isinstance(value, (int, float, bool, str, torch.SymInt, torch.SymFloat, torch.SymBool, type(None)))
