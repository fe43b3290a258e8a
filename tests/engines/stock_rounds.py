"""Run in a fresh process: compiles programs with stock Inductor and with Eductor in some order, and records stock's code.

    python stock_rounds.py stock ours stock    # prints JSON: {"stock": [round, ...], "changed": [[name, ...], ...]}

`stock` and `ours` compile all programs, `turns` each with Eductor, then with stock. A round of stock has each program's
generated code and cache keys; `changed` has, for each `ours`, what it left different in torch's modules and tables.
Kernels are not built: they fill their arguments with zeros.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # each set of instructions would be tried by a C++ compile
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # nothing is built: no workers

import torch
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor import codecache, compile_fx  # noqa: F401 - as a first compile imports it
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_cache
from torch.utils._ordered_set import OrderedSet

aten = torch.ops.aten

torch.library.define("stock_rounds::squared_", "(Tensor(a!) x) -> ()")
torch.library.impl("stock_rounds::squared_", "CPU")(lambda x: (x.square_(), None)[1])
torch.library.impl("stock_rounds::squared_", "Meta")(lambda x: None)


def fused_loops(x):
    shares = (x @ x).softmax(0)
    return shares.sum(), shares * 2, x.cos() + shares.t()


def in_place(x):
    h = x @ x
    earlier = h + 1
    h[1] = 5.0
    h.copy_(h.flip(0))
    x.add_(h)
    return earlier * 3, h


def masked(x):
    """Torch lets the filled value be the product from then on; here it is overwritten in its own memory."""
    h = x @ x
    h[h > 0.5] = 1.0
    return h, h.sum(0)


def loops_around_a_write(x):
    h = x @ x
    shares = h.softmax(0)
    torch.ops.stock_rounds.squared_(h)
    return shares.sum(), shares + h, h.cos()


def called_writes(x):
    doubled = x * 2
    read = doubled + 1
    doubled.index_reduce_(0, torch.tensor([0, 2, 2, 1]), x, "amax")
    return read, torch._foreach_add([doubled, x], 2.0)


class MaskedGradient(torch.autograd.Function):
    """An operator without lowering in a backward: torch's first compile of it decides on its strides for all later ones."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return aten._masked_softmax(gradient.t(), (gradient > 0.5).t(), 1, 0)


def trained(x):
    return (MaskedGradient.apply((x @ x).sin()) ** 2).sum() + torch.nn.functional.gelu(x @ x + x[0]).sum()


def fallbacks(x):
    return torch.fft.fft(x.t() * 2).real + 1, aten._masked_softmax(x.t(), (x > 0.5).t(), 1, 0)


def linalg(x):
    return torch.linalg.inv(x @ x) * 2, torch.linalg.cholesky(x @ x.t() + 1)


def random(x):
    return torch.nn.functional.dropout(x * 2) + torch.rand_like(x), torch.randint(0, 9, (4,)) + x


def random_with_gradient(x):
    return torch.nn.functional.dropout(x @ x, 0.3).sum() + torch.randn(4).sum()


PROGRAMS = (
    *(fused_loops, in_place, masked, loops_around_a_write, called_writes),
    *(fallbacks, trained, linalg, random, random_with_gradient),
)
WITH_GRADIENT = (trained, random_with_gradient)


def run(compiled, program) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    x = torch.rand(4, 4, requires_grad=program in WITH_GRADIENT)
    try:
        result = compiled(x)
    except torch.linalg.LinAlgError:  # of zeros
        return
    if program in WITH_GRADIENT:
        result.backward()


def ours(program) -> None:
    import eductor

    with fresh_cache():
        run(eductor.compile(program, engine="inductor", strict=True), program)


def stock(program) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"code": [], "keys": []}
    makers = {codecache: "compiled_fx_graph_hash", autograd_cache: "autograd_cache_key"}
    originals = {home: getattr(home, name) for home, name in makers.items()}

    def noting(make: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            found["keys"].append(made[0])
            return made

        return noted

    for home, name in makers.items():
        setattr(home, name, noting(originals[home]))
    GraphLowering.save_output_code = lambda code: found["code"].append(without_numbers(code))
    try:
        with fresh_cache():
            run(torch.compile(program), program)
    finally:
        GraphLowering.save_output_code = None
        for home, name in makers.items():
            setattr(home, name, originals[home])
    return found


def without_numbers(code: str) -> str:
    return re.sub(r"# AOT ID: \['\d+_", "# AOT ID: ['", code)


class Torchs:
    """What torch's modules and tables hold: functions and classes by identity, tables by their entries."""

    TABLES = (
        *("torch._inductor.lowering", "torch._inductor.decomposition", "torch._decomp", "torch.fx.node"),
        *("torch._decomp.decompositions_for_rng", "torch._higher_order_ops.effects", "torch._inductor.inductor_prims"),
    )
    CONFIGS = ("torch._inductor.config", "torch._dynamo.config", "torch._functorch.config", "torch.compiler.config")

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        for name, module in list(sys.modules.items()):
            if name.startswith(("torch._inductor", "torch._dynamo", "torch._functorch", "torch.fx", "torch._decomp")):
                self._take(name, vars(module))
        self.entries = {
            f"{name}.{key}[{entry}]": table[entry] if isinstance(table, dict) else True
            for name in self.TABLES
            for key, table in vars(sys.modules[name]).items()
            if isinstance(table, (dict, set, OrderedSet)) and not key.startswith("__") and key != "counters"
            for entry in table
        }
        for name in self.CONFIGS:
            config: Any = sys.modules[name]
            self.found |= {f"{name}.{key}": value for key, value in config.get_config_copy().items()}

    def _take(self, home: str, names: Any) -> None:
        for name, value in list(names.items()):
            if isinstance(value, type) and value.__module__ == home:
                methods = {
                    k: v for k, v in vars(value).items() if callable(v) or isinstance(v, (classmethod, property))
                }
                self.found |= {f"{home}.{name}.{key}": method for key, method in methods.items()}
            if callable(value):
                self.found[f"{home}.{name}"] = value

    def changed_since(self, before: Torchs) -> list[str]:
        """Names and entries that are other objects now, and new entries, but for those of our own operators."""
        moved = {name for name, value in before.found.items() if not self._same(self.found.get(name), value)}
        entries = {e for e in self.entries.keys() | before.entries.keys() if not self._same_entry(before, e)}
        return sorted(moved | {e for e in entries if "[eductor." not in e})

    def _same_entry(self, before: Torchs, entry: str) -> bool:
        return self.entries.get(entry, self) is before.entries.get(entry, before)

    @staticmethod
    def _same(now: Any, then: Any) -> bool:
        return now is then or (not callable(then) and now == then)


def main(steps: list[str]) -> None:
    AsyncCompile.cpp_pybinding = lambda self, types, source: (
        lambda *args: [  # type: ignore[method-assign]
            x.zero_() for x in args if isinstance(x, torch.Tensor)
        ]
    )
    rounds: list[dict[str, Any]] = []
    changed: list[list[str]] = []
    for step in steps:
        if step == "ours":
            before = Torchs()
            for program in reversed(
                PROGRAMS
            ):  # each finds what torch's own tables hold, not what stock put there first
                ours(program)
            changed.append(Torchs().changed_since(before))
        else:
            made = {}
            for program in PROGRAMS:
                if step == "turns":
                    ours(program)
                made[program.__name__] = stock(program)
            rounds.append(made)
    print(json.dumps({"stock": rounds, "changed": changed}))


if __name__ == "__main__":
    main(sys.argv[1:])
