"""Programs of parameters, inputs, sizes and random numbers (19 to 32 of the specification)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from launch_programs import copies, gradients, inputs, layers, program, random_state, set_random_state, train, wave
from torch import nn


@program(19)
def parameters_assigned_between_steps(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    for k, x in enumerate(inputs(device, count=14)):
        if k == 5:
            net.load_state_dict(layers(device, seed=5).state_dict(), assign=True)
        loss = f(x)
        loss.backward()
        kept += [loss, *gradients(net)]
        net.zero_grad()
    return kept


@program(19)
def parameters_assigned_before_the_backward(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    for k, x in enumerate(inputs(device, count=14)):
        loss, before = f(x), [*net.parameters()]
        if k == 5:
            net.load_state_dict(layers(device, seed=5).state_dict(), assign=True)
        loss.backward()
        kept += [loss, *(p.grad for p in before)]
        net.zero_grad()
        for p in before:
            p.grad = None
    return kept


@program(20, replays=None)
def parameters_move_each_step(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    for x in inputs(device):
        for p in net.parameters():
            p.data = p.data.clone() * 0.9
        kept.append(f(x))
        kept[-1].backward()
    return [*kept, *gradients(net)]


@program(20)
def parameters_move_once(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    for k, x in enumerate(inputs(device)):
        if k == 5:
            for p in net.parameters():
                p.data = p.data * 0.9
        kept.append(f(x))
        kept[-1].backward()
    return [*kept, *gradients(net)]


@program(20)
def parameters_move_before_the_backward(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    for k, x in enumerate(inputs(device)):
        kept.append(f(x))
        if k == 6:
            for p in net.parameters():
                p.data = p.data.clone()
        kept[-1].backward()
    return [*kept, *gradients(net)]


@program(21)
def module_changes_its_dtype_and_back(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        net.to(dtype)
        for x in inputs(device, count=5):
            kept.append(f(x.to(dtype)))
            kept[-1].float().sum().backward()
    return [*kept, *gradients(net)]


@program(21, needs_gpu=True)
def module_goes_to_the_cpu_and_back(device, compile):
    net = layers(device)
    f, kept = compile(net), []
    for _ in range(3):
        net.cpu().to(device)
        kept += [f(x) for x in inputs(device, count=5)]
    return kept


def _normed(device, compile, momentum):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=momentum), nn.ReLU(), nn.Linear(8, 8)).to(device)
    f = compile(net)
    kept = train(lambda x: f(x).square().mean(), [net], inputs(device))
    net.eval()
    with torch.no_grad():
        kept += [f(x) for x in inputs(device, count=5)]
    net.train()
    return [*copies(kept), *train(lambda x: f(x).square().mean(), [net], inputs(device, count=5, seed=2))]


@program(22)
def batch_norm(device, compile):
    return _normed(device, compile, 0.1)


@program(22, replays=None)
def batch_norm_with_a_cumulative_average(device, compile):
    return _normed(device, compile, None)


@program(23, replays=False, reason="is written, and is no parameter or buffer")
def input_is_written(device, compile):
    def f(x):
        x.add_(1)
        return wave(x)

    f, kept = compile(f), []
    for x in inputs(device):
        kept += [f(x), x, x._version]
    return kept


@program(24)
def inputs_of_all_layouts(device, compile):
    f, kept = compile(lambda x: (wave(x), x.sum(0))), []
    for x in inputs(device, (6, 40), count=5):
        layouts = [
            x[:1, :8].expand(4, 8),
            x[:8, :4].t(),
            x[2:, 3:11],
            x.view(-1)[1:33].view(4, 8),
            x[0, :8],
            x[:, ::2],
        ]
        kept += [result for value in layouts for result in f(value)]
    return kept


@program(25)
def same_tensor_as_two_inputs(device, compile):
    f = compile(lambda x, y: wave(x) * y)
    return [f(x, x) for x in inputs(device)]


@program(25)
def overlapping_inputs(device, compile):
    f = compile(lambda x, y: wave(x) * y)
    return [f(x[:4], x[1:]) for x in inputs(device, (5, 8))]


@program(25, replays=False, reason="share memory")
def input_that_overlaps_itself(device, compile):
    f = compile(wave)
    return [f(x.view(-1).as_strided((4, 8), (2, 1))) for x in inputs(device)]


@program(26, refused_on_gpu="lies on cpu")
def number_on_the_cpu_as_operand(device, compile):
    f = compile(lambda x, s: wave(x) * s)
    return [f(x, torch.tensor(0.5 * k)) for k, x in enumerate(inputs(device))]


@program(27)
def two_sizes_in_turn(device, compile):
    f = compile(wave, dynamic=False)
    return [f(x[: 2 + 2 * (k % 2)]) for k, x in enumerate(inputs(device, count=14))]


@program(27)
def last_batch_is_short(device, compile):
    net = layers(device)
    f = compile(lambda x: net(x).square().mean())
    batches = inputs(device)
    return train(f, [net], [*batches[:9], batches[9][:2]] * 2)


@program(27, replays=None)
def twelve_sizes(device, compile):
    f = compile(wave)
    return [f(x[: 2 + k % 12]) for k, x in enumerate(inputs(device, (16, 8), count=24))]


@program(28)
def dynamic_sizes(device, compile):
    f = compile(lambda x: (wave(x), x.shape[0] * 2), dynamic=True)
    return [f(x[:size]) for size in (8, 16, 64, 8, 16) for x in inputs(device, (64, 8), count=4)]


@program(28)
def dynamic_sizes_in_training(device, compile):
    net = layers(device)
    f = compile(lambda x: net(x).square().mean(), dynamic=True)
    batches = [x[:size] for size in (8, 16, 24, 8) for x in inputs(device, (64, 8), count=4)]
    return train(f, [net], batches)


@program(29, replays=None)
def empty_tensors(device, compile):
    f = compile(lambda x: (wave(x), x.sum(0)))
    return [f(x[:0]) for x in inputs(device)]


@program(29, replays=None)
def views_alone(device, compile):
    f, kept = compile(lambda x: (x.t(), x[1:])), []
    for x in inputs(device):
        kept += f(x)
        x.add_(1)
    return kept


@program(29)
def three_kernels(device, compile):
    f = compile(lambda x: ((x @ x.t()).sin() @ x).sum())
    return [f(x) for x in inputs(device)]


@program(30)
def dropout(device, compile):
    f, kept = compile(lambda x: F.dropout(wave(x), 0.5)), []
    torch.manual_seed(3)
    for x in inputs(device):
        kept += [f(x), random_state(device)]
    return kept


@program(30)
def dropout_seeded_before_each_call(device, compile):
    f, kept = compile(lambda x: F.dropout(wave(x), 0.5)), []
    for k, x in enumerate(inputs(device)):
        torch.manual_seed(k // 2)
        kept += [f(x), torch.rand(3, device=device)]
    return kept


@program(30)
def dropout_with_the_state_put_back(device, compile):
    f, kept = compile(lambda x: F.dropout(wave(x), 0.5)), []
    torch.manual_seed(3)
    for x in inputs(device):
        state = random_state(device)
        kept.append(f(x))
        set_random_state(device, state)
        kept.append(f(x))
    return [*kept, random_state(device)]


@program(31)
def random_numbers_inside_and_outside(device, compile):
    f, kept = compile(lambda x: wave(x) + torch.rand_like(x)), []
    torch.manual_seed(3)
    for x in inputs(device):
        kept += [f(x), torch.rand(3, device=device), random_state(device)]
    return kept


@program(32)
def dropout_recomputed_in_the_backward(device, compile):
    net = layers(device)
    f = compile(lambda x: F.dropout(net(x).relu(), 0.5).sin().square().mean(), memory_budget=0)
    torch.manual_seed(3)
    return [*train(f, [net], inputs(device)), random_state(device)]
