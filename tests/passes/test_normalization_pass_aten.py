"""normalization_pass_aten: one form for what cuts, joins and turns; the same pieces, memory and gradients."""

from __future__ import annotations

import pytest
import torch
from both_dialects import DIALECTS, compiled, fires, leaf, refuses, run
from hypothesis import given, settings
from hypothesis import strategies as st

from eductor.graph.reading import spellings
from eductor.passes.normalization import _RULES, normalization_pass_aten
from eductor.pipeline import f32
from eductor.testing import assert_pass, check_contract

X = torch.randn(4, 8, 6)


def test_contract():
    check_contract(normalization_pass_aten, "pre_grad")


def test_every_form_is_a_function_of_torch():
    kept = {p for p in _RULES if spellings.function_of(p) is None}
    assert {p._qualified_op_name for p in kept} <= {"aten::mT", "aten::numpy_T"}


def through(call):
    """Pieces that are read and not returned."""
    return lambda x: sum(piece.sin().sum() for piece in call(x))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("call", "sizes", "dim"),
    [
        (lambda x: x.chunk(3, -2), [3, 3, 2], 1),
        (lambda x: torch.chunk(x, chunks=5, dim=1), [2, 2, 2, 2], 1),
        (lambda x: x.split(3, dim=-2), [3, 3, 2], 1),
        (lambda x: torch.split(x, [5, 3], -2), [5, 3], 1),
        (lambda x: torch.split(x, (2, 0, 2)), [2, 0, 2], 0),
        (lambda x: x.split_with_sizes([1, 5], -1), [1, 5], 2),
        (lambda x: x.tensor_split(3, 1), [3, 3, 2], 1),
        (lambda x: torch.tensor_split(x, (2, 5), dim=-2), [2, 3, 3], 1),
        (lambda x: torch.hsplit(x, 2), [4, 4], 1),
        (lambda x: torch.vsplit(x, [1]), [1, 3], 0),
        (lambda x: x.dsplit(3), [2, 2, 2], 2),
        (lambda x: torch.unsafe_chunk(x, 3, -1), [2, 2, 2], 2),
        (lambda x: torch.unsafe_split(x, 4, 1), [4, 4], 1),
        (lambda x: torch.unsafe_split_with_sizes(x, [1, 3]), [1, 3], 0),
    ],
)
def test_pieces(call, sizes, dim, dialect):
    after = run(normalization_pass_aten, through(call), X, dialect=dialect).after
    name = "torch.split_with_sizes" if dialect == "torch" else "torch.ops.aten.split_with_sizes.default"
    assert name in after, after
    assert f"split_sizes={sizes}, dim={dim}" in after or f"{sizes}, {dim})" in after or f"{sizes})" in after


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: x.unbind(-1)[0] + 1, "unbind(-, dim=2)"),
        (lambda x: torch.cat([x, x], -1), "cat(-, dim=2)"),
        (lambda x: torch.concat((x, x), dim=-3), "cat(-, dim=0)"),
        (lambda x: torch.hstack([x, x]), "cat(-, dim=1)"),
        (lambda x: torch.hstack([x[0, 0], x[0, 0]]), "cat(-, dim=0)"),
        (lambda x: torch.vstack([x, x]), "cat(-, dim=0)"),
        (lambda x: torch.dstack([x, x]), "cat(-, dim=2)"),
        (lambda x: torch.column_stack([x, x]), "cat(-, dim=1)"),
        (lambda x: torch.stack([x, x], -1), "stack(-, dim=3)"),
        (lambda x: x[:, :1].squeeze(-2) + 1, "squeeze(-, dim=1)"),
        (lambda x: x.unsqueeze(-1) + 1, "unsqueeze(-, dim=3)"),
        (lambda x: x.flatten(-2) + 1, "flatten(-, start_dim=1, end_dim=2)"),
        (lambda x: x.unflatten(-2, (2, 4)) + 1, "unflatten(-, dim=1, sizes=(2, 4))"),
        (lambda x: x.reshape(4, -1) + 1, "reshape(-, shape=[4, 48])"),
        (lambda x: x.permute(0, -1, 1) + 1, "permute(-, dims=[0, 2, 1])"),
        (lambda x: x[0].t() + 1, "transpose(-, dim0=0, dim1=1)"),
        (lambda x: x.mT + 1, "transpose(-, dim0=1, dim1=2)"),
        (lambda x: x[0].T + 1, "permute(-, dims=[1, 0])"),
        (lambda x: x.transpose(-1, 0) + 1, "transpose(-, dim0=2, dim1=0)"),
        (lambda x: x.swapaxes(-1, -2) + 1, "transpose(-, dim0=2, dim1=1)"),
        (lambda x: x.movedim(-1, 0) + 1, "movedim(-, source=2, destination=0)"),
    ],
)
def test_dimensions(call, expected, dialect):
    after = run(normalization_pass_aten, call, leaf(4, 8, 6), dialect=dialect).after
    name, rest = expected.split("(-", 1)
    if dialect == "torch":
        assert f"torch.{name}(" in after
        assert rest.strip() in after, after
    assert "-1" not in after.split("return")[0].replace("-> ", ""), after


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["chunk", "split", "sections", "tensor_split", "indices"]),
    st.integers(0, 12),
    st.integers(1, 9),
    st.sampled_from([0, -1, 1]),
    st.lists(st.integers(-6, 14), min_size=1, max_size=4),
)
def test_random_pieces_are_equal_in_values_strides_and_memory(kind, size, number, dim, indices):
    x = torch.arange(float(size * 3)).reshape((3, size) if dim else (size, 3))
    bounds = sorted({min(max(i, 0), size) for i in indices})
    sections = [b - a for a, b in zip([0, *bounds], [*bounds, size], strict=True)]
    calls = {
        "chunk": lambda t: t.chunk(number, dim),
        "split": lambda t: t.split(number, dim),
        "sections": lambda t: torch.split(t, sections, dim),
        "tensor_split": lambda t: torch.tensor_split(t, number, dim),
        "indices": lambda t: torch.tensor_split(t, indices, dim),
    }
    pieces = calls[kind](x)
    ran = run(normalization_pass_aten, lambda t: [p.sin() for p in calls[kind](t)], x)
    got = ran.module(x)
    assert all(torch.equal(a.sin(), b) for a, b in zip(pieces, got, strict=True))
    if sum(p.shape[dim] for p in pieces) == size:
        assert "split_with_sizes" in ran.after
        names = [p.shape[dim] for p in pieces]
        again = torch.split_with_sizes(x, names, dim)
        assert [(p.stride(), p.storage_offset()) for p in again] == [(p.stride(), p.storage_offset()) for p in pieces]


