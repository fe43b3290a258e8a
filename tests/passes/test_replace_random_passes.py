"""replace_random_passes: one seed tensor a device, the same distributions, and eager's draws where they are asked for."""

from __future__ import annotations

import pytest
import torch

from eductor import Recorder, joint_graph_passes
from eductor.graph import capture
from eductor.observe.manual import run_pass
from eductor.passes.joint.replace_random_passes import replace_random_passes

eductor_ops = torch.ops.eductor


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def rewritten(program, *inputs, dynamic=False):
    module = capture(program, inputs, "aten", dynamic=dynamic)
    assert run_pass(replace_random_passes, "joint", module).record.changed
    return module


@pytest.mark.parametrize(
    "draw", [torch.rand_like, torch.randn_like, lambda x: torch.rand(x.shape), lambda x: torch.randn(64, 64)]
)
def test_each_form_is_seeded(draw):
    module = rewritten(lambda x: x + draw(x), torch.zeros(64, 64))
    assert targets(module)[:2] == [eductor_ops.seeds.default, eductor_ops.random.default]
    assert not any("rand" in str(t) for t in targets(module) if t is not eductor_ops.random.default)


def test_several_draws_share_one_seed_tensor_and_differ():
    module = rewritten(lambda x: (torch.rand_like(x), torch.rand_like(x), torch.randn_like(x)), torch.zeros(1000))
    assert targets(module).count(eductor_ops.seeds.default) == 1
    a, b, c = module(torch.zeros(1000))
    assert not torch.equal(a, b)
    assert a.min() >= 0
    assert a.max() < 1
    assert abs(a.mean() - 0.5) < 0.05
    assert abs(c.std() - 1) < 0.1


def test_the_seed_of_torch_decides():
    module = rewritten(lambda x: torch.rand_like(x), torch.zeros(100))
    torch.manual_seed(5)
    first, second = module(torch.zeros(100)), module(torch.zeros(100))
    torch.manual_seed(5)
    again = module(torch.zeros(100))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_a_random_tensor_is_a_function_of_its_seed():
    seeds = eductor_ops.seeds(2, device=torch.device("cpu"))

    def draw(i):
        return eductor_ops.random(seeds, i, [100], "randn", dtype=torch.float32)

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    state = torch.get_rng_state()
    draw(0)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(ValueError, match="must be one of rand, randn"):
        eductor_ops.random(seeds, 0, [3], "poisson", dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    module = rewritten(lambda x: torch.rand_like(x), torch.zeros(8, dtype=dtype))
    assert module(torch.zeros(8, dtype=dtype)).dtype is dtype


def test_strides_of_what_it_is_like_are_kept():
    module = rewritten(
        lambda x: torch.rand_like(x), torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    )
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert module(x).stride() == torch.rand_like(x).stride() == x.stride()


def test_odd_strides_of_size_one_are_kept_or_left_alone():
    like = torch.zeros(2, 1, 4, 4).contiguous(memory_format=torch.channels_last)
    module = capture(lambda x: (torch.rand_like(x), torch.rand(3)), [like], "aten")
    assert run_pass(replace_random_passes, "joint", module).record.changed
    assert module(like)[0].stride() == torch.rand_like(like).stride()


def test_dynamic_sizes():
    module = rewritten(lambda x: torch.rand_like(x), torch.zeros(4, 6), dynamic=True)
    assert module(torch.zeros(5, 3)).shape == (5, 3)


def test_empty_and_scalar():
    assert rewritten(lambda x: torch.rand_like(x), torch.zeros(0, 3))(torch.zeros(0, 3)).shape == (0, 3)
    assert rewritten(lambda x: torch.rand_like(x), torch.zeros(()))(torch.zeros(())).shape == ()


@pytest.mark.parametrize(
    ("option", "why"),
    [({"fallback_random": True}, "fallback_random"), ({"profile": "exact"}, "exact allows only exact passes")],
)
def test_eager_draws_where_they_are_asked_for(option, why):
    recorder = Recorder()
    module = capture(lambda x: x + torch.rand_like(x), [torch.zeros(8)], "aten")
    joint_graph_passes(module, options={**option, "instruments": [recorder]})
    record = next(r for r in recorder.records if r.name == "replace_random_passes")
    assert record.status == "skipped"
    assert why in record.reason
    torch.manual_seed(3)
    expected = torch.rand(8)
    torch.manual_seed(3)
    assert torch.equal(module(torch.zeros(8)), expected)
