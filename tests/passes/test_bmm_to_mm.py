"""bmm_to_mm: a batch of one is no batch. The rewriting is the same on every device; the contract says where it pays."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.joint.bmm_to_mm import bmm_to_mm
from eductor.pipeline import f32
from eductor.testing import assert_pass, assert_refused, check_contract

aten = torch.ops.aten


def test_keeps_its_contract():
    check_contract(bmm_to_mm, "joint")


def as_mm(a, b):
    return torch.mm(a.squeeze(0), b.squeeze(0)).unsqueeze(0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.bmm, as_mm),
        (lambda a, b: torch.bmm(a, b).sin(), lambda a, b: as_mm(a, b).sin()),
        (lambda a, b: torch.bmm(input=a, mat2=b) + 1, lambda a, b: as_mm(a, b) + 1),
    ],
)
def test_a_batch_of_one_is_a_product_of_matrices(before, after):
    assert_pass(bmm_to_mm, before, after, [f32(1, 4, 3), f32(1, 3, 5)], stage="joint")


def test_the_result_keeps_its_layout_whatever_lies_where():
    a, b = torch.randn(1, 3, 4).transpose(1, 2), torch.randn(3, 5, 1).permute(2, 0, 1)
    module = capture(torch.bmm, [a, b], "aten")
    assert run_pass(bmm_to_mm, "joint", module).record.changed
    assert module(a, b).stride() == torch.bmm(a, b).stride()
    torch.testing.assert_close(module(a, b), torch.bmm(a, b))


@pytest.mark.parametrize("shapes", [((2, 4, 3), (2, 3, 5)), ((0, 4, 3), (0, 3, 5))])
def test_other_batches_stay(shapes):
    assert_refused(bmm_to_mm, torch.bmm, [f32(*s) for s in shapes], "the pattern wants 1", stage="joint")


def test_a_batch_of_symbolic_size_stays():
    module = capture(torch.bmm, [torch.randn(4, 4, 3), torch.randn(4, 3, 5)], "aten", dynamic=True)
    run = run_pass(bmm_to_mm, "joint", module)
    assert not run.record.changed
    assert run.record.rejects[0].reason.endswith("the pattern wants 1")


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64, torch.bfloat16])
def test_elements_of_any_kind(dtype):
    a, b = torch.ones(1, 4, 3, dtype=dtype), torch.ones(1, 3, 5, dtype=dtype)
    module = capture(torch.bmm, [a, b], "aten")
    assert run_pass(bmm_to_mm, "joint", module).record.changed
    assert torch.equal(module(a, b), torch.bmm(a, b))


def test_a_matrix_without_elements_stays():
    """The first stride of a batch is 5, the one of a plain product in front of which a dimension was put is 0."""
    assert_refused(bmm_to_mm, torch.bmm, [f32(1, 0, 3), f32(1, 3, 5)], "no elements", stage="joint")


@pytest.mark.skipif(not hasattr(aten.bmm, "dtype"), reason="bmm of this torch has no out_dtype")
def test_a_dtype_of_its_own_stays():
    module = capture(torch.bmm, [torch.randn(1, 4, 3).half(), torch.randn(1, 3, 5).half()], "aten")
    (node,) = module.graph.find_nodes(op="call_function", target=aten.bmm.default)
    node.target = aten.bmm.dtype
    node.args = (*node.args, torch.float32)
    node.meta["val"] = node.meta["val"].float()
    run = run_pass(bmm_to_mm, "joint", module)
    assert not run.record.changed
    assert run.record.rejects[0].reason == "it asks for a dtype of its own"


def test_it_runs_only_where_it_pays():
    recorder = Recorder()
    module = capture(torch.bmm, [torch.randn(1, 4, 3), torch.randn(1, 3, 5)], "aten")
    eductor.joint_graph_passes(module, options={"joint_custom_post_pass": [bmm_to_mm], "instruments": [recorder]})
    (record,) = [r for r in recorder.records if r.name == "bmm_to_mm" and r.status != "unchanged"][-1:]
    assert record.status == "skipped"
    assert record.reason == "only on cuda; the graph is on cpu"


@pytest.mark.parametrize(
    ("engine", "dtype"),
    [("aten", torch.float32), ("aten", torch.float16), ("aten", torch.float64), ("inductor", torch.bfloat16)],
)
def test_compiled_in_training(engine, dtype):
    torch._dynamo.reset()
    recorder = Recorder()
    fast = eductor.compile(
        lambda a, b: torch.bmm(a.sin(), b).relu(),
        engine=engine,
        joint_custom_post_pass=[bmm_to_mm.anywhere()],
        instruments=[recorder],
        strict=True,
    )
    given = [torch.randn(1, 4, 3, dtype=dtype), torch.randn(1, 3, 5, dtype=dtype)]
    results = []
    for fn in (fast, lambda a, b: torch.bmm(a.sin(), b).relu()):
        inputs = [x.clone().requires_grad_() for x in given]
        result = fn(*inputs)
        result.sum().backward()
        results.append([result, *(x.grad for x in inputs)])
    # Forward, and a product for each gradient.
    assert [len(r.matches) for r in recorder.records if r.name == "bmm_to_mm" and r.status == "changed"] == [3]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
