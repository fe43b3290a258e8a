"""fuse_conv_bn and efficient_conv_bn_eval_pass: one algebra, for inference and for training."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.graph.reading.static import mark_parameters
from eductor.graph.values.evaluate import propagate
from eductor.observe.manual.manual import run_pass
from eductor.packing.packed_values import PackedValues
from eductor.passes.pre_grad.batch_norms import efficient_conv_bn_eval_pass, fuse_conv_bn
from eductor.pipeline import Pipeline, Recorder, f32
from eductor.pipeline.base import Example
from eductor.testing import assert_refused, check_contract, check_refusal
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
BOTH = [fuse_conv_bn, efficient_conv_bn_eval_pass]


@pytest.mark.parametrize("pass_", BOTH, ids=lambda p: p.name)
def test_contract(pass_):
    check_contract(pass_, "pre_grad")


def norm_for(channels, dim, **options):
    """A batch norm in evaluation mode with statistics that matter."""
    norm = [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d][dim - 1](channels, **options)
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        for parameter in norm.parameters():
            parameter.normal_()
    return norm.eval()


def sequential(call, dim, **options):
    channels = call.out_channels if hasattr(call, "out_channels") else call.out_features
    return nn.Sequential(call, norm_for(channels, dim, **options))


MODELS = {
    "conv1d": (lambda: sequential(nn.Conv1d(4, 6, 3, bias=False), 1), (8, 4, 9)),
    "conv2d": (lambda: sequential(nn.Conv2d(4, 6, 3, stride=2, dilation=2), 2), (3, 4, 15, 14)),
    "conv2d in groups": (lambda: sequential(nn.Conv2d(4, 6, 3, groups=2, padding=1), 2), (3, 4, 7, 8)),
    "conv2d padded to the same size": (lambda: sequential(nn.Conv2d(4, 6, 3, padding="same"), 2), (3, 4, 7, 8)),
    "conv2d without affine": (lambda: sequential(nn.Conv2d(4, 6, 3), 2, affine=False), (3, 4, 7, 8)),
    "conv2d with reflection": (
        lambda: sequential(nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), 2),
        (3, 4, 7, 8),
    ),
    "conv2d in channels_last": (
        lambda: sequential(nn.Conv2d(4, 6, 3), 2).to(memory_format=torch.channels_last),
        (3, 4, 7, 8),
    ),
    "conv3d": (lambda: sequential(nn.Conv3d(2, 3, 2), 3), (4, 2, 5, 4, 6)),
    "transposed1d": (lambda: sequential(nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), 1), (8, 4, 9)),
    "transposed2d": (lambda: sequential(nn.ConvTranspose2d(4, 6, 3), 2), (3, 4, 7, 8)),
    "transposed2d in groups": (
        lambda: sequential(nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2, padding=1), 2),
        (3, 4, 7, 8),
    ),
    "transposed2d in channels_last, in groups": (
        lambda: sequential(nn.ConvTranspose2d(4, 6, 3, groups=2), 2).to(memory_format=torch.channels_last),
        (3, 4, 7, 8),
    ),
    "transposed3d": (lambda: sequential(nn.ConvTranspose3d(2, 3, 2, bias=False), 3), (4, 2, 5, 4, 6)),
}
LINEAR = {"linear": (lambda: sequential(nn.Linear(4, 6), 1), (20, 4))}


def compiled(model, pass_, **options):
    """A compiled model, and the recorder that says whether the pass fired."""
    torch.compiler.reset()
    recorder = Recorder()
    pipeline = Pipeline.default(enable=[pass_.name]).only(f"pre_grad/{pass_.name}")
    given = {
        "engine": "aten",
        "strict": True,
        "debug": True,
        "pipeline": pipeline,
        "instruments": [recorder],
        **options,
    }
    return eductor.compile(model, **given), recorder


def record(recorder, pass_):
    return [r for r in recorder.records if r.address == f"pre_grad/{pass_.name}"][-1]


def check_same(got, expected, **close):
    torch.testing.assert_close(got, expected, **close)
    assert got.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_folds_for_inference(name, dtype):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().to(dtype)
    run, recorder = compiled(model, fuse_conv_bn)
    x = torch.randn(shape, dtype=dtype)
    close = {"rtol": 3e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    with torch.no_grad():
        for _ in range(2):
            check_same(run(x), model(x), **close)
    assert record(recorder, fuse_conv_bn).changed


@pytest.mark.parametrize("name", [*MODELS, *LINEAR])
def test_folds_for_training(name):
    torch.manual_seed(0)
    make, shape = {**MODELS, **LINEAR}[name]
    model = make().double()
    same = copy.deepcopy(model)
    run, recorder = compiled(model, efficient_conv_bn_eval_pass)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    got, expected = run(x), same(y)
    check_same(got, expected)
    cotangent = torch.randn_like(expected)
    got.backward(cotangent)
    expected.backward(cotangent)
    torch.testing.assert_close(x.grad, y.grad)
    for a, b in zip(model.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert record(recorder, efficient_conv_bn_eval_pass).changed


def mixed():
    """A half-precision convolution whose statistics stayed in float32."""
    model = sequential(nn.Conv2d(4, 6, 3), 2)
    model[0].bfloat16()
    return model


def test_half_precision_with_statistics_in_float32():
    torch.manual_seed(0)
    model = mixed()
    x = torch.randn(3, 4, 7, 8, dtype=torch.bfloat16)
    run, recorder = compiled(model, efficient_conv_bn_eval_pass)
    check_same(run(x), model(x), rtol=3e-2, atol=5e-2)
    assert record(recorder, efficient_conv_bn_eval_pass).changed
    run, recorder = compiled(model, fuse_conv_bn)
    with torch.no_grad():
        check_same(run(x), model(x), rtol=3e-2, atol=5e-2)
    assert record(recorder, fuse_conv_bn).changed


@pytest.mark.parametrize("pass_", BOTH, ids=lambda p: p.name)
def test_under_autocast(pass_):
    torch.manual_seed(0)
    model = sequential(nn.Conv2d(4, 6, 3), 2)
    x = torch.randn(3, 4, 7, 8)
    run, recorder = compiled(model, pass_)
    with torch.set_grad_enabled(pass_ is not fuse_conv_bn), torch.autocast("cpu", torch.bfloat16):
        check_same(run(x), model(x), rtol=3e-2, atol=5e-2)
        check_same(run(x), model(x), rtol=3e-2, atol=5e-2)
    assert record(recorder, pass_).changed


def test_dynamic_batch_and_size():
    torch.manual_seed(0)
    model = sequential(nn.Conv2d(4, 6, 3), 2)
    run, recorder = compiled(model, fuse_conv_bn)
    with torch.no_grad():
        for batch, size in ((2, 5), (3, 6), (4, 9), (0, 5)):
            x = torch.randn(batch, 4, size, 7)
            check_same(run(x), model(x))
    assert all(r.changed for r in recorder.records if r.address.endswith("fuse_conv_bn"))


def test_with_the_engine_inductor():
    torch.manual_seed(0)
    model = nn.Sequential(*sequential(nn.Conv2d(3, 4, 3), 2), nn.ReLU(), *sequential(nn.Conv2d(4, 5, 3), 2))
    run, _ = compiled(model, fuse_conv_bn, engine="inductor")
    with torch.inference_mode():
        for _ in range(2):
            x = torch.randn(2, 3, 8, 8)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.fixture
def computed(monkeypatch):
    calls = []
    plain = PackedValues._computed
    monkeypatch.setattr(PackedValues, "_computed", lambda self, sources: (calls.append(1), plain(self, sources))[1])
    return calls


def test_folded_once(computed):
    model = sequential(nn.Conv2d(4, 6, 3), 2)
    run, _ = compiled(model, fuse_conv_bn)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 4, 7, 7)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(computed) == 1


def statistics_moved(model):
    """A forward in training mode moves the statistics, and torch counts no write."""
    norm = model[1]
    before = norm.running_mean._version
    model.train()
    with torch.no_grad():
        model(torch.randn(4, 4, 7, 7) + 3)
    model.eval()
    assert norm.running_mean._version == before


def calibrated(model):
    torch.optim.swa_utils.update_bn([torch.randn(4, 4, 7, 7) * 2], model)
    model.eval()


def trained(model):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(4, 4, 7, 7)).sum().backward()
    optimizer.step()
    model.eval()


def loaded(model):
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})


def reset(model):
    model[1].reset_running_stats()


@pytest.mark.parametrize("change", [statistics_moved, calibrated, trained, loaded, reset])
def test_right_again_after(change, computed):
    torch.manual_seed(0)
    model = sequential(nn.Conv2d(4, 6, 3), 2)
    run, _ = compiled(model, fuse_conv_bn)
    x = torch.randn(2, 4, 7, 7)
    with torch.no_grad():
        run(x)
    for _ in range(2):
        change(model)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)


def test_training_and_evaluation_in_turns_all_compiled():
    torch.manual_seed(0)
    model = sequential(nn.Conv2d(4, 6, 3), 2)
    run, _ = compiled(model, fuse_conv_bn)
    for _ in range(3):
        x = torch.randn(4, 4, 7, 7)
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
        model.train()
        run(x)
        model.eval()


class Shared(nn.Module):
    """One convolution called twice, before two norms."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3)
        self.one, self.two = norm_for(6, 2), norm_for(6, 2)

    def forward(self, x):
        return self.one(self.conv(x)) + self.two(self.conv(x * 2))


