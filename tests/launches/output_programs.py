"""Programs of what a caller does with the outputs (1 to 13 of the specification, those of streams excepted)."""

from __future__ import annotations

import torch
from launch_programs import inputs, program, wave


@program(1)
def all_outputs_kept(device, compile):
    f = compile(wave)
    return [f(x) for x in inputs(device)]


@program(2)
def every_third_output_kept(device, compile):
    f, kept = compile(wave), []
    for k, x in enumerate(inputs(device)):
        y = f(x)
        if k % 3 == 0:
            kept.append(y)
    return kept


@program(3)
def view_of_an_output_kept(device, compile):
    f = compile(wave)
    return [f(x)[1:, ::2] for x in inputs(device)]


@program(4)
def output_written_by_the_caller(device, compile):
    f, kept = compile(wave), []
    for x in inputs(device):
        y = f(x)
        y.mul_(2)
        kept += [y, y._version]
    return kept


@program(5)
def outputs_that_share_memory(device, compile):
    def f(x):
        y = wave(x)
        return y, y[1:], y.view(-1)

    f, kept = compile(f), []
    for x in inputs(device):
        y, part, flat = f(x)
        part.add_(1)
        kept += [y, part, flat, y._version]
    return kept


@program(6)
def output_is_an_input(device, compile):
    f, kept = compile(lambda x: (x, wave(x))), []
    for x in inputs(device):
        same, y = f(x)
        kept += [same is x, y]
    return kept


@program(6)
def output_is_a_view_of_an_input(device, compile):
    f, kept = compile(lambda x: (x.view(-1)[2:], wave(x))), []
    for x in inputs(device):
        view, y = f(x)
        x.add_(1)
        kept += [view, y, view._version, view._base is x]
    return kept


@program(7)
def output_returned_twice(device, compile):
    def f(x):
        y = wave(x)
        return y, y

    f, kept = compile(f), []
    for x in inputs(device):
        a, b = f(x)
        a.add_(1)
        kept += [a, b, a is b]
    return kept


@program(8)
def output_through_dlpack(device, compile):
    f = compile(wave)
    return [torch.from_dlpack(f(x)) for x in inputs(device)]


@program(9)
def output_resized(device, compile):
    f, kept = compile(wave), []
    for x in inputs(device, (32, 8)):
        y = f(x)
        kept.append(y.sum())
        y.resize_(64, 8)
        y[32:] = 1
        kept.append(y)
    return kept


@program(9)
def output_resized_and_dropped(device, compile):
    f, kept = compile(wave), []
    for x in inputs(device):
        y = f(x)
        kept.append(y.sum())
        y.resize_(64, 8).fill_(3)
    return kept


@program(9)
def output_emptied(device, compile):
    f, kept = compile(wave), []
    for k, x in enumerate(inputs(device)):
        y = f(x)
        kept.append(y.sum())
        if k % 2:
            y.untyped_storage().resize_(0)
            kept.append(y.untyped_storage().nbytes())
    return kept


@program(9)
def storage_of_an_output_kept(device, compile):
    f, kept = compile(wave), []
    for x in inputs(device):
        kept.append(f(x).untyped_storage())
    return [torch.empty(0, device=device).set_(storage, 0, (4, 8)) for storage in kept]


def _twice(k, sent, answers):
    for _ in range(k):
        answers.put(float(sent.get().sum()))


@program(10, needs_gpu=True)
def output_sent_to_a_process(device, compile):
    """The other process reads each output after the next calls of this one."""
    f = compile(wave)
    context = torch.multiprocessing.get_context("spawn")
    sent, answers = context.Queue(), context.Queue()
    child = context.Process(target=_twice, args=(6, sent, answers))
    child.start()
    try:
        for x in inputs(device, count=6):
            sent.put(f(x))
        torch.cuda.synchronize()
        found = [round(answers.get(timeout=60), 3) for _ in range(6)]
    finally:
        child.join(10)
        child.kill()
    return found


@program(11, needs_gpu=True)
def output_used_on_another_stream(device, compile):
    f, kept, side = compile(wave), [], torch.cuda.Stream()
    batches = inputs(device, (256, 256))
    for x in batches:
        y = f(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            kept.append(y * 2)
        y.record_stream(side)
        del y
    torch.cuda.synchronize()
    return kept


@program(12, needs_gpu=True)
def output_copied_to_pinned_memory(device, compile):
    f, kept = compile(wave), []
    for x in inputs(device, (256, 256)):
        kept.append(torch.empty(256, 256, pin_memory=True))
        kept[-1].copy_(f(x), non_blocking=True)
    torch.cuda.synchronize()
    return kept


@program(13, needs_gpu=True)
def call_on_a_side_stream(device, compile):
    f, kept, side = compile(wave), [], torch.cuda.Stream()
    batches = inputs(device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for x in batches:
            kept.append(f(x))
    torch.cuda.current_stream().wait_stream(side)
    return kept


@program(13, needs_gpu=True)
def calls_on_two_streams_in_turn(device, compile):
    f, kept, streams = compile(wave), [], [torch.cuda.Stream(), torch.cuda.Stream()]
    batches = inputs(device, (256, 256))
    torch.cuda.synchronize()
    for k, x in enumerate(batches):
        with torch.cuda.stream(streams[k % 2]):
            torch.cuda._sleep(500_000 * (1 - k % 2))
            kept.append(f(x))
    torch.cuda.synchronize()
    return kept
