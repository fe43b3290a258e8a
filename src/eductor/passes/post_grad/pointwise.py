"""Reads chains of pointwise operators on one value as the steps of a kernel, and knows activations by their values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node

from eductor.cost import is_pointwise
from eductor.graph import Bound, GraphView, No, known_equal, value_of
from eductor.ops.launching import KERNEL_DTYPES
from eductor.ops.middle import CASTS, MiddleStep, name_of

aten = torch.ops.aten
prims = torch.ops.prims

_UNARY_NAMES = ("abs", "erf", "exp", "neg", "relu", "rsqrt", "sigmoid", "silu", "sqrt", "tanh")
_UNARY = {getattr(aten, name).default: name for name in _UNARY_NAMES}
_BINARY = {
    op: name for name in ("add", "div", "mul", "sub") for op in (getattr(aten, name).Tensor, getattr(aten, name).Scalar)
}
_CASTS = (prims.convert_element_type.default, aten._to_copy.default)
RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
_POWERS = {2: "square", 3: "cube"}
_LARGEST = torch.finfo(torch.float32).max


def elements_of(graph: GraphView, node: Node) -> list[Node] | None:
    """The operands from which a node computes its result element by element; None where it does not."""
    if graph.is_call(node, *_CASTS, *RESHAPES):
        return node.all_input_nodes[:1]  # the others are sizes
    return node.all_input_nodes if node.op == "call_function" and is_pointwise(node) else None


def read_steps(graph: GraphView, start: Node, between: Sequence[Node]) -> tuple[MiddleStep, ...] | No:
    """The steps that these nodes, in the order of the graph, compute on one value."""
    steps, numbers = list[MiddleStep](), {start: 0}
    for node in between:
        step = read_step(graph, node, numbers)
        if isinstance(step, No):
            return step
        if step is not None:
            steps.append(step)
        numbers[node] = numbers[node.all_input_nodes[0]] if step is None else len(steps)
    return tuple(steps)


def is_one(x: Any) -> bool:
    return type(x) in (int, float) and x == 1


def read_step(graph: GraphView, node: Node, numbers: dict[Node, int]) -> MiddleStep | No | None:
    """The step that a node computes; None for a reshape."""
    bound = graph.bind(node)
    if not isinstance(bound, Bound):
        return bound
    op, dtype = bound.op, value_of(node).dtype
    if op in RESHAPES:
        return None
    if op in _CASTS:
        return (
            MiddleStep(name_of(dtype), (numbers[node.all_input_nodes[0]],))
            if dtype in KERNEL_DTYPES
            else _unknown(bound)
        )
    if op in _UNARY:
        return MiddleStep(_UNARY[op], (numbers[bound["self"]],))
    if op is aten.gelu.default:
        return MiddleStep("gelu" if bound["approximate"] == "none" else "gelu_tanh", (numbers[bound["self"]],))
    if op is aten.pow.Tensor_Scalar and bound["exponent"] in _POWERS:
        return MiddleStep(_POWERS[bound["exponent"]], (numbers[bound["self"]],))
    if op not in _BINARY and op is not aten.rsub.Scalar:
        return _unknown(bound)
    if not is_one(bound.get("alpha", 1)):
        return No(f"{node.name} scales its operand", node)
    operands = [_operand(x, node, numbers) for x in (bound["self"], bound["other"])]
    if None in operands:
        return No(f"{node.name} has an operand that is neither a tensor of its shape nor a finite number", node)
    given = tuple(x for x in operands if x is not None)
    return MiddleStep(_BINARY[op], given) if op in _BINARY else MiddleStep("sub", given[::-1])


def _operand(x: Any, node: Node, numbers: dict[Node, int]) -> int | float | None:
    if isinstance(x, Node):
        return numbers[x] if known_equal(tuple(value_of(x).shape), tuple(value_of(node).shape)) else None
    return float(x) if type(x) in (int, float) and abs(x) <= _LARGEST else None


def _unknown(bound: Bound) -> No:
    return No(f"the kernel does not compute {bound.op}")


# --------------------------------------------------- activations by their values, however graphs spell them

POINTS = [0.37 * i - 0.11 for i in range(-16, 17)]
RELU = [max(x, 0.0) for x in POINTS]
"""A relu at these points: the list itself stands for it."""


def _gelu(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "add": lambda x, y: x + y,
    "cube": lambda x: x**3,
    "div": lambda x, y: x / y if y else math.nan,
    "gelu_tanh": _gelu,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "sigmoid": lambda x: 0.5 + 0.5 * math.tanh(0.5 * x),
    "square": lambda x: x * x,
    "sub": lambda x, y: x - y,
    "tanh": math.tanh,
}
"""Functions without a corner: what is made of few of them is the same if it agrees on many points."""


def evaluated(step: MiddleStep, values: list[list[float]]) -> list[float] | None:
    """A step at all points; None for a function that is not known there."""
    operands = [values[x] if isinstance(x, int) else [x] * len(POINTS) for x in step.operands]
    if step.name in CASTS:
        return operands[0]
    if step.name == "relu":
        return RELU if operands[0] is POINTS else None
    function = _FUNCTIONS.get(step.name)
    return None if function is None else [function(*given) for given in zip(*operands, strict=True)]


def is_gelu(values: list[float]) -> bool:
    """Whether these are the values of a gelu with tanh; both of its tails are lost in roundings."""
    return all(math.isclose(y, _gelu(x), rel_tol=1e-9, abs_tol=1e-12) for x, y in zip(POINTS, values, strict=True))
