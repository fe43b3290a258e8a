"""numpy_compat_normalization: numpy's names of arguments become torch's, in functions and methods."""

from __future__ import annotations

import operator

import pytest
import torch
from both_dialects import compiled, fires, leaf, run

from eductor.graph import capture, to_python
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.call_spellings import numpy_compat_normalization
from eductor.pipeline import f32
from eductor.testing import assert_pass, check_contract


def test_contract():
    check_contract(numpy_compat_normalization, "pre_grad")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: torch.sum(x, axis=1, keepdims=True), "torch.sum(l_x_, dim=1, keepdim=True)"),
        (lambda x: x.sum(axis=1), "l_x_.sum(dim=1)"),
        (lambda x: x.mean(axis=(0, 1), keepdims=True), "l_x_.mean(dim=(0, 1), keepdim=True)"),
        (lambda x: torch.cat([x, x], axis=-1), "dim=-1)"),
        (lambda x: torch.stack([x, x], axis=1), "dim=1)"),
        (lambda x: torch.add(x1=x, x2=x), "torch.add(input=l_x_, other=l_x_)"),
        (lambda x: torch.mul(x, x2=x), "torch.mul(l_x_, other=l_x_)"),
        (lambda x: x.add(x2=x), "l_x_.add(other=l_x_)"),
        (lambda x: torch.sin(x=x), "torch.sin(input=l_x_)"),
        (lambda x: torch.cos(a=x), "torch.cos(input=l_x_)"),
        (lambda x: torch.softmax(x, axis=-1), "dim=-1)"),
        (lambda x: torch.unbind(x, axis=1)[0] + 1, "dim=1)"),
        (lambda x: x.argmax(axis=0), "l_x_.argmax(dim=0)"),
    ],
)
def test_names(program, expected):
    assert expected in fires(numpy_compat_normalization, program, leaf(2, 3))


def test_the_program_is_the_same_but_for_names():
    assert_pass(
        numpy_compat_normalization,
        before=lambda x: torch.sum(x, axis=1, keepdims=True),
        after=lambda x: torch.sum(x, dim=1, keepdim=True),
        inputs=[f32(2, 3)],
    )


def test_compiled():
    program = lambda x: torch.amax(x, axis=1, keepdims=True) * x.std(axis=0)  # noqa: E731
    x = torch.randn(3, 4)
    assert torch.equal(compiled(numpy_compat_normalization, program)(x), program(x))


def by_hand(function, *args, **kwargs):
    """A graph with a call that no program is captured as."""
    module = capture(lambda x: x.sin() + 1, [torch.randn(2, 3)], "torch")
    sin = next(n for n in module.graph.nodes if "sin" in n.name)
    with module.graph.inserting_after(sin):
        call = module.graph.call_function(function, (sin, *args), kwargs)
    call.meta = dict(sin.meta)
    sin.replace_all_uses_with(call)
    call.args = (sin, *args)
    module.recompile()
    return run_pass(numpy_compat_normalization, "pre_grad", module)


def test_both_spellings_at_once():
    ran = by_hand(torch.sum, dim=1, axis=1)
    assert not ran.record.changed
    assert "under two names" in ran.record.rejects[0].reason


def a_function_of_the_users(tensor, axis):
    return tensor


def test_who_owns_the_name_keeps_it():
    ran = by_hand(a_function_of_the_users, axis=1)
    assert not ran.record.changed
    assert "may have other names" in ran.record.rejects[0].reason


def test_operators_take_no_numpy_names():
    """What is no spelling of numpy's there is nothing to look at."""
    module = capture(lambda x: torch.sum(x, dim=1) + 1, [torch.randn(2, 3)], "torch")
    ran = run_pass(numpy_compat_normalization, "pre_grad", module)
    assert not ran.record.changed
    assert not ran.record.rejects
    assert "dim=1" in to_python(module.graph)


def test_python_functions():
    """`tensordot` calls its operands a and b."""
    ran = run(numpy_compat_normalization, lambda x: torch.tensordot(a=x, b=x.t(), dims=1), torch.randn(2, 3))
    assert not ran.record.changed
    assert any("may have other names" in r.reason for r in ran.record.rejects)


def test_numbers_are_no_tensors():
    module = capture(lambda x: x * operator.add(x.shape[0], 1), [torch.randn(2, 3)], "torch", dynamic=True)
    assert not run_pass(numpy_compat_normalization, "pre_grad", module).record.changed