@pytest.mark.parametrize("pass_", BOTH, ids=lambda p: p.name)
def test_one_convolution_before_several_norms(pass_):
    model = Shared().double()
    run, recorder = compiled(model, pass_)
    x = torch.randn(3, 4, 7, 7, dtype=torch.float64)
    with torch.set_grad_enabled(pass_ is not fuse_conv_bn):
        check_same(run(x), model(x))
    assert len(record(recorder, pass_).matches) == 2


@pytest.mark.parametrize("pass_", BOTH, ids=lambda p: p.name)
@pytest.mark.parametrize("name", ["conv2d in groups", "transposed2d in groups", "conv2d padded to the same size"])
def test_exported_graphs(name, pass_):
    make, shape = MODELS[name]
    x = torch.randn(shape)
    module = torch.export.export(make(), (x,)).module()
    propagate(module, [x])
    expected = module(x)
    ran = run_pass(pass_, "pre_grad", module, Verifier([x]))
    assert ran.record.changed, ran.record.rejects
    assert "batch_norm" not in ran.after
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)


def test_the_graph_stays_printable():
    make, shape = MODELS["conv2d"]
    with torch.no_grad():
        told = eductor.explain(make(), torch.randn(shape), options={"engine": "aten"})
    assert "pre_grad/fuse_conv_bn" in str(told)


