"""Reduction: a graph on which a pass fails gets small, still runs, and still fails in the same way."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

import eductor
from eductor import graph_pass
from eductor.graph import capture
from eductor.observe.bisect.reduce_graph import TRIALS, Reduction

aten = torch.ops.aten

# Passes stand at the top level, so that a reproducer can import them.


@graph_pass(stage="post_grad", numerics="exact")
def atan_wrong(graph, rewrite):
    """Takes a hyperbolic tangent for an arc tangent."""
    for node in graph.find(aten.atan):
        rewrite.update(node, target=aten.tanh.default)


@graph_pass(stage="pre_grad", numerics="exact")
def atan_wrong_captured(graph, rewrite):
    """Takes a hyperbolic tangent for an arc tangent, in the captured graph."""
    for node in list(graph.find(aten.atan)):
        rewrite.replace(node, torch.tanh, *node.all_input_nodes)


@graph_pass(stage="pre_grad", numerics="exact")
def detached(graph, rewrite):
    """Cuts the gradient behind an arc tangent."""
    for node in list(graph.find(aten.atan)):
        (x,) = node.all_input_nodes
        cut = rewrite.insert(torch.Tensor.detach, x, before=node)
        zero = rewrite.insert(torch.mul, x, 0.0, before=node)
        rewrite.update(node, args=(rewrite.insert(torch.add, cut, zero, before=node),), target=torch.atan)


@graph_pass(stage="pre_grad", numerics="exact")
def read_after_write(graph, rewrite):
    """Moves a product behind the write to its operand."""
    for node in list(graph.find(aten.mul)):
        for write in [n for n in graph.nodes if n.name.startswith("add_")]:
            if node < write and write.args[0] in node.all_input_nodes:
                rewrite.move(node, before=write.next)


@graph_pass(stage="post_grad", numerics="exact")
def wrong_part(graph, rewrite):
    """Takes the largest values for the smallest ones."""
    for node in graph.find(aten.sort):
        rewrite.update(node, args=(*node.args[:2], not node.args[2] if len(node.args) > 2 else True))


@graph_pass(stage="post_grad", numerics="exact")
def atan_crashes(graph, rewrite):
    """Raises at the sight of an arc tangent."""
    for node in graph.nodes:
        if node.target is aten.atan.default:
            raise ValueError("planted")


@pytest.fixture
def smallest(tmp_path):
    """The smallest graph on which a planted pass is wrong; its reproducer is run, too."""

    def smallest(fn, *args, nodes, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = eductor.bisect(fn, args, options={"engine": "aten", "repro_dir": tmp_path, **options})
        assert found.module is not None, str(found)
        assert len(found.module.graph.nodes) <= nodes, str(found)
        again = subprocess.run([sys.executable, found.reproducer], capture_output=True, text=True, cwd="/", timeout=120)
        assert again.returncode == 1, again.stdout + again.stderr
        return found

    return smallest


def deep(x):
    for i in range(12):
        x = (x * 0.1).cos() + x * (i + 1) / 10
    x = x.atan()
    for i in range(12):
        x = (x * 0.1).cos() + x * (i + 1) / 10
    return x


def test_a_deep_program(smallest):
    found = smallest(deep, torch.randn(3, 4), nodes=3, passes=[atan_wrong])
    assert found.address == "post_grad/atan_wrong@0"


def test_a_crash_without_an_edit_in_a_deep_program(smallest):
    smallest(deep, torch.randn(3, 4), nodes=10, passes=[atan_crashes])


def test_a_deep_program_with_gradients(smallest):
    found = smallest(deep, torch.randn(3, 4, requires_grad=True), nodes=3, passes=[atan_wrong_captured])
    assert found.rewrite.graph.role == "captured"


def test_a_fault_in_the_gradient_alone(smallest):
    found = smallest(deep, torch.randn(3, 4, requires_grad=True), nodes=3, passes=[detached])
    assert "gradient" in found.reason
    (x, *_) = found.module.graph.find_nodes(op="placeholder")
    assert x.meta["example_value"].requires_grad


def test_a_write(smallest):
    def program(x, y):
        z = (y.cos() + 1).sin()
        w = x.clone()
        v = w * 2
        w.add_(1)
        return v.sum() + z.sum(), w

    found = smallest(program, torch.randn(3), torch.randn(3), nodes=7, passes=[read_after_write])
    assert any(n.name.startswith("add_") for n in found.module.graph.nodes)


def test_a_node_of_several_values(smallest):
    def program(x):
        y = (x.cos() + 1).sin()
        values, places = y.sort(dim=0)
        return values * 2, places + 1

    smallest(program, torch.randn(5, 3), nodes=5, passes=[wrong_part])


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.linspace(1, 2, 4)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer((self.table * x.cos()).atan()) + torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("pass_", [atan_wrong, atan_wrong_captured])
def test_constants_and_parameters(smallest, pass_):
    smallest(Constant(), torch.randn(2, 4), nodes=3, passes=[pass_])


def test_a_branch(smallest):
    def program(x):
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return (y + 1).atan() * 2

    smallest(program, torch.randn(4), nodes=3, passes=[atan_wrong])


def test_a_fault_inside_of_a_branch(tmp_path):
    @graph_pass(stage="post_grad", numerics="exact")
    def in_branches(graph, rewrite):
        """Works on the graph itself, which has a branch."""
        for node in graph.find(aten.atan):
            rewrite.update(node, target=aten.tanh.default)

    def program(x):
        y = x.atan()
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (y,))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = eductor.bisect(
            program, [torch.randn(4)], options={"engine": "aten", "repro_dir": tmp_path, "passes": [in_branches]}
        )
    assert found.address == "post_grad/in_branches@0"
    assert len(found.module.graph.nodes) <= 4


def test_dynamic_sizes(tmp_path):
    def check(compiled):
        for n in (3, 5):
            x = torch.randn(n, 4)
            assert torch.allclose(compiled(x), (x * n).atan() + n)

    def program(x):
        return (x * x.shape[0]).atan() + x.shape[0]

    with warnings.catch_warnings(), torch._dynamo.config.patch(assume_static_by_default=False):
        warnings.simplefilter("ignore")
        found = eductor.bisect(
            program, check=check, options={"engine": "aten", "repro_dir": tmp_path, "passes": [atan_wrong]}
        )
    assert found.address == "post_grad/atan_wrong@0"
    assert found.module is not None, str(found)


# ------------------------------------------------------------------------------------------------------ the reduction


def has(*names):
    """A graph fails that uses calls of these names."""
    return lambda module, inputs: (
        {n.name for n in module.graph.nodes if n.op.startswith("call") and n.users} >= set(names)
    )


@pytest.mark.parametrize("hint", [True, False])
def test_it_stops_at_what_is_needed(hint):
    module = capture(lambda x, y: ((x + 1).sin() * y).cos().exp(), [torch.randn(3), torch.randn(3)])
    (sine,) = (n.name for n in module.graph.nodes if "sin" in str(n.target))
    before = module.code
    reduction = Reduction(module, [torch.randn(3), torch.randn(3)], has(sine))
    reduction.run([sine] if hint else [])
    assert len(reduction.module.graph.nodes) == 3
    assert len(reduction.inputs) == 1
    assert torch.equal(reduction.module(*reduction.inputs)[0], reduction.inputs[0].sin())
    assert module.code == before
    assert reduction.trials <= TRIALS


def test_a_graph_that_cannot_get_smaller_stays():
    module = capture(lambda x: x.sin(), [torch.randn(3)])
    reduction = Reduction(module, [torch.randn(3)], lambda *_: False)
    reduction.run()
    assert len(reduction.module.graph.nodes) == len(module.graph.nodes)


def test_writes_are_kept_while_they_matter():
    def program(x):
        y = x.clone()
        y.add_(1)
        return y * 2

    module = capture(program, [torch.randn(3)])
    (write,) = (n.name for n in module.graph.nodes if "add_" in n.name)
    reduction = Reduction(module, [torch.randn(3)], has(write))
    reduction.run()
    assert len(reduction.module.graph.nodes) <= 4
    reduction.module(*reduction.inputs)


def test_no_more_trials_than_allowed():
    def long(x):
        for _ in range(500):
            x = x + 1
        return x

    tried = []

    def fails(module, inputs):
        tried.append(1)
        return False

    Reduction(symbolic_trace(long), [torch.randn(3)], fails).run()
    assert len(tried) <= TRIALS
