"""What eager's kernels write, the code generator sees: it computes later values from the new memory, not the old."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import eductor
from eductor import EductorWarning, Recorder
from eductor.engines.inductor.patches import active
from eductor.passes.post_grad.inplace.operators import CALLED, INDEXED, WHOLE
from eductor.pipeline.base import graph_pass

aten = torch.ops.aten
ROWS, ORDER = torch.tensor([0, 2, 2, 1]), torch.tensor([3, 1, 0, 2])
MASK = torch.tensor([[True, False, True, False]] * 4)

WRITES: dict[object, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    aten.index_copy: lambda x, new: x.index_copy(0, ORDER, new),
    aten.index_add: lambda x, new: x.index_add(0, ROWS, new),
    aten.index_fill: lambda x, new: x.index_fill(0, ROWS, 3),
    aten.index_reduce: lambda x, new: x.index_reduce(0, ROWS, new, "amax"),
    aten.masked_scatter: lambda x, new: x.masked_scatter(MASK, new),
    aten.put: lambda x, new: aten.put(x, ROWS, new[0]),
    aten.masked_fill: lambda x, new: x.masked_fill(MASK, 3),
}


def program(inputs: list[torch.Tensor], new: torch.Tensor) -> list[torch.Tensor]:
    """Each writes a constant, a part of one, a value that others read before, and an input that they read before."""
    results = []
    for x, write in zip(inputs, WRITES.values(), strict=True):
        results.append(write(torch.zeros_like(x), new) + 1)
        parts = torch.zeros(2, *x.shape, dtype=x.dtype)
        parts[1].copy_(write(parts[1], new))
        results += [parts + 1, parts.sum(0)]
        doubled = x * 2
        read = doubled + 1
        results += [write(doubled, new) + 1, read * 3]
        before = x * 3
        x.copy_(write(x, new))
        results.append(before + x)
    return results


def test_all_are_tried():
    assert set(WRITES) == set(CALLED)


def test_all_others_have_kernels_that_write():
    from torch._inductor.lowering import fallbacks, lowerings

    for packet in {*INDEXED, *WHOLE} - {*CALLED, aten._unsafe_index_put}:
        written = getattr(aten, f"{packet._qualified_op_name.partition('::')[2]}_")
        for overload in packet.overloads():
            op = getattr(written, overload, None)
            assert op is None or (op in lowerings and op not in fallbacks), op


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_later_values_are_computed_from_what_was_written(dtype):
    def inputs():
        return [torch.arange(i, i + 16).remainder(7).view(4, 4).to(dtype) for i in range(len(WRITES))]

    new = torch.arange(-4, 12).view(4, 4).to(dtype)
    first, second = inputs(), inputs()
    expected = program(first, new)
    got = eductor.compile(program, engine="inductor", strict=True)(second, new)
    for i, (a, b) in enumerate(zip([*expected, *first], [*got, *second], strict=True)):
        assert torch.equal(a, b), i


def test_who_calls_eagers_kernel_does_not_write_in_place():
    def scattered(x, new):
        return torch.zeros_like(x).masked_scatter(MASK, new)

    changed = {}
    for engine in ("aten", "inductor"):
        torch._dynamo.reset()
        recorder = Recorder()
        eductor.compile(scattered, engine=engine, instruments=[recorder])(torch.ones(4, 4), torch.ones(4, 4))
        changed[engine] = any("reinplace_inplaceable_ops" in address for address in recorder.changed())
    assert changed == {"aten": True, "inductor": False}


@graph_pass(stage="post_grad", numerics="exact", in_place=True)
def scatter_in_place(graph, rewrite):
    """Writes a masked scatter in place, whatever the engine."""
    for node in graph.find(aten.masked_scatter):
        rewrite.insert(aten.masked_scatter_.default, *node.args, before=node, like=node)
        rewrite.replace(node, node.args[0])


def test_a_write_of_somebody_elses_pass_that_would_not_be_seen_goes_to_the_simpler_engine():
    def scattered(x, new):
        return torch.zeros_like(x).masked_scatter(MASK, new) + 1

    x, new = torch.ones(4, 4), torch.arange(16.0).view(4, 4)
    pipeline = eductor.Pipeline.default().with_pass(scatter_in_place, before="reinplace_inplaceable_ops")
    with pytest.warns(EductorWarning, match="masked_scatter_.*which has only eager's kernel and returns"):
        got = eductor.compile(scattered, engine="inductor", pipeline=pipeline)(x, new)
    assert torch.equal(got, scattered(x, new))


# --------------------------------------------------------------------------------------------- who reads before, and after

torch.library.define("written::squared_", "(Tensor(a!) x) -> ()")
torch.library.impl("written::squared_", "CPU")(lambda x: (x.square_(), None)[1])
torch.library.impl("written::squared_", "Meta")(lambda x: None)
squared_ = torch.ops.written.squared_


def reads_of_all(write):
    """A product, and an input, that kernels read before a write and after it."""

    def program(x):
        product = x @ x
        doubled = product * 2
        earlier = doubled + 1, x.cos()
        product = write(product)
        write(x)
        return *earlier, doubled + product, earlier[1] * x

    return program


def reads_in_other_loops(write):
    """Loops over columns and over all are one kernel on a CPU, if nothing stands between; here a write does."""

    def program(x):
        product = x @ x
        shares = product.softmax(0)
        total = shares.sum()
        return total, shares + write(product)

    return program


def in_place(write):
    return lambda x: (write(x), x)[1]


ONE = torch.zeros(1, 4, dtype=torch.long), torch.ones(1, 4)
KINDS_OF_WRITES = {
    "custom": in_place(squared_),
    "columns": in_place(lambda x: x[:, 1:3].add_(2)),
    "list": lambda x: torch._foreach_sin([x])[0],
    "custom on a part": in_place(lambda x: squared_(x[1:])),
    "row": in_place(lambda x: x[1].fill_(7)),
    "put": in_place(lambda x: x.index_put_((ROWS[2:],), torch.tensor(5.0), accumulate=True)),
    "scatter_add": lambda x: x.scatter_add(0, *ONE),
    "scatter_reduce": lambda x: x.scatter_reduce(0, *ONE, "prod"),
    "list of two": lambda x: torch._foreach_sub([x, x + 1], 2.0)[0],
}


@pytest.mark.parametrize("kind", KINDS_OF_WRITES)
@pytest.mark.parametrize("reads", [reads_of_all, reads_in_other_loops])
def test_reads_stay_on_their_side_of_a_write(reads, kind):
    program, x = reads(KINDS_OF_WRITES[kind]), torch.rand(4, 4) + 0.5
    first, second = x.clone(), x.clone()
    expected, got = program(first), eductor.compile(program, engine="inductor", strict=True)(second)
    for i, (a, b) in enumerate(zip([*expected, first], [*got, second], strict=True)):
        assert torch.allclose(a, b, atol=1e-5), i


def written_whole(x):
    product = x @ x
    return product.copy_(x)


def written_whole_then_a_part(x):
    product, other = x @ x, x + 1
    product.copy_(other)[1] = 7.0
    return product, other


def a_view_of_what_is_written(x):
    product = x @ x
    view = product.t()
    product.copy_(x * 2)
    return view + 1, product


def turned_round(x):
    product, other = x @ x, x.t() @ x
    return product.copy_(product.flip(0)), other.copy_(other.t() * 2)


def parts_then_the_whole(x):
    product = x @ x
    product[1] = 5.0
    filled = product.clone()
    product.fill_(2)[0] = 3.0
    return product * 2, filled


def parts_then_a_list(x):
    scaled = x * 0.25
    total = scaled.sum(1, keepdim=True)
    scaled.index_fill_(0, ROWS, 3)
    torch._foreach_add_([scaled], [x])
    return scaled, total


@pytest.mark.parametrize(
    "program",
    [
        *(written_whole, written_whole_then_a_part, a_view_of_what_is_written),
        *(turned_round, parts_then_the_whole, parts_then_a_list),
    ],
)
def test_what_is_written_whole_stays_where_it_is(program):
    x = torch.rand(4, 4)
    first, second = x.clone(), x.clone()
    expected, got = program(first), eductor.compile(program, engine="inductor", strict=True)(second)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (expected, got)), strict=True):
        torch.testing.assert_close(b, a)
        assert b.stride() == a.stride()
        assert b.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    assert torch.equal(second, x)


COLUMNS = torch.arange(3, -1, -1)[:, None].expand(4, 4)


def turned(x):
    x.index_put_((ORDER[:3],), (x * 2)[:3])
    x.add_(x.flip(0))


def rolled(x):
    x[1:3] = x[:2] * 2
    x.copy_(x + x.roll(1, 1))


def transposed(x):
    x.index_put_((ROWS[2:],), x[:2] * 2, accumulate=True)
    x.copy_(x - x.t())


def gathered(x):
    x.scatter_(0, COLUMNS, x * 2)
    x.mul_(x.gather(0, COLUMNS))


def halves_exchanged(x):
    x[ORDER[:3]] = x[:3] * 2
    x.copy_(torch.cat([x[2:], x[:2]]) - x)
    return x + 1


def at_equal_places(x):
    x.index_put_((ORDER[:3],), x[:3] * 2)
    x.add_(x.exp())


def scattered_from_itself(x):
    x.scatter_(0, COLUMNS, x.flip(1))
    x.scatter_add_(1, COLUMNS, x * 2)
    x.index_put_((x[0, :3].long().remainder(4),), x[1:] * 2, accumulate=True)


MIXES = [turned, rolled, transposed, gathered, halves_exchanged, at_equal_places, scattered_from_itself]


@pytest.mark.parametrize("program", MIXES)
def test_what_mixes_places_of_an_input_is_computed_before_it_is_written_back(program):
    """After a first write, the code generator has another name for the memory of the input."""
    first = torch.arange(16.0).view(4, 4) / 16
    second = first.clone()
    expected, got = program(first), eductor.compile(program, engine="inductor", strict=True)(second)
    torch.testing.assert_close(second, first)
    assert expected is None or torch.equal(got, expected)


def a_row_from_a_tensor(x, row):
    h = x @ x
    h[row.item()] = 7
    return h * 2, h


def a_checked_row_from_a_tensor(x, row):
    h, i = x @ x, row.item()
    torch._check(i >= 0)
    torch._check(i < 4)
    h[i] = 7
    return h * 2, h


@pytest.mark.parametrize(("program", "fires"), [(a_row_from_a_tensor, False), (a_checked_row_from_a_tensor, True)])
@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_where_a_tensor_says(program, fires):
    """A place that may count from the end has a symbol of its own, of which no node of the graph would know."""
    x, recorder = torch.rand(4, 4), Recorder()
    compiled = eductor.compile(program, engine="inductor", strict=True, instruments=[recorder])
    for row in map(torch.tensor, (1, 3) if fires else (1, 3, -1)):
        assert all(map(torch.equal, compiled(x, row), program(x, row)))
    records = [r for r in recorder.records if r.name == "reinplace_inplaceable_ops"]
    assert {r.changed for r in records} == {fires}
    assert fires or all("the part that it writes depends on data" in str(r.rejects) for r in records)


def test_what_is_patched_is_where_it_was():
    """Private names of torch: a version that moves them must be looked at."""
    from torch._inductor import graph, ir, lowering, scheduler

    with active():
        patched = (
            *(ir.FallbackKernel.create, scheduler.SchedulerNode.recompute_size_and_body),
            *(lowering.mutate_to, graph.make_fallback, scheduler.Scheduler.fusable_weak_dep),
        )
        for function in patched:
            assert function.__wrapped__.__module__.startswith("torch._inductor")


def test_adding_to_elements_in_a_transposed_tile_stays_in_bounds():
    """The gradient of an interpolation in channels last: its loop reads a tile turned around, and adds by index."""

    def program(x):
        return torch.nn.functional.interpolate(x * 1, scale_factor=2).sin()

    compiled = eductor.compile(program, engine="inductor", strict=True)
    found = []
    for call in (program, compiled):
        x = torch.linspace(0, 1, 192).view(2, 4, 4, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
        y = call(x)
        found.append(torch.autograd.grad(y, x, torch.ones_like(y))[0])
    torch.testing.assert_close(found[1], found[0])


def test_adding_to_elements_in_a_transposed_tile_by_one_thread(one_thread):
    """The gradient of windows that overlap, in another layout: the vectors of each row are added one after the other."""

    def program(x):
        return (x * 1).unfold(-2, 2, 1).transpose(0, 3)

    compiled = eductor.compile(program, engine="inductor", strict=True)
    found = []
    for call in (program, compiled):
        x = torch.linspace(0, 1, 256, dtype=torch.float64).view(2, 16, 8).requires_grad_()
        y = call(x)
        gradient = torch.linspace(1, 2, y.numel(), dtype=y.dtype).view(y.shape)
        found.append(torch.autograd.grad(y, x, gradient)[0])
    torch.testing.assert_close(found[1], found[0])
