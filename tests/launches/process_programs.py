"""Programs of threads, captures by others, refusals, failures and memory (14 to 18 and 58 to 64 of the specification)."""

from __future__ import annotations

import gc
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
import torch.nn.functional as F
from launch_programs import copies, gradients, inputs, layers, program, random_state, train, wave
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from eductor.compat import CudaGraphs
from eductor.launches import pool

MIB = 2**20


def _worked(functions, device):
    """The losses and gradients of each function, all called at once, each in a thread of its own."""

    def work(k):
        f, net = functions[k]
        found = []
        for x in inputs(device, seed=k):
            loss = f(x)
            found += [loss, *torch.autograd.grad(loss, [*net.parameters()])]
        return found

    with ThreadPoolExecutor(len(functions)) as threads:
        return [*threads.map(work, range(len(functions)))]


def _warm(device, compile, seed=0):
    net = layers(device, seed)
    f = compile(lambda x: net(x).square().mean())
    for x in inputs(device, count=4):
        f(x).backward()
        net.zero_grad()
    return f, net


@program(14)
def two_threads_one_function(device, compile):
    return _worked([_warm(device, compile)] * 2, device)


@program(14)
def two_threads_two_functions(device, compile):
    return _worked([_warm(device, compile), _warm(device, compile, seed=1)], device)


@program(15, needs_gpu=True)
def thread_that_waits_for_the_device(device, compile):
    stop, errors = threading.Event(), []

    def wait():
        while not stop.is_set():
            try:
                torch.cuda.synchronize()
            except RuntimeError as error:
                errors.append(str(error))
                return

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        f = compile(wave)
        kept = [f(x) for x in inputs(device)]
    finally:
        stop.set()
        thread.join()
    return [*kept, *errors]


@program(16, needs_gpu=True)
def capture_by_the_user(device, compile):
    f, kept, x = compile(wave), [], torch.zeros(4, 8, device=device)
    kept += [f(x) for x in inputs(device, count=5)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = f(x)
    for value in inputs(device, count=5):
        x.copy_(value)
        graph.replay()
        kept += [y.clone(), f(value)]
    return kept


@program(16, needs_gpu=True)
def capture_by_the_user_between_forward_and_backward(device, compile):
    net = layers(device)
    f, kept, x = compile(lambda x: net(x).square().mean()), [], torch.ones(4, 8, device=device)
    for k, batch in enumerate(inputs(device)):
        loss = f(batch)
        if k == 6:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = x * 2
        loss.backward()
        if k >= 6:
            graph.replay()
            kept.append(y.clone())
        kept += [loss, *gradients(net)]
        net.zero_grad()
    return kept


@program(17, needs_gpu=True)
def graphed_callables_beside(device, compile):
    net, other = layers(device), layers(device, seed=1)
    graphed = torch.cuda.make_graphed_callables(other, (torch.zeros(4, 8, device=device),))
    f = compile(lambda x: net(x).square().mean())
    return train(lambda x: f(x) + graphed(x).square().mean(), [net, other], inputs(device))


@program(18, needs_gpu=True)
def stock_cuda_graphs_beside(device, compile):
    f, kept = compile(wave), []
    stock = torch.compile(lambda x: (x @ x.t()).relu(), mode="reduce-overhead")
    for x in inputs(device):
        kept += [f(x), stock(x).clone()]
    return kept


def _refused(name, number, fn, reason, *, needs_gpu=False):
    """A program of one function whose launches are not replayed."""

    def run(device, compile):
        config = torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
        with config:
            f = compile(lambda x: fn(wave(x)))
            return [f(x) for x in inputs(device, (8, 8), count=5)]

    run.__name__ = name
    program(number, replays=False, reason=reason, needs_gpu=needs_gpu)(run)


@torch.library.custom_op("launch_programs::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    counted.calls += 1
    print("called")
    return x * counted.calls


@counted.register_fake
def _(x):
    return torch.empty_like(x)


WAITS = "the device"  # is waited for, or alone knows a size
_refused("nonzero", 58, lambda x: x.nonzero() * 2, WAITS)
_refused("item", 58, lambda x: x * x.sum().item(), WAITS)
_refused("mask", 58, lambda x: x[x > 0].sum(), WAITS)
_refused("masked_write", 58, lambda x: x.index_put((x[:, 0] > 0,), x.sum()), WAITS)
_refused("repeated", 58, lambda x: x.repeat_interleave((x[:, 0] > 0) + 1, 0), WAITS)
_refused("solved", 58, lambda x: torch.linalg.solve(x @ x.t() + torch.eye(8, device=x.device), x), WAITS)


@program(59, replays=False, reason="may do something on the host in each call")
def operator_that_counts_its_calls(device, compile):
    counted.calls = 0
    f = compile(lambda x: counted(wave(x)))
    return [*(f(x) for x in inputs(device)), counted.calls]


@program(59, needs_gpu=True)
def triton_kernel_of_the_user(device, compile):
    triton = pytest.importorskip("triton")
    from scaled_kernel import scaled_kernel

    def f(x):
        y = torch.empty_like(x)
        scaled_kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), 64)
        return wave(y)

    f = compile(f)
    return [f(x) for x in inputs(device)]


