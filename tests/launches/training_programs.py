"""Programs of autograd and of training (33 to 57 of the specification)."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from launch_programs import STEPS, copies, gradients, inputs, layers, program, raised, train, wave
from torch import nn
from torch.utils.checkpoint import checkpoint


def _loss(net):
    return lambda x: net(x).square().mean()


@program(33)
def two_forwards_before_their_backwards(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for k, x in enumerate(inputs(device)):
        losses = [f(x), f(x * 2)]
        for loss in reversed(losses) if k % 2 else losses:
            loss.backward()
            kept += copies(gradients(net))
        kept += losses
        net.zero_grad()
    return kept


@program(34)
def three_forwards_one_backward(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    for x in inputs(device):
        a, b, c = f(x), f(x * 2), f(x - 1)
        loss = F.triplet_margin_loss(a, b, c)
        loss.backward()
        kept += [a, b, c, loss, *gradients(net)]
        net.zero_grad()
    return kept


@program(34)
def output_given_back_as_input(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    for x in inputs(device):
        y = f(f(x))
        y.sum().backward()
        kept += [y, *gradients(net)]
        net.zero_grad()
    return kept


@program(35)
def forwards_without_a_backward(device, compile):
    net = layers(device)
    f = compile(_loss(net))
    kept = train(f, [net], inputs(device, count=4))
    kept += [f(x) for x in inputs(device)]
    return [*copies(kept), *train(f, [net], inputs(device, count=6))]


@program(36)
def exception_between_forward_and_backward(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for k, x in enumerate(inputs(device)):
        try:
            loss = f(x)
            if k % 3 == 2:
                raise KeyError
            loss.backward()
        except KeyError:
            kept.append("raised")
        kept.append(loss)
    return [*kept, *gradients(net)]


def _refuse(gradient):
    raise RuntimeError("a hook refuses")


@program(36)
def exception_in_a_hook(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    for k, x in enumerate(inputs(device)):
        y = f(x)
        if k % 3 == 2:
            y.register_hook(_refuse)
        kept += [y, raised(y.sum().backward)]
    return [*kept, *gradients(net)]


class _Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("a backward refuses")


@program(36)
def exception_after_the_compiled_backward(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    for k, x in enumerate(inputs(device)):
        x = x.requires_grad_()
        y = f(_Refuses.apply(x) if k % 3 == 2 else x)
        kept += [y, raised(y.sum().backward), x.grad]
    return [*kept, *gradients(net)]


@program(37)
def backward_twice(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for x in inputs(device):
        loss = f(x)
        loss.backward(retain_graph=True)
        kept += copies(gradients(net))
        loss.backward()
        kept += [loss, *gradients(net), raised(loss.backward)]
        net.zero_grad()
    return kept


def _saves_nothing_visible(x):
    return (x * 2).exp().sin().sum()


@program(37)
def backward_twice_where_no_tensor_is_saved(device, compile):
    f, kept = compile(_saves_nothing_visible), []
    for x in inputs(device):
        x = x.requires_grad_()
        loss = f(x)
        loss.backward()
        kept += [loss, raised(loss.backward), x.grad]
    return kept


@program(37)
def backward_three_times_around_another_forward(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for k, x in enumerate(inputs(device)):
        loss = f(x)
        if k < 5:
            loss.backward()
        else:
            loss.backward(retain_graph=True)
            other = f(x * 2)
            loss.backward(retain_graph=True)
            other.backward()
            loss.backward()
        kept += [loss, *gradients(net)]
        net.zero_grad()
    return kept


@program(38)
def gradients_for_inputs_and_parameters(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    for k, x in enumerate(inputs(device, count=15)):
        x = x.requires_grad_()
        parameters = [*net.parameters()]
        wanted = [[x], parameters, [x, *parameters]][k % 3]
        kept += torch.autograd.grad(f(x).sum(), wanted)
    return kept


@program(38)
def gradients_of_values_that_are_returned(device, compile):
    def f(x, w):
        y = torch.exp(x @ w)
        return y, (y * 2).sin()

    f, kept = compile(f), []
    w = inputs(device, (8, 8), seed=7)[0].requires_grad_()
    for x in inputs(device):
        y, z = f(x, w)
        kept += [y, z, *torch.autograd.grad((y.sum() + z.sum()), [w])]
    return kept


@program(38)
def saved_output_is_written(device, compile):
    """Autograd sees that a value which the backward needs was written."""
    f, kept = compile(lambda x, w: torch.exp(x @ w)), []
    w = inputs(device, (8, 8), seed=7)[0].requires_grad_()
    for k, x in enumerate(inputs(device)):
        y = f(x, w)
        if k % 3 == 2:
            with torch.no_grad():
                y.add_(1)
        kept += [raised(y.sum().backward), w.grad.clone()]
    return kept


@program(39, replays=None)
def gradient_penalty(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).tanh().sum()), []
    for x in inputs(device):
        x = x.requires_grad_()
        (gradient,) = torch.autograd.grad(f(x), x, create_graph=True)
        penalty = gradient.square().sum()
        penalty.backward()
        kept += [gradient, penalty, *gradients(net)]
        net.zero_grad()
    return kept


@program(40)
def one_of_two_outputs_is_used(device, compile):
    net = layers(device)

    def f(x):
        y = net(x)
        return y.sin().sum(), y.cos().sum()

    f, kept = compile(f), []
    for k, x in enumerate(inputs(device, count=14)):
        results = f(x)
        (sum(results) if k % 3 == 2 else results[k % 3]).backward()
        kept += [*results, *gradients(net)]
        net.zero_grad()
    return kept


@program(41)
def tangents_of_other_layouts(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    tangent = inputs(device, (8, 4), seed=3)[0].t()
    for k, x in enumerate(inputs(device, count=12)):
        y = f(x)
        if k % 3 == 0:
            y.sum().backward()
        else:
            y.backward(tangent if k % 3 == 1 else tangent.contiguous())
        kept += [y, *gradients(net)]
        net.zero_grad()
    return kept


def _accumulated(device, compile, *, set_to_none, zeroed):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for k, x in enumerate(inputs(device, count=24)):
        if zeroed == "before" and k % 4 == 0:
            optimizer.zero_grad(set_to_none=set_to_none)
        loss = f(x)
        if zeroed == "between" and k % 4 == 0:
            optimizer.zero_grad(set_to_none=set_to_none)
        loss.backward()
        kept.append(loss)
        if k % 4 == 3:
            kept += copies(gradients(net))
            optimizer.step()
            if zeroed == "after":
                optimizer.zero_grad(set_to_none=set_to_none)
    return [*kept, *net.parameters()]


@program(42)
def accumulation_zeroed_before(device, compile):
    return _accumulated(device, compile, set_to_none=True, zeroed="before")


@program(42)
def accumulation_zeroed_between(device, compile):
    return _accumulated(device, compile, set_to_none=True, zeroed="between")


@program(42)
def accumulation_zeroed_after(device, compile):
    return _accumulated(device, compile, set_to_none=True, zeroed="after")


@program(42)
def accumulation_into_zeros(device, compile):
    return _accumulated(device, compile, set_to_none=False, zeroed="after")


@program(43)
def gradients_held_across_steps(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for x in inputs(device):
        f(x).backward()
        kept += gradients(net)
        net.zero_grad()
    return kept


@program(43)
def gradients_replaced_and_written(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for k, x in enumerate(inputs(device)):
        f(x).backward()
        for p in net.parameters():
            if k % 2:
                p.grad = p.grad * 2
            p.grad.add_(1)
        kept += [*copies(gradients(net)), *(p.grad._version for p in net.parameters())]
    return kept


@program(44)
def hook_that_returns_another_gradient(device, compile):
    net = layers(device)
    net[0].weight.register_hook(lambda g: g * 2)
    return train(compile(_loss(net)), [net], inputs(device))


@program(44)
def hook_that_stores_gradients(device, compile):
    net = layers(device)
    kept = [[] for _ in net.parameters()]
    for p, held in zip(net.parameters(), kept, strict=True):
        p.register_hook(held.append)
    return [*train(compile(_loss(net)), [net], inputs(device)), *kept]


@program(45)
def optimizer_in_the_backward(device, compile):
    net = layers(device)
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in net.parameters()}

    def step(p):
        optimizers[p].step()
        p.grad = None

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)
    f, kept = compile(_loss(net)), []
    for x in inputs(device):
        kept.append(f(x))
        kept[-1].backward()
    return [*kept, *net.parameters()]


@program(46)
def backward_hook_on_a_module(device, compile):
    net, kept = layers(device), []
    net[1].register_full_backward_hook(lambda module, gradient, result: kept.extend([*gradient, *result]))
    return [*train(compile(_loss(net)), [net], inputs(device)), *kept]


@program(47)
def two_hundred_steps(device, compile):
    """AdamW, clipping, a schedule, an evaluation every 20 steps, and a short last batch."""
    net = layers(device)
    f, kept = compile(_loss(net)), []
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    batches = inputs(device)
    for k in range(200):
        x = batches[k % STEPS]
        loss = f(x[:2] if k % 40 == 39 else x)
        optimizer.zero_grad()
        loss.backward()
        kept += [loss, nn.utils.clip_grad_norm_(net.parameters(), 0.1)]
        optimizer.step()
        schedule.step()
        if k % 20 == 19:
            net.eval()
            with torch.no_grad():
                kept.append(f(batches[0]))
            net.train()
    return [*kept, *net.parameters()]


@program(47)
def optimizers(device, compile):
    kept = []
    kinds = [{"foreach": True}, {"fused": True}]
    for kind in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        *(lambda p, k=k: torch.optim.AdamW(p, **k) for k in kinds),
    ):
        net = layers(device)
        f, optimizer = compile(_loss(net)), kind([*net.parameters()])
        for x in inputs(device):
            optimizer.zero_grad()
            kept.append(f(x))
            kept[-1].backward()
            optimizer.step()
        kept += net.parameters()
    return kept


def _stepped(device, compile, optimizer_of):
    """Steps of a compiled optimizer, whose gradients stay where they are."""
    net = layers(device)
    optimizer = optimizer_of([*net.parameters()])
    step, kept = compile(optimizer.step), []
    for x in inputs(device):
        kept.append(_loss(net)(x))
        kept[-1].backward()
        step()
        optimizer.zero_grad(set_to_none=False)
    return [*kept, *net.parameters()]


@program(48)
def compiled_optimizer_step(device, compile):
    return _stepped(device, compile, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


@program(48, needs_gpu=True)
def compiled_capturable_optimizer_step(device, compile):
    return _stepped(device, compile, lambda p: torch.optim.Adam(p, lr=1e-2, capturable=True))


@program(48, refused_on_gpu="lies on cpu", rounds=True)
def compiled_optimizer_step_that_counts_on_the_host(device, compile):
    return _stepped(device, compile, lambda p: torch.optim.Adam(p, lr=1e-2))


@program(49)
def scaled_gradients_that_overflow(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    for k, x in enumerate(inputs(device)):
        with torch.autocast(device.type, torch.bfloat16):
            loss = f(x * (torch.inf if k == 5 else 1))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        kept += [loss, *copies(gradients(net))]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        kept.append(scaler.get_scale())
    return [*kept, *net.parameters()]


@program(49, replays=None)
def autocast_around_both(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for x in inputs(device):
        with torch.autocast(device.type, torch.bfloat16):
            loss = f(x)
            loss.backward()
        kept += [loss, *gradients(net)]
        net.zero_grad()
    return kept


@program(50)
def checkpoint_inside(device, compile):
    net = layers(device)
    f = compile(lambda x: checkpoint(net, x, use_reentrant=False).square().mean())
    return train(f, [net], inputs(device))


@program(50, replays=None)
def checkpoint_around(device, compile):
    net = layers(device)
    f = compile(net)
    kept = []
    for use_reentrant in (False, True):
        run = lambda x, r=use_reentrant: checkpoint(f, x.requires_grad_(), use_reentrant=r).square().mean()  # noqa: E731
        kept += copies(train(run, [net], inputs(device)))
    return kept


@program(51)
def saved_tensors_on_the_cpu(device, compile):
    net = layers(device)
    f, kept = compile(_loss(net)), []
    for k, x in enumerate(inputs(device)):
        if k < 5:
            loss = f(x)
        else:
            with torch.autograd.graph.save_on_cpu():
                loss = f(x)
        loss.backward()
        kept += [loss, *gradients(net)]
        net.zero_grad()
    return kept


@program(51)
def hooks_see_saved_tensors(device, compile):
    f, kept = compile(_saves_nothing_visible), []
    for k, x in enumerate(inputs(device)):
        x, packed = x.requires_grad_(), []
        if k < 5:
            loss = f(x)
        else:
            with torch.autograd.graph.saved_tensors_hooks(lambda t, p=packed: p.append(t) or t, lambda t: t):
                loss = f(x)
        loss.backward()
        kept += [loss, x.grad, len(packed) > 0]
    return kept


@program(52)
def gan(device, compile):
    maker, judge = layers(device), layers(device, seed=1)
    make, rate = compile(maker), compile(lambda x: judge(x).mean())
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (judge, maker)]
    kept = []
    for real, noise in zip(inputs(device), inputs(device, seed=2), strict=True):
        fake = make(noise)
        judged = rate(fake.detach()) - rate(real)
        judged.backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        made = -rate(fake)
        made.backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
        judge.zero_grad()
        kept += [fake, judged, made]
    return [*kept, *maker.parameters(), *judge.parameters()]


@program(53)
def evaluation_of_an_average_between_forward_and_backward(device, compile):
    net = layers(device)
    average = copy.deepcopy(net).requires_grad_(False)
    f, evaluate, kept = compile(_loss(net)), compile(average), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in inputs(device):
        loss = f(x)
        kept += [loss, evaluate(x)]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        for slow, fast in zip(average.parameters(), net.parameters(), strict=True):
            slow.lerp_(fast.detach(), 0.1)
    return [*kept, *average.parameters()]


@program(53)
def functions_captured_between_forward_and_backward(device, compile):
    net = layers(device)
    f, g, kept = compile(_loss(net)), compile(lambda x: (x @ x.t()).sin().cos() @ x), []
    for k, x in enumerate(inputs(device, count=14)):
        loss = f(x)
        if k % 7 > 4:
            kept += [g(x * j) for j in range(4)]
        loss.backward()
        kept += [loss, *gradients(net)]
        net.zero_grad()
    return kept


@program(54)
def teacher_in_inference_mode(device, compile):
    teacher, student = layers(device).eval(), layers(device, seed=1)
    teach, learn = compile(teacher), compile(lambda x, y: (student(x) - y).square().mean())
    kept = []
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    for x in inputs(device):
        with torch.inference_mode():
            target = teach(x)
        loss = learn(x, target.clone())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        kept += [target, target.is_inference(), loss]
    return [*kept, *student.parameters()]


@program(55)
def graph_breaks(device, compile):
    first, second = layers(device), layers(device, seed=1)
    kept = []

    @torch.compiler.disable
    def between(y):
        kept.append(y.detach())
        return y.exp()

    def f(x):
        y = between(first(x).tanh())
        z = between(second(y).tanh())
        return wave(z).mean()

    return [*train(compile(f), [first, second], inputs(device)), *kept]


@program(56)
def recurrent_loop(device, compile):
    """A cell that is called 20 times before one backward."""
    torch.manual_seed(0)
    cell = nn.GRUCell(8, 8).to(device)
    f, kept = compile(cell), []
    for x in inputs(device, (4, 8), count=4):
        state, states = torch.zeros(4, 8, device=device), []
        for k in range(20):
            state = f(x + k, state)
            states.append(state)
        torch.stack(states).square().mean().backward()
        kept += [*states, *gradients(cell)]
        cell.zero_grad()
    return kept


@program(56)
def truncated_recurrent_loop(device, compile):
    torch.manual_seed(0)
    cell = nn.GRUCell(8, 8).to(device)
    f, kept, state = compile(cell), [], torch.zeros(4, 8, device=device)
    for k, x in enumerate(inputs(device, (4, 8), count=16)):
        state = f(x, state)
        kept.append(state)
        if k % 2:
            state.sum().backward()
            state = state.detach()
    return [*kept, *gradients(cell)]


class _Cached(nn.Module):
    """Attention over the tokens so far; the cache is a buffer that is written by index."""

    def __init__(self, device):
        super().__init__()
        self.register_buffer("cache", torch.zeros(64, 8, device=device))

    def forward(self, x, place):
        self.cache.index_copy_(0, place, x)
        seen = torch.arange(64, device=x.device) <= place
        weights = (x @ self.cache.t()).masked_fill(~seen, -torch.inf).softmax(-1)
        return weights @ self.cache


@program(57)
def cache_of_tokens(device, compile):
    net = _Cached(device)
    f, kept = compile(net), []
    with torch.no_grad():
        for k, x in enumerate(inputs(device, (1, 8), count=64)):
            if k == 32:
                net.cache = net.cache.clone()
            kept.append(f(x, torch.tensor([k], device=device)))
    return [*kept, net.cache, net.cache._version]
