"""Fake values: one accessor, comparisons without guards, updates that stop where nothing changed."""

from __future__ import annotations

import pytest
import torch
from torch.fx import symbolic_trace

from eductor import BadGraph
from eductor.graph import UNKNOWN, capture, known_equal, known_true, propagate, update, value_of
from eductor.graph.values.meta import difference

aten = torch.ops.aten


def calls(module):
    return [n for n in module.graph.nodes if n.op in ("call_function", "call_method")]


def test_both_dialects_have_values():
    for dialect in ("torch", "aten"):
        module = capture(lambda x: x.sin() + 1, [torch.randn(2, 3)], dialect)
        assert [tuple(value_of(n).shape) for n in calls(module)] == [(2, 3), (2, 3)]
    assert value_of(3) == 3
    assert value_of(symbolic_trace(lambda x: torch.sin(x)).graph.output_node()) is UNKNOWN


def test_propagate_needs_inputs_and_gives_values():
    module = symbolic_trace(lambda x, y: (x @ y).relu())
    with pytest.raises(BadGraph, match="no fake value for the inputs x, y"):
        propagate(module)
    with pytest.raises(BadGraph, match="2 inputs, 1 example inputs"):
        propagate(module, [torch.zeros(2, 3)])
    propagate(module, [torch.zeros(2, 3), torch.zeros(3, 4)])
    assert [tuple(value_of(n).shape) for n in calls(module)] == [(2, 4), (2, 4)]


def test_comparisons_of_symbols_install_no_guard():
    module = capture(lambda x, y: x.sin() + y.sum(), [torch.randn(4, 6), torch.randn(5)], "aten", dynamic=True)
    x, y = (value_of(p) for p in module.graph.find_nodes(op="placeholder"))
    env = x.fake_mode.shape_env
    before = len(env.guards)
    assert known_equal(x.shape[0], x.shape[0])
    assert not known_equal(x.shape[0], y.shape[0])
    assert not known_equal(x.shape[0], 4)
    assert known_true(x.shape[0] * 2 == 2 * x.shape[0])
    assert not known_true(x.shape[0] > 7)
    assert known_equal([x.shape[0], 3], (x.shape[0], 3))
    assert not known_equal([1], [1, 2])
    assert difference(x, y)
    assert len(env.guards) == before


@pytest.mark.parametrize(
    ("a", "b", "what"),
    [
        (torch.zeros(2), torch.zeros(3), "shape"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32), "dtype"),
        (torch.zeros(2), torch.zeros(2, device="meta"), "device"),
        (torch.zeros(2, 3), torch.zeros(3, 2).t(), "strides"),
        (torch.zeros(2), torch.zeros(3)[1:], "storage offset"),
        (torch.zeros(2, dtype=torch.cfloat), torch.zeros(2, dtype=torch.cfloat).conj(), "conjugate"),
        (torch.zeros(2), torch.nn.Parameter(torch.zeros(2)), "type"),
        ((torch.zeros(2),), (torch.zeros(2), torch.zeros(2)), "1 values and 2"),
        (1, 2, "1 and 2"),
    ],
)
def test_difference_names_what_differs(a, b, what):
    assert what in difference(a, b)
    assert difference(a, a) is None


def test_update_stops_where_nothing_changed():
    def program(x):
        for _ in range(20):
            x = x.sin()
        return x

    module = capture(program, [torch.randn(2, 3)], "aten")
    first = calls(module)[0]
    first.target = aten.cos.default
    assert update(module, [first]) == 1
    first.target = aten.sum.default
    assert update(module, [first]) == 20
    assert all(value_of(n).shape == () for n in calls(module))


def test_update_follows_dtype_strides_and_requires_grad():
    module = capture(lambda x: x.clone().cos(), [torch.randn(2, 3)], "aten")
    clone, cos = calls(module)
    clone.target, clone.args = aten.t.default, (clone.args[0],)
    update(module, [clone])
    assert value_of(cos).stride() == (1, 3)
    clone.target, clone.kwargs = aten._to_copy.default, {"dtype": torch.float64}
    update(module, [clone])
    assert value_of(cos).dtype is torch.float64


def test_update_honours_switches_and_leaves_the_ambient_state_alone():
    def program(x, w):
        with torch.no_grad():
            a = x * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = x @ w
        return a, b

    module = capture(program, [torch.randn(3, 3, requires_grad=True), torch.randn(3, 3)], "torch")
    for node in module.graph.nodes:
        if node.op.startswith("call") and "example_value" in node.meta:
            del node.meta["example_value"]
            node.meta.pop("val", None)
    product, matmul = (n for n in calls(module) if "autocast" not in n.name and "grad" not in n.name)
    state = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    update(module, module.graph.nodes)
    assert value_of(product).requires_grad is False
    assert value_of(matmul).dtype is torch.bfloat16
    assert value_of(matmul).requires_grad is True
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")) == state


def test_update_does_not_run_metadata_writes_twice():
    module = capture(lambda x: x.clone().unsqueeze_(0) + 1, [torch.randn(2, 3)], "torch")
    update(module, calls(module))
    assert tuple(value_of(calls(module)[-1]).shape) == (1, 2, 3)


def test_unbacked_sizes_are_not_invented_anew():
    module = capture(lambda x: x.nonzero().sum(), [torch.randn(4)], "torch")
    nonzero = calls(module)[0]
    before = value_of(nonzero)
    update(module, [nonzero])
    assert value_of(nonzero) is before
