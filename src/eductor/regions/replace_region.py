"""Replaces a region of a joint graph, and its gradients, by another computation of the same values.

What the backward of the part is nobody has to say: the part is differentiated once more, and what that gives is looked for
in the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch.fx import GraphModule, Node

from eductor.compat import sort_key
from eductor.graph import GraphView, No, Rewriter, tensor_of
from eductor.graph.decomposition_tables import Table
from eductor.graph.values.meta import is_backward
from eductor.patterns.compile.forms import PatternForm
from eductor.patterns.match.match import Match, is_spare
from eductor.patterns.replace.paste import Piece, paste
from eductor.regions.congruence import Congruence, holds_tensors
from eductor.regions.retrace import Retrace, is_traced


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a graph that computes one value."""

    inputs: tuple[Node, ...]
    nodes: frozenset[Node]
    """The calls between the inputs and the output, which is one of them; none is of the backward."""
    output: Node
    again: Callable[..., Any]
    """The same computation out of the operators that autograd saw, of one tensor (or size) for each input."""


def replace_region(graph: GraphView, rewrite: Rewriter, region: Region, by: Callable[..., Any]) -> Literal[True] | No:
    """Has `by` compute the output of a region from its inputs, and the gradients that the region's backward computes.

    Says why not, where it cannot be, and leaves the graph as it is. Regions whose functions do not differ in code or in what
    they captured share their traces.
    """
    plain = _is_plain(graph, region)
    if not plain:
        return plain
    region = _with_all_results(region)
    found = _found(graph, region)
    if isinstance(found, No):
        return found
    wanted = [g is not None for g in found.gradients]
    try:
        piece = Retrace.of(graph)(by, region.inputs, found.table, wanted, found.tangent)
    except Exception as error:
        return No(f"the replacement cannot be traced: {type(error).__name__}: {error}".split("\n")[0])
    return paste(graph, rewrite, _match(region, found), _piece(region, found, piece.module))


def _match(region: Region, found: _Found) -> Match:
    nodes = tuple(sorted({*region.nodes, *found.backward}, key=sort_key))
    gradients = [g for n, g in zip(region.inputs, found.gradients, strict=False) if is_traced(n)]
    inputs = {f"input_{i}": n for i, n in enumerate(region.inputs)}
    return Match(_AS_IT_IS, region.output, nodes, (region.output, *gradients), inputs)


def _piece(region: Region, found: _Found, module: GraphModule) -> Piece:
    tangents = [found.tangent] if found.gradients else []
    return Piece(module, [*filter(is_traced, region.inputs), *tangents])


_AS_IT_IS = PatternForm((), frozenset())
"""The form of a match that overlooks nothing."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What a graph has of a region's reference: the tangent, the gradient of each input, the nodes of the backward."""

    table: Table
    agreement: int = 0
    """How many nodes of the forward are there."""
    problem: str = ""
    """What of it is not there."""
    tangent: Node | None = None
    gradients: tuple[Node | None, ...] = ()
    backward: frozenset[Node] = frozenset()


def _is_plain(graph: GraphView, region: Region) -> Literal[True] | No:
    for node in region.nodes:
        effect = graph.effects.of(node)
        if not (effect.removable or effect.random):
            return No(f"{node.name} does more than to compute its result")
    return True


def _with_all_results(region: Region) -> Region:
    """The region with all that is taken from several results: the backward may need one that the output does not."""
    taken = {u for n in region.nodes for u in n.users if u.target is operator.getitem}
    return replace(region, nodes=region.nodes | taken)


def _found(graph: GraphView, region: Region) -> _Found | No:
    """The region's reference in the graph, with the decompositions that agree; or why it cannot be replaced."""
    retrace = Retrace.of(graph)
    choices: list[_Found] = []
    for table in retrace.tables:
        found = _reference(graph, region, table)
        if not found.problem and _kept_inside(graph, region, found):
            retrace.fits(table)
            return found
        choices.append(found)
    best = max(choices, key=lambda choice: choice.agreement)
    kept = _kept_inside(graph, region, best)
    return best if kept else kept


def _reference(graph: GraphView, region: Region, table: Table) -> _Found:
    """What the graph has of the region's reference, as it is with these decompositions."""
    retrace = Retrace.of(graph)
    gradients = [retrace.has_backward and _is_floating(n) for n in region.inputs]
    try:
        reference = retrace(region.again, region.inputs, table, gradients)
    except Exception as error:
        return _Found(table, problem=f"the region cannot be traced: {type(error).__name__}: {error}".split("\n")[0])
    inputs = list(filter(is_traced, region.inputs))
    same = Congruence(graph, reference, inputs, lambda n: n in region.nodes or is_backward(n))
    found = _Found(table, sum(bool(same.twins(n)) for n in reference.forward))
    if same.missing is not None or region.output not in same.twins(reference.results[0]):
        return replace(found, problem=f"the region has nothing like {_shown(same.missing)}")
    return _backward(region, same, found) if reference.is_joint else found


def _backward(region: Region, same: Congruence, best: _Found) -> _Found:
    """With what there is of the reference's backward, for the tangent with which the most is there."""
    for tangent, found in same.with_tangents():
        gradients = tuple(_gradients(region, found))
        if _count(gradients) > _count(best.gradients):
            backward = frozenset(found.matched - region.nodes)
            best = replace(best, tangent=found.source(tangent), gradients=gradients, backward=backward)
        if _count(gradients) == _count(found.reference.results[1:]):
            break
    return best


def _gradients(region: Region, found: Congruence) -> Iterator[Node | None]:
    """The gradient of each input, where it is a node of its own. One that is the tangent itself stays what it is."""
    results = iter(found.reference.results[1:])
    taken: set[Node] = set()
    for node in region.inputs:
        result = next(results) if is_traced(node) else None
        mine = next((n for n in found.twins(result) if n in found.matched and n not in taken), None)
        if mine is not None:
            taken.add(mine)
        yield mine


def _count(gradients: Sequence[Node | None]) -> int:
    return sum(g is not None for g in gradients)


def _kept_inside(graph: GraphView, region: Region, found: _Found) -> Literal[True] | No:
    """Whether nothing outside uses what goes with the region. Sizes and views of its inputs may be used: they cost nothing."""
    inner = (n for n in region.nodes if n is not region.output and holds_tensors(n))
    pending = [n for n in inner if not _is_view_of_inputs(graph, region, n)]
    seen = set(pending)
    while pending:
        node = pending.pop()
        for user in node.users:
            if user in region.nodes or user in seen or is_spare(user):
                continue
            if user not in found.backward:
                where = "is returned by the graph" if user.op == "output" else f"is also used by {user.name}"
                why = f"; {found.problem}" if found.problem else ""
                return No(f"{node.name} of the region {where}, outside of the region and its backward{why}")
            seen.add(user)
            if user not in found.gradients:
                pending.append(user)
    return True


def _is_view_of_inputs(graph: GraphView, region: Region, node: Node) -> bool:
    while node in region.nodes:
        effect = graph.effects.of(node)
        if not effect.is_view or len(effect.shares) != 1:
            return False
        (node,) = effect.shares
    return True


def _is_floating(node: Node) -> bool:
    tensor = tensor_of(node)
    return tensor is not None and tensor.dtype.is_floating_point


def _shown(node: Node | None) -> str:
    return "what it returns" if node is None else f"{node.name} = {node.target}"
