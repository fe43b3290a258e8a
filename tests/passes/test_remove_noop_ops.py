"""remove_noop_ops: what goes, what must stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eductor.graph import capture, from_python, to_python
from eductor.observe.manual.manual import run_pass
from eductor.passes.functional.remove_noop_ops import remove_noop_ops
from eductor.pipeline import b8, f32, i64
from eductor.testing import assert_pass, assert_refused

aten, prims = torch.ops.aten, torch.ops.prims


@pytest.mark.parametrize(
    ("before", "after", "inputs"),
    [
        (lambda x: x.clone().sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: aten.slice(x, 1, 0, 3).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: aten.slice(x, -1, None, None).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x, y: aten.slice_scatter(x, y, 1).sin(), lambda x, y: y.sin(), [f32(2, 3)] * 2),
        (lambda x: x.repeat(1, 1).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: aten.constant_pad_nd(x, [0, 0, 0, 0]).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: prims.convert_element_type(x, torch.float32).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: prims.device_put(x, torch.device("cpu")).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: x.round() + x.ceil() + x.trunc(), lambda x: x + x + x, [i64(4)]),
        (lambda x: (x**1).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: torch.cat([x]).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: x.view(2, -1).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: x.expand(2, 3).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: x.permute(0, 1).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: x.transpose(1, -1).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: aten.squeeze(x).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x, y: aten.copy(x, y).sin(), lambda x, y: y.sin(), [f32(2, 3)] * 2),
        (lambda x: aten._to_copy(x, dtype=torch.float32).sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: x.clone().view(2, 3).clone().sin(), lambda x: x.sin(), [f32(2, 3)]),
        (lambda x: aten.as_strided(x, [2, 3], [3, 1], 0).sin(), lambda x: x.sin(), [f32(2, 3)]),
    ],
)
def test_goes(before, after, inputs):
    assert_pass(remove_noop_ops, before, after, inputs, stage="post_grad")


@pytest.mark.parametrize(
    ("program", "inputs", "because"),
    [
        (lambda x: x.clone(), [f32(2, 3)], "a separate output"),
        (lambda x: (x.clone().view(6), x), [f32(2, 3)], "leaves the graph"),
        (lambda x: x.view(2, 3), [f32(2, 3)], "a separate output"),
        (lambda x: x.t().clone(memory_format=torch.contiguous_format).sin(), [f32(2, 3)], "strides"),
        (lambda x: aten._to_copy(x, dtype=torch.float64).sin(), [f32(2, 3)], "dtype"),
        (lambda x: torch.pow(x, 1.0).sin(), [i64(4)], "dtype"),
        (lambda x, y: aten.copy(x, y).sin(), [f32(2, 3), f32(3)], "shape"),
        (lambda x: (lambda y: (y.clone(), y))(x + 1), [f32(2)], "another output"),
    ],
)
def test_stays(program, inputs, because):
    assert_refused(remove_noop_ops, program, inputs, because, stage="joint")


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[1:].sin(),
        lambda x: x[:, ::2].sin(),
        lambda x: x.view(3, 2).sin(),
        lambda x: x.t().sin(),
        lambda x: x.repeat(2, 1).sin(),
        lambda x: torch.nn.functional.pad(x, (1, 0)).sin(),
        lambda x: (x**2).sin(),
        lambda x: torch.cat([x, x]).sin(),
        lambda x: x.expand(4, 2, 3).sin(),
        lambda x: aten.as_strided(x, [2, 3], [1, 2], 0).sin(),
        lambda x: torch.round(x, decimals=-1).sin(),
        lambda x: x.unsqueeze(0).squeeze(0).sin(),
    ],
)
def test_is_no_candidate(program):
    run = run_pass(remove_noop_ops, "joint", capture(program, [torch.randn(2, 3)], "aten"))
    assert not run.record.changed


def test_a_copy_that_protects_a_read_from_a_write_stays():
    """The copy is read after its source was written back."""
    module = from_python(
        """
