"""What a caller sees of a compiled function, besides the programs of tests/programs."""

from __future__ import annotations

import functools
import gc
import weakref

import pytest
import torch

import eductor
from eductor.autograd import Joint, aot_dispatch_autograd
from eductor.engines import ATEN
from eductor.partition import partition_fn

compile = functools.partial(eductor.compile, engine="aten", strict=True)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


class Jobs:
    """An engine that keeps its jobs."""

    def __init__(self):
        self.jobs = []

    def __call__(self, job):
        self.jobs.append(job)
        return ATEN(job)

    def backward_targets(self, k=-1):
        jobs = [job for job in self.jobs if job.is_backward]
        return [n.target for n in jobs[k].module.graph.nodes if n.op == "call_function"]


def test_a_backward_is_compiled_when_it_is_needed():
    engine = Jobs()
    out = compile(lambda x: x.sin(), engine=engine)(leaf(3))
    assert [job.is_backward for job in engine.jobs] == [False]
    out.sum().backward()
    assert [job.is_backward for job in engine.jobs] == [False, True]


def test_dead_branches_of_undefined_gradients_vanish():
    engine = Jobs()
    x, y = leaf(3), leaf(3)
    program = compile(lambda x, y: (x.sin(), y.exp(), x.cos()), engine=engine)
    program(x, y)[0].sum().backward()
    assert y.grad is None
    assert torch.equal(x.grad, x.detach().cos())
    assert torch.ops.aten.exp.default not in engine.backward_targets()
    assert torch.ops.aten.neg.default not in engine.backward_targets()
    x.grad = None
    outputs = program(x, y)
    (outputs[0].sum() + outputs[2].sum()).backward()
    assert torch.equal(x.grad, x.detach().cos() - x.detach().sin())
    assert y.grad is None


def test_zeros_stand_in_for_an_undefined_gradient_among_others():
    def program(x):
        a, b = x.chunk(2)
        return a * 2, b * 3

    for dynamic in (False, True):
        torch._dynamo.reset()
        x = leaf(6)
        compile(program, dynamic=dynamic)(x)[1].sum().backward()
        assert torch.equal(x.grad, torch.tensor([0.0, 0.0, 0.0, 3.0, 3.0, 3.0]))


def test_saved_values_are_donated_unless_the_graph_is_kept():
    engine = Jobs()
    x = leaf(3)
    out = compile(lambda x: x.sin().exp().sum(), engine=engine)(x)
    out.backward(retain_graph=True)
    assert engine.jobs[-1].donated == frozenset()
    first = x.grad.clone()
    x.grad = None
    out.backward()
    assert engine.jobs[-1].donated != frozenset()
    assert torch.equal(first, x.grad)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_saved_values_are_freed_before_the_backward_is_over():
    alive = []

    def engine(job):
        compiled = ATEN(job)

        def run(inputs):
            given = [weakref.ref(inputs[i]) for i in sorted(job.donated)]
            results = compiled.run(inputs)
            if job.is_backward:
                alive.append([ref() is not None for ref in given])
            return results

        return eductor.engines.Compiled(run)

    out = compile(lambda x: x.sin().exp().sum(), engine=engine)(leaf(3))
    out.backward()
    assert alive == [[False]]


def test_outputs_are_never_donated():
    engine = Jobs()
    x = leaf(3, 4)
    y = compile(lambda x: (x.exp().t(), x.tanh()), engine=engine)(x)
    kept = [t.detach().clone() for t in y]
    (y[0].sum() + y[1].sum()).backward()
    assert engine.jobs[-1].donated == frozenset()
    assert all(map(torch.equal, kept, y))


def test_saved_values_die_with_the_backward():
    x = leaf(3)
    middle = []

    class Watch(Jobs):
        def __call__(self, job):
            run = super().__call__(job).run

            def watched(inputs):
                outputs = run(inputs)
                assert inputs == []
                if not job.is_backward:
                    middle.extend(weakref.ref(t) for t in outputs[1:])
                return outputs

            return watched

    out = compile(lambda x: x.sin().exp().sum(), engine=Watch())(x)
    assert middle
    assert all(ref() is not None for ref in middle)
    out.backward()
    gc.collect()
    assert all(ref() is None for ref in middle)