def _fail(number):
    """The capture with this number fails: on a GPU, where something waits for it in the middle."""

    def prepare(monkeypatch, device):
        if device is not None:
            device.failures = [None] * number + ["scripted"]
            return
        monkeypatch.setattr(pool, "_pools", {})
        captured, numbers = CudaGraphs._captured, count()

        def scripted(self, run, arguments):
            return captured(self, _waiting(run) if next(numbers) == number else run, arguments)

        monkeypatch.setattr(CudaGraphs, "_captured", scripted)

    return prepare


def _waiting(run):
    def wait(values):
        results = run(values)
        torch.cuda.synchronize()
        return results

    return wait


@program(60, reason="the capture failed", prepare=_fail(0))
def capture_that_fails(device, compile):
    f, g, kept = compile(lambda x: F.dropout(wave(x), 0.5)), compile(lambda x: F.dropout(wave(x) * 2, 0.5)), []
    torch.manual_seed(3)
    for x in inputs(device):
        kept += [f(x), g(x), random_state(device)]
    return kept


@program(60, reason="the capture failed", prepare=_fail(0))
def capture_that_fails_in_training(device, compile):
    nets = layers(device), layers(device, seed=1)
    f, g = (compile(lambda x, net=net: F.dropout(net(x), 0.5).square().mean()) for net in nets)
    torch.manual_seed(3)
    return [*train(f, [nets[0]], inputs(device)), *train(g, [nets[1]], inputs(device)), random_state(device)]


@program(60, reason="the capture failed", prepare=_fail(1))
def capture_of_a_backward_that_fails(device, compile):
    net = layers(device)
    return train(compile(lambda x: net(x).square().mean()), [net], inputs(device))


class _Limit:
    """What the allocator may reserve, in bytes more than what is allocated."""

    def __init__(self, more):
        gc.collect()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        self.share = (torch.cuda.memory_reserved() + more) / total

    def __enter__(self):
        torch.cuda.set_per_process_memory_fraction(self.share)

    def __exit__(self, *raised):
        torch.cuda.set_per_process_memory_fraction(1.0)


def _products(x, w):
    return ((x @ w).sin() @ w).cos() @ w


@program(61, replays=None, needs_gpu=True)
def no_memory_for_a_capture(device, compile):
    f, x = compile(_products), torch.full((1024, 4096), 0.01, device=device)
    w = torch.eye(4096, device=device)
    kept = [f(x, w).sum()]
    with _Limit(96 * MIB):
        kept += [f(x * k, w).sum() for k in range(6)]
    return kept


