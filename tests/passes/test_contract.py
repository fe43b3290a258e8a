"""Every registered pass keeps its contract, by its own examples and refusals."""

from __future__ import annotations

import pytest
import torch

from eductor.graph import GraphView, Rewriter
from eductor.graph.values.value_comparison import is_bitwise_equal
from eductor.pipeline import Registry, f32, graph_pass
from eductor.testing import check_contract

STEPS = [step for step in Registry.default().steps() if not step.is_slot]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.address)
def test_pass_keeps_its_contract(step):
    check_contract(step.load(), step.stage)


def relu_pass(**declared):
    """A pass under test: relu(relu(x)) is relu(x)."""
    declared = {"stage": "joint", "numerics": "exact", **declared}

    @graph_pass(name="drop_second_relu", **declared)
    def drop(graph: GraphView, rewrite: Rewriter) -> None:
        """Drops a relu of a relu."""
        for node in graph.find(torch.ops.aten.relu):
            inner = graph.bind(node)["self"]
            if not graph.is_call(inner, torch.ops.aten.relu):
                rewrite.reject("its operand is no relu", node)
            else:
                rewrite.replace(node, inner)

    return drop


def twice(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.relu().relu() + 1


def once(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.relu() + 1


def test_a_right_pass_passes():
    right = relu_pass()
    right.example(twice)
    right.refuses("no relu")(once)
    check_contract(right, "joint")


def test_a_pass_without_example_or_refusal_fails():
    with pytest.raises(AssertionError, match="no example"):
        check_contract(relu_pass(), "joint")
    alone = relu_pass()
    alone.example(twice)
    with pytest.raises(AssertionError, match="no refusal"):
        check_contract(alone, "joint")


def test_an_example_that_does_not_fire_fails():
    idle = relu_pass()
    idle.example(once)
    idle.refuses("no relu")(once)
    with pytest.raises(AssertionError, match="does not fire"):
        check_contract(idle, "joint")


def test_a_refusal_that_fires_or_gives_another_reason_fails():
    eager = relu_pass()
    eager.example(twice)
    eager.refuses("no relu")(twice)
    with pytest.raises(AssertionError, match="must refuse"):
        check_contract(eager, "joint")
    mumbling = relu_pass()
    mumbling.example(twice)
    mumbling.refuses("it is Tuesday")(once)
    with pytest.raises(AssertionError, match="Tuesday"):
        check_contract(mumbling, "joint")


def replacing(old, new, numerics="exact"):
    """A pass that puts one operator for another, rightly or wrongly."""

    @graph_pass(stage="joint", numerics=numerics, name="swap_operators")
    def swap(graph: GraphView, rewrite: Rewriter) -> None:
        """Puts one operator for another."""
        for node in graph.find(old):
            rewrite.replace(node, new, *node.args)
        rewrite.reject("nothing else to do")

    swap.refuses("nothing else")(lambda x=f32(2): x * 3)
    return swap


@pytest.mark.parametrize(
    ("program", "old", "new", "numerics"),
    [
        (lambda x=f32(8): x.sin() + 1, torch.ops.aten.sin, torch.ops.aten.cos, "exact"),
        (lambda x=f32(8): x.sin() + 1, torch.ops.aten.sin, torch.ops.aten.tanh, "reassociates"),
        (lambda x=f32(8): x.abs() + 0, torch.ops.aten.abs, torch.ops.aten.relu, "exact"),
        (lambda x=f32(8): -(x.neg()), torch.ops.aten.neg, torch.ops.aten.abs, "exact"),
    ],
    ids=["other function", "other function, not exact", "other function on negatives", "sign"],
)
def test_a_wrong_result_fails(program, old, new, numerics):
    wrong = replacing(old, new, numerics)
    wrong.example(program)
    with pytest.raises(AssertionError, match=r"output 0 differs"):
        check_contract(wrong, "joint")


def test_a_lost_sign_of_zero_fails():
    """x + 0 is x, but for minus zero: only awkward inputs show it."""

    @graph_pass(stage="joint", numerics="exact")
    def drop_zero(graph: GraphView, rewrite: Rewriter) -> None:
        """Drops the addition of zero."""
        for node in graph.find(torch.ops.aten.add):
            if graph.bind(node)["other"] == 0:
                rewrite.replace(node, graph.bind(node)["self"])
            else:
                rewrite.reject("not zero", node)

    drop_zero.example(lambda x=f32(8): (x + 0) * 1)
    drop_zero.refuses("not zero")(lambda x=f32(8): x + 1)
    with pytest.raises(AssertionError, match=r"0\.0 and -0\.0"):
        check_contract(drop_zero, "joint")


def test_a_lost_copy_fails():
    """An output that shares memory with an input, where it did not before."""

    @graph_pass(stage="joint", numerics="exact")
    def drop_clone(graph: GraphView, rewrite: Rewriter) -> None:
        """Drops every copy."""
        for node in graph.find(torch.ops.aten.clone):
            rewrite.replace(node, graph.bind(node)["self"])
        rewrite.reject("no copy")

    drop_clone.example(lambda x=f32(2, 3): x.clone().t())
    drop_clone.refuses("no copy")(lambda x=f32(8): x + 1)
    with pytest.raises(AssertionError, match="memory of output 0 differs: its own and that of input 0"):
        check_contract(drop_clone, "joint")


def test_a_pass_that_never_settles_fails():
    @graph_pass(stage="joint", numerics="exact")
    def flip_flop(graph: GraphView, rewrite: Rewriter) -> None:
        """Swaps the operands of every product, each time anew."""
        for node in list(graph.find(torch.ops.aten.mul)):
            rewrite.replace(node, torch.ops.aten.mul, node.args[1], node.args[0])
        rewrite.reject("no product")

    flip_flop.example(lambda x=f32(8), y=f32(8): x * y)
    flip_flop.refuses("no product")(lambda x=f32(8): x + 1)
    with pytest.raises(AssertionError, match="second run"):
        check_contract(flip_flop, "joint")


def test_bitwise_equal_sees_signs_and_nans():
    zero, minus, nan = torch.tensor([0.0]), torch.tensor([-0.0]), torch.tensor([float("nan")])
    assert is_bitwise_equal(nan, nan.clone())
    assert not is_bitwise_equal(zero, minus)
    assert is_bitwise_equal(torch.tensor([1 + 2j]), torch.tensor([1 + 2j]))
    assert not is_bitwise_equal(torch.tensor([1]), torch.tensor([1], dtype=torch.int32))
