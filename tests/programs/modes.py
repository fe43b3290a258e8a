"""Grad mode, inference mode, autocast."""

import torch
import torch.nn.functional as F
from torch import nn

from .comparing import Case, backward, each_call, leaf, loss_of, once, plain, program, seen


@program(lines=(20,))
def no_grad_inside():
    def fn(x, y):
        with torch.no_grad():
            scale = (x * y).mean()
        return x * scale, y.sin()

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(20, 2), around=torch.no_grad)
def no_grad_around():
    return Case(lambda x, y: (x @ y.t(), x[0]), (leaf(3, 4), leaf(3, 4)))


@program(lines=(20,), around=torch.no_grad)
def grad_enabled_inside_of_no_grad():
    def fn(x):
        y = x * 2
        with torch.enable_grad():
            z = x.sin()
        return y, z

    return Case(fn, (leaf(3, 4),))


@program(lines=(20,))
def toggled_grad_mode():
    def fn(x, y):
        a = x * 2
        torch.set_grad_enabled(False)
        b = a * y
        torch.set_grad_enabled(True)
        return a, b, b * y

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


def grad_mode_is_left_changed(call, case):
    try:
        facts = once(call, case)
        facts["after"] = torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    return facts


@program(lines=(20,), steps=grad_mode_is_left_changed)
def grad_mode_left_off():
    def fn(x):
        y = x * 2
        torch.set_grad_enabled(False)
        return y, x.sin()

    return Case(fn, (leaf(3, 4),))


@program(lines=(20,))
def no_grad_as_a_decorator():
    @torch.no_grad()
    def statistics(x):
        return x.mean(), x.std()

    def fn(x):
        mean, std = statistics(x)
        return (x - mean) / std

    return Case(fn, (leaf(3, 4),))


@program(lines=(20, 4))
def requires_grad_switched_on_inside():
    def fn(x):
        y = torch.ones(4) * 2
        return x * y, y

    return Case(fn, (leaf(3, 4),))


@program(lines=(20,), around=torch.inference_mode)
def inference_mode_around():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.ReLU()), (plain(3, 4),))


@program(lines=(20,), backward=False)
def inference_mode_inside():
    def fn(x):
        with torch.inference_mode():
            y = x * 2
        return y.clone() + 1

    return Case(fn, (plain(3, 4),))


@program(lines=(20, 7), around=torch.inference_mode)
def inference_tensors_written():
    def fn(x):
        x.add_(1)
        return x[1:], x * 2

    return Case(fn, (plain(3, 4),))


@program(lines=(20, 7), around=torch.inference_mode)
def batch_norm_in_inference_mode():
    return Case(nn.BatchNorm1d(4), (plain(6, 4),))


def in_training_then_in_inference_mode(call, case):
    (x,) = case.inputs
    out = call(x)
    backward(out)
    with torch.inference_mode():
        quiet = call(x)
    with torch.no_grad():
        silent = call(x)
    again = call(x)
    backward(again)
    return {"all": [out, seen(quiet), silent, again], "inference": quiet.is_inference()}


@program(lines=(20, 2), steps=in_training_then_in_inference_mode)
def training_then_inference_then_training():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), (plain(3, 4),))


@program(lines=(20, 2), steps=each_call)
def inputs_that_require_grad_or_not():
    return Case(lambda x, y: (x * y).sin(), calls=((plain(3), plain(3)), (leaf(3), plain(3)), (leaf(3), leaf(3))))


@program(lines=(17,), dynamic_on_inductor=True, low_precision=True)
def autocast_inside():
    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, (y.float() * 2).sum(0)

    return Case(fn, (leaf(3, 4), leaf(4, 2)))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.second(F.gelu(self.norm(self.first(x))))


def forward_under_autocast(call, case):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = call(*case.inputs)
    backward(out)
    return {"out": out}


@program(lines=(17,), steps=forward_under_autocast, low_precision=True)
def autocast_around_forward():
    return Case(Mixed(), (leaf(3, 4),))


@program(lines=(17, 5), steps=forward_under_autocast, low_precision=True)
def attention_beside_a_write_under_autocast():
    """Attention is cast as a whole; where its kernel is made of products, these are then in float32."""

    def fn(x, bias):
        y = F.scaled_dot_product_attention(x, x, x, attn_mask=bias)
        z = x * 2
        z += 1
        return y.float(), z

    return Case(fn, (leaf(2, 2, 5, 4), leaf(1, 2, 5, 5)))


def forward_and_backward_under_autocast(call, case):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = call(*case.inputs)
        backward(out)
    return {"out": out}


@program(lines=(17,), steps=forward_and_backward_under_autocast, low_precision=True)
def autocast_around_forward_and_backward():
    return Case(Mixed(), (leaf(3, 4),))


def backward_under_autocast(call, case):
    out = call(*case.inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        backward(out)
    return {"out": out}


@program(lines=(17,), steps=backward_under_autocast, low_precision=True)
def autocast_around_backward_only():
    return Case(Mixed(), (leaf(3, 4),))


class MatmulInBackward(torch.autograd.Function):
    """Its backward is a matmul, which autocast would change."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad = grad.to(x.dtype)
        return grad @ w.t(), x.t() @ grad


@program(lines=(17, 23), steps=forward_under_autocast, low_precision=True)
def custom_backward_outside_of_autocast():
    return Case(lambda x, w: MatmulInBackward.apply(x, w).float(), (leaf(3, 4), leaf(4, 2)))


@program(lines=(17, 23), steps=forward_and_backward_under_autocast)
def custom_backward_under_autocast():
    return Case(lambda x, w: MatmulInBackward.apply(x, w).float(), (leaf(3, 4), leaf(4, 2)))


def with_and_without_autocast(call, case):
    results = []
    for enabled in (False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            out = call(*case.inputs)
        backward(out)
        results.append(seen(out))
    return {"results": results}


@program(lines=(17,), steps=with_and_without_autocast, low_precision=True)
def autocast_switched_between_calls():
    return Case(Mixed(), (leaf(3, 4),))


@program(lines=(17,), low_precision=True)
def autocast_disabled_inside():
    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ w.t()
        return z, y

    return Case(fn, (leaf(3, 4), leaf(4, 2)))


def with_a_grad_scaler(call, case):
    model = case.fn
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = call(*case.inputs).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(seen(loss))
    return {"losses": losses, "scale": scaler.get_scale()}


@program(lines=(17, 3), steps=with_a_grad_scaler, low_precision=True)
def mixed_precision_with_a_grad_scaler():
    return Case(Mixed(), (plain(3, 4),))


def double_backward_under_autocast(call, case):
    x = case.inputs[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = call(*case.inputs)
    (grad,) = torch.autograd.grad(loss_of(out), x, create_graph=True)
    grad.square().sum().backward()
    return {"grad": grad}


@program(lines=(17, 32), steps=double_backward_under_autocast)
def gradient_penalty_with_autocast():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), (leaf(3, 4),))
