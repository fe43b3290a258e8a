"""The passes over the view algebra: programs that go wrong where order, dimension, aliasing or time is overlooked."""

from __future__ import annotations

import pytest
import torch
from after_autograd import ran, targets

import eductor
from eductor.graph.capture import capture
from eductor.options import Options
from eductor.passes.concats import claims
from eductor.passes.concats.claims import (
    move_view_after_cat_aten_pass,
    select_cat_aten_pass,
    split_cat_aten_pass,
    unbind_stack_aten_pass,
)
from eductor.pipeline import Context, Registry
from eductor.pipeline.instruments import Instrument
from eductor.pipeline.pipeline import Pipeline
from eductor.stages import pre_grad_passes
from eductor.verification.value_comparison import is_bitwise_equal

aten = torch.ops.aten
VIEW_PASSES = (
    "fuse_chunk_reshape_concat_pass",
    "fuse_chunk_squeeze_cat_pass",
    "fuse_chunk_reshape_unsqueeze_concat_pass",
    "fuse_split_getitem_squeeze_cat",
    "merge_concats_pass",
    "merge_getitem_cat_pass",
    "merge_splits_pass",
    "move_reshape_out_of_split_stack_pass",
    "mutate_cat_pass",
    "remove_reshape_pass",
    "remove_split_ops_pass",
    "remove_split_with_size_one_pass",
    "split_cat_pass",
    "split_cat_to_slices_pass",
    "split_stack_to_cats_pass",
    "stack_to_unsqueeze_pass",
    "unbind_cat_to_view_pass",
    "unbind_stack_pass",
    "unbind_stack_to_slices_pass",
)


