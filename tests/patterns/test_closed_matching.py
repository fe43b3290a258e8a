"""Closed matching: what a pattern does not mention has its default, and a constant is compared with its type."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from pattern_tools import aten, changed, count, graph_of, matches, replaced, untouched

from eductor.errors import BadPattern
from eductor.patterns import const, op, var

x, y = var("x"), var("y")
X, Y = torch.linspace(-1, 2, 16).reshape(4, 4), torch.linspace(3, 5, 16).reshape(4, 4)
CUBE = torch.linspace(-2, 2, 64).reshape(4, 4, 4)


@pytest.mark.parametrize(
    ("pattern", "fits", "other"),
    [
        (op(aten.add, x, y), lambda a, b: torch.add(a, b), lambda a, b: torch.add(a, b, alpha=2)),
        (op(aten.add, x, y, alpha=2), lambda a, b: torch.add(a, b, alpha=2), lambda a, b: torch.add(a, b, alpha=3)),
        (op(aten.add, x, y, alpha=2), lambda a, b: torch.add(a, b, alpha=2), lambda a, b: a + b),
        (op(aten.sub, x, y), lambda a, b: a - b, lambda a, b: torch.sub(a, b, alpha=2)),
        (op(aten.div, x, y), lambda a, b: a / b, lambda a, b: torch.div(a, b, rounding_mode="floor")),
        (
            op(aten.div, x, y, rounding_mode="floor"),
            lambda a, b: torch.div(a, b, rounding_mode="floor"),
            lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        ),
        (op(aten.sum, x), lambda a, b: a.sum(), lambda a, b: a.sum(dtype=torch.float64)),
        (op(aten.sum, x, [-1]), lambda a, b: a.sum(-1), lambda a, b: a.sum(-1, keepdim=True)),
        (op(aten.sum, x, [1], True), lambda a, b: a.sum(-1, keepdim=True), lambda a, b: a.sum(-1)),
        (op(aten.mean, x, [-1]), lambda a, b: a.mean(1), lambda a, b: a.mean(1, dtype=torch.float64)),
        (op(aten.amax, x, [1]), lambda a, b: a.amax(1), lambda a, b: a.amax(0)),
        (op(aten.amax, x, [1], False), lambda a, b: a.amax(1), lambda a, b: a.amax(1, True)),
        (op(aten._softmax, x, -1, False), lambda a, b: a.softmax(1), lambda a, b: a.softmax(0)),
        (op(aten.gelu, x), lambda a, b: F.gelu(a), lambda a, b: F.gelu(a, approximate="tanh")),
        (op(aten.leaky_relu, x), lambda a, b: F.leaky_relu(a), lambda a, b: F.leaky_relu(a, 0.2)),
        (op(aten.clamp, x, 0.0), lambda a, b: a.clamp(0.0), lambda a, b: a.clamp(0.0, 1.0)),
        (op(aten.cumsum, x, 0), lambda a, b: a.cumsum(-2), lambda a, b: a.cumsum(0, dtype=torch.float64)),
        (op(aten.round, x), lambda a, b: a.round(), lambda a, b: a.round(decimals=1)),
        (op(aten.var, x, [1], correction=1), lambda a, b: a.var(1), lambda a, b: aten.var(a, [1], correction=0)),
        (op(aten.expand, x, [2, -1, 4]), lambda a, b: a.expand(2, 4, 4), lambda a, b: a.expand(3, 4, 4)),
        (op(aten.view, x, [-1, 8]), lambda a, b: a.reshape(2, 8), lambda a, b: a.reshape(8, 2)),
    ],
)
def test_an_argument_that_is_not_mentioned_has_its_default(pattern, fits, other):
    assert matches(pattern, graph_of(lambda a, b: (fits(a, b) * 2, b.cos()), [X, Y])), "it should match"
    assert not matches(pattern, graph_of(lambda a, b: (other(a, b) * 2, b.cos()), [X, Y])), "it should not match"


@pytest.mark.parametrize(
    ("pattern", "fits", "other"),
    [
        (op(F.softmax, x, -1), lambda a: F.softmax(a, dim=1), lambda a: F.softmax(a, -1, dtype=torch.float64)),
        (op(F.softmax, x, dim=-1), lambda a: a.softmax(1), lambda a: a.softmax(0)),
        (op(torch.add, x, x, alpha=2), lambda a: a.add(a, alpha=2), lambda a: a + a),
        (op(F.layer_norm, x, [4]), lambda a: F.layer_norm(a, (4,)), lambda a: F.layer_norm(a, (4,), eps=1e-3)),
        (op(F.dropout, x, 0.5, False), lambda a: F.dropout(a, 0.5, False), lambda a: F.dropout(a, 0.4, False)),
        (op("sum", x, 1), lambda a: torch.sum(a, dim=[-1]), lambda a: a.sum(1, keepdim=True)),
        (op(torch.std, x, 1), lambda a: a.std(1), lambda a: a.std(1, correction=0)),
    ],
)
def test_so_it_is_in_the_spellings_of_torch(pattern, fits, other):
    assert matches(pattern, graph_of(lambda a: fits(a) * 2, [X], "pre_grad"))
    assert not matches(pattern, graph_of(lambda a: other(a) * 2, [X], "pre_grad"))


@pytest.mark.parametrize("pattern", [op(aten.amax, x, [1], True), op(aten.amax, x, dim=[1], keepdim=True)])
@pytest.mark.parametrize(
    "program",
    [lambda a: aten.amax(a, [1], True), lambda a: aten.amax(a, dim=[-1], keepdim=True), lambda a: a.amax(1, True)],
)
def test_keywords_and_positions_are_one(pattern, program):
    assert len(matches(pattern, graph_of(lambda a: program(a) * 2, [X]))) == 1


@pytest.mark.parametrize(
    ("want", "has", "fits"),
    [
        ([0, 1], [1, 0], True),
        ([-1, -3], [0, 2], True),
        ([-1], [2], True),
        (-1, [2], True),
        (2, [-1], True),
        ([0], [1], False),
        ([0, 1], [0], False),
        ([-4], [2], False),
        ([5], [2], False),
    ],
)
def test_dims_of_a_reduction_are_counted_from_either_end_and_have_no_order(want, has, fits):
    assert bool(matches(op(aten.sum, x, want), graph_of(lambda a: a.sum(has) * 2, [CUBE]))) is fits


@pytest.mark.parametrize(
    ("pattern", "program"),
    [
        (op(aten.permute, x, [0, 2, 1]), lambda a: a.permute(2, 0, 1)),
        (op(aten._fft_r2c, x, [0, 1], 0, True), lambda a: aten._fft_r2c(a, [1, 0], 0, True)),
        (op(aten.roll, x, [1, 2], [0, 1]), lambda a: a.roll([1, 2], [1, 0])),
        (op(aten.select_backward, x, [4, 4, 4], 0, 1), lambda a: aten.select_backward(a[0], [4, 4, 4], 2, 1)),
        (op(aten.unsqueeze, x, -1), lambda a: a.unsqueeze(2)),
    ],
)
def test_where_the_order_or_the_place_of_dims_matters_it_is_compared(pattern, program):
    assert not matches(pattern, graph_of(lambda a: program(a) * 2, [CUBE]))


def test_dims_of_a_new_dimension_count_it():
    assert matches(op(aten.unsqueeze, x, -1), graph_of(lambda a: a.unsqueeze(3) * 2, [CUBE]))
    assert matches(op(aten.stack, [x, y], -1), graph_of(lambda a, b: torch.stack([a, b], 2) * 2, [X, Y]))
    same = op(aten.select_backward, x, [4, 4, 4], -1, 1)
    assert matches(same, graph_of(lambda a: aten.select_backward(a, [4, 4, 4], 2, 1), [X]))


@pytest.mark.parametrize(
    ("want", "has", "fits"),
    [
        (2.0, 2.0, True),
        (2, 2.0, True),
        (2.0, 2, True),
        (2.0, 2.0000000001, False),
        (True, 1, False),
        (1, True, False),
        (0.0, -0.0, False),
        (0, -0.0, False),
        (-0.0, -0.0, True),
        (math.nan, math.nan, True),
        (math.nan, 0.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
    ],
)
def test_numbers_beside_floating_tensors(want, has, fits):
    module = graph_of(lambda a: a.pow(3.0) * 2, [X])
    power = next(n for n in module.graph.nodes if n.name == "pow_1")
    power.args = (power.args[0], has)
    assert bool(matches(op(aten.pow, x, want), module)) is fits
    assert bool(matches(op(aten.pow, x, const("c")), module))


@pytest.mark.parametrize(("want", "has", "fits"), [(2, 2, True), (2.0, 2, False), (2, 2.0, False), (True, 1, False)])
def test_numbers_beside_integers_have_a_type(want, has, fits):
    module = graph_of(lambda a: (a + has) * 3, [torch.arange(4)])
    assert bool(matches(op(aten.add, x, want), module)) is fits


def test_a_square_of_integers_is_not_their_floating_power():
    """100 * 100 is no int8; 100 ** 2.0 is a float."""
    given = [torch.tensor([100, 3], dtype=torch.int8)]
    product = op(aten.gt, op(aten.mul, x, x), 50)
    new = lambda x: (x.clone() * x) > 50  # noqa: E731
    untouched(replaced(product, new, lambda a: (a**2.0) > 50, given))
    assert count(changed(replaced(product, new, lambda a: (a**2) > 50, given)), aten.clone) == 1


def test_dtypes_devices_and_strings_are_compared():
    pattern = op(aten.full, [2], 1.0, dtype=torch.float32, device=torch.device("cpu"), pin_memory=False)
    module = graph_of(lambda a: a + torch.full([2], 1.0, dtype=torch.float32), [X[0, :2]])
    assert matches(pattern, module)
    for wrong in ({"dtype": torch.float64}, {"device": torch.device("meta")}, {"pin_memory": True}):
        kwargs = {"dtype": torch.float32, "device": torch.device("cpu"), "pin_memory": False, **wrong}
        assert not matches(op(aten.full, [2], 1.0, **kwargs), module)


def test_a_constant_is_no_tensor_and_a_tensor_no_constant():
    assert not matches(op(aten.mul, x, 2), graph_of(lambda a, b: a * b, [X, Y]))
    assert not matches(op(aten.mul, x, const("c")), graph_of(lambda a, b: a * b, [X, Y]))
    assert not matches(op(aten.mul, x, y), graph_of(lambda a: a * 2, [X]))


def test_an_argument_that_no_overload_has_is_an_error():
    for pattern in (op(aten.sin, x, 2), op(aten.sin, x, beta=2)):
        with pytest.raises(BadPattern, match="no overload takes"):
            matches(pattern, graph_of(lambda a: a.sin(), [X]))


def test_an_argument_that_another_overload_has_is_a_mismatch():
    assert not matches(op(aten.div, x, y, rounding_mode="floor"), graph_of(lambda a: a / a.sin(), [X]))


def test_an_operator_of_ones_own_counts_no_dims():
    """What `dim` of an unknown operator means, nobody knows: -1 may be `none`."""
    with torch.library._scoped_library("eductor_tests", "DEF") as library:
        library.define("along(Tensor x, int dim) -> Tensor")
        library.impl("along", lambda x, dim: x + dim, "CompositeExplicitAutograd")
        along = torch.ops.eductor_tests.along
        module = graph_of(lambda a: along(a, 1) * 2, [X])
        assert matches(op(along, x, 1), module)
        assert not matches(op(along, x, -1), module)
