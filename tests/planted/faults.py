"""Kinds of faults that passes really have: each finds a victim near a match and does one wrong thing to it.

A fault takes the graph, the rewriter and a node near the match, and says whether it found a victim. It edits through the
rewriter, so that what it does belongs to the match. Nodes are updated rather than erased: the pass that is running may
still hold them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node, map_arg

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.graph.values import meta
from eductor.graph.view import GraphView

aten = torch.ops.aten
prims = torch.ops.prims

DISTANCE = 8
"""So many steps from a match a fault looks for its victim, along the users."""
CASTS = (aten.to, aten._to_copy, prims.convert_element_type)

Plant = Callable[[GraphView, Rewriter, Node], bool]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault."""

    name: str
    plant: Plant
    shows_in_results: bool = True
    """Whether the program returns something else on ordinary inputs, bit by bit."""
    is_rounding: bool = False
    """Whether it is no fault of a pass that may round in another way."""
    about: str = ""
    """What not every graph has, or not every pass must keep: `writes`, `gradients`, `draws`, `order of draws`."""


FAULTS: dict[str, Fault] = {}


def fault(**declared: Any) -> Callable[[Plant], Plant]:
    """Declares a kind of fault."""

    def declare(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = Fault(plant.__name__, plant, **declared)
        return plant

    return declare


# ------------------------------------------------------------------------------------------------ finding and editing


def downstream(near: Node) -> Iterator[Node]:
    """The node and what is computed from it, nearest first."""
    level = {near: None}
    seen = {near}
    for _ in range(DISTANCE):
        yield from level
        level = {user: None for node in level for user in node.users if user not in seen and user.op != "output"}
        seen.update(level)


def calls(view: GraphView, near: Node, *packets: Any) -> Iterator[tuple[Node, Bound]]:
    """The calls of the operators among what is computed from a node."""
    for node in downstream(near):
        bound = view.bind(node)
        if isinstance(bound, Bound) and bound.packet in packets:
            yield node, bound


def respell(rewriter: Rewriter, node: Node, bound: Bound, op: Any = None, **changed: Any) -> bool:
    """Calls the operator, or another one with the same parameters, with some arguments changed."""
    arguments = {**bound.arguments, **changed}
    args, kwargs = Bound(bound.op, arguments, bound.given | changed.keys()).call()
    rewriter.update(node, target=op or bound.op, args=args, kwargs=kwargs)
    return True


def bypass(rewriter: Rewriter, node: Node, value: Node, users: list[Node] | None = None) -> bool:
    """Users of a node read another value instead."""
    for user in list(node.users) if users is None else users:
        args, kwargs = map_arg((user.args, user.kwargs), lambda n: value if n is node else n)
        rewriter.update(user, args=args, kwargs=kwargs)
    return True


def is_returned(node: Node) -> bool:
    return any(user.op == "output" for user in node.users)


def alike(a: Node, b: Node) -> bool:
    """Whether one value can stand where the other stands."""
    x, y = meta.tensor_of(a), meta.tensor_of(b)
    return x is not None and y is not None and not meta.difference(x, y)


# ------------------------------------------------------------------------------------------------------ wrong numbers


@fault()
def wrong_constant(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    for node, bound in calls(view, near, aten.mul):
        if isinstance(bound["other"], float) and bound["other"] > 1:
            return respell(rewriter, node, bound, other=bound["other"] + 1)
    return False


@fault()
def wrong_dim(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    for node, bound in calls(view, near, aten.softmax, aten._softmax):
        rank = len(meta.tensor_of(node).shape)
        return respell(rewriter, node, bound, dim=(bound["dim"] + 1) % rank)
    return False


@fault(is_rounding=True)
def dropped_cast(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """A value that was rounded to a narrow dtype and back is not rounded."""
    for node, bound in calls(view, near, *CASTS):
        narrow = next(iter(bound.arguments.values()))
        inner = view.bind(narrow) if isinstance(narrow, Node) else None
        if isinstance(inner, Bound) and inner.packet in CASTS:
            original = next(iter(inner.arguments.values()))
            if alike(node, original):
                return bypass(rewriter, node, original)
    return False


@fault()
def dropped_alpha(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    for node, bound in calls(view, near, aten.add, aten.sub):
        if bound["alpha"] not in (1, None):
            return respell(rewriter, node, bound, alpha=1)
    return False


@fault()
def operands_swapped(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    for node, bound in calls(view, near, aten.sub, aten.div):
        left, right = bound["self"], bound["other"]
        if isinstance(left, Node) and isinstance(right, Node) and alike(left, right):
            return respell(rewriter, node, bound, self=right, other=left)
    return False


@fault()
def branches_swapped(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    for node, bound in calls(view, near, aten.where):
        if alike(bound["self"], bound["other"]):
            return respell(rewriter, node, bound, self=bound["other"], other=bound["self"])
    return False


@fault()
def another_operator(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """A sum where a mean was."""
    for node, bound in calls(view, near, aten.mean):
        if bound.op is aten.mean.dim:
            return respell(rewriter, node, bound, aten.sum.dim_IntList)
    return False


@fault()
def wrong_operand(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """A maximum of two values becomes that of one of them with itself."""
    for node, bound in calls(view, near, aten.maximum):
        return respell(rewriter, node, bound, self=bound["other"])
    return False


@fault(is_rounding=True)
def lost_minus_zero(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """`x + 0.0` becomes `x`, which may be minus zero."""
    for node, bound in calls(view, near, aten.add):
        if isinstance(bound["other"], float) and bound["other"] == 0.0:
            return bypass(rewriter, node, bound["self"])
    return False


@fault(shows_in_results=False)
def lost_nan(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """`x.abs() * 0.0` becomes the smaller of `x.abs()` and zero, which is no NaN where x is infinite."""
    for node, _ in calls(view, near, aten.abs):
        product = next(user for user in node.users if not meta.is_backward(user))
        rewriter.update(product, target=aten.clamp.default, args=(node, None, 0.0), kwargs={})
        return True
    return False


@fault(about="gradients")
def wrong_gradient(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """A derivative of the backward is another one; where there is no backward yet, a value is detached."""
    for node, bound in calls(view, near, aten.cos):
        if meta.is_backward(node):
            return respell(rewriter, node, bound, aten.sin.default)
    for node, bound in calls(view, near, aten.maximum):
        if meta.requires_grad(meta.value_of(node)):
            detached = rewriter.insert(aten.detach.default, bound["self"], before=node)
            return respell(rewriter, node, bound, self=detached)
    return False


# ---------------------------------------------------------------------------------------------- writes, copies, draws


def _written(view: GraphView, near: Node) -> Iterator[tuple[Node, Node]]:
    for node in downstream(near):
        for place in view.effects.of(node).writes:
            yield node, place


@fault(about="writes")
def read_moved_past_a_write(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    for write, place in _written(view, near):
        for reader in place.users:
            if reader < write and not view.effects.of(reader).is_view and all(write < user for user in reader.users):
                rewriter.move(reader, before=write.next)
                return True
    return False


@fault(about="writes")
def write_dropped(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """The sum is computed, and not written."""
    for node, bound in calls(view, near, aten.add_):
        return respell(rewriter, node, bound, aten.add.Tensor)
    return False


@fault()
def protecting_copy_removed(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """A copy of what is written later, or returned as well."""
    written = {place for _, place in _written(view, near)}
    for node, bound in calls(view, near, aten.clone):
        source = bound["self"]
        if is_returned(node) and (source in written or (not written and is_returned(source))):
            return bypass(rewriter, node, source)
    return False


@fault(about="draws")
def drawn_twice(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """The users of a random tensor no longer share it."""
    for node in downstream(near):
        # A second tensor of seeds is as random as the first one.
        is_draw = view.effects.of(node).random and node.target is not torch.ops.eductor.seeds.default
        if is_draw and len(node.users) > 1:
            last = max(node.users)
            again = rewriter.insert(node.target, *node.args, before=last, like=node, **node.kwargs)
            return bypass(rewriter, node, again, [last])
    return False


@fault(about="order of draws")
def draws_reordered(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    drawn = sorted(node for node in downstream(near) if view.effects.of(node).random)
    for first, second in itertools.pairwise(drawn):
        if all(operand < first for operand in second.all_input_nodes):
            rewriter.move(second, before=first)
            return True
    return False


# ---------------------------------------------------------------------------------------------- interface and metadata


@fault(shows_in_results=False)
def stale_metadata(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """A fake value of the wrong dtype, which the engine would believe."""
    for node, _ in calls(view, near, aten.abs):
        meta.set_value(node, meta.tensor_of(node).to(torch.float64))
        return True
    return False


@fault(shows_in_results=False)
def stale_strides(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """A fake value of the right shape and the wrong layout."""
    for node, _ in calls(view, near, aten.abs):
        value = meta.tensor_of(node)
        strides = sorted(range(1, 2 * value.dim() + 1, 2))
        meta.set_value(node, value.new_empty_strided(value.shape, strides))
        return True
    return False


@fault()
def output_became_an_input(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    inputs = view.graph.find_nodes(op="placeholder")
    for node, bound in calls(view, near, aten.add):
        given = next((p for p in inputs if p is bound["other"]), None)
        if given is not None and is_returned(node) and alike(given, node):
            return bypass(rewriter, node, given, [view.output])
    return False


def _other(swapped: dict[Node, Node], node: Node) -> Node:
    return swapped.get(node, node)


@fault()
def outputs_swapped(view: GraphView, rewriter: Rewriter, near: Node) -> bool:
    """Two results of the same type are returned in the wrong order."""
    returned = [node for node in downstream(near) if is_returned(node) and not view.effects.of(node).random]
    for first, second in itertools.pairwise(returned):
        if alike(first, second):
            swapped = {first: second, second: first}
            rewriter.update(view.output, args=map_arg(view.output.args, functools.partial(_other, swapped)))
            return True
    return False
