"""sink_cat_after_pointwise: the function moves to the operands where it is done on the way, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from both_dialects import DIALECTS, fires, leaf, refuses, result, run

from eductor import Recorder, pre_grad_passes
from eductor.graph import capture
from eductor.passes.pre_grad.sink_cat_after_pointwise import sink_cat_after_pointwise
from eductor.testing import check_contract


def test_contract():
    check_contract(sink_cat_after_pointwise, "pre_grad")


def two(x, y):
    """Operands that are computed on the way."""
    return [x.sin(), y.cos()]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "function",
    [
        torch.relu,
        F.relu,
        lambda t: t.tanh(),
        torch.sigmoid,
        F.gelu,
        lambda t: F.gelu(t, approximate="tanh"),
        F.silu,
        lambda t: -t,
        lambda t: t * 0.5,
        lambda t: 3 - t,
        lambda t: t.clamp(min=0.1),
        lambda t: F.leaky_relu(t, negative_slope=0.2),
        lambda t: t > 0.25,
    ],
)
def test_functions(function, dialect):
    program = lambda x, y: function(torch.cat(two(x, y), dim=-1))  # noqa: E731
    after = fires(sink_cat_after_pointwise, program, leaf(2, 3), leaf(2, 5), dialect=dialect)
    assert after.rindex("cat") > after.rindex("sin"), after
    assert after.strip().splitlines()[-2].strip().startswith("cat"), after


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    fires(
        sink_cat_after_pointwise,
        lambda x, y: torch.tanh(torch.cat(two(x, y))),
        leaf(2, 3, dtype=dtype),
        leaf(2, 3, dtype=dtype),
    )


def test_through_views():
    program = lambda x, y: (torch.cat(two(x, y), 1).view(2, 2, 3).transpose(1, 2).squeeze(1).relu() * 2).sum(0)  # noqa: E731
    fires(sink_cat_after_pointwise, program, leaf(2, 3), leaf(2, 3))


def test_a_chain_of_functions_goes_up_whole():
    after = fires(
        sink_cat_after_pointwise, lambda x, y: torch.cat(two(x, y)).relu().mul(2).exp(), leaf(2, 3), leaf(1, 3)
    )
    assert after.strip().splitlines()[-2].strip().startswith("cat"), after


def test_no_elements():
    fires(sink_cat_after_pointwise, lambda x, y: torch.cat(two(x, y)).relu(), leaf(0, 3), leaf(2, 3))


def test_unknown_sizes():
    program = lambda x, y: torch.cat(two(x, y)).relu()  # noqa: E731
    fires(sink_cat_after_pointwise, program, torch.randn(4, 3), torch.randn(2, 3), dynamic=True)


def write_to_an_operand(x, y):
    a = x.sin()
    joined = torch.cat([a, y.cos()])
    a.add_(1)
    return joined.relu() * 2, a * 2


def outside_of_autocast(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        joined = torch.cat(two(x, y))
    return joined.relu() * 2


def without_gradients(x, y):
    joined = torch.cat(two(x, y))
    with torch.no_grad():
        return joined.relu() * 2


def written_view(x, y):
    h = torch.cat(two(x, y), 1).view(6, 2).relu()
    h.add_(1)
    return h.sum()


def to_a_buffer(x, y):
    return torch.tanh(torch.cat(two(x, y)), out=torch.empty(4, 3))


@pytest.mark.parametrize(
    ("because", "program"),
    [
        ("is not computed by a kernel", lambda x, y: torch.tanh(torch.cat([x, y]))),
        ("is not computed by a kernel", lambda x, y: torch.tanh(torch.cat([x @ y.t(), y.cos() @ x.t()]))),
        (
            "has other users, which need it without the function",
            lambda x, y: (lambda a: (torch.cat([a, y.cos()]).relu(), a + 1))(x.sin()),
        ),
        ("used more than once", lambda x, y: (lambda c: c.relu() + c)(torch.cat(two(x, y)))),
        ("to one dtype first", lambda x, y: torch.cat([x.sin(), y.double().cos()]).tanh()),
        ("occurs twice", lambda x, y: (lambda a: torch.cat([a, a]).tanh())(x.sin())),
        ("escapes the graph", lambda x, y: torch.cat(two(x, y), 1).view(6, 2).relu()),
        ("would be a view", written_view),
        ("a barrier", outside_of_autocast),
        ("a barrier", without_gradients),
        ("has other users, which need it without the function", write_to_an_operand),
    ],
)
def test_refusals(because, program):
    refuses(because, sink_cat_after_pointwise, program, leaf(2, 3), leaf(2, 3))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, y: F.dropout(torch.cat(two(x, y)), 0.5),
        lambda x, y: torch.cat(two(x, y)).relu_(),
        lambda x, y: torch.cat(two(x, y)) * x.sum(),
        lambda x, y: torch.cat(two(x, y)).clone(),
        to_a_buffer,
    ],
)
def test_is_no_candidate(program):
    assert not run(sink_cat_after_pointwise, program, torch.randn(2, 3), torch.randn(2, 3)).record.changed


def test_an_operand_that_occurs_twice_is_computed_once():
    after = fires(sink_cat_after_pointwise, lambda x: (lambda a: torch.cat([a, a]).tanh())(x.sin()), torch.randn(2, 3))
    assert after.count("aten.tanh.default(") == 1


def test_the_layout_of_a_cat():
    program = lambda x, y: torch.cat(two(x, y), 1).relu()  # noqa: E731
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    ran = run(sink_cat_after_pointwise, program, x, x)
    assert ran.record.changed
    assert result(ran.module, x, x).stride() == program(x, x).stride()


def reasons(program, inputs, **options):
    recorder = Recorder()
    module = capture(program, inputs, "torch")
    pre_grad_passes(module, options={"pipeline": options.pop("text"), "instruments": [recorder], **options})
    return [r.reason for r in recorder.records[0].rejects]


def test_it_must_pay():
    program = lambda x, y: torch.cat(two(x, y)).relu()  # noqa: E731
    inputs = [torch.randn(2, 3), torch.randn(2, 3)]
    name = "sink_cat_after_pointwise"
    assert (
        "the engine does not fuse elementwise calls"
        in reasons(program, inputs, text=f"pre_grad({name})", engine="aten")[0]
    )
    assert "on 2 operands" in reasons(program, inputs, text=f"pre_grad({name}(max_operands=1))")[0]


def test_it_is_not_exact():
    """On the CPU, the last elements of a tensor are not rounded as the others are, and each part has last elements."""

    def program(x, y):
        return torch.cat([x * 2, y * 2]).sigmoid()

    assert sink_cat_after_pointwise.contract.numerics == "reassociates"
    assert "sigmoid" in fires(sink_cat_after_pointwise, program, torch.randn(1003), torch.randn(1003))
