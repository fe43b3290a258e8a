"""Steady-state figures of a way: time, memory, and error against float64."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from eductor.measure.cases import Case, Way

T = TypeVar("T")
Results = tuple[list[torch.Tensor], list[torch.Tensor]]
"""The results of a step, and its gradients."""


@dataclass
class TimedModel:
    """A copy of the model, run one way."""

    case: Case
    compile: Way
    milliseconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model: nn.Module = copy.deepcopy(self.case.model)
        self.fn: Callable[..., Any] = self.compile(self.model)

    def run(self) -> list[torch.Tensor]:
        torch.compiler.cudagraph_mark_step_begin()
        self.model.zero_grad(set_to_none=True)
        return self.case.step(self.fn, self.model, self.case.inputs)

    def timed(self) -> None:
        synchronize()
        started = time.perf_counter()
        self.run()
        synchronize()
        self.milliseconds.append(1e3 * (time.perf_counter() - started))

    def memory(self) -> int | None:
        """In bytes: on a GPU the peak allocation of a step, on a CPU what training saves for the backward."""
        if torch.cuda.is_available() and any(p.is_cuda for p in self.model.parameters()):
            self.model.zero_grad(set_to_none=True)
            synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self.run()
            synchronize()
            return torch.cuda.max_memory_allocated() - before
        if not self.case.training:
            return None
        given = (*self.model.parameters(), *self.model.buffers(), *self.case.inputs)
        return held_for_the_backward(self.run, [x for x in given if isinstance(x, torch.Tensor)])[0]

    def results(self) -> Results:
        """The results of a step and its gradients, copied, as a CUDA graph overwrites them."""
        return [x.detach().clone() for x in self.run()], [g.clone() for g in _gradients(self.model)]


def held_for_the_backward(run: Callable[[], T], given: Sequence[torch.Tensor]) -> tuple[int, T]:
    """The bytes of storages that autograd saves for the backward, without those of `given`; and the result."""
    held: dict[int, int] = {}

    def pack(value: torch.Tensor) -> torch.Tensor:
        memory = value.untyped_storage()
        held[memory.data_ptr()] = memory.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        result = run()
    for value in given:
        held.pop(value.untyped_storage().data_ptr(), None)
    return sum(held.values()), result


def truth(case: Case) -> Results:
    """Results and gradients in float64."""
    wide = copy.deepcopy(case.model).double()
    return [x.detach() for x in case.step(wide, wide, case.wide())], _gradients(wide)


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def error(got: Results, exact: Results) -> float:
    """The relative error of all results, or of all gradients if larger."""
    return max(_distance(a, b) for a, b in zip(got, exact, strict=True))


def _distance(got: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """The relative distance of all tensors as one vector, as a gradient may be zero but for rounding."""
    pairs = [(a, b) for a, b in zip(got, exact, strict=True) if b.is_floating_point()]
    far, size = (
        sum(float(x.square().sum()) for x in xs) for xs in ([a.double() - b for a, b in pairs], [b for _, b in pairs])
    )
    return math.sqrt(far / size) if size else 0.0


def steady(case: Case, compilers: dict[str, Way], rounds: int) -> dict[str, dict[str, Any]]:
    """Measures all ways in turns, in alternating order."""
    torch.manual_seed(0)
    exact = truth(case)
    runners = {name: TimedModel(case, compile) for name, compile in compilers.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, runner in runners.items():
        found[name] = {"error": error(runner.results(), exact)}
        for _ in range(2):
            runner.run()
        found[name]["memory"] = runner.memory()
    for i in range(rounds):
        for runner in list(runners.values())[:: 1 if i % 2 else -1]:
            runner.timed()
    for name, runner in runners.items():
        found[name]["milliseconds"] = statistics.median(runner.milliseconds)
        found[name]["least"] = min(runner.milliseconds)
    return found


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
