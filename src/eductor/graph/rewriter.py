"""The only way to edit a graph: insert, replace, erase; edits are recorded as events, new nodes have provenance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from torch.fx import GraphModule, Node, map_arg

from eductor.compat import (
    INHERITED_META,
    FakeTensorMode,
    OpOverload,
    OpOverloadPacket,
    enable_python_dispatcher,
    has_context_switch,
)
from eductor.errors import BadGraph
from eductor.graph.matches import Event, LimitReached, Match, MatchListener, Rejection
from eductor.graph.no import No
from eductor.graph.provenance import PROVENANCE, Provenance, provenance_of, source_line
from eductor.graph.reading.bind import Bound, bind, bind_call, misfit
from eductor.graph.snapshot import subgraphs
from eductor.graph.text.compare import same_value
from eductor.graph.text.printer import path_of, type_of
from eductor.graph.values import meta
from eductor.graph.values.evaluate import evaluate, update
from eductor.graph.values.fake_cache import run_meta_kernel
from eductor.graph.view import GraphView

T = TypeVar("T")


class Rewriter:
    """Edits one graph on behalf of one pass. `limit` stops after that many matches, for bisection."""

    def __init__(
        self,
        view: GraphView,
        address: str = "",
        *,
        limit: int | None = None,
        listener: MatchListener | None = None,
    ) -> None:
        self.view = view
        self.address = address
        self.matches: list[Match] = []
        self.rejects: list[Rejection] = []
        self.place: Node | None = None
        self.edits = 0
        self._limit = limit
        self._listener = listener
        self._rule = ""
        self._depth = 0
        self._match: Match | None = None
        self._numbers: dict[str, int] = {}
        self._path = ""
        self._dirty: dict[Node, None] = {}
        self._orphans: dict[Node, None] = {}
        self._touched: dict[Node, None] = {}
        self._mode: FakeTensorMode | None = None
        self._switches: bool | None = None

    # ------------------------------------------------------------------------------------------------ the edits

    def insert(self, op: Any, *args: Any, before: Node, like: Node | None = None, **kwargs: Any) -> Node:
        """Inserts a call before a node. It inherits source line and module from `like`, or from the candidate."""
        origin = like or self.place or before
        return self._create(op, args, kwargs, before, origin, (origin,))

    def attribute(self, value: Any, *, before: Node, like: Node | None = None) -> Node:
        """Adds an attribute to the module under an unused name, and a node that reads it."""
        self._check_limit()
        module, number = self.view.module, 0
        while hasattr(module, name := f"_eductor_{number}"):
            number += 1
        setattr(module, name, value)
        with self.view.graph.inserting_before(before):
            node = self.view.graph.create_node("get_attr", name)
        return self._register(node, like or self.place or before)

    def adopt(self, node: Node, *, like: Node | None = None) -> None:
        """Records a node that another tool inserted as created by this rewriter."""
        self._check_node(node)
        self._register(node, like or self.place or node)

    def replace(self, old: Node, op: Any, *args: Any, **kwargs: Any) -> Node:
        """Replaces a node by a new call or an existing node, and erases it."""
        if isinstance(op, Node):
            if args or kwargs:
                raise BadGraph(f"{old.name} is replaced by the node {op.name}, which takes no arguments")
            new = op
        else:
            new = self._create(op, args, kwargs, old, old, (old,))
        late = next((user for user in old.users if not new < user), None)
        if late is not None:
            raise BadGraph(
                f"{old.name} cannot be replaced by {new.name}, which is defined only after its user {late.name}"
            )
        self._event("replaced", old, f"by {self._name(new)}")
        users = list(old.users)
        self._touched.update(dict.fromkeys(users))
        alike = meta.difference(meta.value_of(old), meta.value_of(new)) is None
        if not alike:
            self._dirty.update(dict.fromkeys(users))
        old.replace_all_uses_with(new)
        for user in users:
            self.view.rewired(user, alike=alike)
        self.erase(old)
        return new

    def update(
        self,
        node: Node,
        *,
        target: Any = None,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        respelled: bool = False,
    ) -> None:
        """Changes the target or arguments of a node; it keeps its name and its users.

        A node that is only `respelled` keeps its value, and is not evaluated again.
        """
        self._event("updated", node, "")
        reading = bind(node) if not respelled else None
        self._orphans.update(dict.fromkeys(node.all_input_nodes))
        self.view.removed(node)
        self._set(node, target, args, kwargs)
        self._check_node(node)
        self.view.added(node)
        if reading is not None and node.op != "output" and not _is_same_call(reading, bind(node)):
            self._dirty[node] = None

    def respell(
        self, node: Node, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], reading: Bound
    ) -> None:
        """Changes the form of a call to one that `bind` reads as the same operator and values."""
        self._event("updated", node, "")
        self._set(node, target, args, kwargs)
        self._check_node(node)
        self.view.respelled(node, reading)

    def _set(self, node: Node, target: Any, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any] | None) -> None:
        if target is not None:
            node.op = "call_method" if isinstance(target, str) else "call_function"
            node.target = target
        if args is not None:
            node.args = args
        if kwargs is not None:
            node.kwargs = dict(kwargs)
        self._stamp(node, (node,))

    def move(self, node: Node, *, before: Node) -> None:
        """Moves a node before another one; check `effects.may_move` first."""
        if node.next is before:
            return
        self._event("moved", node, f"before {self._name(before)}")
        before.prepend(node)
        self.view.moved(node)

    def erase(self, node: Node) -> None:
        """Removes a node without users. Operands that are dead then are removed at the end of the pass."""
        self._event("erased", node, "")
        self._orphans.update(dict.fromkeys(node.all_input_nodes))
        self._orphans.pop(node, None)
        self._dirty.pop(node, None)
        self.view.removed(node)
        self.view.graph.erase_node(node)

    def reject(self, no: No | str, *nodes: Node) -> None:
        """Records why a candidate is declined. The nodes given here come before those of the `No`."""
        named = dict.fromkeys((*nodes, *no.nodes) if isinstance(no, No) else nodes)
        self.rejects.append(Rejection(str(no), tuple([self._path + node.name for node in named]), self._rule))

    def record(self, answer: object, *nodes: Node) -> None:
        """Rejects a candidate if the answer of an attempt to rewrite it is a `No`."""
        if isinstance(answer, No):
            self.reject(answer, *nodes)

    def note(self, reason: str) -> None:
        """Records why the edits of the current match were made."""
        if self._match is None:
            raise BadGraph(f"no edit was made yet that the note belongs to: {reason}")
        self._match.note = str(reason)

    def edited_by_hand(
        self,
        made: Collection[Node],
        added: Collection[Node],
        changed: Collection[Node],
        erased: Collection[Node],
        *,
        is_simple: bool,
    ) -> None:
        """Records edits that a handler made directly: nodes added, changed in their arguments, and erased.

        Those in `made` count as created by the match. An edit that is not simple (a node was moved, or calls something
        else) invalidates the view.
        """
        if is_simple:
            for node in (n for n in erased if n in self.view):  # the rewriter may have erased some
                self.view.removed(node)
            for node in added:
                self.view.added(node)
            for node in changed:
                self.view.rewired(node)
        else:
            self.view.forget()
        self._dirty.update(dict.fromkeys((*made, *added, *changed)))
        self._touched.update(dict.fromkeys((*made, *added, *changed, *erased)))
        for node in erased:
            self._orphans.pop(node, None)
            self._dirty.pop(node, None)
        self._event("updated", self.place or self.view.output, "by hand")
        for node in made:
            self._stamp(node, (node,))
        for node in (*made, *changed):
            self._check_node(node)

    def rule(self, name: str) -> AbstractContextManager[None]:
        """Attributes the edits inside to the rule of this name: `stage/pass:rule@match`."""
        return _InRule(self, name)

    @contextmanager
    def inside(self, path: str, body: GraphModule) -> Iterator[Rewriter]:
        """A rewriter for the body of a higher-order operator, which records into the same matches and refusals.

        They name a node by the path of the body in its module and the name of the node.
        """
        view = self.view.body(body)
        inner = Rewriter(view, self.address, limit=self._limit, listener=self._listener)
        inner.matches, inner.rejects, inner._numbers = self.matches, self.rejects, self._numbers
        inner._rule, inner._path = self._rule, f"{self._path}{path}."
        view.scope = inner
        try:
            yield inner
        except LimitReached:
            inner._finish_body()
            raise
        except Exception as error:
            inner.failed(error)
            raise
        finally:
            view.scope = None
        inner._finish_body()

    def _finish_body(self) -> None:
        self.finish()
        if self.edits:
            self.view.module.recompile()

    # ------------------------------------------------------------------------------- candidates, as `find` shows them

    def open(self, node: Node) -> bool:
        """Starts a candidate; False once the limit of matches is reached."""
        if self._depth == 0:
            if self._match is not None:
                self._finish_match()
            if self._limit is not None and len(self.matches) >= self._limit:
                return False
            self.place = node
        self._depth += 1
        return True

    def close(self) -> None:
        """Ends a candidate."""
        self._depth -= 1
        if self._depth == 0 and self._match is not None:
            self._finish_match()

    def leave(self) -> None:
        """Leaves the loop over candidates, by a break or an exception; the match stays open until `finish` or `failed`."""
        self._depth -= 1

    def _finish_match(self) -> None:
        match, self._match = self._match, None
        if match is not None and self._listener is not None:
            match.touched = tuple(self._touched)
            self._listener.end(match)
            match.touched = ()
        self._touched.clear()

    def failed(self, error: Exception) -> None:
        """Reports the current match as failed, because its pass raised."""
        match, self._match = self._match, None
        if match is not None and self._listener is not None:
            self._listener.fail(match, error)

    # ------------------------------------------------------------------------------------------------ the aftermath

    def finish(self) -> None:
        """Ends a pass: erases dead operands and updates fake values."""
        self.erase_dead()
        if self._dirty and update(self.view.module, self._dirty):
            self.view.revalued()
        self._dirty.clear()

    def erase_dead(self) -> bool:
        """Erases the operands that the edits so far left dead; returns whether there were any."""
        self._finish_match()
        self._match = self.matches[-1] if self.matches else None
        edits = self.edits
        while self._orphans:
            node, _ = self._orphans.popitem()
            if node.op not in ("placeholder", "output") and not node.users and self.view.effects.of(node).removable:
                self.erase(node)
        self._match = None
        return self.edits > edits

    # ----------------------------------------------------------------------------------------------------- helpers

    def _create(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: Node,
        like: Node,
        sources: tuple[Node, ...],
    ) -> Node:
        self._check_limit()
        target = _resolve(op, args, kwargs)
        self._check_call(target, args, kwargs)
        late = next((n for n in meta.nodes_in((args, kwargs)) if not n < before), None)
        if late is not None:
            raise BadGraph(f"a new {op} in front of {before.name} uses {late.name}, which is defined only after it")
        with self.view.graph.inserting_before(before):
            node = self.view.graph.call_function(target, args, kwargs)
        return self._register(node, like, sources)

    def _check_node(self, node: Node) -> None:
        if node.op in ("call_function", "call_method"):
            self._check_call(node.target, node.args, node.kwargs)

    def _check_call(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises for a call that does not fit the schema of its operator."""
        no = misfit(target, args, kwargs)
        if no is not None and (isinstance(target, OpOverload) or self._is_refused(target, args, kwargs)):
            raise BadGraph(_told(target, args, kwargs, no))

    def _is_refused(self, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a function or method that no schema fits raises for these arguments, too: torch's parser takes more."""
        mode = meta.fake_mode_of(self.view.graph)
        if mode is None or any(meta.value_of(n) is meta.UNKNOWN for n in meta.nodes_in((args, dict(kwargs)))):
            return False
        args, kwargs = map_arg((args, dict(kwargs)), meta.value_of)
        with mode, enable_python_dispatcher():
            try:
                if isinstance(target, str):
                    getattr(args[0], target)(*args[1:], **kwargs)
                else:
                    target(*args, **kwargs)
            except TypeError:
                return True
        return False

    def _register(self, node: Node, like: Node, sources: tuple[Node, ...] = ()) -> Node:
        """Gives a new node its metadata, provenance and value, and adds it to the view."""
        for key in INHERITED_META:
            if key in like.meta:
                node.meta[key] = like.meta[key]
        self._event("created", node, "")
        self._stamp(node, sources or (like,))
        self._evaluate(node)
        if self._has_switches():
            self._dirty[node] = None
        self.view.added(node)
        return node

    def _has_switches(self) -> bool:
        """Whether the graph switches grad mode or autocast, so that values depend on the position of their node."""
        if self._switches is None:
            self._switches = has_context_switch(self.view.graph)
        return self._switches

    def _evaluate(self, node: Node) -> None:
        operands = [meta.value_of(n) for n in node.all_input_nodes]
        if self._mode is None:
            self._mode = meta.fake_mode_of(self.view.graph)
        mode = self._mode
        if mode is None or any(v is meta.UNKNOWN for v in operands):
            return
        value = self.view.fake_results.value(node, mode, lambda: self._run(node, mode))
        if value is not meta.UNKNOWN:
            meta.set_value(node, value)

    def _run(self, node: Node, mode: FakeTensorMode) -> Any:
        known = run_meta_kernel(node, mode)
        if known is not meta.UNKNOWN:
            return known
        with mode, enable_python_dispatcher():
            return evaluate(self.view.module, node, mode)

    def _stamp(self, node: Node, sources: tuple[Node, ...]) -> None:
        origins = tuple(p for p in (provenance_of(s) for s in sources) if p is not None)
        line = next((line for line in map(source_line, sources) if line), "")
        address = self._match.address if self._match is not None else self.address
        node.meta[PROVENANCE] = Provenance(address, tuple(s.name for s in sources), line, origins)

    def _check_limit(self) -> None:
        """Raises before an edit that would begin a match beyond the limit."""
        if self._match is None and self._limit is not None and len(self.matches) >= self._limit:
            raise LimitReached

    def _event(self, kind: str, node: Node, detail: str) -> None:
        self._check_limit()
        if self._match is None:
            number = self._numbers.get(self._rule, 0)
            self._numbers[self._rule] = number + 1
            rule = f":{self._rule}" if self._rule else ""
            place = self.place if self._depth and self.place is not None else node
            self._match = Match(f"{self.address}{rule}@{number}", self._rule, self._name(place))
            self.matches.append(self._match)
            if self._listener is not None:
                self._listener.begin(self._match)
        if self._depth == 0:
            self.place = node
        self.edits += 1
        self._touched[node] = None
        self._match.events.append(Event(kind, self._name(node), detail, self._match.address))

    def _name(self, node: Node) -> str:
        """The name of a node in matches and refusals."""
        return f"{self._path}{node.name}"


class _InRule(AbstractContextManager[None]):
    """Sets the rule of a rewriter; a class, since it is entered for each candidate and a generator is slower."""

    __slots__ = ("name", "outer", "rewriter")

    def __init__(self, rewriter: Rewriter, name: str) -> None:
        self.rewriter, self.name = rewriter, name

    def __enter__(self) -> None:
        self.outer, self.rewriter._rule = self.rewriter._rule, self.name

    def __exit__(self, *error: object) -> None:
        self.rewriter._rule = self.outer


def inner_first(rewrite: Rewriter, work: Callable[[GraphView, Rewriter], T]) -> list[T]:
    """Runs work on the bodies of higher-order operators, inner ones first, then on the graph itself.

    Each body is a graph of its own: its inputs may share memory with anything, and what it returns keeps its form. A body
    that the work adds to the graph is left to the next run.
    """
    return _inner_first(rewrite, work, set())


def _inner_first(rewrite: Rewriter, work: Callable[[GraphView, Rewriter], T], done: set[GraphModule]) -> list[T]:
    results: list[T] = []
    for path, body in subgraphs(rewrite.view.graph).items():
        if body not in done:
            done.add(body)
            with rewrite.inside(path, body) as inner:
                results += _inner_first(inner, work, done)
    return [*results, work(rewrite.view, rewrite)]


def _resolve(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The overload of a packet that fits the arguments; any other callable unchanged."""
    if not isinstance(op, OpOverloadPacket):
        return op
    bound = bind_call(op, args, kwargs)
    if not isinstance(bound, Bound):
        raise BadGraph(f"{op} cannot be called with these arguments: {bound.reason}")
    return bound.op


def _told(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], no: No) -> str:
    """What was given to an operator, and what its schema wants."""

    def typed(value: Any) -> str:
        values = value if isinstance(value, (list, tuple)) else [value]
        types = [type_of(meta.value_of(v)) or v.name if isinstance(v, Node) else repr(v) for v in values]
        return f"[{', '.join(types)}]" if isinstance(value, (list, tuple)) else types[0]

    given = [*map(typed, args), *(f"{k}={typed(v)}" for k, v in kwargs.items())]
    wanted = f"; its schema is {target._schema}" if isinstance(target, OpOverload) else ""
    return f"{path_of(target)} cannot be called with ({', '.join(given)}): {no.reason}{wanted}"


def _is_same_call(before: Bound | No, after: Bound | No) -> bool:
    """Whether two readings of a node are the same call, so that its value is the same."""
    if not isinstance(before, Bound) or not isinstance(after, Bound):
        return False
    return before.op is after.op and same_value(dict(before.arguments), dict(after.arguments))
