"""Bodies that repeated regions share go through Inductor once, with the values of the flat graph."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch._inductor import metrics
from torch._inductor.codegen.wrapper import SubgraphPythonWrapperCodegen
from torch._inductor.graph import GraphLowering, SubgraphLowering
from torch._inductor.virtualized import V

import eductor
from eductor.engines import has_code_generator
from eductor.engines.inductor import bodies
from eductor.engines.inductor.patches import active
from eductor.program.bodies import SHARED, shared_calls

pytestmark = pytest.mark.skipif(not has_code_generator(), reason="Inductor cannot compile here")


class Layer(nn.Module):
    """A product, whose bias gradient is a view of a sum, a norm, and a dropout."""

    def __init__(self, size=8):
        super().__init__()
        self.linear, self.norm = nn.Linear(size, size), nn.LayerNorm(size)

    def forward(self, x):
        return x + nn.functional.dropout(torch.tanh(self.linear(self.norm(x))), 0.5)


def layers(count):
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(count)))


def step(model, compiled, x):
    torch.manual_seed(1)
    loss = compiled(x).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def compiled(model, regions, **options):
    torch._dynamo.reset()
    return eductor.compile(model, engine="inductor", regions=regions, cache=False, **options)


@pytest.fixture
def lowered():
    """The kind of each graph and body that is lowered, and which of its inputs count as donated."""
    seen = []

    def run(lowering, *args):
        seen.append((type(lowering).__name__, lowering.bw_donated_idxs))
        return original(lowering, *args)

    original = GraphLowering.run
    with patch.object(GraphLowering, "run", run):
        yield seen


def test_bodies_give_the_values_of_the_flat_graph(lowered):
    model, x = layers(4), torch.randn(4, 8)
    with torch._inductor.config.patch(force_disable_caches=True):
        expected = step(model, compiled(model, False), x)
        assert {name for name, _ in lowered} == {GraphLowering.__name__}
        got = step(model, compiled(model, True, strict=True), x)
    assert all(map(torch.equal, expected, got))
    donated = [donated for name, donated in lowered if name == SubgraphLowering.__name__]
    assert donated
    assert set(donated) == {None}  # donated inputs are those of the graph around the body


def test_the_number_of_kernels_does_not_grow_with_the_layers():
    kernels = []
    for count in (7, 10):  # enough for the cheapest cut, which leaves one layer outside
        model = layers(count)
        metrics.reset()
        with torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
            compiled(model, True, strict=True)(torch.randn(4, 8))
        kernels.append(metrics.generated_kernel_count)
    assert 0 < kernels[1] <= kernels[0]


def test_kernels_of_a_body_belong_to_the_nodes_of_all_regions():
    model = layers(3)
    recorder = eductor.Recorder(keep_graphs=True)
    step(model, compiled(model, True, instruments=[recorder]), torch.randn(4, 8))
    engine = next(stage for stage in recorder.stages if stage.name == "engine" and stage.role == "forward")
    nodes = {name for kernel in engine.facts["kernels"] for name in kernel["nodes"]}
    assert sum(name.startswith("tanh") for name in nodes) == 3


def test_an_engine_that_fails_on_bodies_gets_the_flat_graph(caplog):
    model, x = layers(3), torch.randn(4, 8)
    with (
        patch("eductor.engines.inductor.engine.prepare_bodies", side_effect=fail_on_bodies),
        caplog.at_level(logging.INFO, logger="eductor"),
    ):
        got = step(model, compiled(model, True), x)
    assert "share a body" in caplog.text
    expected = step(model, compiled(model, False), x)
    assert all(map(torch.equal, expected, got))


def fail_on_bodies(module):
    if module.graph.find_nodes(op="call_function", target=bodies.invoke_subgraph):
        raise NotImplementedError("no bodies today")


@pytest.mark.parametrize(
    ("meta", "devices", "indices", "written"),
    [
        ({SHARED: True}, {"cuda"}, {0}, []),  # the guard of the graph around it includes its calls
        ({SHARED: True}, {"cuda", "cpu"}, {0}, [0]),
        ({SHARED: True}, {"cuda"}, {0, 1}, [0]),
        ({}, {"cuda"}, {0}, [0]),
    ],
)
def test_a_shared_body_on_the_only_gpu_has_no_guard_of_its_own(meta, devices, indices, written):
    graph = SimpleNamespace(module=SimpleNamespace(meta=meta), device_types=devices, device_idxs=indices)
    lines = []
    wrapper = object.__new__(SubgraphPythonWrapperCodegen)
    with (
        patch.object(SubgraphPythonWrapperCodegen, "codegen_device_guard_enter", lambda _, index: lines.append(index)),
        active(),
        V.set_graph_handler(graph),
    ):
        wrapper.codegen_device_guard_enter(0)
    assert lines == written


def test_results_that_share_memory_are_refused():
    class Results:
        graph_inputs = {"operand": None}

        def __init__(self, *names):
            self.graph_outputs = [type("Result", (), {"get_name": lambda self, name=name: name})() for name in names]

    def create(*names):
        module = SimpleNamespace(meta={SHARED: True})
        subgraph = SimpleNamespace(graph=Results(*names), name="body", graph_module=module)
        return bodies.create_call(lambda cls, subgraph: "made", None, subgraph)

    assert create("a", "b") == "made"
    for names in (("a", "a"), ("a", "operand")):
        with pytest.raises(NotImplementedError, match="share memory"):
            create(*names)


def test_bodies_that_the_user_wrote_are_not_shared_ones():
    """An engine that fails on them is not asked again for the graph without shared bodies, as it has none."""
    invoke = torch.ops.higher_order.invoke_subgraph
    seen = []

    @torch.compiler.nested_compile_region
    def layer(x, y):
        return (x * y).tanh()

    def fail(job):
        if job.module.graph.find_nodes(op="call_function", target=invoke):
            seen.append(shared_calls(job.module))
            raise NotImplementedError("no bodies today")
        return eductor.ATEN(job)

    x = torch.randn(3)

    def fn(x):
        return layer(layer(x, x * 2), x)

    with pytest.warns(eductor.EductorWarning):
        got = eductor.compile(fn, engine=fail, cache=False)(x)
    assert torch.allclose(got, fn(x))
    torch._dynamo.reset()
    assert torch.allclose(eductor.compile(fn, engine="inductor", cache=False)(x), fn(x))
    assert not any(seen)