def test_inputs_that_no_gradient_depends_on_are_let_go_and_not_watched():
    x, y = leaf(3), torch.ones(3)
    base = x * 2
    alive = weakref.ref(base)
    out = compile(lambda t, y: (t + y).sum() * 2)(base, y)
    del base
    gc.collect()
    assert alive() is None
    y.add_(1)
    (first,) = torch.autograd.grad(out, x, create_graph=True)
    assert torch.equal(first, torch.full((3,), 4.0))


def test_inputs_are_kept_for_a_second_derivative_only_if_wanted():
    def die(double_backward):
        x = leaf(3)
        base = x * 2
        alive = weakref.ref(base)
        out = compile(lambda t: t.exp(), double_backward=double_backward)(base)
        del base
        gc.collect()
        assert out is not None
        return alive() is None

    assert not die(True)
    torch._dynamo.reset()
    assert die(False)


def test_without_double_backward_a_second_derivative_is_an_error_that_says_so():
    x = leaf(3)
    out = compile(lambda x: x.sin(), double_backward=False)(x)
    with pytest.raises(RuntimeError, match="option double_backward"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_a_second_derivative_through_an_overwritten_input_is_an_error_that_names_it():
    x, buf = leaf(3), torch.ones(3)

    def program(x, buf):
        y = x * (buf + 1)
        buf.mul_(2)
        return y

    out = compile(program)(x, buf)
    with pytest.raises(RuntimeError, match="overwrites input"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_a_kept_input_that_was_written_since_is_noticed():
    x, bias = leaf(3), torch.ones(3)
    out = compile(lambda x, b: (x + b).exp())(x, bias)
    expected = out.detach().clone()
    bias.add_(1)
    (first,) = torch.autograd.grad(out.sum(), x, retain_graph=True)  # the result is saved, not the input
    assert torch.equal(first, expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_overlaps_that_change_from_call_to_call():
    def program(a, b):
        a.add_(1)
        return a * b

    engine = Jobs()
    compiled = compile(program, engine=engine)
    cuts = [(0, 4, 4, 8), (0, 4, 2, 6), (1, 5, 3, 7), (0, 4, 0, 4), (0, 4, 4, 8)]
    for a, b, c, d in cuts:
        expected, got = torch.arange(8.0), torch.arange(8.0)
        assert torch.equal(program(expected[a:b], expected[c:d]), compiled(got[a:b], got[c:d]))
        assert torch.equal(expected, got)
    assert len(engine.jobs) > 1  # another overlap is compiled, not only run


def test_a_dispatcher_as_a_library():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    module = torch.fx.symbolic_trace(model)
    seen = []

    def parting(joint):
        assert isinstance(joint, Joint)
        seen.append(joint)
        return partition_fn(joint)

    x = torch.randn(2, 4)
    run = aot_dispatch_autograd(module, [x], partition_fn=parting, compile=ATEN)
    run(x).sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert all(map(torch.equal, got, (p.grad for p in model.parameters())))
    assert len(seen) == 1
    assert seen[0].static == {0, 1}


def test_errors_of_the_backward_are_eagers():
    x = leaf(3)
    out = compile(lambda x: x.exp().sin())(x)
    held = x.exp()
    del held
    with torch.no_grad():
        x.add_(1)
    out.sum().backward()  # exp saved its result, not x
    assert x.grad is not None
    y = leaf(3)
    out = compile(lambda y: y.sin())(y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def rows(x):
    return x[0], x.unbind()[1]


def of_an_intermediate(x):
    y = x * 2
    return y, y[0]


def made_without_gradients(x):
    with torch.no_grad():
        return (x[0],)


@pytest.mark.parametrize("program", [rows, of_an_intermediate, made_without_gradients], ids=lambda p: p.__name__)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_view_that_is_returned_can_be_written_as_in_eager(program, requires_grad):
    def observed(fn):
        base = torch.arange(6.0).reshape(2, 3).requires_grad_(requires_grad)
        x, w = base * 1, torch.full((3,), 2.0, requires_grad=True)
        outputs = fn(x)
        try:
            outputs[-1].mul_(w)
        except RuntimeError as error:
            return str(error).partition(".")[0].replace("SelectBackward0", "").replace("UnbindBackward0", "")
        (sum(o.sum() for o in outputs) + x.sum()).backward()
        return [x.tolist(), x.requires_grad, w.grad.tolist(), None if base.grad is None else base.grad.tolist()]

    assert observed(program) == observed(compile(program))
