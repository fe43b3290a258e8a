"""On a CUDA device: the same results as eager, and seeded randomness that lives there."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.graph import capture
from eductor.patterns import pattern_pass
from eductor.pipeline import Registry, f32

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


def test_seeded_draws_wait_for_nobody():
    def program(x):
        drawn = torch.rand_like(x), torch.randn_like(x), torch.randint_like(x, 5), torch.empty_like(x).bernoulli_(0.5)
        return *drawn, torch.nn.functional.dropout(x + 1, 0.5)

    x = torch.zeros(100_000, device="cuda")
    module = capture(program, [x], "aten")
    eductor.joint_graph_passes(module)
    module(x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = module(x)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for numbers, mean, variance in zip(drawn, (0.5, 0, 2, 0.5, 1), (1 / 12, 1, 2, 0.25, 1), strict=True):
        assert abs(numbers.mean() - mean) < 0.03
        assert abs(numbers.var() - variance) < 0.05 * variance


def test_all_stages_run_on_device_graphs():
    module = capture(lambda x: x.clone().view(x.shape).sin()[:, 0:4] + 1, [torch.randn(4, 4, device="cuda")], "aten")
    eductor.joint_graph_passes(module, options={"strict": True, "debug": True})
    eductor.post_grad_passes(module, is_inference=True, options={"strict": True, "debug": True})
    x = torch.randn(4, 4, device="cuda")
    assert torch.equal(module(x), x.sin() + 1)
    assert Registry.default().steps()


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "resnet", "t5", "llama"])
def test_models_train_in_bfloat16(name, engine):
    pytest.importorskip("transformers")
    from models.zoo.training import train

    def run(compile):
        torch._dynamo.reset()
        facts = train(name, compile, sizes=(2,) * 5, device="cuda", dtype=torch.bfloat16)
        return torch.stack([facts[f"{i} loss"] for i in range(5)]).float()

    expected, again = run(lambda step: step), run(lambda step: step)
    with warnings.catch_warnings():
        warnings.simplefilter("error", eductor.EductorWarning)
        got = run(lambda step: eductor.compile(step, engine=engine, fallback_random=True))
    noise = (expected - again).abs().max().item()
    worst = (expected - got).abs().max().item()
    print(f"{name}, {engine}: largest difference of five losses {worst:.2e} (eager against itself: {noise:.2e})")
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)


def test_cuda_graphs():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)).cuda()
    reference = copy.deepcopy(model)
    compiled = eductor.compile(model, mode="reduce-overhead")
    for step in range(6):
        x = torch.randn(16, 64, device="cuda")
        for net, fn in ((reference, reference), (model, compiled)):
            net.zero_grad()
            fn(x).square().mean().backward()
        for a, b in zip(reference.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4, msg=f"step {step}")


def test_memory_is_freed_as_early_as_in_eager():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(8)]).cuda()
    x = torch.randn(4096, 512, device="cuda")

    def peak(fn):
        for _ in range(2):
            model.zero_grad()
            torch.cuda.reset_peak_memory_stats()
            fn(x).square().mean().backward()
        return torch.cuda.max_memory_allocated()

    eager = peak(model)
    for engine in ("aten", "inductor"):
        torch._dynamo.reset()
        ours = peak(eductor.compile(model, engine=engine))
        print(f"{engine}: peak {ours / 2**20:.1f} MiB, eager {eager / 2**20:.1f} MiB")
        assert ours <= 1.05 * eager


@pytest.mark.parametrize("autocast", [False, True])
def test_programs_of_the_device(autocast):
    def program(x, w, buf):
        buf.mul_(0.9)
        hidden = torch.dropout(torch.relu(x @ w), 0.5, True)
        return hidden.sum(), hidden.t(), x.view(-1)

    def observed(fn):
        torch.manual_seed(3)
        x, w = (torch.randn(32, 32, device="cuda", requires_grad=True) for _ in range(2))
        buf = torch.ones(3, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            outputs = fn(x, w, buf)
        (outputs[0] + outputs[1].float().sum() + outputs[2].sum()).backward()
        return [*(o.detach() for o in outputs), x.grad, w.grad, buf, torch.cuda.get_rng_state()]

    expected = observed(program)
    for a, b in zip(expected, observed(eductor.compile(program, profile="exact")), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(expected, observed(eductor.compile(program, fallback_random=True)), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_verification_on_the_device(engine):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True).cuda().bfloat16()
    x = torch.randn(4, 8, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    report = eductor.verify(layer, x, options={"engine": engine})
    assert report.ok, str(report)
    assert report.changes, str(report)
    assert not report.limits, str(report)


def test_a_wrong_rewrite_on_the_device_is_found():
    @eductor.graph_pass(stage="joint", numerics="exact")
    def loses_a_factor(graph, rewrite):
        """Says that x * 2 is x."""
        for node in graph.find(torch.ops.aten.mul.Tensor):
            if node.args[1] == 2:
                rewrite.replace(node, node.args[0])

    def program(x):
        return (x.sin() * 3 + x.cos() * 2).exp()

    x = torch.randn(4, 4, device="cuda")
    options = {"engine": "aten", "passes": [loses_a_factor]}
    assert [f.address for f in eductor.verify(program, x, options=options).findings] == ["joint/loses_a_factor"]
    culprit = eductor.bisect(program, [x], options=options)
    assert culprit.address == "joint/loses_a_factor@0"
    assert len(culprit.module.graph.nodes) == 3


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_patterns_traced_on_the_cpu_match_on_the_device(engine):
    """Forward and backward of attention, and a norm in bfloat16: the device of the examples is not part of a pattern."""

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v

    def fused(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    def named_norm(x, w, eps):
        return F.rms_norm(x, [x.shape[-1]], w, eps)

    def norm(x, w, eps):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w

    @pattern_pass(stage="joint", numerics="reassociates")
    def fuse():
        """Makes one operator of attention."""

    @pattern_pass(stage="pre_grad", numerics="reassociates")
    def norms():
        """Makes one operator of a norm."""

    fuse.replace(attention, fused, inputs=[f32(2, 4, 8, 16)] * 3, joint=True, tolerate=("casts",))
    norms.replace(norm, named_norm, inputs=[f32(4, 8), f32(8), 1e-6], tolerate=("casts", "scale", "rank"))

    def program(x, w, scale):
        wide = norm(x.float(), scale.float(), 1e-5).to(x.dtype)
        q, k, v = ((wide @ w[i] / 8).view(2, 64, 4, 16).transpose(1, 2) for i in range(3))
        return attention(q, k, v).transpose(1, 2).reshape(2, 64, 64)

    torch.manual_seed(0)
    inputs = [
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for shape in ((2, 64, 64), (3, 64, 64), (64,))
    ]
    recorder = eductor.Recorder()
    options = {
        "engine": engine,
        "passes": [fuse, norms],
        # The first would leave nothing to the pattern; the others make one permutation of that of the keys and one before it.
        "disable": ["fuse_attention", "remove_reshape_pass", "pass_patterns"],
        "strict": True,
        "instruments": [recorder],
    }
    got, expected = eductor.compile(program, **options)(*inputs), program(*inputs)
    assert {"joint/fuse", "pre_grad/norms"} <= set(recorder.changed())
    torch.testing.assert_close(got, expected, rtol=3e-2, atol=3e-2)
    for a, b in zip(*(torch.autograd.grad(r.float().square().mean(), inputs) for r in (got, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
