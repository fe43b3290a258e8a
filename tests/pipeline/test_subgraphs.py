"""Bodies of higher-order operators, and constants, are part of a graph: seen, compared, hashed, brought back."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import EductorWarning, PassFailed, Recorder
from eductor.graph import capture, from_python, is_equal, structural_hash, to_python, value_of

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def branching(true):
    def program(x):
        return torch.cond(x.sum() > 0, true, lambda x: x.neg(), (x,))

    return capture(program, [torch.ones(3)], "torch")


def bodies(graph):
    owner = graph.owning_module
    modules = [getattr(owner, str(n.target)) for n in graph.find_nodes(op="get_attr")]
    return [m for m in modules if isinstance(m, torch.fx.GraphModule)]


def to_exp(graph):
    """Edits the bodies, and nothing else."""
    for body in bodies(graph):
        for node in body.graph.nodes:
            if node.name.startswith("sin"):
                node.op, node.target = "call_function", torch.exp
        body.recompile()


def to_exp_and_fail(graph):
    to_exp(graph)
    raise RuntimeError("afterwards")


def test_bodies_and_constants_count():
    sine, exponential = branching(lambda x: x.sin()), branching(lambda x: x.exp())
    assert structural_hash(sine.graph) != structural_hash(exponential.graph)
    assert structural_hash(sine.graph) == structural_hash(branching(lambda x: x.sin()).graph)
    assert not is_equal(sine.graph, exponential.graph)
    assert is_equal(sine.graph, branching(lambda x: x.sin()).graph)
    ones, twos = (
        capture(lambda x, c=c: x + torch.tensor(c), [torch.ones(2)], "aten") for c in ([1.0, 1.0], [2.0, 2.0])
    )
    assert structural_hash(ones.graph) != structural_hash(twos.graph)


def test_a_pass_that_edits_a_body_counts_as_changed():
    module, recorder = branching(lambda x: x.sin()), Recorder()
    eductor.pre_grad_passes(module, options={"pre_grad_custom_pass": to_exp, "instruments": [recorder]})
    assert "pre_grad/to_exp" in recorder.changed()
    assert torch.equal(module(torch.ones(3)), torch.ones(3).exp())


def test_a_body_is_brought_back(tmp_path):
    module = branching(lambda x: x.sin())
    with pytest.warns(EductorWarning, match="to_exp_and_fail failed: RuntimeError: afterwards"):
        eductor.pre_grad_passes(module, options={"pre_grad_custom_pass": to_exp_and_fail, "repro_dir": tmp_path})
    assert torch.equal(module(torch.ones(3)), torch.ones(3).sin())


def test_a_written_constant_cannot_be_undone_and_says_so(tmp_path):
    module = capture(lambda x: x + torch.tensor([1.0, 2.0]), [torch.ones(2)], "aten")

    def zero(graph):
        for node in graph.find_nodes(op="get_attr"):
            getattr(graph.owning_module, str(node.target)).mul_(0)

    with pytest.raises(PassFailed, match="cannot be undone"):
        eductor.joint_graph_passes(module, options={"joint_custom_pre_pass": zero, "repro_dir": tmp_path})


def test_what_follows_a_higher_order_operator_has_values_after_a_round_trip():
    module = capture(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.neg(), (x,)) + 1, [torch.ones(3)])
    back = from_python(to_python(module.graph), module)
    assert all(value_of(n).shape == (3,) for n in back.graph.nodes if n.name == "add")
    assert is_equal(module.graph, back.graph)