class Changed(Instrument):
    """Which passes changed something."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def after_pass(self, run) -> None:
        if run.status == "changed":
            self.names.append(run.step.name)


def split_and_cat(x):
    return torch.cat(torch.split(x, 2, 1), 1)


def cat_along_another_dimension(x):
    return torch.cat(torch.split(x, 2, 1), 0) * 2


def last_operand_of_another_parent(x):
    a, b = torch.split(x, 4, 1)
    _, _, e = torch.split(x.sin(), [2, 2, 4], 1)
    return torch.cat([a, b, e], 1)


def sections_of_size_zero(x):
    a, b, c, d = torch.split(x, [0, 2, 0, 6], 1)
    return torch.cat([c, d], 1) + 1, a, b.sin()


def moved_over_two_dimensions(x):
    y = x.reshape(2, 3, 4, 2)
    return torch.cat(y.unbind(0), 2).sin(), torch.stack(y.unbind(0), 3) * 2


def all_pieces_in_another_order(x):
    a, b, c = torch.unbind(x.reshape(3, 8, 2), 0)
    return torch.cat([b, a, c], 1) * 2, torch.stack([c, b, a]) * 2


def part_of_a_matrix(x):
    rows = x.unbind(0)
    return torch.stack([rows[0], rows[1], x[3]]) * 2, torch.stack([rows[1], rows[2]], 1) * 2


def reshape_of_a_permuted_stack(x):
    return torch.stack([t.reshape(6, 1, 4) for t in torch.chunk(x, 2, 1)], 1).view(-1) * 2


def one_section_used_twice(x):
    parts = torch.split(x, 8, 1)
    return parts[0].sin() + parts[-1].cos()


def cat_is_written_later(x):
    y = torch.cat(torch.split(x, 2, 1), 1)
    y.add_(1)
    return y, x * 2


def source_is_written_later(x):
    z = x * 1.5
    y = torch.cat(torch.split(z, 2, 1), 1)
    z.add_(1)
    return y * 2, z


def input_is_written_later(x):
    y = torch.stack(x.unbind(0))
    x.mul_(2)
    return y + x


def nested_cats(x):
    a, b, c, d = torch.chunk(x, 4, -1)
    return torch.cat([torch.cat([a, b], -1), torch.cat([c, d], dim=1)], axis=1) * 2


def a_piece_twice(x):
    a, b = torch.split(x, 4, 1)
    return torch.cat([a, a, b], 1) * 2


def without_gradient(x):
    with torch.no_grad():
        y = torch.cat(torch.split(x, 2, 1), 1)
    return y * x


def two_results_of_one_source(x):
    a, b, c, d = torch.split(x, 2, 1)
    return torch.cat([a, b], 1), torch.cat([b, c], 1) * 2, torch.stack([c, d]) * 3


def memory_is_looked_at(x):
    y = torch.cat([x[:, 2:4], x[:, 4:6]], 1)
    return torch.as_strided(y, (2, 2), (2, 1), 1) * 2


def strides_are_looked_at(x):
    y = torch.stack(x.unbind(1), 0)
    return y.view(-1) * y.stride(0)


def bits_are_looked_at(x):
    a, b = torch.split(x, 4, 1)
    return torch.cat([a.view(torch.int32), b.view(torch.int32)], 1) + x.sum()


PROGRAMS = [
    *(split_and_cat, cat_along_another_dimension, last_operand_of_another_parent, sections_of_size_zero),
    *(moved_over_two_dimensions, all_pieces_in_another_order, part_of_a_matrix, reshape_of_a_permuted_stack),
    *(one_section_used_twice, cat_is_written_later, source_is_written_later, input_is_written_later, nested_cats),
    *(a_piece_twice, without_gradient, two_results_of_one_source, memory_is_looked_at, strides_are_looked_at),
    bits_are_looked_at,
]


def outcome(fn, x):
    """What a caller can see of a call: results, their layout and sharing, the input afterwards, the gradient."""
    leaf = x.clone().requires_grad_()
    given = leaf * 1
    results = fn(given)
    results = results if isinstance(results, (list, tuple)) else (results,)
    seen = [(r.dtype, tuple(r.shape), r.stride(), r.requires_grad) for r in results]
    storages = [r.untyped_storage().data_ptr() for r in (*results, given)]
    shares = [storages.index(s) for s in storages]
    values = [r.detach().clone() for r in (*results, given)]
    sum(r.sum() * (i + 1) for i, r in enumerate(results) if r.requires_grad).backward()
    return seen, shares, [*values, leaf.grad]


def assert_same(fn, other, x):
    wanted, got = outcome(fn, x), outcome(other, x)
    assert got[:2] == wanted[:2]
    for a, b in zip(got[2], wanted[2], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_is_eager(program, dynamic):
    torch._dynamo.reset()
    compiled = eductor.compile(
        program, engine="aten", dynamic=dynamic, strict=True, debug=True, enable=["fuse_split_getitem_squeeze_cat"]
    )
    assert_same(program, compiled, torch.arange(48.0).reshape(6, 8))


class Program(torch.nn.Module):
    def __init__(self, fn) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, x):
        return self.fn(x)


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p is not without_gradient], ids=lambda p: p.__name__)
def test_exported_graphs_too(program):
    x = torch.arange(48.0).reshape(6, 8)
    module = torch.export.export(Program(program), (x.clone(),)).module()
    changed = Changed()
    pre_grad_passes(module, options={"instruments": [changed], "strict": True, "debug": True})
    wanted, got = program(x.clone()), module(x.clone())
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_every_view_pass_is_registered():
    names = [step.name for step in Registry.default().order("pre_grad")]
    assert set(VIEW_PASSES) <= set(names)


def test_every_claim_has_its_place_in_the_order():
    rows = {step.load(): step for step in Registry.default().steps() if step.module == claims.__name__}
    assert set(rows) == {p for p in vars(claims).values() if isinstance(p, claims.ConcatPass)}
    assert all(p.stages == (step.stage,) for p, step in rows.items())


def test_an_emission_that_reads_other_elements_is_caught(monkeypatch):
    """The check on index tensors is not idle."""
    from eductor.views.view_plan import ViewPlan, ViewStep

    emit = ViewPlan.emit

    def wrong(self, rewrite, **where):
        steps = tuple(
            ViewStep(s.op, ([*reversed(s.args[0])],)) if s.op is torch.ops.aten.permute else s for s in self.steps
        )
        return emit(ViewPlan(self.index_map, steps), rewrite, **where)

    monkeypatch.setattr(ViewPlan, "emit", wrong)
    module = capture(lambda x: torch.stack(x.unbind(0), 1) * 2, [torch.randn(3, 3, 3)])
    options = Options(debug=True, strict=True)
    with pytest.raises(eductor.EductorError, match="does not read the elements"):
        Pipeline.of(options).only("pre_grad/unbind_stack_pass").run("pre_grad", module, Context("pre_grad", options))


def test_exact_profile_keeps_the_order_of_gradient_sums():
    """Three users of one source: their gradients are added in eager's order, or the nest stays."""

    def program(x):
        return torch.cat(torch.split(x, 2, 1), 1) * 0.1 + x.sin() * 0.7 + x.cos() * 0.3

    compiled = eductor.compile(program, profile="exact")
    torch._dynamo.reset()
    x = torch.randn(64, 8)
    assert_same(program, compiled, x)


