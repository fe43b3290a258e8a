"""The equivalent spellings of a node: its call under schema names, and other calls that mean the same.

A pattern is written in one spelling; each node offers all that it could have been written as. Spellings that give the
same bits are always offered. Those that round otherwise carry the name of the tolerance that allows them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.graph import Bound, No, bind, tensor_of
from eductor.patterns.language.pattern import Tolerance
from eductor.patterns.match.call_reading import MISSING, CallParameters, Inverse, Reading, call_parameters, made
from eductor.patterns.match.transparent import CAST, CASTS, PERMUTES, VIEWS, as_cast, is_float, is_number, transparent

aten = torch.ops.aten
Binder = Callable[[Node], Bound | No]
_RESHAPING = (aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze)
"""Views to another shape that is said in another way."""
COMMUTATIVE = frozenset(
    getattr(aten, name)
    for name in (
        *("add", "mul", "eq", "ne", "logaddexp", "hypot"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"),
    )
)
"""The same bits in either order. Not so `maximum` and its like: of 0.0 and -0.0, the order decides which it is."""

SOURCES: dict[Any, tuple[Any, ...]] = {
    aten.view: (*VIEWS, *_RESHAPING),
    aten.permute: PERMUTES,
    aten.transpose: PERMUTES,
    CAST: CASTS,
    aten.square: (aten.square, aten.pow, aten.mul),
    aten.sub: (aten.sub, aten.rsub),
}
"""Under which operators a graph may hold what reads as another one, whatever is tolerated."""
SCALE_SOURCES: dict[Any, tuple[Any, ...]] = {
    aten.mul: (aten.mul, aten.div),
    aten.div: (aten.div, aten.mul),
    aten.sqrt: (aten.sqrt, aten.rsqrt, aten.pow),
    aten.rsqrt: (aten.rsqrt, aten.pow, aten.reciprocal, operator.truediv),
    aten.reciprocal: (aten.reciprocal, aten.pow, operator.truediv),
}
"""The same, where `scale` is tolerated."""


def sources(key: Any, tolerated: frozenset[Tolerance]) -> tuple[Any, ...]:
    """The operators among whose calls those that read as `key` are found."""
    found = SOURCES.get(key, (key,))
    return (*found, *SCALE_SOURCES[key]) if "scale" in tolerated and key in SCALE_SOURCES else found


# ---------------------------------------------------------------------------------------------------- plain readings


def readings_of(node: Node, bind: Binder = bind) -> Iterator[Reading]:
    """All readings of a node; the plainest first."""
    bound = bind(node) if node.op in ("call_function", "call_method") else None
    if not isinstance(bound, Bound):
        yield from _raw(node)
        return
    canonical = _CANONICAL.get(bound.packet)
    first = canonical(node, bound) if canonical is not None else None
    plain = first or Reading(node, bound.packet, bound.op, call_parameters(bound.op), tuple(bound.arguments.values()))
    yield plain
    for more in _MORE.get(bound.packet, ()):
        yield from more(plain)


def _raw(node: Node) -> Iterator[Reading]:
    """A call without a schema, argument by argument."""
    key = _raw_key(node)
    if key is None:
        return
    names = (*map(str, range(len(node.args))), *node.kwargs)
    parameters = CallParameters(names, len(node.args), (MISSING,) * len(names))
    values = (*node.args, *node.kwargs.values())
    yield Reading(node, key, None, parameters, values)
    is_inverse = node.target is operator.truediv and len(values) == 2 and is_number(values[0])
    if is_inverse and values[0] == 1 and tensor_of(values[1]) is not None:
        inverse = Reading(node, aten.reciprocal, None, _SELF, (values[1],), "scale")
        yield inverse
        yield from _roots(inverse)


def _raw_key(node: Node) -> Any:
    if node.op == "call_module":
        owner = node.graph.owning_module
        return type(owner.get_submodule(str(node.target))) if isinstance(owner, GraphModule) else None
    return node.target if node.op in ("call_function", "call_method") else None


_SELF, _PAIR, _VIEW = made("self"), made("self", "other"), made("self", "size")
_PERMUTE, _TRANSPOSE = made("self", "dims"), made("self", "dim0", "dim1")


# --------------------------------------------------------------------------------------- one spelling for what is equal


def _view(node: Node, bound: Bound) -> Reading | None:
    """Every view or expansion to a shape is one to the shape that the result has."""
    tensor = tensor_of(node)
    if tensor is None or not {"size", "shape"} & set(bound.arguments):
        return None
    key = aten.expand if bound.packet is aten.expand else aten.view
    return Reading(node, key, None, _VIEW, (bound["self"], _sizes(bound, tensor)))


def _sizes(bound: Bound, tensor: torch.Tensor) -> list[Any]:
    """The sizes of a result: the nodes that hold them, where there are some."""
    given = bound.get("size", bound.get("shape"))
    if not isinstance(given, (list, tuple)) or len(given) != tensor.dim():
        return list(tensor.shape)
    return [g if isinstance(g, Node) else size for g, size in zip(given, tensor.shape, strict=True)]


def _permute(node: Node, bound: Bound) -> Reading | None:
    tensor = tensor_of(bound["self"])
    if tensor is None:
        return None
    rank = tensor.dim()
    dims = list(range(rank))
    if "dims" in bound.arguments:
        if not all(type(d) is int for d in bound["dims"]):
            return None
        dims = [d % max(rank, 1) for d in bound["dims"]]
    elif "dim0" in bound.arguments:
        a, b = (d % max(rank, 1) for d in (bound["dim0"], bound["dim1"]))
        if rank:
            dims[a], dims[b] = b, a
    elif bound.packet is aten.numpy_T:
        dims.reverse()
    elif rank >= 2:
        dims[-2:] = dims[:-3:-1]
    return Reading(node, aten.permute, None, _PERMUTE, (bound["self"], dims))


_CANONICAL: dict[Any, Callable[[Node, Bound], Reading | None]] = {
    **dict.fromkeys((*VIEWS, aten.expand), _view),
    **dict.fromkeys(PERMUTES, _permute),
    **dict.fromkeys(CASTS, as_cast),
}


# ------------------------------------------------------------------------------------------------------ other readings


def _transposed(plain: Reading) -> Iterator[Reading]:
    """A permutation that exchanges two dims is a transposition, too."""
    if plain.key is not aten.permute:
        return
    moved = [i for i, d in enumerate(plain.values[1]) if d != i]
    if len(moved) == 2:
        for a, b in (moved, moved[::-1]):
            yield Reading(plain.node, aten.transpose, None, _TRANSPOSE, (plain.values[0], a, b))


def _reshaped(plain: Reading) -> Iterator[Reading]:
    """To flatten, to squeeze and their like is to view in another shape."""
    tensor = tensor_of(plain.node)
    if tensor is not None:
        yield Reading(plain.node, aten.view, None, _VIEW, (plain.values[0], list(tensor.shape)))


def _exchanged(plain: Reading) -> Iterator[Reading]:
    """The operands of a commutative call the other way round."""
    others = plain.values[2:] == plain.parameters.defaults[2:]
    if len(plain.values) >= 2 and others:
        yield replace(plain, values=(plain.values[1], plain.values[0], *plain.values[2:]))


def _squares(plain: Reading) -> Iterator[Reading]:
    """`x * x`, `x ** 2` and `square(x)` are one."""
    base, *rest = plain.values
    here, there = tensor_of(base), tensor_of(plain.node)
    if here is None or there is None or here.dtype != there.dtype or here.dtype is torch.bool:
        return  # `x ** 2.0` of integers is no product of integers
    if plain.key is aten.mul:
        is_square = isinstance(base, Node) and rest[0] is base
    else:
        is_square = plain.key is aten.square or (tensor_of(base) is not None and is_number(rest[0]) and rest[0] == 2)
    if is_square:
        if plain.key is not aten.square:
            yield Reading(plain.node, aten.square, None, _SELF, (base,))
        if plain.key is not aten.mul:
            yield Reading(plain.node, aten.mul, None, _PAIR, (base, base))


def _subtracted(plain: Reading) -> Iterator[Reading]:
    """`rsub(x, y)` is `y - x`."""
    if plain.values[2:] == plain.parameters.defaults[2:]:
        yield Reading(plain.node, aten.sub, None, _PAIR, (plain.values[1], plain.values[0]))


def _multiplied(plain: Reading) -> Iterator[Reading]:
    """`x / c` is `x * (1 / c)`, up to rounding."""
    x, by = plain.values[:2]
    if len(plain.values) == 2 and is_number(by) and by != 0 and tensor_of(x) is not None and is_float(tensor_of(x)):
        yield Reading(plain.node, aten.mul, None, _PAIR, (x, 1.0 / by), "scale")


def _divided(plain: Reading) -> Iterator[Reading]:
    """`x * (1 / y)` is `x / y`, up to rounding; so is `x * rsqrt(v)` for `x / sqrt(v)`."""
    for x, y in (plain.values[:2], plain.values[1::-1]):
        if not isinstance(y, Node) or not isinstance(x, Node) or y.op not in ("call_function", "call_method"):
            continue
        root, passed = y, tuple[Node, ...]()
        while (inner := transparent(root, frozenset(("scale",)))) is not None:
            root, passed = inner, (*passed, root)
        inverse = (
            next((r for r in readings_of(root) if r.key is aten.reciprocal), None) if root is not plain.node else None
        )
        if inverse is not None:
            yield Reading(plain.node, aten.div, None, _PAIR, (x, inverse.values[0]), "scale", (*passed, root))
        else:
            yield Reading(plain.node, aten.div, None, _PAIR, (x, Inverse(root)), "scale", passed)


def _roots(plain: Reading) -> Iterator[Reading]:
    """`rsqrt(v)` and `v ** -0.5` are inverses of `sqrt(v)`; `v ** 0.5` is one."""
    if plain.key is aten.rsqrt:
        yield Reading(plain.node, aten.sqrt, None, _SELF, plain.values[:1], "scale", inverted=True)
        return
    if plain.key is aten.reciprocal:
        root = next((r for r in readings_of(plain.values[0]) if r.key is aten.sqrt and not r.inverted), None)
        if root is not None:
            yield Reading(plain.node, aten.rsqrt, None, _SELF, root.values, "scale", (root.node, *root.through))
        return
    base, exponent = plain.values[:2]
    if tensor_of(base) is None or not is_number(exponent) or not math.isfinite(exponent):
        return
    if exponent in (0.5, -0.5):
        yield Reading(plain.node, aten.sqrt, None, _SELF, (base,), "scale", inverted=exponent < 0)
        if exponent < 0:
            yield Reading(plain.node, aten.rsqrt, None, _SELF, (base,), "scale")
    elif exponent == -1 and is_float(tensor_of(base)):
        yield Reading(plain.node, aten.reciprocal, None, _SELF, (base,), "scale")


_MORE: dict[Any, tuple[Callable[[Reading], Iterator[Reading]], ...]] = {
    **dict.fromkeys(PERMUTES, (_transposed,)),
    **dict.fromkeys(_RESHAPING, (_reshaped,)),
    **dict.fromkeys(COMMUTATIVE, (_exchanged,)),
    aten.mul: (_exchanged, _squares, _divided),
    aten.pow: (_squares, _roots),
    aten.square: (_squares,),
    aten.rsub: (_subtracted,),
    aten.div: (_multiplied,),
    aten.rsqrt: (_roots,),
    aten.reciprocal: (_roots,),
}
