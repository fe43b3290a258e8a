"""How a node of a graph can be read: its call under schema names, and other spellings that mean the same.

A pattern is written in one spelling; each node offers all that it could have been written as. Spellings that give the
same bits are always offered. Those that round otherwise carry the name of the tolerance that allows them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor.compat import OpOverload, OpOverloadPacket
from eductor.graph.bind import Bound, bind, packets_of
from eductor.graph.meta import difference, known_equal, requires_grad, tensor_of, value_of
from eductor.graph.schema import parameters
from eductor.patterns.language import Tolerance

aten = torch.ops.aten
prims = torch.ops.prims
CAST = prims.convert_element_type


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""Stands where a call has no such argument, or a parameter no default."""


@dataclass(frozen=True, eq=False, slots=True)
class Signature:
    """The parameters of what is called: those given by position first."""

    names: tuple[str, ...]
    positional: int
    defaults: tuple[Any, ...]

    def index(self, place: int | str) -> int:
        """Where an argument stands that a pattern gives by position or by name; -1 where there is none."""
        if isinstance(place, int):
            return place if place < self.positional else -1
        return self.names.index(place) if place in self.names else -1


@dataclass(frozen=True, slots=True)
class Inverse:
    """The inverse of a node's value, where a division is read as something else."""

    node: Node


@dataclass(frozen=True, slots=True)
class Reading:
    """A node as a call of `key`; `inverted` says that the inverse of its value is that call."""

    node: Node
    key: Any
    op: OpOverload | None
    signature: Signature
    values: tuple[Any, ...]
    tolerance: Tolerance | None = None
    through: tuple[Node, ...] = ()
    """Nodes between this one and its operands that the reading passes over."""
    inverted: bool = False

    def at(self, place: int | str) -> Any:
        i = self.signature.index(place)
        return self.values[i] if i >= 0 else MISSING

    @property
    def rank(self) -> int | None:
        """The number of dimensions that the dims of this call count."""
        if not isinstance(self.key, OpOverloadPacket) or not self.key._qualified_op_name.startswith(_COUNTING):
            return None
        sizes = next((v for v, n in zip(self.values, self.signature.names, strict=True) if n in _SIZES), None)
        if isinstance(sizes, (list, tuple)):
            return len(sizes)
        operand = self.values[0] if self.values else None
        if isinstance(operand, (list, tuple)):
            operand = operand[0] if operand else None
        tensor = tensor_of(operand) if isinstance(operand, Node) else None
        if tensor is None:
            return None
        return tensor.dim() + (1 if self.key in _ADD_A_DIM else 0)

    @property
    def identity(self) -> Node | Inverse:
        """What a user must have as its argument to use this reading."""
        return Inverse(self.node) if self.inverted else self.node


_ADD_A_DIM = (aten.unsqueeze, aten.unsqueeze_copy, aten.stack, aten.diag_embed)
_COUNTING = ("aten::", "prims::")
"""Operators of which it is known what their dims count."""
_SIZES = ("input_sizes", "self_sizes")
"""Where a backward has the shape whose dims it counts."""
_VIEWS = (aten.view, aten.reshape, aten._unsafe_view, aten._reshape_copy, aten.view_copy)
_RESHAPING = (aten.flatten, aten.unflatten, aten.squeeze, aten.unsqueeze)
"""Views to another shape that is said in another way."""
_PERMUTES = (aten.permute, aten.transpose, aten.t, aten.mT, aten.numpy_T, aten.permute_copy, aten.transpose_copy)
_CASTS = (prims.convert_element_type, aten._to_copy, aten.to, aten.type_as)
COMMUTATIVE = frozenset(
    getattr(aten, name)
    for name in (
        *("add", "mul", "maximum", "minimum", "fmax", "fmin", "eq", "ne", "logaddexp", "hypot"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "logical_and", "logical_or", "logical_xor"),
    )
)

