"""On a CUDA device: the same results as eager, and seeded randomness that lives there."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import eductor
from eductor.graph import capture
from eductor.pipeline import Registry

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_is_bitwise_eager(dtype):
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Dropout(0.1), nn.Linear(128, 8)).to(
        "cuda", dtype
    )
    compiled = copy.deepcopy(eager)
    x = torch.randn(32, 64, device="cuda", dtype=dtype)

    def step(model, run):
        torch.manual_seed(1)
        loss = run(x).float().square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters())]

    assert all(map(torch.equal, step(eager, eager), step(compiled, eductor.compile(compiled, profile="exact"))))


def test_seeded_randomness_stays_on_the_device():
    module = capture(lambda x: x + torch.rand_like(x) + torch.randn_like(x), [torch.zeros(1000, device="cuda")], "aten")
    eductor.joint_graph_passes(module)
    devices = {n.meta["val"].device for n in module.graph.nodes if n.op == "call_function"}
    assert devices == {torch.device("cuda", 0)}
    torch.manual_seed(7)
    first = module(torch.zeros(1000, device="cuda"))
    torch.manual_seed(7)
    assert torch.equal(first, module(torch.zeros(1000, device="cuda")))
    assert abs(first.mean() - 0.5) < 0.2


def test_all_stages_run_on_device_graphs():
    module = capture(lambda x: x.clone().view(x.shape).sin()[:, 0:4] + 1, [torch.randn(4, 4, device="cuda")], "aten")
    eductor.joint_graph_passes(module, options={"strict": True, "debug": True})
    eductor.post_grad_passes(module, is_inference=True, options={"strict": True, "debug": True})
    x = torch.randn(4, 4, device="cuda")
    assert torch.equal(module(x), x.sin() + 1)
    assert Registry.default().steps()
