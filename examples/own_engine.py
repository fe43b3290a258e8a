"""A custom engine: it counts the operators of each graph and interprets it. `docs/bring_your_own_backend.md` explains it."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._decomp import get_decompositions
from torch.fx import Interpreter

import eductor
from eductor import Engine, Job

aten = torch.ops.aten


def counting(job: Job) -> Callable[[list[Any]], Sequence[Any]]:
    """Prints facts about a job; returns a function that empties its list of inputs."""
    calls = Counter(node.target.__name__ for node in job.module.graph.nodes if node.op == "call_function")
    print(f"{'backward' if job.is_backward else 'forward'}: {len(job.inputs)} inputs, {calls.total()} calls")
    print(f"  {', '.join(f'{count} {name}' for name, count in sorted(calls.items()))}")
    print(f"  static {sorted(job.static)}")
    print(f"  written {sorted(job.written)}, visible {sorted(job.visible)}, donated {sorted(job.donated)}")
    return lambda inputs: Interpreter(job.module).boxed_run(inputs)


def decompositions(options: eductor.Options) -> Mapping[Any, Any]:
    """Decompositions of operators that the engine has no kernels for."""
    return get_decompositions([aten.gelu, aten.gelu_backward])


def train(model: nn.Module, step: nn.Module) -> torch.Tensor:
    """The losses of three steps."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = step(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> int:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 1))
    plain, decomposed = copy.deepcopy(eager), copy.deepcopy(eager)
    expected = train(eager, eager)

    print("A function as an engine:\n")
    losses = train(plain, eductor.compile(plain, profile="exact", engine=counting))
    equal = torch.equal(losses, expected)
    print(f"\nequal to eager: {equal}\n\nAn engine with decompositions:\n")

    engine = Engine("mine", counting, decompositions=decompositions)
    losses = train(decomposed, eductor.compile(decomposed, engine=engine))
    close = torch.allclose(losses, expected)
    print(f"\nclose to eager: {close}")
    return 0 if equal and close else 1


if __name__ == "__main__":
    sys.exit(main())