SOURCES: dict[Any, tuple[Any, ...]] = {
    aten.view: (*_VIEWS, *_RESHAPING),
    aten.permute: _PERMUTES,
    aten.transpose: _PERMUTES,
    CAST: _CASTS,
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


class Readings:
    """The readings of the nodes of one graph, each worked out once."""

    def __init__(self) -> None:
        self._known: dict[Node, tuple[Reading, ...]] = {}
        self._inner: dict[tuple[Node, frozenset[Tolerance]], Node | None] = {}

    def of(self, node: Node) -> tuple[Reading, ...]:
        """All readings of a node; the plainest first."""
        found = self._known.get(node)
        if found is None:
            found = self._known[node] = tuple(_readings(node))
        return found

    def matching(self, value: Any, keys: tuple[Any, ...], tolerated: frozenset[Tolerance]) -> list[Reading]:
        """The readings of a node, or of the inverse of one, as a call of one of the keys."""
        inverted = isinstance(value, Inverse)
        node = value.node if inverted else value
        if not isinstance(node, Node):
            return []
        return [
            r
            for r in self.of(node)
            if r.key in keys and r.inverted is inverted and (r.tolerance is None or r.tolerance in tolerated)
        ]

    def beneath(self, value: Any, tolerated: frozenset[Tolerance]) -> Iterator[tuple[Any, tuple[Node, ...]]]:
        """A value, then what is beneath it if nodes that the tolerances make transparent are passed over."""
        passed: tuple[Node, ...] = ()
        yield value, passed
        while isinstance(value, Node) and (inner := self._beneath(value, tolerated)) is not None:
            passed = (*passed, value)
            value = inner
            yield value, passed

    def innermost(self, node: Node, tolerated: frozenset[Tolerance]) -> Node:
        """What a node stands for, if all that can be passed over is."""
        while (inner := self._beneath(node, tolerated)) is not None:
            node = inner
        return node

    def above(self, node: Node, tolerated: frozenset[Tolerance]) -> Iterator[tuple[Node, tuple[Node, ...]]]:
        """A node, then the transparent nodes that stand for it, each with those that were passed over."""
        pending: list[tuple[Node, tuple[Node, ...]]] = [(node, ())]
        while pending:
            at, passed = pending.pop(0)
            yield at, passed
            pending += [(u, (*passed, u)) for u in at.users if self._stands_for(u, at, tolerated)]

    def _beneath(self, node: Node, tolerated: frozenset[Tolerance]) -> Node | None:
        if (node, tolerated) not in self._inner:
            self._inner[node, tolerated] = transparent(node, tolerated)
        return self._inner[node, tolerated]

    def _stands_for(self, user: Node, node: Node, tolerated: frozenset[Tolerance]) -> bool:
        if self._beneath(user, tolerated) is node:
            return True
        return "scale" in tolerated and any(r.key is aten.reciprocal for r in self.of(user))


def transparent(node: Node, tolerated: frozenset[Tolerance]) -> Node | None:
    """The operand of a node that changes nothing, or nothing that counts: a cast between floating dtypes, a factor 1."""
    if node.op not in ("call_function", "call_method"):
        return None
    operand = node.args[0] if node.args else None
    packet = _packet(node)
    if packet in _IDLE and isinstance(operand, Node) and is_idle(node, operand):
        detached = packet is aten.detach and requires_grad(value_of(operand))
        return None if detached else operand
    if not tolerated:
        return None
    if "casts" in tolerated:
        cast = _cast(node)
        if cast is not None and _is_float(tensor_of(cast.values[0])) and _is_float(tensor_of(node)):
            return cast.values[0]  # type: ignore[no-any-return]
    if "scale" in tolerated:
        bound = bind(node)
        if isinstance(bound, Bound) and bound.packet in (aten.mul, aten.div) and bound.get("rounding_mode") is None:
            operand, factor = bound["self"], bound["other"]
            here, there = tensor_of(operand), tensor_of(node)
            if _is_number(factor) and factor == 1 and here is not None and there is not None:
                return operand if here.dtype == there.dtype else None
    return None


def _packet(node: Node) -> Any:
    """The operator that a node calls, or None."""
    if isinstance(node.target, OpOverload):
        return node.target.overloadpacket
    packets = packets_of(node.target)
    if packets is None:
        bound = bind(node)
        return bound.packet if isinstance(bound, Bound) else None
    return packets[0] if packets else None


_COPIES = frozenset((aten.clone, aten._to_copy, aten.contiguous, aten.to, aten.type_as))
_IDLE = frozenset((*_VIEWS, *_PERMUTES, aten.expand, aten.alias, aten.detach, aten.pow)) | _COPIES
"""What often changes nothing."""


def is_idle(node: Node, operand: Node) -> bool:
    """Whether a call that can only view or copy its operand gives the same value; a copy may lie in another layout."""
    here, there = tensor_of(node), tensor_of(operand)
    packet = _packet(node)
    if packet not in _IDLE or here is None or there is None:
        return False
    if packet is aten.pow and (len(node.args) != 2 or node.args[1] != 1):
        return False  # the backward of a square has `x ** 1`, which a cleaned graph does not
    if packet in _COPIES:
        same = here.dtype == there.dtype and here.device == there.device and here.layout == there.layout
        return same and known_equal(list(here.shape), list(there.shape))
    return difference(here, there) is None


def _is_float(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.dtype.is_floating_point


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---------------------------------------------------------------------------------------------------- plain readings


def _readings(node: Node) -> Iterator[Reading]:
    bound = bind(node) if node.op in ("call_function", "call_method") else None
    if not isinstance(bound, Bound):
        yield from _raw(node)
        return
    canonical = _CANONICAL.get(bound.packet)
    first = canonical(node, bound) if canonical is not None else None
    plain = first or Reading(node, bound.packet, bound.op, signature_of(bound.op), tuple(bound.arguments.values()))
    yield plain
    for more in _MORE.get(bound.packet, ()):
        yield from more(plain)


def _raw(node: Node) -> Iterator[Reading]:
    """A call without a schema, argument by argument."""
    key = _raw_key(node)
    if key is None:
        return
    names = (*map(str, range(len(node.args))), *node.kwargs)
    signature = Signature(names, len(node.args), (MISSING,) * len(names))
    values = (*node.args, *node.kwargs.values())
    yield Reading(node, key, None, signature, values)
    is_inverse = node.target is operator.truediv and len(values) == 2 and _is_number(values[0])
    if is_inverse and values[0] == 1 and tensor_of(values[1]) is not None:
        inverse = Reading(node, aten.reciprocal, None, _SELF, (values[1],), "scale")
        yield inverse
        yield from _roots(inverse)


def _raw_key(node: Node) -> Any:
    if node.op == "call_module":
        owner = node.graph.owning_module
        return type(owner.get_submodule(str(node.target))) if isinstance(owner, GraphModule) else None
    return node.target if node.op in ("call_function", "call_method") else None


@functools.cache
def signature_of(op: OpOverload) -> Signature:
    params = parameters(op)
    positional = sum(not p.keyword_only for p in params)
    return Signature(
        tuple(p.name for p in params), positional, tuple(p.default if p.has_default else MISSING for p in params)
    )


def _made(*names: str) -> Signature:
    return Signature(names, len(names), (MISSING,) * len(names))


_SELF, _VIEW, _PERMUTE, _TRANSPOSE = (
    _made("self"),
    _made("self", "size"),
    _made("self", "dims"),
    _made("self", "dim0", "dim1"),
)
_CAST, _PAIR = _made("a", "dtype"), _made("self", "other")


# --------------------------------------------------------------------------------------- one spelling for what is equal


def _view(node: Node, bound: Bound) -> Reading | None:
    """Every view to a shape is a view to the shape that it has."""
    tensor = tensor_of(node)
    if tensor is None or not {"size", "shape"} & set(bound.arguments):
        return None
    return Reading(node, aten.view, None, _VIEW, (bound["self"], _sizes(bound, tensor)))


def _sizes(bound: Bound, tensor: torch.Tensor) -> list[Any]:
    """The sizes of a result: the nodes that hold them, where there are some."""
    given = bound.get("size", bound.get("shape"))
    if not isinstance(given, (list, tuple)) or len(given) != tensor.dim():
        return list(tensor.shape)
    return [g if isinstance(g, Node) else size for g, size in zip(given, tensor.shape, strict=True)]


def _expand(node: Node, bound: Bound) -> Reading | None:
    tensor = tensor_of(node)
    if tensor is None:
        return None
    return Reading(node, aten.expand, None, _VIEW, (bound["self"], _sizes(bound, tensor)))


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


def _cast(node: Node) -> Reading | None:
    if node.op not in ("call_function", "call_method"):
        return None
    bound = bind(node)
    return _as_cast(node, bound) if isinstance(bound, Bound) and bound.packet in _CASTS else None


def _as_cast(node: Node, bound: Bound) -> Reading | None:
    """A conversion that changes the dtype and nothing else."""
    if bound.packet is CAST:
        return Reading(node, CAST, None, _CAST, (bound["a"], bound["dtype"]))
    here, there = tensor_of(bound["self"]), tensor_of(node)
    if here is None or there is None or here.dtype == there.dtype:
        return None
    kept = here.device == there.device and here.layout == there.layout
    usual = bound.get("memory_format") in (None, torch.preserve_format) and not bound.get("pin_memory")
    return Reading(node, CAST, None, _CAST, (bound["self"], there.dtype)) if kept and usual else None


_CANONICAL: dict[Any, Callable[[Node, Bound], Reading | None]] = {
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_PERMUTES, _permute),
    **dict.fromkeys(_CASTS, _as_cast),
    aten.expand: _expand,
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
    others = plain.values[2:] == plain.signature.defaults[2:]
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
        is_square = plain.key is aten.square or (tensor_of(base) is not None and _is_number(rest[0]) and rest[0] == 2)
    if is_square:
        if plain.key is not aten.square:
            yield Reading(plain.node, aten.square, None, _SELF, (base,))
        if plain.key is not aten.mul:
            yield Reading(plain.node, aten.mul, None, _PAIR, (base, base))


def _subtracted(plain: Reading) -> Iterator[Reading]:
    """`rsub(x, y)` is `y - x`."""
    if plain.values[2:] == plain.signature.defaults[2:]:
        yield Reading(plain.node, aten.sub, None, _PAIR, (plain.values[1], plain.values[0]))


def _multiplied(plain: Reading) -> Iterator[Reading]:
    """`x / c` is `x * (1 / c)`, up to rounding."""
    x, by = plain.values[:2]
    if len(plain.values) == 2 and _is_number(by) and by != 0 and tensor_of(x) is not None and _is_float(tensor_of(x)):
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
            next((r for r in _readings(root) if r.key is aten.reciprocal), None) if root is not plain.node else None
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
        root = next((r for r in _readings(plain.values[0]) if r.key is aten.sqrt and not r.inverted), None)
        if root is not None:
            yield Reading(plain.node, aten.rsqrt, None, _SELF, root.values, "scale", (root.node, *root.through))
        return
    base, exponent = plain.values[:2]
    if tensor_of(base) is None or not _is_number(exponent) or not math.isfinite(exponent):
        return
    if exponent in (0.5, -0.5):
        yield Reading(plain.node, aten.sqrt, None, _SELF, (base,), "scale", inverted=exponent < 0)
        if exponent < 0:
            yield Reading(plain.node, aten.rsqrt, None, _SELF, (base,), "scale")
    elif exponent == -1 and _is_float(tensor_of(base)):
        yield Reading(plain.node, aten.reciprocal, None, _SELF, (base,), "scale")


_MORE: dict[Any, tuple[Callable[[Reading], Iterator[Reading]], ...]] = {
    **dict.fromkeys(_PERMUTES, (_transposed,)),
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
