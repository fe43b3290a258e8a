"""A match with the attributes that handlers and checks written for torch's matcher expect."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from eductor.compat import FakeTensorMode, OpOverload, created_nodes, sort_key
from eductor.errors import BadPattern
from eductor.graph import Bound, GraphView, No, Rewriter, bind, known_equal, value_of
from eductor.graph.values.meta import fake_mode_of, nodes_in
from eductor.graph.view import key_of, keys_of
from eductor.patterns.match.constants import same_constant
from eductor.patterns.match.match import Match
from eductor.patterns.match.spellings import COMMUTATIVE
from eductor.patterns.replace.paste import Piece, paste
from eductor.patterns.torch_names.patterns import Captures, Whole
from eductor.patterns.trace.tracing import TRACED, graph_like


@dataclass(eq=False)
class StockMatch(Match):
    """A match with the attributes of torch's: captured arguments, and ways to edit the graph."""

    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    view: GraphView | None = None
    rewriter: Rewriter | None = None

    def output_nodes(self) -> list[Node | None]:
        """The results, None where there is none."""
        return list(self.outputs)

    def output_node(self) -> Node:
        """The first result."""
        return self.output

    def erase_nodes(self) -> None:
        """Erases those of its nodes that nobody uses any more."""
        for node in reversed(self.nodes):
            if is_there(node) and not node.users:
                self.graph.erase_node(node)

    def replace_with_graph(self, replacement_graph: GraphModule, args: Sequence[Any]) -> list[Node]:
        """Puts a graph in the place of the match; its inputs are these arguments. Returns the nodes that are new.

        Where that cannot be, because a result would differ or there is no place for it, it is rejected with the
        reason, the graph stays as it is, and nothing is returned.
        """
        if self.view is None or self.rewriter is None:
            raise BadPattern("a check looks at a match, and cannot replace it: that is for the handler.")
        piece = Piece(replacement_graph, args)
        with created_nodes(self.view.module) as made:
            pasted = paste(self.view, self.rewriter, _unpacked(self, len(piece.results)), piece)
        if not pasted:
            self.rewriter.reject(pasted)
        return sorted(filter(is_there, made), key=sort_key)

    def replace_by_example(
        self,
        replacement_fn: Callable[..., Any],
        args: Sequence[Any],
        trace_fn: Callable[..., GraphModule] | None = None,
        run_functional_passes: bool = True,
    ) -> list[Node]:
        """Puts what a function computes of these arguments in the place of the match, as `replace_with_graph` does.

        Arguments may be nodes, constants, and lists of them. What is traced has no dead code, and nothing else is done
        to it: `run_functional_passes` makes no difference.
        """
        leaves: list[Any] = []
        map_aggregate(tuple(args), leaves.append)
        values = [value_of(leaf) for leaf in leaves]
        inputs = [x for x, v in zip(leaves, values, strict=True) if isinstance(v, TRACED)]
        unknown = next((x for x in leaves if isinstance(x, Node) and x not in inputs), None)
        if unknown is not None:
            raise BadPattern(
                f"{unknown.name} is no tensor or size with a fake value, so nothing can be traced with it."
            )

        def flat(*given: Any) -> Any:
            rest = iter(given)
            return replacement_fn(*map_aggregate(tuple(args), lambda _: next(rest)))

        module = self._graph_of(flat, values) if trace_fn is None else trace_fn(flat, values)
        takes_all = len(module.graph.find_nodes(op="placeholder")) == len(leaves)
        return self.replace_with_graph(module, leaves if takes_all else inputs)

    def _graph_of(self, fn: Callable[..., Any], values: list[Any]) -> GraphModule:
        if self.view is None:
            raise BadPattern("a check looks at a match, and cannot replace it: that is for the handler.")
        mode = fake_mode_of(self.graph) or FakeTensorMode()
        return graph_like(self.view.module, fn, values, [False] * len(values), mode)


