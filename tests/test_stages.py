"""The documents' three examples, with only the import changed; and the stages as a library."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo import export
from torch.fx import symbolic_trace

from eductor import BadGraph, Recorder, UnknownName, joint_graph_passes, post_grad_passes, pre_grad_passes
from eductor.graph import capture, dialect_of

pytestmark = pytest.mark.filterwarnings("ignore")


def targets(module):
    return [str(n.target) for n in module.graph.nodes if n.op.startswith("call")]


def test_the_pre_grad_example():
    def toy(x):
        return torch.nn.functional.conv2d(x, torch.randn(1, 1, 3, 3))

    gm, _ = export(toy, torch.randn(1, 1, 5, 5))
    gm_opt = copy.deepcopy(gm)
    before = str(gm_opt.graph)
    pre_grad_passes(gm_opt, [torch.randn(1, 1, 5, 5)])
    assert str(gm_opt.graph) != before
    assert gm_opt(torch.randn(1, 1, 5, 5)).shape == (1, 1, 3, 3)


def test_the_joint_example():
    def f(x):
        return x + torch.rand_like(x)

    gm, _ = export(f, torch.randn(2))
    pre_grad_passes(gm, [torch.randn(2)])
    gm2 = copy.deepcopy(gm)
    joint_graph_passes(gm2)
    assert "eductor.random.default" in targets(gm2)
    assert not any("rand_like" in t for t in targets(gm2))
    x = torch.zeros(1000)
    noise = gm2(x)
    assert noise.min() >= 0
    assert noise.max() < 1


def test_the_post_grad_example():
    def f(x):
        y = x.clone()
        return y + 1

    gm, _ = export(f, torch.randn(2))
    gm2 = copy.deepcopy(gm)
    post_grad_passes(gm2, is_inference=False)
    assert targets(gm2) == ["aten.add.Tensor"]
    assert torch.equal(gm2(torch.ones(2)), torch.full((2,), 2.0))


def test_modules_and_constants_come_along():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    gm = export(model)(torch.randn(5, 3)).graph_module
    x = torch.randn(5, 3)
    expected = model(x)
    post_grad_passes(gm, is_inference=True)
    assert dialect_of(gm) == "aten"
    assert torch.allclose(gm(x), expected)


def test_a_graph_without_values_is_refused_with_advice():
    with pytest.raises(BadGraph, match="Capture it with"):
        joint_graph_passes(symbolic_trace(lambda x: torch.sin(x)))


def test_pre_grad_takes_values_from_example_inputs():
    gm = symbolic_trace(lambda x: torch.cat([x, x], axis=0).sin())
    recorder = Recorder()
    pre_grad_passes(gm, [torch.randn(3)], options={"instruments": [recorder]})
    assert "pre_grad/numpy_compat_normalization" in recorder.changed()


@pytest.mark.parametrize(
    "names", ["normalize_node_kwargs_pass", ["normalize_node_kwargs_pass"], " normalize_node_kwargs_pass , "]
)
def test_passes_are_removed_by_name(names):
    gm = capture(lambda x: torch.cat([x, x], axis=0), [torch.randn(3)], "torch")
    recorder = Recorder()
    pre_grad_passes(gm, [], None, names, options={"instruments": [recorder]})
    assert "normalize_node_kwargs_pass" not in {record.name for record in recorder.records}


def test_unknown_names_are_errors():
    gm = capture(lambda x: x + 1, [torch.randn(3)], "torch")
    with pytest.raises(UnknownName, match="unknown pass 'normalize'"):
        pre_grad_passes(gm, [], "normalize")
    with pytest.raises(UnknownName, match="Did you mean 'remove_noop_ops'"):
        joint_graph_passes(gm, options={"disable": "remove_noop_op"})


def test_inference_is_known_to_custom_passes():
    seen = []
    gm = capture(lambda x: x + 1, [torch.randn(3)], "aten")
    for is_inference in (True, False):
        post_grad_passes(
            gm,
            is_inference,
            options={"post_grad_custom_pre_pass": lambda graph, is_inference: seen.append(is_inference)},
        )
    assert seen == [True, False]


def test_dynamic_sizes_stay_dynamic():
    gm, _ = export(lambda x: x.clone() + torch.rand_like(x), torch.randn(4, 6))
    joint_graph_passes(gm)
    post_grad_passes(gm, is_inference=True)
    assert gm(torch.zeros(4, 6)).shape == (4, 6)
    module = capture(lambda x: x.clone() + torch.rand_like(x), [torch.randn(4, 6)], "aten", dynamic=True)
    joint_graph_passes(module)
    assert module(torch.zeros(3, 5)).shape == (3, 5)
