"""group_batch_fusion_passes: what becomes a batch, what must not, and that nobody notices."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from both_dialects import DIALECTS, captured, compiled, fires, leaf, reasons, refuses, run
from torch import nn

import eductor
from eductor.errors import PassFailed
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.group_batch_fusion_passes import group_batch_fusion_passes as batching
from eductor.testing import check_contract

N, D, H = 6, 4, 8


def test_contract():
    check_contract(batching, "pre_grad")


def pieces_of(x):
    return x.split(D, -1)


def calls(after, name):
    """How often a printed graph calls an operator."""
    return after.count(f"torch.ops.aten.{name}.")


def weights(count=N, rows=H, columns=D):
    return leaf(count, rows, columns)


# ------------------------------------------------------------------------------------------------------ what it does


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "unary",
    [
        torch.tanh,
        torch.sigmoid,
        F.relu,
        lambda x: x.relu(),
        F.gelu,
        F.silu,
        torch.neg,
        lambda x: x * 2,
        lambda x: 1 - x,
        lambda x: x.clamp(-1, max=1.0),
        lambda x: torch.clamp(x, min=0.0),
        lambda x: torch.nan_to_num(x, 7.0),
        lambda x: F.layer_norm(x, [H]),
    ],
)
def test_a_chain_of_linear_and_something_becomes_one(unary, dialect):
    def program(x, w):
        return torch.cat([unary(F.linear(piece, w[i])) for i, piece in enumerate(pieces_of(x))], -1)

    after = fires(batching, program, leaf(3, N * D), weights(), dialect=dialect)
    assert calls(after, "bmm") == 1
    assert "unbind" not in after
    assert "linear(" not in after


@pytest.mark.parametrize(
    "take",
    [
        lambda x: x.split(D, 1),
        lambda x: x.chunk(N, dim=-1),
        lambda x: x.view(3, N, D).unbind(1),
        lambda x: [x[:, i * D : (i + 1) * D] for i in range(N)],
        lambda x: x.view(3, N, D).transpose(0, 1).unbind(),
    ],
)
def test_pieces_of_one_tensor_are_not_stacked(take):
    def program(x, w):
        return torch.stack([F.linear(piece, w[i]) for i, piece in enumerate(take(x))], 1)

    after = fires(batching, program, leaf(3, N * D), weights())
    assert "stack" not in after


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("affine", ["own", "shared", "weight"])
def test_layer_norms(dtype, affine):
    def program(x, w, s, b):
        rows = [F.linear(piece, w[i]) for i, piece in enumerate(pieces_of(x))]
        own = {"own": lambda i: (s[i], b[i]), "shared": lambda i: (s[0], b[0]), "weight": lambda i: (s[i],)}[affine]
        return torch.cat([F.layer_norm(row, (H,), *own(i)) for i, row in enumerate(rows)], 1)

    inputs = [leaf(3, N * D), weights(), leaf(N, H), leaf(N, H)]
    inputs = [x.detach().to(dtype).requires_grad_() for x in inputs]
    after = fires(batching, program, *inputs)
    assert calls(after, "layer_norm") == 1


def test_casts_carry_a_batch_on():
    def program(x, w):
        return torch.cat([F.linear(piece, w[i]).double().tanh() for i, piece in enumerate(pieces_of(x))], 1)

    assert "unbind" not in fires(batching, program, leaf(3, N * D), weights())


def test_float64_stays_float64():
    def program(x, w, s, b):
        rows = [F.layer_norm(F.linear(piece, w[i]), [H], s[i], b[i]) for i, piece in enumerate(pieces_of(x))]
        return torch.cat(rows, 1)

    inputs = [x.detach().double() for x in (leaf(3, N * D), weights(), leaf(N, H), leaf(N, H))]
    torch.testing.assert_close(compiled(batching, program)(*inputs), program(*inputs))


def test_missing_biases_and_inputs_of_any_rank():
    def program(x, w, b):
        rows = [F.linear(piece, w[i], b[i]) for i, piece in enumerate(x.unbind(0))]
        return torch.stack(rows)

    for shape in ((D,), (3, D), (2, 3, D), (2, 3, 2, D)):
        fires(batching, program, leaf(N, *shape), weights(), leaf(N, H))
        fires(batching, lambda x, w: program(x, w, [None] * N), leaf(N, *shape), weights())


def test_inputs_of_their_own_are_stacked_where_it_pays():
    def program(w, *xs):
        return torch.cat([F.linear(x, w[i]).tanh() for i, x in enumerate(xs)], 1)

    after = fires(batching, program, weights(), *(leaf(3, D) for _ in range(N)))
    assert after.count("stack") >= 1


def test_value_and_gate_of_the_same_piece_are_two_batches():
    def program(x, w, v):
        rows = []
        for i, piece in enumerate(pieces_of(x)):
            rows.append(F.linear(piece, w[i]).tanh() * torch.sigmoid(F.linear(piece, v[i])))
        return torch.cat(rows, 1)

    after = fires(batching, program, leaf(3, N * D), weights(), weights())
    assert calls(after, "bmm") == 2
    assert calls(after, "unbind") == 0


def test_results_that_leave_keep_their_strides_and_memory():
    def program(x, w):
        return tuple(F.linear(piece, w[i]).tanh() for i, piece in enumerate(pieces_of(x)))

    x, w = torch.randn(3, N * D), torch.randn(N, H, D)
    expected, got = program(x, w), compiled(batching, program)(x, w)
    assert "tanh" in fires(batching, program, x, w)
    for a, b in zip(expected, got, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    assert len({t.untyped_storage().data_ptr() for t in got}) == N


def test_a_piece_that_is_viewed_flat_is_contiguous():
    def program(x, w):
        rows = [F.linear(piece, w[i]).tanh() for i, piece in enumerate(pieces_of(x))]
        return sum(row.view(-1) * (i + 2) for i, row in enumerate(rows))

    fires(batching, program, leaf(3, N * D), weights())


@pytest.mark.parametrize("dim", [0, 1, 2, -1])
@pytest.mark.parametrize("join", [torch.cat, torch.stack])
def test_joins_along_any_dimension(join, dim):
    def program(x, w):
        return join([F.linear(piece, w[i]) for i, piece in enumerate(x.unbind(1))], dim) + 1

    x, w = leaf(3, N, 2, D), weights()
    assert "unbind" not in fires(batching, program, x, w)
    expected, got = program(x, w), compiled(batching, program)(x, w)
    assert expected.stride() == got.stride()


def test_a_cat_of_results_that_are_views_has_memory_of_its_own():
    def program(x):
        return torch.cat([piece.detach() for piece in pieces_of(x)], 1)

    x = leaf(3, N * D)
    got = compiled(batching, program)(x)
    assert torch.equal(got, x)
    assert got.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_other_operands_of_a_cat_keep_their_place():
    def program(x, w, y):
        rows = [F.linear(piece, w[i]) for i, piece in enumerate(pieces_of(x))]
        return torch.cat([y, *rows, rows[0], y], 1)

    fires(batching, program, leaf(3, N * D), weights(), leaf(3, 5))


def test_dynamic_sizes():
    def program(x, *w):
        return torch.cat([F.linear(piece, w[i]).tanh() for i, piece in enumerate(x.unbind(1))], 1)

    inputs = [torch.randn(5, N, D), *torch.randn(N, H, D)]
    recorder = eductor.Recorder()
    options = {"pipeline": "pre_grad(group_batch_fusion_passes)", "engine": "aten", "strict": True}
    dynamic = eductor.compile(program, instruments=[recorder], **options)
    torch._dynamo.mark_dynamic(inputs[0], 0)
    dynamic(*inputs)
    assert recorder.records[0].changed
    for size in (5, 7, 2):
        x = torch.randn(size, N, D)
        torch.testing.assert_close(dynamic(x, *inputs[1:]), program(x, *inputs[1:]))
    assert len([r for r in recorder.records if r.name == batching.name]) == 1


class Ranking(nn.Module):
    """Features side by side, each with its own small layers."""

    def __init__(self, features, width=16, hidden=24):
        super().__init__()
        self.width = width
        self.values = nn.ModuleList(nn.Linear(width, hidden) for _ in range(features))
        self.gates = nn.ModuleList(nn.Linear(width, hidden) for _ in range(features))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(features))
        self.top = nn.Linear(features * hidden, 1)

    def forward(self, x):
        rows = []
        for value, gate, norm, piece in zip(self.values, self.gates, self.norms, x.split(self.width, 1), strict=True):
            rows.append(torch.sigmoid(gate(piece)) * norm(torch.tanh(value(piece))))
        return self.top(torch.cat(rows, 1))


@pytest.mark.parametrize("training", [True, False])
def test_a_ranking_model_becomes_a_handful_of_nodes(training):
    model, x = Ranking(64), torch.randn(32, 64 * 16)
    recorder = eductor.Recorder()
    options = {"pipeline": "pre_grad(group_batch_fusion_passes)", "engine": "aten", "strict": True}
    fast = eductor.compile(model, instruments=[recorder], **options)
    with torch.set_grad_enabled(training):
        expected, got = model(x), fast(x)
    torch.testing.assert_close(expected, got)
    (record,) = [r for r in recorder.records if r.name == "group_batch_fusion_passes"]
    inputs = len(list(model.parameters())) + 1
    assert record.nodes_before - inputs > 400
    assert record.nodes_after - inputs < 40
    if training:
        expected = torch.autograd.grad(expected.sum(), model.parameters())
        got = torch.autograd.grad(got.sum(), model.parameters())
        torch.testing.assert_close(expected, got)


def test_packed_weights_follow_the_parameters():
    model, x = Ranking(8), torch.randn(4, 8 * 16)
    fast = eductor.compile(model, pipeline="pre_grad(group_batch_fusion_passes)", engine="aten", strict=True)
    with torch.no_grad():
        torch.testing.assert_close(model(x), fast(x))
        model.values[3].weight.mul_(2)
        torch.testing.assert_close(model(x), fast(x))
        model.load_state_dict(Ranking(8).state_dict())
        torch.testing.assert_close(model(x), fast(x))


def test_a_model_that_is_exported_is_batched_too():
    model, x = Ranking(8), torch.randn(4, 8 * 16)
    module = torch.export.export(model, (x,)).module()
    expected = module(x)
    eductor.pre_grad_passes(module, [x], "", "")
    assert sum("bmm" in str(n.target) for n in module.graph.nodes) == 2
    torch.testing.assert_close(module(x), expected)


def test_gradients_that_are_undefined_stay_so():
    def program(x, w):
        return [F.linear(piece, w[i]).tanh() for i, piece in enumerate(pieces_of(x))]

    x, w = leaf(3, N * D), [leaf(H, D) for _ in range(N)]
    got = compiled(batching, lambda x, *w: program(x, w))(x, *w)
    grads = torch.autograd.grad(got[0].sum(), w, allow_unused=True)
    assert [g is None for g in grads] == [False] + [True] * (N - 1)


# ---------------------------------------------------------------------------------------------------- what it refuses


def test_a_write_to_an_input_between_the_members():
    def program(x, w):
        h = x * 1
        rows = []
        for i, piece in enumerate(pieces_of(h)):
            rows.append(F.linear(piece, w[i]))
            h.add_(1)
        return torch.stack(rows)

    refuses("may write what is read", batching, program, torch.randn(3, N * D), torch.randn(N, H, D))


def test_results_that_are_written():
    def program(x, w):
        rows = [F.linear(piece, w[i]) for i, piece in enumerate(pieces_of(x))]
        for row in rows:
            row.add_(1)
        return torch.stack(rows)

    refuses("its result is written", batching, program, torch.randn(3, N * D), torch.randn(N, H, D))


def test_an_in_place_relu_is_a_write():
    def program(x, w):
        rows = [F.linear(piece, w[i]) for i, piece in enumerate(pieces_of(x))]
        return torch.stack([F.relu(row, inplace=True) + row for row in rows])

    refuses("its result is written", batching, program, torch.randn(3, N * D), torch.randn(N, H, D))


def test_autocast_and_no_grad_tell_members_apart():
    def autocast(x, w):
        a, b = x.chunk(2, 1)
        first = F.linear(a, w[0])
        with torch.autocast("cpu", torch.bfloat16):
            second = F.linear(b, w[1])
        return first.tanh(), second.tanh()

    def no_grad(x, w):
        a, b = x.chunk(2, 1)
        first = F.linear(a, w[0])
        with torch.no_grad():
            second = F.linear(b, w[1])
        return first.tanh(), second.tanh()

    for program in (autocast, no_grad):
        refuses("no other call", batching, program, leaf(64, 2 * D), weights(2))


def test_mixed_dtypes_and_shapes_tell_members_apart():
    def program(x, y, v, w):
        return F.linear(x, v).tanh(), F.linear(y, w).tanh()

    x, w = torch.randn(64, D), torch.randn(H, D)
    refuses("no other call", batching, program, x, x.double(), w, w.double())
    refuses("no other call", batching, program, x, x, w, torch.randn(H + 1, D))
    refuses("no other call", batching, program, x, x, w, torch.randn(H, D).requires_grad_())


def test_other_attributes_tell_members_apart():
    def program(x):
        a, b = x.chunk(2, 1)
        return torch.cat([torch.nan_to_num(a, 7.0), torch.nan_to_num(b, 8.0)], 1)

    refuses("no other call", batching, program, torch.randn(3, 2 * D))


def test_a_bias_that_broadcasts_is_left():
    def program(x, w, b):
        return torch.stack([F.linear(piece, w[i], b) for i, piece in enumerate(pieces_of(x))])

    refuses("its bias", batching, program, torch.randn(3, N * D), torch.randn(N, H, D), torch.randn(1))


def test_a_chain_is_not_batched_with_itself():
    def program(x, w):
        for weight in w:
            x = F.linear(x, weight).tanh()
        return x

    refuses("no other call", batching, program, leaf(3, D), weights(N, D, D))


def test_detached_inputs_are_not_copied():
    refuses("does not pay", batching, lambda *xs: [x.detach() * 2 for x in xs], *torch.randn(4, 3))


def test_what_nobody_needs_takes_no_part():
    def program(x, w):
        rows = [F.linear(piece, w[i]).tanh() for i, piece in enumerate(pieces_of(x))]
        return rows[0]

    ran = run(batching, program, torch.randn(3, N * D), torch.randn(N, H, D))
    assert "bmm" not in ran.after


def test_zero_sizes_are_ordinary():
    def program(x, w):
        return torch.cat([F.linear(piece, w[i]).tanh() for i, piece in enumerate(pieces_of(x))], 1)

    x, w = torch.randn(0, N * D), torch.randn(N, H, D)
    got = compiled(batching, program)(x, w)
    assert got.shape == (0, N * H)


def test_linears_without_elements_are_left():
    def program(x, w, b):
        return torch.cat([F.linear(piece, w[i], b[i]) for i, piece in enumerate(x.unbind(1))], 1)

    for shape, weight in [((3, N, 0), (N, H, 0)), ((3, N, D), (N, 0, D)), ((0, N, D), (N, H, D))]:
        refuses("it has no elements", batching, program, leaf(*shape), leaf(*weight), leaf(*weight[:2]))


def test_results_that_do_not_lie_row_by_row_are_left():
    def program(x):
        turned = (x * 2).permute(0, 2, 1).split(1)
        return [piece.detach().to(torch.bfloat16) for piece in turned]

    x = torch.randn(N, D, H)
    refuses("its result is not row-major", batching, program, x)
    expected, got = program(x), compiled(batching, program)(x)
    assert [t.stride() for t in expected] == [t.stride() for t in got]


def test_duplicated_operands():
    def program(x, w):
        a, b = x.chunk(2, 1)
        return torch.cat([F.linear(p, w[i]).tanh() for i, p in enumerate((a, a, b, a, b, b))], 1)

    run(batching, program, leaf(3, 2 * D), weights())


def test_rules_can_be_left_out():
    def program(x, w):
        return torch.cat([F.linear(piece, w[i]).tanh() for i, piece in enumerate(pieces_of(x))], 1)

    inputs = torch.randn(3, N * D), torch.randn(N, H, D)
    module = captured(program, inputs)
    after = run_pass(batching.configured(without=["batch_tanh"]), "pre_grad", module).after
    assert after.count("tanh") >= N
    with pytest.raises(PassFailed, match="batch_than"):
        run_pass(batching.configured(without=["batch_than"]), "pre_grad", captured(program, inputs))


def test_it_is_not_exact():
    with torch.no_grad():
        recorder = eductor.Recorder()
        fast = eductor.compile(Ranking(8), engine="aten", profile="exact", instruments=[recorder])
        fast(torch.randn(4, 8 * 16))
    assert not any(r.name == "group_batch_fusion_passes" and r.changed for r in recorder.records)


def test_the_reason_says_the_figures():
    def program(x, y, v, w):
        return F.linear(x, v).tanh(), F.linear(y, w).tanh()

    w = torch.randn(256, 256)
    ran = run(batching, program, torch.randn(2, 256), torch.randn(2, 256), w, w + 1)
    assert any("saves" in reason and "us and costs" in reason for reason in reasons(ran))