PARAMETERS = [f32(4, 3, 3, 3), f32(4), f32(4)]
IMAGE = f32(2, 3, 9, 9)


def in_training_mode(x, w, mean, var):
    return F.batch_norm(F.conv2d(x, w), mean, var, training=True)


def without_statistics(x, w, mean, var):
    return F.batch_norm(F.conv2d(x, w), None, None, mean, var, training=True)


def returned(x, w, mean, var):
    y = F.conv2d(x, w)
    return F.batch_norm(y, mean, var, eps=9.0), y


def weight_written_between(x, w, mean, var):
    w = w + 0
    y = F.conv2d(x, w)
    w.mul_(2)
    return F.batch_norm(y, mean, var, eps=9.0)


def input_written_between(x, w, mean, var):
    x = x + 0
    y = F.conv2d(x, w)
    x.mul_(2)
    return F.batch_norm(y, mean, var, eps=9.0)


def autocast_between(x, w, mean, var):
    with torch.autocast("cpu", torch.bfloat16):
        y = F.conv2d(x, w)
    return F.batch_norm(y, mean, var, eps=9.0)


def no_grad_between(x, w, mean, var):
    with torch.no_grad():
        y = F.conv2d(x, w)
    return F.batch_norm(y, mean, var, eps=9.0)


def one_image(x, w, mean, var):
    return F.batch_norm(F.conv2d(x[0][:, :6, :6], w), mean, var, eps=9.0)


def sparse_weight(x, w, mean, var):
    return F.batch_norm(F.conv2d(x, w[:, :1].expand(4, 3, 3, 3)), mean, var, eps=9.0)


REFUSED = {
    in_training_mode: "not known to be in evaluation mode",
    without_statistics: "not known to be in evaluation mode",
    returned: "is used elsewhere",
    weight_written_between: "in between writes what",
    input_written_between: "in between writes what",
    autocast_between: "is a barrier in between",
    no_grad_between: "is a barrier in between",
    one_image: "the channels of the batch norm are not those of the weight",
    sparse_weight: "the weight is not dense",
}


@pytest.mark.parametrize("program", REFUSED, ids=lambda p: p.__name__)
@pytest.mark.parametrize("pass_", BOTH, ids=lambda p: p.name)
def test_refuses(program, pass_):
    example = Example(program.__name__, program, (IMAGE, *PARAMETERS), REFUSED[program], mark_parameters)
    check_refusal(pass_, "pre_grad", example)


def test_a_norm_behind_something_else_is_not_looked_at():
    run, recorder = compiled(nn.Sequential(nn.ReLU(), norm_for(4, 2)), efficient_conv_bn_eval_pass)
    run(torch.randn(2, 4, 3, 3))
    assert not record(recorder, efficient_conv_bn_eval_pass).rejects


def test_in_inference_nothing_is_kept_for_a_backward():
    make, shape = MODELS["conv2d"]
    run, recorder = compiled(make(), efficient_conv_bn_eval_pass)
    with torch.no_grad():
        run(torch.randn(shape))
    assert "without a backward" in record(recorder, efficient_conv_bn_eval_pass).rejects[0].reason


def test_weights_that_are_not_kept_are_not_folded():
    make, shape = MODELS["conv2d"]
    run, recorder = compiled(make(), fuse_conv_bn, pack_weights=False)
    with torch.no_grad():
        run(torch.randn(shape))
    assert "would not be kept" in record(recorder, fuse_conv_bn).rejects[0].reason


def test_linear_over_sequences_of_the_width_of_the_channels():
    def program(x, w, mean, var):
        return F.batch_norm(F.linear(x, w), mean, var, eps=9.0)

    assert_refused(
        efficient_conv_bn_eval_pass,
        program,
        [f32(5, 4, 3), f32(4, 3), f32(4), f32(4)],
        "the channels of the batch norm are not those of the weight",
    )


@pytest.mark.parametrize("name", ["conv1d", "conv2d", "transposed3d", "linear"])
@pytest.mark.parametrize("pass_", BOTH, ids=lambda p: p.name)
def test_verified(name, pass_):
    if name in LINEAR and pass_ is fuse_conv_bn:
        return
    make, shape = {**MODELS, **LINEAR}[name]
    run, recorder = compiled(make(), pass_, verify="each")
    with torch.set_grad_enabled(pass_ is not fuse_conv_bn):
        run(torch.randn(shape))
    assert record(recorder, pass_).changed