def test_two_spellings_become_one():
    assert_pass(
        normalization_pass_aten,
        before=lambda x: [p.sin() for p in x.chunk(2, -1)],
        after=lambda x: [p.sin() for p in torch.split_with_sizes(x, split_sizes=[2, 2], dim=1)],
        inputs=[f32(3, 4)],
    )


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x: torch.tensor_split(x, 2, 1)[0].sin(), "-0.0 becomes 0.0"),
        (lambda x: torch.unsafe_split(x, 4, 1)[0], "may be written"),
        (lambda x: torch.unsafe_split(x * 1, 4, 1)[0].add_(1), "may be written"),
        (lambda x: torch.hstack([x.sum(), x.sum()]), "reshaped before"),
        (lambda x: torch.vstack([x[0, 0], x[0, 0]]), "reshaped before"),
        (lambda x: x.sum().t() + 1, "less than two dimensions"),
    ],
)
def test_refusals(program, because):
    refuses(because, normalization_pass_aten, program, leaf(4, 8, 6))


def test_pieces_that_overlap():
    refuses("overlap", normalization_pass_aten, through(lambda x: x.tensor_split((5, 2), 1)), X)


def test_several_ranks():
    program = lambda x: torch.cat([x, x.new_zeros(0)], -1)  # noqa: E731
    refuses("differ in rank", normalization_pass_aten, program, torch.randn(2, 3))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_symbolic_sizes(dialect):
    how = {"dialect": dialect, "dynamic": True}
    refuses("is symbolic", normalization_pass_aten, through(lambda x: x.chunk(2, 1)), torch.randn(4, 6), **how)
    refuses("is symbolic", normalization_pass_aten, lambda x: x.reshape(-1, 2) + 1, torch.randn(4, 6), **how)
    after = fires(normalization_pass_aten, lambda x: torch.cat([x, x], -1) + 1, torch.randn(4, 6), **how)
    assert "1)" in after


def test_a_buffer_of_the_callers_is_still_written():
    def program(x, out):
        torch.cat([x, x], -1, out=out)
        return out + 1

    function = compiled(normalization_pass_aten, program)
    x, out = torch.randn(2, 3), torch.zeros(2, 6)
    assert torch.equal(function(x, out), torch.cat([x, x], -1) + 1)
    assert torch.equal(out, torch.cat([x, x], -1))


def test_a_write_through_a_piece_reaches_its_tensor():
    def program(x):
        a, b = x.chunk(2, -1)
        x.add_(1)
        return a * b

    function = compiled(normalization_pass_aten, program)
    one, two = torch.arange(6.0).reshape(1, 6), torch.arange(6.0).reshape(1, 6)
    assert torch.equal(function(one), program(two))
    assert torch.equal(one, two)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_dtypes(dtype):
    x = torch.ones(4, 8, dtype=dtype)
    assert "split_with_sizes" in fires(normalization_pass_aten, lambda t: [p + 1 for p in t.chunk(3, -1)], x)
