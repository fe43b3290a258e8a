"""What stands between two matrix products: pointwise steps on one value, as a text that an operator can carry.

`sigmoid(%0); mul(%0, %1)` is a silu: `%0` is the value that is given, `%1` the result of the first step, and so on. The
last step is the result; no step at all is the value itself. A step that has the name of a dtype is a cast to it.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from eductor.ops.launching import KERNEL_DTYPES


@dataclass(frozen=True, slots=True)
class Step:
    """A function of values, which are named by their numbers, and of numbers, which are floats."""

    name: str
    operands: tuple[int | float, ...]


def name_of(dtype: torch.dtype) -> str:
    """The name of a cast."""
    return str(dtype).removeprefix("torch.")


CASTS: dict[str, torch.dtype] = {name_of(dtype): dtype for dtype in KERNEL_DTYPES}

_UNARY: dict[str, Callable[..., torch.Tensor]] = {
    "abs": torch.abs,
    "cube": lambda x: x * x * x,
    "erf": torch.erf,
    "exp": torch.exp,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "neg": torch.neg,
    "relu": torch.relu,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
}
_BINARY: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "div": operator.truediv,
    "mul": operator.mul,
    "sub": operator.sub,
}
NAMES = (*_UNARY, *_BINARY, *CASTS)


def spelled(steps: Iterable[Step]) -> str:
    """Steps as a text."""
    return "; ".join(
        f"{step.name}({', '.join(f'%{x}' if isinstance(x, int) else repr(x) for x in step.operands)})" for step in steps
    )


@functools.lru_cache(maxsize=1 << 10)
def read(text: str) -> tuple[Step, ...]:
    """The steps of a text."""
    steps: list[Step] = []
    for part in filter(None, text.split("; ")):
        found = re.fullmatch(r"(\w+)\((.+)\)", part)
        if found is None or found[1] not in NAMES:
            raise ValueError(f"middle {part!r}: a step is one of {', '.join(NAMES)} with its operands")
        given = found[2].split(", ")
        operands = tuple(int(x[1:]) if x.startswith("%") else float(x) for x in given)
        values = [x for x in operands if isinstance(x, int)]
        if len(operands) != (2 if found[1] in _BINARY else 1) or not values or max(values) > len(steps):
            raise ValueError(f"middle {part!r}: its operands are no earlier values, or of another number")
        steps.append(Step(found[1], operands))
    return tuple(steps)


def dtypes(steps: Iterable[Step], dtype: torch.dtype) -> list[torch.dtype]:
    """The dtypes of the values, the given one first: what torch makes of the operands."""
    found = [dtype]
    for step in steps:
        operands = [found[x] for x in step.operands if isinstance(x, int)]
        found.append(CASTS.get(step.name) or functools.reduce(torch.promote_types, operands))
    return found


def computed(steps: Iterable[Step], x: torch.Tensor) -> torch.Tensor:
    """The result of the steps, by operators of torch."""
    values = [x]
    for step in steps:
        operands: list[Any] = [values[x] if isinstance(x, int) else x for x in step.operands]
        values.append(_cast(operands[0], step.name) if step.name in CASTS else _FUNCTIONS[step.name](*operands))
    return values[-1]


_FUNCTIONS = _UNARY | _BINARY


def _cast(x: torch.Tensor, name: str) -> torch.Tensor:
    # No graph that a kernel takes has float64: it is a run in higher precision, which narrows nothing.
    return x if x.dtype is torch.float64 else x.to(CASTS[name])
