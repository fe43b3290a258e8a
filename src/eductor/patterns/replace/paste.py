"""Pastes a replacement, a small graph, in place of a match, node by node."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node, map_arg

from eductor.compat import FakeTensor
from eductor.errors import BadPattern
from eductor.graph import (
    Effects,
    GraphView,
    No,
    Rewriter,
    dialect_of,
    difference,
    effect_of,
    known_equal,
    tensor_of,
    value_of,
)
from eductor.graph.effects.order import ancestors
from eductor.graph.values import meta
from eductor.graph.values.meta import hint_of, is_backward, nodes_in, results_of
from eductor.graph.view import keys_of
from eductor.patterns.language.pattern import Tolerance
from eductor.patterns.match.match import Match, is_size, is_spare
from eductor.patterns.match.transparent import CAST, transparent
from eductor.patterns.replace.placement import Result, places

aten = torch.ops.aten
_CASTS: frozenset[Tolerance] = frozenset(("casts",))


@dataclass(frozen=True, slots=True)
class Piece:
    """A graph to paste, and what its inputs stand for in the graph that it is pasted to."""

    module: GraphModule
    inputs: Sequence[Any]

    @property
    def results(self) -> list[Any]:
        return results_of(self.module)

    def given(self) -> dict[Node, Any]:
        return dict(zip(self.module.graph.find_nodes(op="placeholder"), self.inputs, strict=True))


def paste(view: GraphView, rewrite: Rewriter, match: Match, piece: Piece) -> Literal[True] | No:
    """Puts a piece in the place of a match; where that cannot be, says why, and leaves the graph as it is."""
    plan = _planned(view, match, piece)
    if isinstance(plan, No):
        return plan
    _Paster(view, rewrite, match, piece, plan).paste()
    return True


@dataclass(frozen=True, slots=True)
class _Plan:
    """Which new result takes the place of which old one, and in front of which node it is made."""

    pairs: tuple[tuple[Node, Any], ...]
    places: Mapping[Node, Node]


def _planned(view: GraphView, match: Match, piece: Piece) -> _Plan | No:
    results = piece.results
    if len(results) != len(match.outputs):
        raise BadPattern(
            f"the replacement returns {len(results)} values, the pattern has {len(match.outputs)}: they take each other's "
            "places one by one."
        )
    given = piece.given()
    pairs: list[tuple[Node, Any]] = []
    for old, new in zip(match.outputs, results, strict=True):
        if old is None or (new is None and not old.users):
            continue
        if old not in match.nodes:
            if given.get(new) is not old:
                return No(f"{old.name} is an input of the pattern, and the replacement returns something else", old)
            continue
        if new is None:
            return No(f"{old.name} is used, and the replacement does not compute it", old)
        wider = _wider(match, old, _value(new, given))
        if not (alike := _are_alike(match, wider, _value(new, given))):
            return alike
        pairs.append((wider, new))
    if not pairs:
        return No("none of its results is used", match.output)
    effects = view.effects
    needs = [Result(old, tuple(_needed(new, given))) for old, new in pairs]
    found = places(match, needs, effects)
    if isinstance(found, No):
        return found
    inner = Effects(piece.module.graph, inputs_distinct=True)
    wanted = ancestors([new for _, new in pairs if isinstance(new, Node)])
    calls = (n for n in piece.module.graph.nodes if n.op.startswith("call") and n not in wanted)
    lost = next((n for n in calls if not inner.of(n).removable), None)
    if lost is not None:
        return No(f"{lost.name} of the replacement has an effect, and none of the results comes from it", match.output)
    safe = _writes_the_same(match, given, effects, inner)
    for old, new in pairs:
        safe = safe and _may_share(match, old, new, given, effects, inner)
    return safe and _Plan(tuple(pairs), found)


def _wider(match: Match, old: Node, new: Any) -> Node:
    """A cast of an old result to the dtype that the new one has, if nobody else uses the result: it goes as well."""
    if "casts" not in match.form.tolerated or not isinstance(new, torch.Tensor) or len(old.users) != 1:
        return old
    (user,) = old.users
    into, here = tensor_of(user), tensor_of(old)
    is_cast = user not in match.nodes and transparent(user, _CASTS) is old
    wanted = is_cast and into is not None and here is not None and here.dtype != into.dtype == new.dtype
    return user if wanted else old


def _value(new: Any, given: Mapping[Node, Any]) -> Any:
    return value_of(given.get(new, new))


def _are_alike(match: Match, old: Node, new: Any) -> Literal[True] | No:
    """Whether the users of the old value cannot tell the new one from it."""
    was = value_of(old)
    if was is meta.UNKNOWN or new is meta.UNKNOWN:
        return No(f"{old.name} or its replacement has no fake value, so that they cannot be compared", old)
    if "casts" in match.form.tolerated and _is_wider(new, was):
        new = _in_dtype(new, was.dtype)
    unlike = difference(was, _as_wanted(was, new))
    if unlike is None and isinstance(was, torch.Tensor) and was.requires_grad and not new.requires_grad:
        unlike = "requires_grad True and False"
    return No(f"the replacement of {old.name} differs from it: {unlike}", old) if unlike else True


def _is_wider(new: Any, was: Any) -> bool:
    """Whether the new value is of a wider floating dtype: it is rounded afterwards, and nothing is lost."""
    tensors = isinstance(new, torch.Tensor) and isinstance(was, torch.Tensor)
    if not tensors or not new.dtype.is_floating_point or not was.dtype.is_floating_point:
        return False
    return bool(new.dtype != was.dtype and torch.promote_types(new.dtype, was.dtype) == new.dtype)


def _in_dtype(new: Any, dtype: torch.dtype) -> Any:
    with new.fake_mode, torch.no_grad():
        return torch.empty_like(new, dtype=dtype).requires_grad_(new.requires_grad)


def _as_wanted(was: Any, new: Any) -> Any:
    """The new value in the layout of the old one, where a copy of it brings it there."""
    order = _order_of_copy(was, new)
    if order is None or not isinstance(new, FakeTensor):
        return new
    with new.fake_mode, torch.no_grad():
        copy = torch.empty([new.shape[d] for d in order], dtype=new.dtype, device=new.device).permute(_inverse(order))
        return copy.requires_grad_(new.requires_grad)


def _order_of_copy(was: Any, new: Any) -> list[int] | None:
    """From the outermost to the innermost, the dims of an old value that lies densely in memory, and the new one does not so."""
    tensors = isinstance(was, torch.Tensor) and isinstance(new, torch.Tensor) and was.layout is torch.strided
    if (
        not tensors
        or new.layout is not torch.strided
        or was.dim() != new.dim()
        or known_equal(was.stride(), new.stride())
    ):
        return None
    return sorted(range(was.dim()), key=lambda d: (-hint_of(was.stride(d)), d))


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _needed(new: Any, given: Mapping[Node, Any]) -> list[Node]:
    """The nodes of the old graph that a new result is computed from."""
    found = [given[n] for n in ancestors([new]) if n in given]
    return [n for value in found for n in nodes_in(value)]


def _writes_the_same(match: Match, given: Mapping[Node, Any], effects: Effects, inner: Effects) -> Literal[True] | No:
    """Whether the replacement writes the inputs that the match wrote, and no others: both can be observed."""
    own = {effects.place(n) for n in match.nodes if not effects.of(n).shares}
    old = {place for n in match.nodes for place in effects.writes(n)} - own
    written = {place for n in inner.graph.nodes for place in inner.writes(n)}
    new = {
        effects.place(node): node for p, node in given.items() if isinstance(node, Node) and inner.place(p) in written
    }
    missing = next((place for place in old if place not in new), None)
    if missing is not None:
        return No(f"the match writes {missing.name}, and the replacement does not", match.output)
    extra = next((node for place, node in new.items() if place not in old), None)
    return No(f"the replacement writes {extra.name}, and the match does not", extra) if extra is not None else True


def _may_share(
    match: Match, old: Node, new: Any, given: Mapping[Node, Any], effects: Effects, inner: Effects
) -> Literal[True] | No:
    """Whether it cannot be observed with which values the new result shares memory."""
    with_inputs = [given[p] for p in given if isinstance(given[p], Node) and inner.place(p) is inner.place(new)]
    for source in with_inputs:
        if tensor_of(source) is not None and not (verdict := effects.may_alias(old, source)):
            return No(verdict.reason, old)
    if not with_inputs and _is_view_of_others(match, old, effects):
        place = effects.place(old)
        written = next((m for m in effects.marks_between(old, None) if place in effects.writes(m)), None)
        if effects.leaves(old) or written is not None:
            return No(f"{old.name} is a view, its replacement would not be, and that is observable", old)
    return True


def _is_view_of_others(match: Match, old: Node, effects: Effects) -> bool:
    """Whether an old result shares memory with something that is not of the match."""
    sources = ancestors([old], lambda node: effects.of(node).shares if node in match.nodes else ())
    return any(source not in match.nodes for source in sources)


class _Paster:
    """Copies the nodes of a piece into a graph, each result's where it belongs."""

    def __init__(self, view: GraphView, rewrite: Rewriter, match: Match, piece: Piece, plan: _Plan) -> None:
        self._view = view
        self._rewrite = rewrite
        self._match = match
        self._piece = piece
        self._plan = plan
        self._new: dict[Node, Any] = piece.given()
        self._rest = list(match.nodes)

    def paste(self) -> None:
        # What the forward needs is made by the forward, though the backward may need it, too.
        in_order = sorted(self._plan.pairs, key=lambda pair: (is_backward(pair[0]), self._plan.places[pair[0]]))
        for old, new in in_order:
            wanted = self._made_with(old, new)
            for node in self._piece.module.graph.nodes:
                if node in wanted and node not in self._new:
                    self._new[node] = self._copy(node, old)
                    self._pick(node, old)
        for old, new in in_order:
            self._replace(old, map_arg(new, self._new.__getitem__) if isinstance(new, Node) else new)
        self._resize()
        self._erase()

    def _made_with(self, old: Node, new: Any) -> set[Node]:
        """What a result needs; before one of the forward also what the backward needs, if that is made of nothing else.

        Views cost nothing: the backward makes its own.
        """
        made = ancestors([new])
        if is_backward(old) or new not in made:
            return made
        later = ancestors(n for o, n in self._plan.pairs if is_backward(o)) - made
        for node in itertools.takewhile(lambda n: n is not new, self._piece.module.graph.nodes):
            is_made = node in later and node.op.startswith("call") and made.issuperset(node.all_input_nodes)
            if is_made and not effect_of(node).is_view:
                made.add(node)
        return made

    def _pick(self, node: Node, old: Node) -> None:
        """What is taken from several results is taken at once: the backward needs the tensors, not the tuple."""
        for user in node.users:
            if user.target is operator.getitem and user not in self._new:
                self._new[user] = self._copy(user, old)

    def _copy(self, node: Node, old: Node) -> Node:
        place, old = self._plan.places[old], self._forebear(node, old)
        args, kwargs = map_arg((node.args, node.kwargs), self._new.__getitem__)
        if node.op == "get_attr":
            return self._rewrite.attribute(getattr(self._piece.module, str(node.target)), before=place, like=old)
        if node.op == "call_method":
            return self._rewrite.insert(
                getattr(torch.Tensor, str(node.target)), *args, before=place, like=old, **kwargs
            )
        return self._rewrite.insert(node.target, *args, before=place, like=old, **kwargs)

    def _forebear(self, node: Node, old: Node) -> Node:
        """The node of the match that a new one comes from: one with the same call, if there is one, or the old result."""
        keys = set(keys_of(node))  # a Torch-level call is spelled otherwise
        same = (n for n in self._rest if keys & set(keys_of(n)) and is_backward(n) == is_backward(old))
        found = next(same, None)
        if found is None:
            return old
        self._rest.remove(found)
        return found

    def _replace(self, old: Node, new: Any) -> None:
        here, there = tensor_of(old), tensor_of(new)
        if here is not None and there is not None and here.dtype != there.dtype:
            before_autograd = meta.requires_grad(there) or dialect_of(self._view.module) == "torch"
            cast = aten._to_copy if before_autograd else CAST
            new = self._rewrite.insert(cast.default, new, before=self._plan.places[old], like=old, dtype=here.dtype)
        order = _order_of_copy(here, tensor_of(new))
        if order is not None:
            new = self._copied(new, order, old)
        self._rewrite.replace(old, new)

    def _copied(self, new: Node, order: list[int], old: Node) -> Node:
        """A copy with the dims in this order in memory: those who use it may rely on where its elements lie."""
        at = {"before": self._plan.places[old], "like": old}
        is_usual = order == sorted(order)
        turned = new if is_usual else self._rewrite.insert(aten.permute.default, new, order, **at)
        copy = self._rewrite.insert(aten.clone.default, turned, memory_format=torch.contiguous_format, **at)
        return copy if is_usual else self._rewrite.insert(aten.permute.default, copy, _inverse(order), **at)

    def _resize(self) -> None:
        """Sizes of what goes are asked of what stays, wherever that has the same."""
        staying = [n for n in (*self._match.bindings.values(), *self._new.values()) if tensor_of(n) is not None]
        for size in [u for n in self._match.nodes if n in self._view for u in n.users if is_size(u)]:
            for node in staying:
                dims = [d for d, s in enumerate(value_of(node).shape) if known_equal(s, value_of(size))]
                if dims and node < size:
                    self._rewrite.replace(size, aten.sym_size.int, node, dims[0])
                    break

    def _erase(self) -> None:
        """The nodes of the match that nobody needs any more."""
        for node in reversed(self._match.nodes):
            if node in self._view:
                for user in [u for u in node.users if is_spare(u) and not u.users]:
                    self._rewrite.erase(user)
                if not node.users:
                    self._rewrite.erase(node)
