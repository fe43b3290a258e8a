"""The memory that forward and backward really hold, measured: it falls with the budget, as the estimate does."""

from __future__ import annotations

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import eductor
from eductor.engines import ATEN, Compiled

BUDGETS = (1, 0.8, 0.5, 0.2, 0.1, 0)


class Meter(TorchDispatchMode):
    """Counts the bytes of all results that are alive."""

    def __init__(self):
        super().__init__()
        self._alive, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                memory = value.untyped_storage()
                self._alive.setdefault(memory._cdata, (StorageWeakRef(memory), memory.nbytes()))
        self._alive = {key: item for key, item in self._alive.items() if not item[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result

    def compile(self, job):
        compiled = ATEN(job)

        def run(inputs):
            with self:
                return compiled.run(inputs)

        return Compiled(run)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def measured(budget):
    torch._dynamo.reset()
    torch.manual_seed(0)
    meter, model = Meter(), nn.Sequential(*(Block() for _ in range(6)))
    x = torch.randn(512, 16)
    told = []

    class Told(eductor.Instrument):
        wants_details = True

        def after_stage(self, run):
            if run.name == "partition":
                told.append(run.facts["plan"]["peak"])

    compiled = eductor.compile(
        lambda x: model(x).sum(), engine=meter.compile, memory_budget=budget, instruments=[Told()], strict=True
    )
    compiled(x).backward()
    return meter.peak, told[0]


def test_the_measured_peak_falls_with_the_budget_and_is_what_was_estimated():
    peaks, estimates = zip(*map(measured, BUDGETS), strict=True)
    assert list(peaks) == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.4 * peaks[0]
    for peak, estimate in zip(peaks, estimates, strict=True):
        assert 0.8 * peak <= estimate <= 1.25 * peak
