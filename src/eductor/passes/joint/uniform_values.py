"""Uniform tensors, all of whose elements are one known number, followed from their constructors.

Each is represented by one real element on the CPU, so that nothing runs on another device or waits for one. Only
operators that give the same bits on every device are followed, unlike `exp`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import sort_key, unset_fake_temporarily
from eductor.graph import Bound, GraphView, tensor_of

aten = torch.ops.aten
prims = torch.ops.prims

Number = int | float | complex | bool

CONSTRUCTORS: dict[Any, str | int] = {
    **dict.fromkeys((aten.full, aten.full_like, aten.new_full), "fill_value"),
    **dict.fromkeys((aten.zeros, aten.zeros_like, aten.new_zeros), 0),
    **dict.fromkeys((aten.ones, aten.ones_like, aten.new_ones), 1),
    aten.scalar_tensor: "s",
}
"""Constructors of uniform tensors, with their number or the argument that holds it."""

VIEWS = frozenset(
    {
        *(aten.view, aten._unsafe_view, aten.reshape, aten.expand, aten.permute, aten.transpose, aten.t, aten.squeeze),
        *(aten.unsqueeze, aten.slice, aten.select, aten.diagonal, aten.unfold, aten.alias, aten.detach),
    }
)
"""Operators that select and rearrange elements."""

_COPIES = frozenset({aten.clone, aten.repeat, aten.flip, aten.lift_fresh_copy})
_CASTS = frozenset({prims.convert_element_type, prims.device_put, aten._to_copy})

_EXACT = frozenset(
    {
        *(aten.add, aten.sub, aten.rsub, aten.mul, aten.div, aten.neg, aten.abs, aten.sqrt, aten.reciprocal, aten.sign),
        *(aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge, aten.isnan, aten.isinf, aten.relu),
        *(aten.floor, aten.ceil, aten.trunc, aten.round, aten.maximum, aten.minimum, aten.masked_fill, aten.where),
        *(aten.logical_and, aten.logical_or, aten.logical_xor, aten.logical_not),
        *(aten.bitwise_and, aten.bitwise_or, aten.bitwise_xor, aten.bitwise_not),
    }
)
"""Pointwise operators that every device rounds alike, or that do not round."""

_PICKING = (aten.where, aten.masked_fill)

_REDUCED = (torch.float16, torch.bfloat16)


class Uniform:
    """The uniform tensors of a graph; `number` returns the value of each."""

    def __init__(self, graph: GraphView) -> None:
        self._graph = graph
        self._elements: dict[Node, torch.Tensor] = {}
        self._pending = [
            (sort_key(node), node) for op in CONSTRUCTORS for node in graph.calls(op) if tensor_of(node) is not None
        ]
        heapq.heapify(self._pending)
        with unset_fake_temporarily(), torch.no_grad():
            self._follow()

    def __contains__(self, node: Any) -> bool:
        return node in self._elements

    def __iter__(self) -> Iterator[Node]:
        return iter(self._elements)

    def number(self, given: Any) -> Number | None:
        """The number that every element of a tensor equals, or that an argument is; None if there is none."""
        if isinstance(given, Node):
            element = self._elements.get(given)
            return None if element is None else element.item()
        return given if isinstance(given, (bool, int, float, complex)) else None

    def literal(self, node: Node) -> Number | None:
        """The number with which `full` gives the same bits; None if there is none."""
        return literal_of(self._elements[node])

    def _follow(self) -> None:
        seen: set[Node] = set()
        while self._pending:
            _, node = heapq.heappop(self._pending)
            if node in seen:
                continue
            seen.add(node)
            element = self._element(node)
            if element is not None:
                self._elements[node] = element
                for user in node.users:
                    heapq.heappush(self._pending, (sort_key(user), user))

    def _element(self, node: Node) -> torch.Tensor | None:
        bound, tensor = self._graph.bind(node), tensor_of(node)
        if not isinstance(bound, Bound) or tensor is None or tensor.layout is not torch.strided:
            return None
        rule = _RULES.get(bound.packet)
        if rule is None or any(isinstance(x, torch.SymFloat) for x in bound.arguments.values()):
            return None
        try:
            element = rule(self, bound, tensor)
        except (RuntimeError, OverflowError, TypeError):
            return None  # a fill value that the dtype cannot hold raises where the graph runs, too
        return element if element is not None and element.dtype is tensor.dtype else None

    # The rules, by operator: one element of the result, or None where it is not known to be uniform.

    def _constructed(self, bound: Bound, tensor: torch.Tensor) -> torch.Tensor | None:
        if bound.get("pin_memory"):
            return None
        fill = CONSTRUCTORS[bound.packet]
        number = self.number(bound[fill]) if isinstance(fill, str) else fill
        return None if number is None else torch.full((1,) * tensor.dim(), number, dtype=tensor.dtype, device="cpu")

    def _viewed(self, bound: Bound, tensor: torch.Tensor) -> torch.Tensor | None:
        element = self._elements.get(bound["self"])
        if element is None:
            return None
        if bound.op is aten.view.dtype:
            if element.element_size() != tensor.element_size():
                return None
            element = element.view(bound["dtype"])
        return element.reshape((1,) * tensor.dim())

    def _cast(self, bound: Bound, tensor: torch.Tensor) -> torch.Tensor | None:
        element = self._elements.get(bound["a"] if "a" in bound.arguments else bound["self"])
        if element is None or bound.get("pin_memory") or not _is_cast_exact(element, tensor.dtype):
            return None
        return element.to(tensor.dtype)

    def _computed(self, bound: Bound, tensor: torch.Tensor) -> torch.Tensor | None:
        absorbed = self._absorbed(bound, tensor)
        if absorbed is not None:
            return torch.full((1,) * tensor.dim(), absorbed, dtype=tensor.dtype, device="cpu")
        given = {name: self._elements.get(x) if isinstance(x, Node) else x for name, x in bound.arguments.items()}
        if bound.op is aten.where.self:
            _pick(bound, given)
        is_known = all(given[name] is not None for name, x in bound.arguments.items() if isinstance(x, Node))
        if not is_known or not _is_exact(bound, given, tensor):
            return None
        args, kwargs = Bound(bound.op, given, bound.given).call()
        result: torch.Tensor = bound.op(*args, **kwargs)
        if result.isnan() and bound.packet not in _PICKING:
            return None  # the bits of a computed NaN depend on the device
        return result.reshape((1,) * tensor.dim())

    def _absorbed(self, bound: Bound, tensor: torch.Tensor) -> Number | None:
        """The result if one operand alone determines it, which no floating-point number does: NaN * 0 is NaN."""
        decides = _ABSORBING.get(bound.packet)
        if decides is None or tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return None
        numbers = (self.number(bound.get(name)) for name in ("self", "other"))
        found = (decides(number, tensor.dtype) for number in numbers if number is not None)
        return next((result for result in found if result is not None), None)


def literal_of(element: torch.Tensor) -> Number | None:
    """The number with which `full` gives the bits of a one-element CPU tensor; None if there is none."""
    number: Number = element.item()
    if number != number:
        number = math.nan  # the only NaN that can be spelled
    with unset_fake_temporarily():
        try:
            again = torch.full_like(element, number)
        except (RuntimeError, OverflowError):
            return None
        return number if _same_bits(element, again) else None


_RULES: dict[Any, Callable[[Uniform, Bound, torch.Tensor], torch.Tensor | None]] = {
    **dict.fromkeys(CONSTRUCTORS, Uniform._constructed),
    **dict.fromkeys(VIEWS | _COPIES, Uniform._viewed),
    **dict.fromkeys(_CASTS, Uniform._cast),
    **dict.fromkeys(_EXACT, Uniform._computed),
}

_ABSORBING: dict[Any, Callable[[Number, torch.dtype], Number | None]] = {
    aten.mul: lambda number, dtype: 0 if number == 0 else None,
    aten.bitwise_and: lambda number, dtype: 0 if number == 0 else None,
    aten.bitwise_or: lambda number, dtype: 1 if number and dtype is torch.bool else None,
    aten.logical_and: lambda number, dtype: 0 if not number else None,
    aten.logical_or: lambda number, dtype: 1 if number else None,
}


def _pick(bound: Bound, given: dict[str, Any]) -> None:
    """Fills in what `where` ignores: the side not picked, or the condition if both sides are equal."""
    condition, here, there = (given[name] for name in ("condition", "self", "other"))
    if condition is not None:
        idle = "other" if condition.item() else "self"
        unknown = tensor_of(bound[idle])
        if given[idle] is None and unknown is not None:  # its dtype still takes part in promotion
            given[idle] = torch.zeros((1,) * unknown.dim(), dtype=unknown.dtype, device="cpu")
    elif here is not None and there is not None and here.dtype is there.dtype and _same_bits(here, there):
        given["condition"] = torch.ones((), dtype=torch.bool, device="cpu")


def _is_exact(bound: Bound, given: dict[str, Any], tensor: torch.Tensor) -> bool:
    """Whether the result has the same bits on every device, and for tensors of every size."""
    elements = [x for x in given.values() if isinstance(x, torch.Tensor)]
    numbers = [x.item() if isinstance(x, torch.Tensor) else x for x in given.values()]
    numbers = [x for x in numbers if isinstance(x, (bool, int, float, complex))]
    if tensor.dtype.is_complex or any(x.dtype.is_complex for x in elements) or given.get("rounding_mode") is not None:
        return False
    if any(given.get(name, usual) != usual for name, usual in (("alpha", 1), ("decimals", 0))):
        return False
    if bound.packet is aten.div and tensor.device.type != "cpu" and not _is_power_of_two(numbers[1]):
        return False  # some devices multiply by the reciprocal of a number
    if bound.packet in (aten.maximum, aten.minimum, aten.relu) and not any(numbers):
        return not tensor.dtype.is_floating_point  # of 0.0 and -0.0, either may be returned
    reduced = next((x.dtype for x in elements if x.dtype in _REDUCED), None)
    return reduced is None or all(_holds(reduced, number) for number in numbers)


def _is_cast_exact(element: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether casting an element to a dtype gives the same bits on every device."""
    here, there = element.dtype.is_floating_point, dtype.is_floating_point
    if element.dtype is dtype or dtype is torch.bool:
        return True
    if element.dtype.is_complex or dtype.is_complex or (there and dtype.itemsize == 1):
        return False
    number = element.item()
    if here and not there:
        return math.isfinite(number) and _holds(dtype, math.trunc(number))
    return dtype not in _REDUCED or _holds(torch.float32, number)  # it may be rounded to float32 first


def _is_power_of_two(number: Number) -> bool:
    return isinstance(number, (int, float)) and math.isfinite(number) and abs(math.frexp(number)[0]) == 0.5


def _holds(dtype: torch.dtype, number: Number) -> bool:
    """Whether a dtype holds a number exactly: rounding before or after an operator then makes no difference."""
    try:
        return number != number or torch.tensor(number, dtype=dtype, device="cpu").item() == number
    except (RuntimeError, OverflowError):
        return False


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(1).view(torch.uint8), b.reshape(1).view(torch.uint8))
