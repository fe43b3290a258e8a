"""What makes a new graph, what does not, and that each call gets the right one."""

from __future__ import annotations

import functools

import pytest
import torch
from torch._dynamo.utils import counters

import eductor
from behaviour.programs import Mlp, Net, assert_same, both

exact = functools.partial(eductor.compile, profile="exact")


def graphs(recorder):
    return len({record.graph for record in recorder.records})


def test_other_sizes_compile_once_more_for_all_of_them():
    recorder = eductor.Recorder()
    model = Mlp()
    compiled = exact(model, instruments=[recorder])
    counts = []
    for n in (2, 3, 4, 7, 1, 0):
        x = torch.randn(n, 8)
        assert_same(model(x), compiled(x))
        counts.append(graphs(recorder))
    assert counts[:4] == [1, 2, 2, 2]
    assert counts[-1] <= 4  # one and none may want graphs of their own


def test_dtypes_strides_and_gradients_of_inputs_make_graphs_of_their_own():
    def script(compile):
        step = compile(lambda x, w: (x * 2).sin() @ w)
        seen = []
        for make in (
            lambda: torch.randn(4, 4),
            lambda: torch.randn(4, 4, dtype=torch.float64),
            lambda: torch.randn(4, 4).t(),
            lambda: torch.randn(4, 4, requires_grad=True),
            lambda: torch.randn(8, 4)[::2],
            lambda: torch.randn(4, 4),
        ):
            x = make()
            out = step(x, torch.eye(4, dtype=x.dtype))
            if out.requires_grad:
                out.sum().backward()
            seen.append((out, out.stride(), x.grad))
        return seen

    assert_same(*both(script, exact))


def test_beyond_the_limit_of_recompiles_results_stay_eagers():
    def script(compile):
        step = compile(lambda x, k: x * k + 1)
        x = torch.randn(3, requires_grad=True)
        outputs = [step(x, 1 + k / 16).sum() for k in range(9)]
        torch.stack(outputs).sum().backward()
        return [o.detach() for o in outputs], x.grad

    with torch._dynamo.config.patch(recompile_limit=2, specialize_float=True):
        assert_same(*both(script, exact))


@pytest.mark.parametrize("options", [{"profile": "exact"}, {"engine": "aten"}, {"engine": "inductor"}], ids=str)
def test_train_and_eval_alternate(options):
    """Each `eval` sees the weights and the statistics that the last `train` left, also where weights are packed."""

    def script(compile):
        model = Net()
        step = compile(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch, seen = torch.randn(4, 3, 6, 6), []
        for _ in range(3):
            model.train()
            optimizer.zero_grad()
            loss = step(batch).square().mean()
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                seen += [loss.detach(), step(batch)]
        return seen + [value.clone() for value in model.state_dict().values()]

    compile = functools.partial(eductor.compile, fallback_random=True, **options)
    assert_same(*both(script, compile), close=options.get("profile") != "exact")


def test_weights_that_are_loaded_or_frozen_between_calls_are_seen():
    def script(compile):
        model, other = Mlp(), Mlp()
        step, x = compile(model), torch.randn(4, 8)
        seen = []
        with torch.no_grad():
            seen.append(step(x))
            model.load_state_dict(other.state_dict())
            seen.append(step(x))
            model.down.bias.fill_(7)
            seen.append(step(x))
        model.up.requires_grad_(False)
        step(x).sum().backward()
        seen += [p.grad for p in model.parameters()]
        model.up = torch.nn.Linear(8, 16)
        return [*seen, step(x)]

    assert_same(*both(script, exact))


def test_modes_of_gradients_alternate():
    def script(compile):
        model = Net().eval()
        step, x = compile(model), torch.randn(2, 3, 6, 6)
        seen = []
        for _ in range(2):
            with torch.no_grad():
                seen.append(step(x))
            with torch.inference_mode():
                out = step(x)
                seen += [out.is_inference(), out.clone()]
            out = step(x)
            out.sum().backward()
            seen += [out.is_inference(), out.detach()]
        return seen, [p.grad for p in model.parameters()]

    assert_same(*both(script, exact))


def test_tensors_of_inference_mode_are_taken_outside_of_it():
    def script(compile):
        step = compile(lambda x, w: x @ w + 1)
        with torch.inference_mode():
            x = torch.randn(3, 3)
        w = torch.randn(3, 3)
        seen = [step(x, w)]
        with pytest.raises(RuntimeError) as refused:
            step(x, w.requires_grad_())
        added = compile(lambda x, w: x + w.sin())(x, w)
        added.sum().backward()
        return [*seen, refused.value, added.detach(), w.grad]

    assert_same(*both(script, exact))


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_sizes_that_may_change_stay_so_after_a_graph_break(engine, trains):
    def program(x):
        y = x.sin() * 2
        torch._dynamo.graph_break()
        return y.t().cos() + 1

    torch.compiler.reset()
    counters.clear()
    run = eductor.compile(program, engine=engine)
    for size in (5, 7, 9):
        x = torch.randn(size, 3, requires_grad=trains)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x), program(x))
    assert counters["stats"]["unique_graphs"] == 2