@program(61, replays=None, needs_gpu=True)
def no_memory_for_an_ordinary_call(device, compile):
    """The pool of the first size holds what a call with the second size needs."""
    f, x = compile(_products, dynamic=False), torch.full((4096, 4096), 0.01, device=device)
    w = torch.eye(4096, device=device)
    kept = [f(x[:k], w).sum() for k in (4096, 4000)]
    with _Limit(6 * 64 * MIB):
        kept += [f(x, w).sum() for _ in range(4)]
        kept += [f(x[:4000], w).sum() for _ in range(4)]
    return kept


@program(62, needs_gpu=True)
def memory_is_asked_about(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    for x in inputs(device):
        kept += train(f, [net], [x])[:1]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.memory_snapshot()
    return [*kept, *net.parameters()]


@program(63)
def function_dropped_with_outputs_alive(device, compile):
    f = compile(wave)
    kept = [f(x) for x in inputs(device)]
    del f
    torch._dynamo.reset()
    gc.collect()
    g = compile(lambda x: wave(x) * 2)
    return [*kept, *(g(x) for x in inputs(device))]


@program(63)
def function_dropped_before_its_backward(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    for x in inputs(device, count=5):
        kept.append(f(x))
        kept[-1].backward()
    loss = f(x)
    del f
    torch._dynamo.reset()
    gc.collect()
    g = compile(wave)
    kept += [g(x) for x in inputs(device)]
    loss.backward()
    return [*kept, loss, *gradients(net)]


@program(64)
def profiler(device, compile):
    net = layers(device)
    f, kept, batches = compile(lambda x: net(x).square().mean()), [], inputs(device)
    for _ in range(2):
        kept += copies(train(f, [net], batches[:3]))
        with torch.profiler.profile():
            kept += copies(train(f, [net], batches[3:6]))
        kept += copies(train(f, [net], batches[6:]))
    return kept


@program(64)
def debug_mode(device, compile):
    mode = pytest.importorskip("torch.utils._debug_mode").DebugMode
    net = layers(device)
    f, batches = compile(lambda x: net(x).square().mean()), inputs(device)
    kept = copies(train(f, [net], batches))
    with mode():
        kept += copies(train(f, [net], batches))
    return [*kept, *train(f, [net], batches)]


@program(64)
def workers_that_are_forked(device, compile):
    net = layers(device)
    f, kept = compile(lambda x: net(x).square().mean()), []
    data = TensorDataset(torch.arange(64.0).view(8, 8) / 64)
    for _ in range(3):
        loader = DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
        kept += train(f, [net], [x.to(device) for (x,) in loader for _ in range(2)])[:4]
    return [*kept, *net.parameters()]


class _Group:
    """A process group of this process alone."""

    def __enter__(self):
        dist = pytest.importorskip("torch.distributed")
        self.folder = tempfile.TemporaryDirectory()
        try:
            dist.init_process_group("nccl", init_method=f"file://{self.folder.name}/store", rank=0, world_size=1)
        except (RuntimeError, ValueError) as error:
            pytest.skip(f"no process group: {error}")

    def __exit__(self, *raised):
        torch.cuda.synchronize()
        torch.distributed.destroy_process_group()
        self.folder.cleanup()


@program(64, replays=None, needs_gpu=True)
def distributed_data_parallel(device, compile):
    with _Group():
        net = nn.parallel.DistributedDataParallel(layers(device), device_ids=[0])
        return copies(train(compile(lambda x: net(x).square().mean()), [net], inputs(device)))


@program(64, replays=None, needs_gpu=True)
def fully_sharded(device, compile):
    from torch.distributed.fsdp import fully_shard

    with _Group():
        net = fully_shard(layers(device))
        f = compile(lambda x: net(x).square().mean())
        return copies(
            value.full_tensor() if hasattr(value, "full_tensor") else value for value in train(f, [net], inputs(device))
        )
