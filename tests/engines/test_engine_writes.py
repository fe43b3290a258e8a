"""What eager's kernels write, the code generator sees: it computes later values from the new memory, not the old."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import eductor
from eductor import EductorWarning, Recorder
from eductor.passes.post_grad.inplace.operators import CALLED
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
    with pytest.warns(EductorWarning, match="masked_scatter_.*no kernel but eager's"):
        got = eductor.compile(scattered, engine="inductor", pipeline=pipeline)(x, new)
    assert torch.equal(got, scattered(x, new))