def forward(x):
    # x: f32[2, 3]
    clone = torch.ops.aten.clone.default(x)
    add = torch.ops.aten.add.Tensor(x, 1)
    copy_ = torch.ops.aten.copy_.default(x, add)
    mul = torch.ops.aten.mul.Tensor(clone, 2)
    return (mul,)
"""
    )
    run = run_pass_unchecked(module)
    assert run.record.rejects[0].reason == "copy_ may write x while clone is in use"
    assert "clone" in to_python(module.graph)


def test_a_copy_that_is_read_only_before_the_write_goes():
    module = from_python(
        """
def forward(x):
    # x: f32[2, 3]
    clone = torch.ops.aten.clone.default(x)
    mul = torch.ops.aten.mul.Tensor(clone, 2)
    copy_ = torch.ops.aten.copy_.default(x, mul)
    return (mul,)
"""
    )
    # mul leaves the graph, but it is no alias of x: only the copy goes.
    assert run_pass_unchecked(module).record.changed
    assert "clone" not in to_python(module.graph)


def test_a_copy_of_an_offset_view_goes_only_with_equal_offsets():
    """as_strided on the copy reads from the start of its own memory."""
    module = capture(lambda x: aten.as_strided(x[1:].clone(), [2], [1]).sin(), [torch.randn(4)], "aten")
    run = run_pass(remove_noop_ops, "joint", module)
    assert not run.record.changed
    assert "storage offset" in run.record.rejects[0].reason


def test_symbolic_sizes_are_compared_without_guards():
    module = capture(lambda x: x.view(x.shape).sin() + x[:, 0 : x.shape[1]], [torch.randn(4, 6)], "aten", dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    run = run_pass(remove_noop_ops, "joint", module)
    assert run.record.changed
    assert len(env.guards) == guards
    x = torch.randn(7, 5)
    assert torch.equal(module(x), x.sin() + x)


def run_pass_unchecked(module):
    """The graph with a write in the middle is not legal for the stage, so debug mode stays off."""
    from eductor import Recorder, joint_graph_passes
    from eductor.observe.manual.manual import ExampleRun

    recorder = Recorder()
    options = {"pipeline": "joint(remove_noop_ops)", "instruments": [recorder], "strict": True}
    joint_graph_passes(module, options=options)
    return ExampleRun("", "", module, next(r for r in recorder.records if r.name == "remove_noop_ops"))


OPS = {
    "clone": lambda x: x.clone(),
    "view": lambda x: x.view(x.shape) if x.is_contiguous() else x,
    "flat": lambda x: x.reshape(-1),
    "t": lambda x: x.t() if x.dim() == 2 else x,
    "slice": lambda x: x[0 : x.shape[0]],
    "part": lambda x: x[1:] if x.shape[0] > 1 else x,
    "contiguous": lambda x: x.contiguous().clone(),
    "sin": lambda x: x.sin(),
    "repeat": lambda x: x.repeat(*[1] * x.dim()),
    "pow": lambda x: x**1,
    "detach": lambda x: x.detach(),
}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(OPS)), min_size=1, max_size=8), st.lists(st.integers(0, 7), min_size=1, max_size=3)
)
def test_random_chains_keep_values_strides_and_aliasing(names, returned):
    def program(x):
        values = [x]
        for name in names:
            values.append(OPS[name](values[-1]))
        return tuple(values[min(i, len(values) - 1)] for i in returned)

    module = capture(program, [torch.randn(3, 4)], "aten")
    before = capture(program, [torch.randn(3, 4)], "aten")
    run_pass(remove_noop_ops, "post_grad", module)
    x = torch.randn(3, 4)
    expected, got = before(x), module(x)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
    assert sharing([x, *expected]) == sharing([x, *got])


def sharing(tensors):
    pairs = [(a, b) for i, a in enumerate(tensors) for b in tensors[:i]]
    return [(a is b, a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()) for a, b in pairs]


def test_booleans_are_no_powers():
    module = capture(lambda x: torch.logical_not(x), [b8(3).make(0)], "aten")
    assert not run_pass(remove_noop_ops, "joint", module).record.changed