def ported(
    found: Match, captures: Captures, view: GraphView | None = None, rewriter: Rewriter | None = None
) -> StockMatch | No:
    """A match with its captures; a miss where torch's matcher would not have called it one."""
    reader = _Reader(found)
    if captures.is_repeated:
        rows = reader.rows(captures, found.bindings)
        args, kwargs = [x for row, _ in rows for x in row], reader.merged(row for _, row in rows)
    else:
        args, kwargs = reader.read(captures, found.bindings)
    reader.check_order(captures)
    if reader.missed is not None:
        return reader.missed
    given = {f.name: getattr(found, f.name) for f in fields(found)}
    return StockMatch(**given, args=args, kwargs=kwargs, view=view, rewriter=rewriter)


class _Reader:
    """Collects what the names of a match stand for in the order and shape in which a handler wants it."""

    def __init__(self, match: Match) -> None:
        self.missed: No | None = None
        self._match = match
        self._sizes = [n for node in match.nodes for n in node.all_input_nodes if isinstance(value_of(n), torch.SymInt)]

    def read(self, captures: Captures, bindings: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        found = [{name: self._argument(bindings[inner]) for name, inner in captures.keywords.items()}]
        for item in captures.positional:
            if isinstance(item, str):
                args.append(self._argument(bindings[item]))
            elif isinstance(item, Whole):
                node = self._match.node_of(item.call)
                args += node.args
                found.append(dict(node.kwargs))
                self._check(node, item)
            else:
                rows = self.rows(item, bindings)
                args += [tuple(tuple(row) for row, _ in rows)] if any(row for row, _ in rows) else []
                found += [row for _, row in rows]
        return args, self.merged(found)

    def rows(self, captures: Captures, bindings: dict[str, Any]) -> list[tuple[list[Any], dict[str, Any]]]:
        """The captures of each element of a list, or of each repetition."""
        count = len(bindings[captures.names[0]]) if captures.names else 0
        once = replace(captures, is_repeated=False)
        return [self.read(once, {n: bindings[n][i] for n in captures.names}) for i in range(count)]

    def merged(self, rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
        """One value for each keyword: where two elements have different ones, it is no match."""
        found: dict[str, Any] = {}
        for row in rows:
            for name, value in row.items():
                other = found.setdefault(name, value)
                if value is not other and (nodes_in((value, other)) or not same_constant(value, other)):
                    self.missed = No(f"{name} is bound to different values", self._match.output)
        return found

    def check_order(self, captures: Captures) -> None:
        """Declines a match of a commutative call whose named operands are in the other order."""
        for call, first in captures.ordered:
            node = self._match.by_call.get(id(call))
            bound = bind(node) if node is not None else None
            if node is not None and isinstance(bound, Bound) and bound.packet in COMMUTATIVE:
                if next(iter(bound.arguments.values())) is not self._match.bindings[first]:
                    self.missed = No("its operands are in the other order", node)

    def _check(self, node: Node, whole: Whole) -> None:
        """Declines another spelling of a call whose arguments are all captured: it has other arguments."""
        bound = bind(node)
        op = bound.op if isinstance(bound, Bound) else node.target
        if not any(op is f if isinstance(f, OpOverload) else key_of(f) in keys_of(node) for f in whole.fns):
            self.missed = No(f"{node.name} is another spelling of the call in the pattern", node)

    def _argument(self, value: Any) -> Any:
        """A value as an argument in a graph: a symbolic size as the node that holds it."""
        if isinstance(value, (list, tuple)):
            return type(value)(self._argument(v) for v in value)
        if isinstance(value, torch.SymInt):
            return next((n for n in self._sizes if known_equal(value_of(n), value)), value)
        return value


def is_there(node: Node) -> bool:
    """Whether a node is still in its graph: the neighbours of an erased one do not point to it."""
    return node.prev.next is node


def _unpacked(match: Match, count: int) -> Match:
    """A match of a call with several results as a match of these results, if there are as many to replace."""
    users = list(match.output.users)
    if len(match.outputs) == count or any(u.target is not operator.getitem for u in users):
        return match
    items = {u.args[1]: u for u in users}
    return replace(match, nodes=(*match.nodes, *users), outputs=tuple(items.get(i) for i in range(count)))
