"""Stamped layers: the graph is that of a trace of all layers, with all metadata; or the layers are not stamped."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.autograd import tracing
from eductor.autograd.captured import Captured, Fakes
from eductor.autograd.shortened import shortened
from eductor.autograd.stamping import stamped
from eductor.graph.no import No
from eductor.graph.text.structure import structural_hash
from eductor.graph.values.meta import CAME_FROM
from eductor.program.joint import Joint

COUNT = 6
INHERITED = (CAME_FROM, "stack_trace", "nn_module_stack", "source_fn_stack", "partitioner_tag")


class Layer(nn.Module):
    """A residual layer; each program changes some of it."""

    def __init__(self, **changes):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.__dict__.update(changes)

    def forward(self, x, *shared):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Attention(Layer):
    def forward(self, x, mask, scale):
        q = self.norm(x).view(2, 4, 2, 4).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2).reshape(x.shape) * scale
        return super().forward(x)


class Dropping(Layer):
    def forward(self, x, *shared):
        return F.dropout(super().forward(x), 0.1)


class Slicing(Layer):
    def forward(self, x, *shared):
        a, b = self.up(x)[..., :8], self.up(x)[..., 8:]
        return torch.cat([a[..., :4], b[..., 4:]], -1) * torch.sigmoid(self.down.bias)


class Writing(Layer):
    def forward(self, x, *shared):
        return super().forward(x).mul_(2)


class Normalizing(Layer):
    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm1d(4)

    def forward(self, x, *shared):
        return self.batch(super().forward(x))


class Twice(Layer):
    def forward(self, x, *shared):
        return super().forward(x) + super().forward(x * 2)


class Stack(nn.Module):
    def __init__(self, layers, *, all_values=False, first=True):
        super().__init__()
        self.first, self.layers, self.head = (
            nn.Linear(8, 8).requires_grad_(first),
            nn.ModuleList(layers),
            nn.Linear(8, 3),
        )
        self.mask, self.scale = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.ones(8))
        self.all_values = all_values

    def forward(self, x):
        values = [self.first(x)]
        for layer in self.layers:
            values.append(layer(values[-1], self.mask, self.scale))
        loss = self.head(values[-1]).square().mean()
        return (loss, *values) if self.all_values else loss


class Pairs(Stack):
    """Carries two values from layer to layer."""

    def forward(self, x):
        a = b = self.first(x)
        for layer in self.layers:
            a, b = layer(b), a + layer.down(layer.up(b))
        return self.head(a * b).sum()


def tied(make):
    layers = [make() for _ in range(COUNT)]
    for layer in layers[1:]:
        layer.up.weight = layers[0].up.weight
    return layers


def frozen(layers):
    for layer in layers[: COUNT // 2]:
        layer.requires_grad_(False)
    return layers


def several(make, count=COUNT):
    return [make() for _ in range(count)]


STAMPED = {
    "mlp": lambda: Stack(several(Layer)),
    "a shared mask and scale with gradients": lambda: Stack(several(Attention)),
    "dropout": lambda: Stack(several(Dropping)),
    "slices and a cat": lambda: Stack(several(Slicing)),
    "a part used twice": lambda: Stack(several(Twice)),
    "tied weights": lambda: Stack(tied(Layer)),
    "an input that needs no gradient": lambda: Stack(several(Layer, COUNT + 1), first=False),
    "alternating layers": lambda: Stack([make() for _ in range(COUNT) for make in (Layer, Slicing)]),
    "an encoder and a decoder": lambda: Stack(several(Layer) + several(Slicing)),
    "other layers around": lambda: Stack([Slicing(), *several(Attention), Twice()]),
    "no gradients": lambda: Stack(several(Layer)).requires_grad_(False),
}
TRACED = {
    "gradients that meet two layers later": lambda: Pairs(several(Layer)),
    "few layers": lambda: Stack(several(Layer, 4)),
    "writes": lambda: Stack(several(Writing)),
    "running statistics": lambda: Stack(several(Normalizing)),
    "values of all layers": lambda: Stack(several(Layer), all_values=True),
    "one layer in the middle frozen": lambda: Stack(
        [layer.requires_grad_(k != 4) for k, layer in enumerate(several(Layer, 8))]
    ),
    "half of the layers frozen": lambda: Stack(frozen(several(Layer, 8))),
}


def both_ways(model, table, dynamic=None):
    """The stamped joint graph, or the refusal, and that of a trace of all layers."""
    found = []

    def backend(module, examples):
        captured = Captured(module)
        given = [*captured.held, *examples]
        fakes = Fakes.of(given, captured.sources())
        made = shortened(captured, fakes)
        if not isinstance(made, No):
            made = stamped(made, tracing.trace_all(made.captured, made.fakes, table), captured, fakes)
        found.append((made, tracing.trace_all(captured, fakes, table)))
        return module.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=dynamic)(torch.randn(2, 4, 8))
    return found[0]


@pytest.mark.parametrize(
    ("name", "decomposes"),
    [*((name, False) for name in STAMPED), ("a shared mask and scale with gradients", True), ("dropout", True)],
)
def test_the_graph_is_that_of_a_trace_of_all_layers(name, decomposes):
    table = dict(torch._decomp.core_aten_decompositions()) if decomposes else {}
    made, whole = both_ways(STAMPED[name](), table)
    assert isinstance(made, Joint), made
    assert structural_hash(made.module.graph) == structural_hash(whole.module.graph)
    for node, other in zip(made.module.graph.nodes, whole.module.graph.nodes, strict=True):
        assert [node.meta.get(key) for key in INHERITED] == [other.meta.get(key) for key in INHERITED], node.name
    assert numbers(made) == numbers(whole)
    for field in ("tangents", "gradients", "writes", "static", "parameters"):
        assert getattr(made, field) == getattr(whole, field), field
    for field in ("inputs", "outputs", "returns"):
        assert getattr(made.analysis, field) == getattr(whole.analysis, field), field


def numbers(joint):
    """The sequence numbers, from the lowest on."""
    found = [node.meta["seq_nr"] for node in joint.module.graph.nodes if "seq_nr" in node.meta]
    return [number - min(found) for number in found]


@pytest.mark.parametrize("name", TRACED)
def test_what_differs_between_layers_is_traced(name):
    made, _ = both_ways(TRACED[name](), {})
    assert isinstance(made, No)


def test_sizes_that_may_change_are_traced():
    made, _ = both_ways(Stack(several(Layer)), {}, dynamic=True)
    assert "sizes may change" in made.reason


@pytest.mark.parametrize("name", ["a shared mask and scale with gradients", "tied weights", "an encoder and a decoder"])
def test_training_is_eagers(name, monkeypatch):
    made = []
    real = tracing.stamped
    monkeypatch.setattr(tracing, "stamped", lambda *given: made.append(real(*given)) or made[-1])
    model, x = STAMPED[name]().double(), torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    torch._dynamo.reset()
    results = []
    for run in (model, eductor.compile(model, engine="aten", cache=False)):
        loss = run(x)
        results.append([loss, *torch.autograd.grad(loss, [x, *(p for p in model.parameters())], allow_unused=True)])
    assert isinstance(made[-1], Joint)
    torch.testing.assert_close(*results)
