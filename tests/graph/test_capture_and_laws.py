"""From programs to graphs, from dialect to dialect, and what is legal where."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

from eductor import BadGraph
from eductor.graph import LAWS, capture, dialect_of, from_python, to_aten, violations

aten = torch.ops.aten


def test_dialects():
    assert dialect_of(capture(lambda x: x.sin() + 1, [torch.randn(2)], "torch")) == "torch"
    assert dialect_of(capture(lambda x: x.sin() + 1, [torch.randn(2)], "aten")) == "aten"
    assert dialect_of(capture(lambda x: x.split(1)[0], [torch.randn(2)], "aten")) == "aten"
    assert dialect_of(symbolic_trace(lambda x: torch.sin(x))) == "torch"


def test_to_aten_is_functional_and_keeps_the_interface_and_the_lines():
    def program(x, y):
        x = x.clone()
        x.add_(1)
        x[0] = 5
        return {"sum": x + y, "both": (x, y.relu_())}

    module = capture(program, [torch.randn(2, 3), torch.randn(2, 3)], "torch")
    to_aten(module)
    assert dialect_of(module) == "aten"
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    a2, b2 = a.clone(), b.clone()
    expected, got = program(a, b), module(a2, b2)
    assert torch.equal(expected["sum"], got["sum"])
    assert torch.equal(expected["both"][1], got["both"][1])
    assert torch.equal(b, b2)
    assert any("test_capture_and_laws.py" in (n.stack_trace or "") for n in module.graph.nodes)
    assert [v.law for v in violations(module.graph, "joint")] == []


def test_to_aten_needs_values_and_says_so():
    with pytest.raises(BadGraph, match="have no fake values"):
        to_aten(symbolic_trace(lambda x: torch.sin(x)))
    module = symbolic_trace(lambda x: torch.sin(x))
    to_aten(module, [torch.zeros(2)])
    assert [n.target for n in module.graph.nodes if n.op == "call_function"] == [aten.sin.default]


def test_to_aten_keeps_constants_and_parameters():
    constant = torch.randn(3)

    def program(x):
        return x * constant + torch.tensor([1.0, 2.0, 3.0])

    module = capture(program, [torch.randn(3)], "torch")
    to_aten(module)
    x = torch.randn(3)
    assert torch.equal(module(x), program(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x)

    model = Model()
    traced = symbolic_trace(model)
    to_aten(traced, [torch.randn(1, 3)])
    assert torch.allclose(traced(x[None]), model(x[None]))


@pytest.mark.parametrize(
    ("body", "stage", "law"),
    [
        ("y = torch.ops.aten.add_.Tensor(x, 1)\n    return (y,)", "joint", "functional"),
        ("y = torch.sin(x)\n    return (y,)", "joint", "aten"),
        ("y = x.sin()\n    return (y,)", "post_grad", "aten"),
        (
            "c = torch.ops.aten.copy_.default(x, x)\n    y = torch.ops.aten.sin.default(x)\n    return (y,)",
            "joint",
            "write-backs",
        ),
        (
            "s = torch.ops.aten.sin.default(x)\n    c = torch.ops.aten.copy_.default(s, x)\n    return (s,)",
            "post_grad",
            "write-backs",
        ),
    ],
)
def test_laws_are_enforced(body, stage, law):
    module = from_python(f"def forward(x):\n    # x: f32[2]\n    {body}\n")
    assert law in [v.law for v in violations(module.graph, stage)]
    assert law in [row.name for row in LAWS]
    assert violations(module.graph, "pre_grad") == []


def test_order_and_values_are_laws_too():
    module = capture(lambda x: x.sin().cos(), [torch.randn(2)], "aten")
    sin = next(n for n in module.graph.nodes if n.op == "call_function")
    del sin.meta["val"]
    module.graph.output_node().prepend(sin)
    assert sorted(v.law for v in violations(module.graph, "pre_grad")) == ["order", "values"]


def test_an_epilogue_of_write_backs_is_legal():
    module = from_python(
        """
def forward(x, y):
    # x: f32[2]
    # y: f32[2]
    s = torch.ops.aten.sin.default(x)
    c1 = torch.ops.aten.copy_.default(x, s)
    c2 = torch.ops.aten.copy_.default(y, s)
    return (s,)
"""
    )
    assert violations(module.graph, "joint") == []


class Counting(nn.Module):
    """Writes its buffers: one by itself, one with the input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("total", torch.ones(3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        self.calls.add_(1)
        self.total.mul_(x.sum(0))
        return self.norm(x) + self.total


@pytest.mark.parametrize("dialect", ["torch", "aten"])
def test_buffers_are_not_touched_by_a_trace_and_written_back_by_the_graph(dialect):
    import copy

    model = Counting()
    fresh = copy.deepcopy(model.state_dict())
    module = capture(model, [torch.randn(4, 3)], dialect)
    if dialect == "torch":
        to_aten(module)
    assert all(torch.equal(v, fresh[k]) for k, v in model.state_dict().items())
    assert violations(module.graph, "joint") == []
    twin = copy.deepcopy(model)
    x = torch.randn(4, 3)
    expected = twin(x)
    assert torch.allclose(module(x), expected)
    written = {k.replace("L__self___", "").replace(".", "_"): v for k, v in module.state_dict().items()}
    for name, value in twin.state_dict().items():
        key = next(k for k in written if k.endswith(name.replace(".", "_")))
        assert torch.allclose(written[key].float(), value.float()), name


def test_what_a_trace_would_run_is_refused():
    def program(x):
        torch.manual_seed(0)
        return torch.rand_like(x)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(2)
    graph.call_function(torch.manual_seed, (0,))
    graph.output(graph.call_function(torch.rand_like, (x,)))
    state = torch.get_rng_state()
    with pytest.raises(BadGraph, match="a change of the random number generator's state"):
        to_aten(torch.fx.GraphModule(nn.Module(), graph))
    assert torch.equal(torch.get_rng_state(), state)