def test_what_leaves_begins_where_its_memory_begins():
    def program(x):
        rows = (x * 2).unbind(0)
        return torch.stack([rows[1], rows[2]])

    got = eductor.compile(program, engine="aten", strict=True)(torch.randn(4, 3))
    assert got.storage_offset() == 0


# ------------------------------------------------------------------------------------------- after autograd, by request


X = torch.arange(24.0).reshape(4, 6) - 0.0


@pytest.mark.parametrize(
    ("pass_", "program"),
    [
        (split_cat_aten_pass, lambda x: torch.cat(x.split(1, -1)[1:5], 1) * 2),
        (split_cat_aten_pass, lambda x: torch.cat(x.split([1, 2, 3], 1)[1:], -1) * 2),
        (split_cat_aten_pass, lambda x: torch.cat(x.split(2, 1), 0) * 2),
        (split_cat_aten_pass, lambda x: torch.cat([x[1:2], x[2:4]]) * 2),
        (select_cat_aten_pass, lambda x: torch.cat([x[i] for i in range(4)]) * 2),
        (select_cat_aten_pass, lambda x: torch.cat([x[:, i] for i in range(6)], -1) * 2),
        (select_cat_aten_pass, lambda x: torch.cat([x.t()[i] for i in range(1, 4)]) * 2),
        (unbind_stack_aten_pass, lambda x: torch.stack(x.unbind(1), -1) * 2),
        (unbind_stack_aten_pass, lambda x: torch.stack(x.unbind(0), 1) * 2),
        (unbind_stack_aten_pass, lambda x: torch.stack([x[1], x[2]], -1) * 2),
        (unbind_stack_aten_pass, lambda x: torch.cat([x[i].unsqueeze(-1) for i in range(4)], -1) * 2),
        (move_view_after_cat_aten_pass, lambda x: torch.cat([p.view(4, 3) for p in x.split(2)], 1) * 2),
        (move_view_after_cat_aten_pass, lambda x: torch.cat([p.view(2, 6) for p in x.view(24).split(12)], -1) * 2),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_cats_and_stacks_of_pieces_are_views(pass_, program, dtype):
    x = X.to(dtype)
    run = ran(pass_, program, x)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    left = {aten.cat.default, aten.stack.default, aten.narrow.default, aten.reshape.default}
    assert not left & {*targets(run.module)}
    assert is_bitwise_equal(run.module(x), program(x))
    assert run.module(x).stride() == program(x).stride()
    ran(pass_, program, x, dynamic=True)


@pytest.mark.parametrize(
    ("pass_", "program"),
    [
        (split_cat_aten_pass, lambda x: torch.cat(x.split(1)[1:3])),
        (select_cat_aten_pass, lambda x: torch.cat([x[0], x[1]])),
        (unbind_stack_aten_pass, lambda x: torch.stack(x.unbind(1), -1)),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_what_is_returned_stays_a_tensor_of_its_own(pass_, program):
    run = ran(pass_, program, X)
    assert run.record.changed
    assert run.module(X).untyped_storage().data_ptr() != X.untyped_storage().data_ptr()
