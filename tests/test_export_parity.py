"""A model that is exported and given to `pre_grad_passes`, and one that is compiled, are changed by the same passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from eductor import Recorder, compile, pre_grad_passes
from eductor.engines import ATEN, Compiled, Job
from eductor.graph.values.value_comparison import unlike_rounding

SPELLING = ("normalize", "normalization", "numpy")
"""What the names of passes begin with that only spell calls otherwise: the two captures spell them in two ways."""


class SplitCat(nn.Module):
    """Pieces of a matrix, put together in order, in parts, and one by one."""

    def forward(self, x):
        a, b, c = x.split([2, 2, 4], dim=1)
        whole = torch.cat([a, b, c], dim=-1) * 2
        rows = torch.stack([row.tanh() for row in x.unbind(1)], 1)
        inner = torch.cat([torch.cat([a, b], 1), c], 1)
        return whole, rows + 1, inner + torch.cat([a, b], 1).sum(), x.reshape(-1).reshape(4, 8).sum(0)


class Squeezes(nn.Module):
    """Rows of one element along a dimension, squeezed and put together; chunks reshaped and put together."""

    def forward(self, x):
        rows = [piece.squeeze(1) for piece in x.unsqueeze(2).split(1, 1)]
        chunks = [piece.reshape(4, 2, 1) for piece in x.chunk(4, 1)]
        return torch.cat(rows, 1) + 1, torch.cat(chunks, 1) * 2


class Attention(nn.Module):
    """Separate projections of one input, of unequal widths."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)
        self.gate, self.up = nn.Linear(8, 16, bias=False), nn.Linear(8, 16, bias=False)

    def forward(self, x):
        scores = self.k(x) * self.v(x)
        return self.q(x) + torch.cat([scores, scores], -1), F.silu(self.gate(x)) * self.up(x)


class Towers(nn.Module):
    """The same small network on each of several inputs."""

    def __init__(self, count=6):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(count))

    def forward(self, x):
        pieces = [x * (i + 1) for i in range(len(self.linears))]
        pairs = zip(self.linears, self.norms, pieces, strict=True)
        return torch.cat([norm(torch.tanh(linear(p))) for linear, norm, p in pairs], 1)


class Gated(nn.Module):
    """Pointwise of a cat, permutes around a linear, pieces that are projected and added."""

    def __init__(self):
        super().__init__()
        self.rows, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        halves = x.split(4, 1)
        mixed = self.rows(x.t()).t()
        return torch.cat([x, mixed], 1).relu(), self.first(halves[0]) + self.second(halves[1])


class Convolution(nn.Module):
    """A convolution and a batch norm that does not train."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.norm(self.conv(x.reshape(1, 1, 4, 8))).relu()


class Noops(nn.Module):
    """Calls that give back what they are given."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(x.to(torch.float32)).contiguous().view(4, 8) * 1 + torch.cat([x], 0) + x.permute(0, 1)


class Sampling(nn.Module):
    """Sampling by the largest of the logits over exponential draws."""

    def forward(self, x):
        probabilities = torch.softmax(x, -1)
        return torch.argmax(probabilities / torch.empty_like(probabilities).exponential_(1.0), -1)


MODELS = (SplitCat, Squeezes, Attention, Towers, Gated, Convolution, Noops, Sampling)


def changed(recorder: Recorder) -> set[str]:
    """The passes of the stage that changed something, but those that only spell."""
    names = {r.name for r in recorder.records if r.changed and r.stage == "pre_grad"}
    return {name for name in names if not name.startswith(SPELLING)}


@pytest.mark.parametrize("training", [False, True], ids=("inference", "training"))
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_both_captures_fire_the_same_passes(model: type[nn.Module], training: bool) -> None:
    module = model().eval()
    x = torch.randn(4, 8, requires_grad=training)
    by_hand, compiled = Recorder(), Recorder()
    # Nobody keeps packed weights for a graph that is run by hand. As a function, the engine counts as one that fuses.
    options: dict[str, Any] = {"engine": run_with_aten, "pack_weights": False, "strict": True}
    with torch.set_grad_enabled(training):
        exported = torch.export.export(module, (x,)).module()
        pre_grad_passes(exported, [x], options={**options, "instruments": [by_hand]})
        expected = module(x)
        for run in (exported, compile(module, instruments=[compiled], **options)):
            got = run(x)
            if model is not Sampling:  # it may draw other numbers
                assert_alike(module, expected, got, x)
    assert changed(by_hand) == changed(compiled)


def run_with_aten(job: Job) -> Compiled:
    return ATEN(job)


def assert_alike(module: nn.Module, expected: object, got: object, x: torch.Tensor) -> None:
    """Equal but for roundings, judged by a run in float64."""
    with torch.no_grad():
        truth = module.double()(x.detach().double())
        module.float()
    for a, b, t in zip(*map(_several, (expected, got, truth)), strict=True):
        assert not unlike_rounding(a, b, t)


def _several(value: object) -> tuple:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def test_a_graph_is_for_inference_where_autograd_does_not_follow_it() -> None:
    seen = []

    def look(graph: torch.fx.Graph, is_inference: bool) -> None:
        seen.append(is_inference)

    model, x = nn.Linear(2, 2), torch.randn(2, 2)
    for grad, needs in ((True, True), (True, False), (False, True)):
        with torch.set_grad_enabled(grad):
            module = torch.export.export(model.requires_grad_(needs), (x,)).module()
            pre_grad_passes(module, [x], options={"pre_grad_custom_pass": [look]})
    assert seen == [False, True, True]
