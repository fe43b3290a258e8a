"""What passes that promise the same bits must leave alone: gradients summed in another order, or sent where none went."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from eductor.graph.capture import capture
from eductor.passes.concats.claims import split_cat_to_slices_pass, unbind_cat_to_view_pass
from eductor.passes.pre_grad.merge_concats_pass import merge_concats_pass
from eductor.passes.pre_grad.remove_noop_pass import remove_noop_pass
from eductor.passes.pre_grad.remove_reshape_pass import remove_reshape_pass
from eductor.passes.pre_grad.splits import remove_split_with_size_one_pass
from eductor.passes.pre_grad.transposed_products import linear_permute_fusion
from eductor.testing import run_pass


def operand_of_both(x):
    return torch.cat([torch.cat([x, x], 1), x], 1)


def the_same_cat_twice(x):
    inner = torch.cat([x, x])
    return torch.cat([inner, inner])


def copy_beside_its_source(x):
    return torch.cat([x.clone(), x, x])


def piece_beside_its_source(x):
    (piece,) = x.chunk(1, 1)
    return torch.cat([piece, x, piece])


def view_beside_its_source(x):
    y = x.view(24).view(4, 6)
    return torch.cat([y, y, x])


def slices_with_other_users(x):
    first, rest = x[:, :1], x[:, 1:]
    return torch.cat([first, rest, rest.chunk(2, 1)[1]], 1), rest


def unbound_with_other_users(x):
    a, b = x.view(4, 2, 3).unbind(1)
    return torch.cat([a, b], 1), a.clone(), x.sin(), a.exp()


@pytest.mark.parametrize(
    ("pass_", "program"),
    [
        (merge_concats_pass, operand_of_both),
        (merge_concats_pass, the_same_cat_twice),
        (remove_noop_pass, copy_beside_its_source),
        (remove_split_with_size_one_pass, piece_beside_its_source),
        (remove_reshape_pass, view_beside_its_source),
        (split_cat_to_slices_pass, slices_with_other_users),
        (unbind_cat_to_view_pass, unbound_with_other_users),
    ],
)
def test_three_gradients_are_not_summed_in_another_order(pass_, program):
    run = run_pass(pass_, "pre_grad", capture(program, [leaf()]))
    assert not run.record.changed, run.after
    assert any("summed in another order" in r.reason for r in run.record.rejects), run.record.rejects


def two_uses(x):
    h = x.sin()
    return torch.cat([h.clone(), h])


def no_other_use_between(x):
    h = x.sin()
    y = h.clone()
    z = y.sin()
    return z, h.cos(), h.exp()


@pytest.mark.parametrize("program", [two_uses, no_other_use_between])
def test_a_sum_that_stays_does_not_hinder(program):
    run = run_pass(remove_noop_pass, "pre_grad", capture(program, [leaf()]))
    assert run.record.changed, run.record.rejects
    assert torch.equal(gradient(run.module, leaf()), gradient(program, leaf()))


def cut_without_gradient(x):
    with torch.no_grad():
        (piece,) = x.chunk(1, 1)
    return torch.cat([piece, piece])


def copy_of_a_view_without_gradient(x):
    with torch.no_grad():
        y = x.expand(4, 6)
    return y.reshape(4, 6).sin()


def transposed_without_gradient(x, w):
    with torch.no_grad():
        y = x.mT
    return F.linear(y, w).mT.flatten(1)


@pytest.mark.parametrize(
    ("pass_", "program", "shapes"),
    [
        (remove_split_with_size_one_pass, cut_without_gradient, [(4, 6)]),
        (remove_noop_pass, copy_of_a_view_without_gradient, [(4, 6)]),
        (linear_permute_fusion, transposed_without_gradient, [(2, 6, 4), (3, 6)]),
    ],
)
def test_no_gradient_flows_where_none_did(pass_, program, shapes):
    inputs = [leaf(*shape) for shape in shapes]
    run = run_pass(pass_, "pre_grad", capture(program, inputs))
    assert gradient(program, *inputs) is None
    assert gradient(run.module, *inputs) is None, run.after


def test_a_copy_that_is_returned_can_be_written():
    def program(x):
        (piece,) = x.sin().chunk(1, 1)
        return piece.clone()

    run = run_pass(remove_noop_pass, "pre_grad", capture(program, [leaf()]))
    assert not run.record.changed
    assert any("autograd forbids writing" in r.reason for r in run.record.rejects)


def leaf(*shape):
    torch.manual_seed(0)
    return torch.randn(*(shape or (4, 6))).requires_grad_()


def gradient(program, x, *others):
    x = x.detach().requires_grad_()
    outputs = program(x, *others)
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    torch.autograd.backward([out.mul(i + 0.1).sum() for i, out in enumerate(outputs)])
    return x.grad
