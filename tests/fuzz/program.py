"""A random program as lines of Python: what is shrunk, printed and run are the same lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from programs.comparing import Case
from programs.comparing import Program as Compared

_NAME = re.compile(r"\b(?:x|v)\d+\b")
_MODULE = re.compile(r"self\.(m\d+)")
PRELUDE = """import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def tensor(seed, *shape, dtype):
    \"\"\"Numbers that all floating dtypes have.\"\"\"
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().to(dtype)


def integers(seed, high, *shape):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))
"""
PLACES: dict[str, Any] = {}
exec(compile(PRELUDE, "<fuzz>", "exec"), PLACES)


@dataclass(frozen=True)
class Line:
    """`result = expression`, or a statement where nothing results."""

    result: str
    expression: str

    @cached_property
    def reads(self) -> frozenset[str]:
        return frozenset(_NAME.findall(self.expression)) - {self.result}

    def __str__(self) -> str:
        return f"{self.result} = {self.expression}" if self.result else self.expression


@dataclass(frozen=True)
class Random:
    """A program: its inputs, the modules it holds, the lines of its forward, and how it is run."""

    seed: str
    inputs: tuple[Line, ...]
    modules: tuple[tuple[str, str], ...]
    lines: tuple[Line, ...]
    outputs: tuple[str, ...]
    dtype: str = "torch.float32"
    training: bool = True
    gradients: bool = True
    autocast: bool = False
    options: tuple[tuple[str, Any], ...] = field(default=())

    def used(self) -> Random:
        """Without inputs, and modules, that nothing reads."""
        read = {name for line in self.lines for name in line.reads} | set(self.outputs)
        for line in reversed(self.inputs):
            read |= line.reads if line.result in read else set()
        held = {name for line in self.lines for name in _MODULE.findall(line.expression)}
        return replace(
            self,
            inputs=tuple(line for line in self.inputs if line.result in read),
            modules=tuple((name, made) for name, made in self.modules if name in held),
        )

    def source(self, *, widely: bool = False) -> str:
        """The class `Model` and the function `inputs`, as Python; `widely`: all of it in float64."""
        held = [f"        self.{name} = {made}" for name, made in self.modules]
        names = [line.result for line in self.inputs]
        body = [f"        {line}" for line in self.lines]
        returned = f"        return {', '.join(self.outputs)},"
        if self.autocast:
            start = ['        with torch.autocast("cpu", dtype=torch.bfloat16):']
            body = start + [f"    {line}" for line in (*body, returned)]
        else:
            body.append(returned)
        parts = [
            "class Model(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *held,
            "",
            f"    def forward({', '.join(['self', *names])}):",
            *body,
            "",
            "",
            "def inputs():",
            *(f"    {line}" for line in self.inputs),
            f"    return {', '.join(names)}{',' if names else '()'}",
            "",
            "",
            "def model():",
            f"    return Model().to({self.dtype}).train({self.training}).requires_grad_({self.gradients})",
        ]
        source = "\n".join(parts) + "\n"
        return re.sub(r"torch\.(float32|bfloat16)\b", "torch.float64", source) if widely else source

    def script(self) -> str:
        """A file that runs by itself, in eager and compiled."""
        return (
            f'"""Found by `python -m fuzz --program {self.seed}`."""\n\n{PRELUDE}\n\nOPTIONS = {dict(self.options)!r}\n\n\n'
            f'{self.source()}\n\nif __name__ == "__main__":\n    import eductor\n\n'
            "    for compiled in (lambda m: m, lambda m: eductor.compile(m, **OPTIONS)):\n"
            "        torch.manual_seed(0)\n        module, given = model(), inputs()\n"
            "        torch.manual_seed(1)\n        print(compiled(module)(*given))\n"
        )

    def compared(self, *, widely: bool = False) -> Compared:
        """The program as its comparison with eager takes it."""
        source = self.source(widely=widely)
        return Compared(self.seed, (), lambda: case_of(source), low_precision=self.is_rough)

    @property
    def is_rough(self) -> bool:
        return self.autocast or "bfloat16" in self.source()


def case_of(source: str) -> Case:
    """The case of a source; its lines can be found in tracebacks by the name of the file."""
    places = dict(PLACES)
    exec(compile(source, "<fuzz program>", "exec"), places)
    return Case(places["model"](), places["inputs"]())
