"""The view of a graph that passes read: nodes by operator, arguments by name, effects, updated with each edit."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch.fx import Graph, GraphModule, Node

from eductor.compat import OpOverload, OpOverloadPacket, sort_key
from eductor.errors import BadGraph
from eductor.graph.effects.graph_effects import Effects
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound, bind, packets_of
from eductor.graph.values.fake_cache import FakeResults

V = TypeVar("V")


class Scope(Protocol):
    """Receives the candidates that a pass visits, so that edits are counted and addressed by match."""

    def open(self, node: Node) -> bool: ...

    def close(self) -> None: ...

    def leave(self) -> None: ...


class GraphView:
    """A graph with an index from operator to nodes, and with its effects, both built on first use."""

    def __init__(self, module: GraphModule, *, inputs_distinct: bool = False) -> None:
        self.module = module
        self.scope: Scope | None = None
        self.memo: dict[Any, Any] = {}
        """What a pass computes once for all its matches; it lives as long as the view."""
        self.fake_results = FakeResults()
        """The cache of fake results, for nodes that passes create."""
        self._inputs_distinct = inputs_distinct
        self._index: dict[Any, dict[Node, None]] | None = None
        self._keys_of_node: dict[Node, tuple[Any, ...]] = {}
        self._readings: dict[Node, Bound | No] = {}
        self._effects: Effects | None = None
        self._derived: dict[Any, Any] = {}
        self._bodies: dict[GraphModule, GraphView] = {}
        self._queues: list[tuple[Callable[[Node], bool], deque[Node]]] = []

    def derived(self, name: Any, make: Callable[[], Any]) -> Any:
        """A value computed from the present graph, cached until the next edit."""
        if name not in self._derived:
            self._derived[name] = make()
        return self._derived[name]

    def derived_of(self, node: Node, make: Callable[[GraphView, Node], V]) -> V:
        """What a function of the graph computes for a node, cached until the next edit."""
        found: dict[Node, V] = self.derived(make, dict)
        if node not in found:
            found[node] = make(self, node)
        return found[node]

    @property
    def graph(self) -> Graph:
        return self.module.graph

    @property
    def nodes(self) -> Iterator[Node]:
        return iter(self.graph.nodes)

    @property
    def output(self) -> Node:
        return self.graph.output_node()

    def body(self, module: GraphModule) -> GraphView:
        """The view of a higher-order operator's body; the next pass gets the same view."""
        if module not in self._bodies:
            self._bodies[module] = GraphView(module)
        return self._bodies[module]

    @property
    def effects(self) -> Effects:
        if self._effects is None:
            self._effects = Effects(self.graph, inputs_distinct=self._inputs_distinct, bind=self.bind)
        return self._effects

    def bind(self, node: Node) -> Bound | No:
        """The result of `bind` for a node, cached until the node is edited."""
        bound = self._readings.get(node)
        if bound is None:
            bound = self._readings[node] = bind(node)
        return bound

    def bound(self, node: Node) -> Bound:
        """The result of `bind` for a node that is known to be a call that can be read."""
        bound = self.bind(node)
        assert isinstance(bound, Bound), bound
        return bound

    def call(self, node: Any, *operators: OpOverloadPacket | OpOverload | Callable[..., Any]) -> Bound | None:
        """The result of `bind` for a node that is a call of any of the operators; None for anything else."""
        is_call = isinstance(node, Node) and self.is_call(node, *operators)
        return bound if is_call and isinstance(bound := self.bind(node), Bound) else None

    def find(self, *operators: OpOverloadPacket | OpOverload | Callable[..., Any]) -> Iterator[Node]:
        """The calls of any of the operators, in whichever form they are spelled, in the order of the graph.

        Each one is a candidate: what the pass edits while it looks at one is one match. Calls that the pass itself
        creates are visited too, at the end, so that one run reaches a state in which a second finds nothing.
        """
        wanted = _wanted(operators)
        index = self._indexed()
        found = {node for key in wanted.keys for node in index.get(key, ())}
        return self._visit(deque(sorted(found, key=sort_key)), lambda node: self._is_call_of(node, wanted))

    def keys(self, node: Node) -> tuple[Any, ...]:
        """The index keys of a node."""
        self._indexed()
        return self._keys_of_node.get(node, ())

    def operators(self) -> list[Any]:
        """The keys under which calls of the graph are indexed."""
        return [key for key, calls in self._indexed().items() if calls]

    def calls(self, key: Any) -> Collection[Node]:
        """The calls indexed under a key, which do not become candidates."""
        return self._indexed().get(key, {}).keys()

    def each(self, *kinds: str) -> Iterator[Node]:
        """The nodes of these kinds (`call_function`, `call_method`, ...) in the order of the graph, each a candidate."""
        return self._visit(
            deque(n for n in self.graph.nodes if n.op in kinds),
            lambda node: node in self and node.op in kinds,
            again=False,
        )

    def candidates(self, nodes: Iterable[Node]) -> Iterator[Node]:
        """Nodes that a pass chose, each a candidate if it is still in the graph at its turn."""
        return self._visit(deque(nodes), self.__contains__, again=False)

    def is_call(self, node: Node, *operators: OpOverloadPacket | OpOverload | Callable[..., Any]) -> bool:
        """Whether a node is a call of any of the operators."""
        keys = self.keys(node)
        return any(key in operators for key in keys) or self._is_call_of(node, _wanted(operators))

    def _visit(self, queue: deque[Node], wanted: Callable[[Node], bool], again: bool = True) -> Iterator[Node]:
        limit = 10 * (len(self.graph.nodes) + 100)
        entry = (wanted if again else lambda node: False, queue)
        self._queues.append(entry)
        opened = False
        scope = self.scope
        try:
            while queue:
                limit -= 1
                if limit < 0:
                    raise BadGraph("the pass does not terminate: it keeps creating nodes that it looks for")
                node = queue.popleft()
                if not wanted(node):
                    continue
                if scope is not None and not scope.open(node):
                    return
                opened = True
                yield node
                opened = False
                if scope is not None:
                    scope.close()
        finally:
            self._queues.remove(entry)
            if opened and scope is not None:
                scope.leave()

    def _indexed(self) -> dict[Any, dict[Node, None]]:
        if self._index is None:
            self._index = {}
            for node in self.graph.nodes:
                self._enter(self._index, node)
        return self._index

    def _enter(self, index: dict[Any, dict[Node, None]], node: Node) -> None:
        self._keys_of_node[node] = keys = keys_of(node, self.bind)
        for key in keys:
            index.setdefault(key, {})[node] = None

    def __contains__(self, node: Node) -> bool:
        if self._index is None:
            self._indexed()
        return node in self._keys_of_node

    def _is_call_of(self, node: Node, wanted: _Wanted) -> bool:
        if self._index is None:
            self._indexed()
        keys = self._keys_of_node.get(node, ())
        if wanted.keys.isdisjoint(keys):
            return False
        if not wanted.overloads or wanted.packets.isdisjoint(keys):
            return True
        bound = self.bind(node)
        return isinstance(bound, Bound) and (bound.op in wanted.overloads or bound.packet not in wanted.packets)

    # Notifications from the rewriter.

    def added(self, node: Node) -> None:
        """A node was created, or an existing one now calls something else."""
        self._derived.clear()
        self._readings.pop(node, None)
        if self._index is not None:
            self._enter(self._index, node)
        if self._effects is not None:
            self._effects.add(node)
        self._enqueue(node)

    def _enqueue(self, node: Node) -> None:
        for wanted, queue in self._queues:
            if wanted(node):
                queue.append(node)

    def removed(self, node: Node) -> None:
        """A node is about to be erased."""
        self._derived.clear()
        self._readings.pop(node, None)
        if self._index is not None:
            for key in self._keys_of_node.pop(node, ()):
                self._index[key].pop(node, None)
        if self._effects is not None:
            self._effects.remove(node)

    def moved(self, node: Node) -> None:
        """A node was moved and is otherwise unchanged."""
        self._derived.clear()
        if self._effects is not None:
            self._effects.moved(node)
        self._enqueue(node)

    def respelled(self, node: Node, reading: Bound) -> None:
        """A node calls the same operator on the same values in another form, which `reading` is for."""
        self._derived.clear()
        self._readings[node] = reading
        if self._index is not None and keys_of(node, self.bind) != (known := self._keys_of_node[node]):
            for key in known:
                self._index[key].pop(node, None)
            self._enter(self._index, node)

    def rewired(self, node: Node, *, alike: bool = False) -> None:
        """A node has new operands, maybe `alike` ones: its effects may differ, its operator does not."""
        self._derived.clear()
        self._readings.pop(node, None)
        if self._effects is not None:
            self._effects.rewired(node, alike=alike)

    def revalued(self) -> None:
        """Fake values changed, which may change how `bind` reads calls."""
        self._derived.clear()
        self._readings.clear()

    def forget(self) -> None:
        """Drops everything derived from the graph, after an edit that was not reported."""
        self._derived.clear()
        self._readings.clear()
        self._index = None
        self._keys_of_node.clear()
        self._bodies.clear()
        self._effects = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Operators that a pass looks for: their index keys, and the packets of which only some overloads match."""

    keys: frozenset[Any]
    overloads: frozenset[OpOverload]
    packets: frozenset[Any]


@functools.lru_cache(maxsize=1 << 12)
def _wanted(operators: tuple[Any, ...]) -> _Wanted:
    overloads = frozenset(op for op in operators if isinstance(op, OpOverload))
    return _Wanted(frozenset(map(key_of, operators)), overloads, frozenset(map(key_of, overloads)))


@functools.lru_cache(maxsize=1 << 14)
def key_of(op: Any) -> Any:
    """The index key of an operator's calls, for any form of the operator."""
    packets = packets_of(op)
    return packets[0] if packets else op


def keys_of(node: Node, bind: Callable[[Node], Bound | No] = bind) -> tuple[Any, ...]:
    """The index keys of a node: its operator, its target (for a search by callable), or its module's class."""
    if node.op == "call_module":
        owner = node.graph.owning_module
        return (type(owner.get_submodule(str(node.target))),) if owner is not None else ()
    if node.op not in ("call_function", "call_method"):
        return ()
    packets = packets_of(node.target)
    if packets is not None:
        return packets or (node.target,)
    bound = bind(node)
    return (bound.packet, node.target) if isinstance(bound, Bound) else (node.target,)
