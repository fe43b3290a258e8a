"""The joint graph: functional, with write-backs at its end, and nodes that know where they come from."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from tracing import joint_of, targets

from eductor.errors import Unsupported
from eductor.graph.effects.legal import violations
from eductor.graph.values.meta import UNKNOWN, is_backward, value_of

aten = torch.ops.aten


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x):
        hidden = self.norm(self.first(x))
        hidden = F.relu(hidden, inplace=True)
        return self.last(hidden)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_joint_graph_is_legal_functional_and_named_as_in_the_documents(dynamic):
    joint = joint_of(Net(), torch.randn(6, 4), dynamic=dynamic)
    assert violations(joint.module.graph, "joint") == []
    names = [p.name for p in joint.module.graph.find_nodes(op="placeholder")]
    assert names[0] == "primals_1"
    assert names[-1] == "tangents_1"
    written = [n for n in joint.module.graph.nodes if n.target is aten.copy_.default]
    assert len(written) == len(joint.writes.forward) == 3  # two statistics and a counter
    assert all(value_of(n) is not UNKNOWN for n in joint.module.graph.nodes if n.op != "output")


def test_a_graph_that_writes_nothing_is_traced_once(monkeypatch):
    from eductor.autograd import tracing as module

    def refuse(*args, **options):
        raise AssertionError("there is nothing to make functional")

    monkeypatch.setattr(module, "functionalize", refuse)
    joint_of(lambda x, w: F.gelu(x @ w).sum(), leaf(3, 4), leaf(4, 5))
    with pytest.raises(Exception, match="nothing to make functional"):
        joint_of(lambda x: x.sin().add_(1), leaf(3))


def test_nodes_of_the_backward_know_the_forward():
    def program(x, w):
        hidden = torch.tanh(x @ w)
        return hidden.exp().sum()

    joint = joint_of(program, leaf(3, 4), leaf(4, 5))
    nodes = [n for n in joint.module.graph.nodes if n.op == "call_function"]
    forward = [n for n in nodes if not is_backward(n)]
    backward = [n for n in nodes if is_backward(n)]
    assert forward
    assert backward
    by_number = {n.meta["seq_nr"]: n for n in reversed(forward)}
    for node in backward:
        assert node.meta["seq_nr"] in by_number, node
        assert node.stack_trace == by_number[node.meta["seq_nr"]].stack_trace != "", node
    (of_tanh,) = (n for n in backward if n.target is aten.tanh_backward.default)
    assert "torch.tanh(x @ w)" in of_tanh.stack_trace
    assert by_number[of_tanh.meta["seq_nr"]].target is aten.tanh.default


def test_modules_stay_known_through_functionalization():
    joint = joint_of(Net(), torch.randn(6, 4))
    (norm,) = (n for n in joint.module.graph.nodes if n.target is aten._native_batch_norm_legit_functional.default)
    (back,) = (n for n in joint.module.graph.nodes if n.target is aten.native_batch_norm_backward.default)
    assert "norm" in str(norm.meta["nn_module_stack"])
    assert norm.meta["nn_module_stack"] == back.meta["nn_module_stack"]
    assert norm.meta["seq_nr"] == back.meta["seq_nr"]


def test_the_decomposition_table_can_be_replaced():
    def program(x):
        return F.gelu(x).sum()

    whole = targets(joint_of(program, leaf(3)).module)
    assert aten.gelu.default in whole
    assert aten.gelu_backward.default in whole
    table = torch._decomp.get_decompositions([aten.gelu, aten.gelu_backward])
    apart = targets(joint_of(program, leaf(3), decompositions=table).module)
    assert aten.gelu.default not in apart
    assert aten.erf.default in apart


def test_an_operator_is_taken_apart_once_for_each_form_of_its_operands():
    calls = []

    def larger(a, b):
        calls.append(a.shape)
        return torch.where(a > b, a, b)

    def program(x, y):
        return torch.maximum(x, x) + torch.maximum(x, y) * torch.maximum(y, x), torch.maximum(x[0], y[0])

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    joint = joint_of(program, x, y, decompositions={aten.maximum.default: larger})
    assert calls == [(3, 4), (4,)]
    assert aten.maximum.default not in targets(joint.module)
    assert targets(joint.module).count(aten.where.self) == 4
    assert all(map(torch.equal, joint.module(x, y), program(x, y)))


def test_inputs_outputs_and_writes_are_told_apart():
    def program(x, buf, unused):
        buf.mul_(2)
        y = x * 2
        return x, y, y.t(), x.view(-1), y

    joint = joint_of(program, leaf(3, 4), torch.ones(3), torch.ones(2))
    analysis = joint.analysis
    assert [o.kind for o in analysis.outputs if o.kind != "number"][:1] in (["input"], ["return"])
    kinds = {o.kind for o in analysis.outputs}
    assert {"return", "view"} <= kinds
    assert [given.seen_write for given in analysis.inputs].count(True) == 1
    assert len(joint.tangents) == 1


def test_gradients_of_a_write_flow_only_where_autograd_records_it():
    def program(x, w, flowing):
        with torch.no_grad():
            w.add_(1)
        flowing.mul_(x)
        return (x * 2).sum()

    joint = joint_of(program, leaf(3), leaf(3), torch.ones(3))
    assert len(joint.analysis.copied) == 1
    assert len(joint.writes.forward) == 1


def test_what_is_refused_is_named():
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(Exception, match="TwoTensor") as caught:
        joint_of(lambda x: x * 2, TwoTensor(torch.ones(3), torch.ones(3)))
    assert isinstance(caught.value.__cause__ or caught.value.inner_exception, Unsupported)


def test_a_trace_leaves_nothing_behind():
    net = Net()
    before = copy.deepcopy(net.state_dict())
    x = torch.randn(6, 4)
    start = torch.get_rng_state()
    joint_of(lambda x: F.dropout(net(x), 0.5), x)  # runs the captured graph once, after the trace
    after, buffers = torch.get_rng_state(), copy.deepcopy(net.state_dict())
    net.load_state_dict(before)
    torch.set_rng_state(start)
    F.dropout(net(x), 0.5)
    assert torch.equal(after, torch.get_rng_state())
    assert all(torch.equal(value, buffers[key]) for key, value in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())
