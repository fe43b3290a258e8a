"""What a first version may refuse: it must say so, and compute what eager computes."""

import contextlib
import gc
import io
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from .comparing import Case, backward, each_call, leaf, once, plain, program, seen


class Doubled(torch.Tensor):
    """Two tensors that go through every operator side by side."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            a.size(),
            strides=a.stride(),
            storage_offset=a.storage_offset(),
            dtype=a.dtype,
            device=a.device,
            requires_grad=a.requires_grad,
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __repr__(self):
        return f"Doubled({self.a!r}, {self.b!r})"

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
        return Doubled(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs):
        def part(name):
            take = pytree.tree_map_only(Doubled, lambda x: getattr(x, name), (args, kwargs or {}))
            return func(*take[0], **take[1])

        first, second = part("a"), part("b")
        wrapped = pytree.tree_map(
            lambda x, y: Doubled(x, y) if isinstance(x, torch.Tensor) else x,
            first,
            second,
        )
        return torch.utils._python_dispatch.return_and_correct_aliasing(func, args, kwargs or {}, wrapped)


@program(lines=(35,), fallback="Doubled", also_dynamic=False)
def wrapper_subclass():
    return Case(lambda x: (x * 2).sin(), (Doubled(plain(3, 4), plain(3, 4)),))


@program(lines=(35,), fallback="Doubled", also_dynamic=False)
def wrapper_subclass_with_gradients():
    x = Doubled(plain(3, 4), plain(3, 4)).requires_grad_()
    return Case(lambda a, b: a * b, (x, leaf(3, 4)))


@program(lines=(35, 7), fallback="Doubled", also_dynamic=False)
def wrapper_subclass_written():
    def fn(x):
        x.add_(1)
        return x * 2

    return Case(fn, (Doubled(plain(3, 4), plain(3, 4)),))


@contextlib.contextmanager
def one_rank():
    """A process group of this process alone."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        yield
    finally:
        DistributedDataParallel._active_ddp_module = None  # stays behind where a call raised
        torch._dynamo.reset()
        gc.collect()  # a model that outlives its process group may wait for it forever
        dist.destroy_process_group()


def full_tensors(call, case):
    out = call(*case.inputs)
    out.sum().backward()
    facts = {"out": seen(out.full_tensor().detach()), "kind": type(out).__name__, "placements": str(out.placements)}
    return facts | {"gradients": [None if x.grad is None else seen(x.grad.full_tensor()) for x in case.inputs]}


@program(lines=(35, 37), fallback="DTensor", also_dynamic=False, around=one_rank, steps=full_tensors)
def distributed_tensors():
    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(plain(4, 4), mesh, [Shard(0)])
    w = distribute_tensor(plain(4, 4), mesh, [Replicate()]).requires_grad_()
    return Case(lambda x, w: (x @ w).relu(), (x, w))


def full_gradients(call, case):
    out = call(*case.inputs)
    loss = out.sum()
    loss.backward()
    return {
        "out": seen(out.full_tensor().detach()),
        "gradients": [seen(p.grad.full_tensor()) for p in case.fn.parameters()],
    }


@program(lines=(35, 37), fallback="DTensor", also_dynamic=False, around=one_rank, steps=full_gradients)
def distributed_parameters():
    mesh = init_device_mesh("cpu", (1,))
    model = distribute_module(nn.Linear(4, 2), mesh)
    return Case(model, (distribute_tensor(plain(3, 4), mesh, [Replicate()]),))


def prints_are_seen(call, case):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        facts = once(call, case)
    return facts | {"text": text.getvalue()}


@program(lines=(36,), fallback="print", steps=prints_are_seen)
def prints():
    def fn(x):
        y = x * 2
        torch._higher_order_ops.print("a tensor {}", y > 0)
        return y.sin()

    return Case(fn, (plain(3, 4),))


@program(lines=(36, 3), fallback="print", steps=prints_are_seen)
def prints_with_gradients():
    def fn(x):
        y = x.sin()
        torch._higher_order_ops.print("half way")
        return y * 2

    return Case(fn, (leaf(3, 4),))


NOTES = []


@torch.library.custom_op("eductor_programs::note", mutates_args=())
def note(x: torch.Tensor) -> None:
    NOTES.append(round(float(x.detach().sum()), 4))


@note.register_fake
def _(x):
    return None


@contextlib.contextmanager
def effectful_note():
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    NOTES.clear()
    handle = _register_effectful_op(torch.ops.eductor_programs.note.default, _EffectType.ORDERED)
    try:
        yield
    finally:
        handle.destroy()


def notes_are_taken(call, case):
    return once(call, case) | {"notes": list(NOTES)}


@program(lines=(36, 22), fallback="note", around=effectful_note, steps=notes_are_taken)
def operator_with_an_ordered_effect():
    def fn(x):
        note(x)
        y = x * 2
        note(y)
        return y

    return Case(fn, (plain(3, 4),))


@program(lines=(37,), fallback="c10d", around=one_rank)
def all_reduce():
    def fn(x):
        y = torch.distributed._functional_collectives.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + 1

    return Case(fn, (plain(3, 4),))


@program(lines=(37,), fallback="c10d", around=one_rank)
def all_gather_and_reduce_scatter():
    def fn(x):
        collectives = torch.distributed._functional_collectives
        y = collectives.all_gather_tensor(x, 0, dist.group.WORLD)
        return collectives.reduce_scatter_tensor(y.sin(), "sum", 0, dist.group.WORLD) * 2

    return Case(fn, (plain(4, 4),))


@program(lines=(37,), fallback="c10d", around=one_rank)
def collectives_with_gradients():
    def fn(x):
        collectives = torch.distributed._functional_collectives
        y = collectives.all_gather_tensor_autograd(x * 2, 0, dist.group.WORLD)
        return collectives.reduce_scatter_tensor_autograd(y.sin(), "sum", 0, dist.group.WORLD) * 2

    return Case(fn, (leaf(3, 4),))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 2)
        )

    def forward(self, x):
        return self.layers(x) * 2


def trains_in_parallel(call, case):
    out = call(*case.inputs)
    backward(out)
    again = call(*case.inputs)
    backward(again)
    return {"out": out, "again": again}


@program(lines=(38,), around=one_rank, steps=trains_in_parallel)
def data_parallel():
    return Case(DistributedDataParallel(Layers()), (plain(5, 4),))


@contextlib.contextmanager
def one_rank_and_small_buckets():
    with mock.patch.object(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 64), one_rank():
        yield


@program(lines=(38, 7), around=one_rank_and_small_buckets, steps=trains_in_parallel)
def data_parallel_of_several_buckets():
    """Small buckets make DDPOptimizer part the graph."""
    return Case(DistributedDataParallel(Layers(), bucket_cap_mb=0.0005), (plain(5, 4),))


@contextlib.contextmanager
def freezing():
    import torch._inductor.config as inductor

    with inductor.patch(freezing=True), torch.no_grad():
        yield


@program(lines=(39, 2), around=freezing)
def frozen_for_inference():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    return Case(model, (plain(2, 3, 5, 5),))


@program(lines=(39, 13), steps=each_call)
def complex_model():
    """Complex parameters and activations of different sizes."""
    weight = leaf(4, 3, dtype=torch.complex64)

    def fn(x):
        y = x @ weight
        return torch.view_as_real(y * y.conj()).sum(-1), y.abs()

    calls = tuple((leaf(n, 4, dtype=torch.complex64),) for n in (2, 3))
    return Case(fn, calls=calls, tensors={"weight": weight})
