"""The pointwise function between two matrix products, as text that an operator takes as an argument.

`sigmoid(%0); mul(%0, %1)` is a silu: `%0` is the input, `%1` the result of the first step, and so on. The last step is
the result; without steps it is the input. A step named as a dtype is a cast to it.
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
class MiddleStep:
    """An operation on earlier values (by index) and numbers (floats)."""

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


def spelled(steps: Iterable[MiddleStep]) -> str:
    """The text of steps."""
    return "; ".join(
        f"{step.name}({', '.join(f'%{x}' if isinstance(x, int) else repr(x) for x in step.operands)})" for step in steps
    )


@functools.lru_cache(maxsize=1 << 10)
def read(text: str) -> tuple[MiddleStep, ...]:
    """The steps of a text."""
    steps: list[MiddleStep] = []
    for part in filter(None, text.split("; ")):
        found = re.fullmatch(r"(\w+)\((.+)\)", part)
        if found is None or found[1] not in NAMES:
            raise ValueError(f"middle {part!r}: a step is one of {', '.join(NAMES)} with its operands")
        given = found[2].split(", ")
        operands = tuple(int(x[1:]) if x.startswith("%") else float(x) for x in given)
        values = [x for x in operands if isinstance(x, int)]
        if len(operands) != (2 if found[1] in _BINARY else 1) or not values or max(values) > len(steps):
            raise ValueError(f"middle {part!r}: its operands must be earlier values, and as many as it takes")
        steps.append(MiddleStep(found[1], operands))
    return tuple(steps)


def dtypes(steps: Iterable[MiddleStep], dtype: torch.dtype) -> list[torch.dtype]:
    """The dtypes of the values by torch's promotion, the input's first."""
    found = [dtype]
    for step in steps:
        operands = [found[x] for x in step.operands if isinstance(x, int)]
        found.append(CASTS.get(step.name) or functools.reduce(torch.promote_types, operands))
    return found


def computed(steps: Iterable[MiddleStep], x: torch.Tensor) -> torch.Tensor:
    """The result of the steps, computed by torch's operators."""
    values = [x]
    for step in steps:
        operands: list[Any] = [values[x] if isinstance(x, int) else x for x in step.operands]
        values.append(_cast(operands[0], step.name) if step.name in CASTS else _FUNCTIONS[step.name](*operands))
    return values[-1]


_FUNCTIONS = _UNARY | _BINARY


def _cast(x: torch.Tensor, name: str) -> torch.Tensor:
    # float64 only occurs in a reference run in higher precision, which must not narrow.
    return x if x.dtype is torch.float64 else x.to(CASTS[name])
