"""remove_noop_pass: what goes, what must stay, before autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from both_dialects import DIALECTS, compiled, fires, leaf, reasons, refuses, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.remove_noop_pass import remove_noop_pass
from eductor.pipeline import bf16, f32, f64, i64
from eductor.testing import assert_pass, check_contract


def test_contract():
    check_contract(remove_noop_pass, "pre_grad")


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.dropout(x, 0.3, False),
        lambda x: F.dropout(x, p=0.0, training=True),
        lambda x: F.dropout(x, training=False, inplace=True),
        lambda x: F.dropout1d(x, 0.3, training=False),
        lambda x: F.alpha_dropout(x, 0.3),
        lambda x: F.feature_alpha_dropout(x, 0.3, training=False),
        lambda x: torch.dropout(x, 0.3, train=False),
        lambda x: x.to(torch.float32),
        lambda x: x.to("cpu"),
        lambda x: x.to(x),
        lambda x: x.to(torch.float32, copy=True),
        lambda x: x.float(),
        lambda x: x.cpu(),
        lambda x: x.type(torch.float32),
        lambda x: x.type_as(x),
        lambda x: x.contiguous(),
        lambda x: x.view(2, -1, 4),
        lambda x: x.reshape(2, 3, 4),
        lambda x: x.view(x.shape),
        lambda x: x.expand(2, -1, 4),
        lambda x: x.expand_as(x),
        lambda x: x.view_as(x),
        lambda x: x.permute(0, 1, -1),
        lambda x: x.transpose(1, -2),
        lambda x: x.squeeze(),
        lambda x: x.squeeze(1),
        lambda x: x[:],
        lambda x: x.clone(),
        lambda x: x.repeat(1, 1, 1),
        lambda x: x.tile(1),
        lambda x: F.pad(x, (0, 0)),
        lambda x: torch.cat([x]),
        lambda x: x * 1,
        lambda x: 1.0 * x,
        lambda x: torch.mul(x, 1),
        lambda x: x / 1,
        lambda x: x.div(1.0),
        lambda x: x - 0,
        lambda x: torch.sub(x, 0.0),
        lambda x: x**1,
        lambda x: x.pow(1.0),
    ],
)
def test_goes(call):
    # A gradient of -0.0 comes back as it is: the verifier compares bits.
    spec = f32(2, 3, 4)
    assert_pass(remove_noop_pass, lambda x: call(x.sin()) * -0.5, lambda x: x.sin() * -0.5, [spec])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.dropout(x, 0.3, False),
        lambda x: x.view(2, 3),
        lambda x: x.clone(),
        lambda x: x * 1,
        lambda x: x - 0,
        lambda x: torch.cat([x], -1),
        lambda x: x[:].contiguous(),
        lambda x: x.expand(2, 3).transpose(0, 0),
    ],
)
def test_goes_in_both_dialects(call, dialect):
    after = fires(remove_noop_pass, lambda x: call(x.sin()).cos(), leaf(2, 3), dialect=dialect)
    assert after.count(" = ") == 2 + ("_guards_fn" in after), after


@pytest.mark.parametrize(
    ("call", "spec"),
    [
        (lambda x: x + 0, i64(4)),
        (lambda x: x * 1, i64(4)),
        (lambda x: torch.floor(x), i64(4)),
        (lambda x: x * 1, bf16(4)),
        (lambda x: x / 1, f64(4)),
        (lambda x: x.double(), f64(4)),
    ],
)
def test_goes_in_other_dtypes(call, spec):
    assert_pass(remove_noop_pass, lambda x: call(x) * 2, lambda x: x * 2, [spec])


X = torch.randn(2, 3)


@pytest.mark.parametrize(
    ("because", "program", "x"),
    [
        ("-0.0 becomes 0.0", lambda x: (x + 0).sin(), X),
        ("-0.0 becomes 0.0", lambda x: (x - (-0.0)).sin(), X),
        ("dtype", lambda x: (x * 1.0).sin(), torch.arange(4)),
        ("dtype", lambda x: (x / 1).sin(), torch.arange(4)),
        ("dtype", lambda x: x * 1 + 2, torch.tensor([True, False])),
        ("dtype", lambda x: x.half() + 1, X),
        ("complex infinity", lambda x: (x * 1).abs(), torch.randn(3, dtype=torch.complex64)),
        ("strides", lambda x: x.t().contiguous().sin(), X),
        ("strides", lambda x: (x.expand(4, 2, 3) * 1).sin(), X),
        ("storage offset", lambda x: (x[1:] * 1).sin(), X),
        ("shape", lambda x: x.repeat(1, 1, 1).sin(), X),
        ("out= writes", lambda x: torch.mul(x, 1, out=torch.empty(2, 3)), X),
    ],
)
def test_is_no_no_op(because, program, x):
    refuses(because, remove_noop_pass, program, x)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.detach().sin(),
        lambda x: torch.add(x, 0.0, alpha=2).sin(),
        lambda x: torch.div(x, 1, rounding_mode="floor").sin(),
        lambda x: (0 - x).sin(),
        lambda x: (x * 2).sin(),
        lambda x: x.expand(4, 2, 3).sin(),
        lambda x: torch.cat([x, x]).sin(),
        lambda x: x.mul_(1).sin(),
    ],
)
def test_is_no_candidate(program):
    assert not run(remove_noop_pass, program, X).record.changed


def write_to_the_copy(x):
    y = x.clone()
    y.add_(1)
    return y + x


def write_to_the_source(x):
    h = x * 2
    y = h.clone()
    h.add_(1)
    return y * h


def write_to_the_source_after_a_product(x):
    h = x * 2
    y = h * 1
    h += 1
    return y + h


def copies_that_are_returned(x):
    h = x * 2
    return h, h.clone(), h.view(2, 3)


def view_of_a_copy_is_returned(x):
    return x.clone()[0]


@pytest.mark.parametrize(
    "program",
    [
        write_to_the_copy,
        write_to_the_source,
        write_to_the_source_after_a_product,
        copies_that_are_returned,
        view_of_a_copy_is_returned,
    ],
)
def test_a_copy_that_somebody_can_tell_apart_stays(program):
    ran = run(remove_noop_pass, program, torch.randn(2, 3))
    assert not ran.record.changed
    assert ran.record.rejects


@pytest.mark.parametrize(
    "call",
    [
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: x.to(torch.float32),
        lambda x: x.contiguous(),
        lambda x: F.dropout(x, p=0.0),
    ],
)
def test_the_very_argument_is_returned_and_written(call):
    def program(x):
        y = call(x)
        y.add_(1)
        return y

    function = compiled(remove_noop_pass, program)
    x = torch.randn(2, 3)
    expected = x + 1
    got = function(x)
    assert got is x
    assert torch.equal(x, expected)
    assert "dropout" not in fires(remove_noop_pass, program, torch.randn(2, 3))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_copy_without_a_gradient_stays(mode):
    def program(x):
        h = x.sin()
        with mode():
            y = h * 1
        return y * h

    ran = run(remove_noop_pass, program, leaf(2, 3))
    assert ran.record.changed is (mode is torch.enable_grad), reasons(ran)


def test_a_copy_of_what_the_caller_holds_stays_where_autograd_saves_it():
    def program(x):
        y = x.clone()
        return y.sin()

    refuses("autograd may save", remove_noop_pass, program, leaf(2, 3))
    assert run(remove_noop_pass, program, torch.randn(2, 3)).record.changed


def test_gradients_of_an_input_may_have_parts_from_outside_of_the_graph():
    def program(x):
        y = x * 1
        return y * 2 + y.sin()

    refuses("another order", remove_noop_pass, program, leaf(2, 3))
    assert run(remove_noop_pass, lambda x: program(x.cos()), leaf(2, 3)).record.changed


def test_gradients_are_added_in_the_same_order():
    def program(x):
        y = x.clone()
        return (y.sin() + y.exp()) * x.cos()

    refuses("in another order", remove_noop_pass, program, leaf(2, 3))
    assert run(remove_noop_pass, program, torch.randn(2, 3)).record.changed


def test_autocast_casts_a_power():
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.nn.functional.linear(x, x) * 1
        return h + 1

    assert "mul" not in fires(remove_noop_pass, program, torch.randn(3, 3))


def test_unknown_sizes():
    how = {"dynamic": True}
    assert "view" not in fires(remove_noop_pass, lambda x: x.view(x.shape).sin(), torch.randn(4, 6), **how)
    assert not run(
        remove_noop_pass, lambda x: x.view(x.shape[1], x.shape[0]).sin(), torch.randn(4, 6), **how
    ).record.changed


def test_no_elements():
    assert_pass(remove_noop_pass, lambda x: (x * 1).sin(), lambda x: x.sin(), [f32(0, 3)])


@pytest.mark.parametrize("dims", [0, -1, (0,), ()])
def test_no_dimensions(dims):
    assert_pass(remove_noop_pass, lambda x: x.sin().squeeze(dims) * 2, lambda x: x.sin() * 2, [f32()])


def test_without_fake_values_nothing_is_known():
    module = torch.fx.symbolic_trace(lambda x: x.half().clone() + 1)
    ran = run_pass(remove_noop_pass, "pre_grad", module)
    assert not ran.record.changed
    assert "the value of x is not known" in reasons(ran)[0]


class Traced(nn.Module):
    def __init__(self):
        super().__init__()
        self.same = nn.Identity()

    def forward(self, x):
        return self.same(x) + 1


def test_identity_module():
    module = torch.fx.symbolic_trace(Traced())
    assert run_pass(remove_noop_pass, "pre_grad", module).record.changed
    assert not any(n.op == "call_module" for n in module.graph.nodes)


def test_identity_module_with_a_hook_stays():
    model = Traced()
    model.same.register_forward_hook(lambda module, inputs, output: output + 1)
    module = torch.fx.symbolic_trace(model)
    ran = run_pass(remove_noop_pass, "pre_grad", module)
    assert not ran.record.changed
    assert "hooks" in reasons(ran)[0]


OPS = {
    "clone": lambda x: x.clone(),
    "times": lambda x: x * 1,
    "view": lambda x: x.reshape(x.shape),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "contiguous": lambda x: x.contiguous(),
    "to": lambda x: x.to(torch.float32),
    "part": lambda x: x[1:] if x.shape[0] > 1 else x,
    "t": lambda x: x.t(),
    "write": lambda x: x.add_(1),
    "sin": lambda x: x.sin(),
}


@settings(max_examples=5, deadline=None)
@example([("clone", 0), ("clone", 0), ("clone", 0)], [1])
@example([("t", 0), ("contiguous", 0), ("write", 0), ("clone", 1), ("clone", 0)], [5])
@given(
    st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 7)), min_size=1, max_size=8),
    st.lists(st.integers(0, 8), min_size=1, max_size=3),
)
def test_random_programs_keep_values_strides_writes_and_gradients(calls, returned):
    def program(x):
        values = [x * 2]
        unused = {0}
        for name, of in calls:
            of = min(of, len(values) - 1)
            unused = (unused - {of}) | {len(values)}
            values.append(OPS[name](values[of]))
        chosen = [values[min(i, len(values) - 1)] for i in returned]
        return (*chosen, sum(values[i].sum() for i in unused))

    x = leaf(3, 4)
    try:
        program(x)[-1].backward()
    except RuntimeError:  # eager cannot differentiate a program that writes what the backward needs
        x = x.detach()
    run(remove_noop_pass, program, x)
