"""What a caller sees of a call: an engine that gets any of it wrong is found out, and eager against itself is not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.fx import Interpreter

import eductor
from eductor.observe.verify.call_outcome import Arguments, observe_call, unlike_calls
from eductor.observe.verify.reachable_state import ReachableState
from eductor.verification.run_tensors import own_copies


def engine(change, *, backward=False):
    """An engine that interprets, and changes what the forward or the backward gives."""

    def wrong(job):
        def run(inputs):
            given = list(inputs)
            outputs = list(Interpreter(job.module).boxed_run(list(inputs)))
            return change(outputs, given) if job.is_backward == backward else outputs

        return run

    return wrong


def differences(fn, *args, engine="aten", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eductor.EductorWarning)
        report = eductor.verify(fn, *args, options={"engine": engine, **options})
    assert not report.findings
    return report.differences


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def product(x, w):
    return torch.relu(x @ w)


def first(change):
    return lambda outputs, _: [change(outputs[0]), *outputs[1:]]


@pytest.mark.parametrize("profile", ["fast", "exact"])
def test_an_engine_that_is_right(profile):
    assert not differences(product, leaf(3, 4), leaf(4, 4), engine=engine(lambda o, _: o), profile=profile)


FORWARD = {
    "values": (lambda o: o * 1.01, "output 0 differs"),
    "one value": (lambda o: o.clone().index_fill_(0, torch.tensor(0), 9.0), "output 0 differs"),
    "no number": (lambda o: o.clone().index_fill_(0, torch.tensor(0), float("nan")), "output 0 differs"),
    "strides": (lambda o: o.t().contiguous().t(), "strides"),
    "dtype": (lambda o: o.double(), "dtype"),
    "shape": (lambda o: o[:2], "shape"),
}


@pytest.mark.parametrize("name", FORWARD)
def test_wrong_outputs(name):
    change, expected = FORWARD[name]
    with torch.no_grad():
        (difference, *_) = differences(product, leaf(3, 4), leaf(4, 4), engine=engine(first(change)))
    assert expected in difference


def test_a_rounding_is_a_difference_where_nothing_may_differ():
    wrong = engine(first(lambda o: o * (1 + 1e-7)))
    x, w = leaf(30, 40), leaf(40, 40)
    with torch.no_grad():
        assert not differences(product, x, w, engine=wrong)
        assert differences(product, x, w, engine=wrong, profile="exact")


BACKWARD = {
    "values": lambda o, _: [o[0] * 1.01, *o[1:]],
    "missing": lambda o, _: [None, *o[1:]],
    "swapped signs": lambda o, _: [o[0], -o[1]],
}


@pytest.mark.parametrize("name", BACKWARD)
def test_wrong_gradients(name):
    found = differences(product, leaf(4, 4), leaf(4, 4), engine=engine(BACKWARD[name], backward=True))
    assert len(found) == 1
    assert found[0].startswith(f"the gradient of input {int(name == 'swapped signs')} differs")


def test_wrong_gradients_of_parameters_are_named():
    model = nn.Sequential(nn.Linear(3, 3))
    (found,) = differences(model, torch.randn(2, 3), engine=engine(lambda o, _: [o[0] * 2, *o[1:]], backward=True))
    assert found.startswith("the gradient of Sequential.0.weight")


def test_wrong_gradients_of_a_module_among_the_arguments():
    wrong = engine(lambda o, _: [None if x is None else x * 2 for x in o], backward=True)
    assert differences(lambda model, x: model(x), nn.Linear(3, 3), torch.randn(2, 3), engine=wrong)


def test_wrong_buffers_of_a_module_among_the_arguments():
    def forgets(job):
        for node in list(job.module.graph.nodes):
            if node.target is torch.ops.aten.copy_.default:
                node.replace_all_uses_with(node.args[0])
                job.module.graph.erase_node(node)
        return Interpreter(job.module).boxed_run

    assert differences(lambda model, x: model(x), nn.BatchNorm1d(3), torch.randn(4, 3), engine=forgets)


def test_wrong_writes():
    def forgets(job):
        for node in list(job.module.graph.nodes):
            if node.target is torch.ops.aten.copy_.default:
                node.replace_all_uses_with(node.args[1])
                job.module.graph.erase_node(node)
        job.module.recompile()
        return Interpreter(job.module).boxed_run

    def program(x):
        x.mul_(2)
        return x.sum()

    assert any("input 0 after the call" in d for d in differences(program, torch.randn(3), engine=forgets))
    norm = differences(nn.BatchNorm1d(3), torch.randn(4, 3), engine=forgets)
    assert any("running_mean after the call" in d for d in norm)


def test_memory_that_is_shared_with_an_input():
    (found,) = differences(lambda x: x.clone(), torch.randn(4), engine=lambda job: lambda inputs: [inputs[0]])
    assert found.startswith("the memory of output 0")


def test_memory_that_outputs_share():
    def twice(x):
        return x * 2, x + x

    (found,) = differences(twice, torch.randn(4), engine=engine(lambda o, _: [o[0], o[0]]))
    assert found.startswith("the memory of output 1")


def test_a_draw_that_eager_does_not_make():
    wrong = engine(lambda o, _: (torch.rand(3), o)[1])
    (found,) = differences(product, torch.randn(3, 4), torch.randn(4, 4), engine=wrong)
    assert found.startswith("the random state")


def raising(*_):
    raise ValueError("planted")


@pytest.mark.parametrize("backward", [False, True])
def test_an_error_that_eager_does_not_raise(backward):
    found = differences(product, leaf(3, 4), leaf(4, 4), engine=engine(raising, backward=backward))[
        -1 if backward else 0
    ]
    where = "the backward differs: returned and" if backward else "eager returned, the compiled function"
    assert found == f"{where} raised ValueError: planted"


def test_an_error_that_the_compiled_function_does_not_raise():
    def program(x):
        if not torch.compiler.is_compiling():
            raise ValueError("eager alone")
        return x

    (found,) = differences(program, torch.randn(3))
    assert found.startswith("eager raised ValueError: eager alone, the compiled function returned")


def test_requires_grad_and_structure():
    def program(x):
        return x.detach() * 2 if torch.compiler.is_compiling() else x * 2

    assert any("output 0" in d for d in differences(program, leaf(3)))

    def other(x):
        return (x + 1,) if torch.compiler.is_compiling() else [x + 1]

    assert any("the structure of the outputs" in d for d in differences(other, torch.randn(3)))


def test_sparse_outputs_are_compared():
    wrong = engine(lambda o, _: [x * 1.5 for x in o])
    assert differences(lambda x: (x * 2).to_sparse(), torch.eye(3), engine=wrong)


STATE = type("State", (), {"count": torch.zeros(3)})()


def counting(x):
    STATE.count.add_(1)
    return x + STATE.count


def test_a_wrong_result_of_a_program_with_hidden_state():
    wrong = engine(lambda o, _: [x * 1.5 for x in o])
    STATE.count.zero_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = eductor.verify(counting, torch.randn(3), options={"engine": wrong})
    assert report.differences or any("another result each time" in note for note in report.limits)


def test_nondeterministic_eager_is_noted():
    numbers = iter(range(100))
    report = eductor.verify(lambda x: x + next(numbers), torch.randn(3), options={"engine": "aten"})
    assert report.ok
    assert any("another result each time" in note for note in report.limits)


def test_random_programs_are_compared_with_the_draws_of_eager():
    def program(x):
        return torch.nn.functional.dropout(x, 0.5)

    assert not differences(program, leaf(100))
    assert differences(program, leaf(100), engine=engine(first(lambda o: o * 1.5)))


def test_eager_against_itself():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout())
    arguments = Arguments([torch.randn(4, 3)])
    world = ReachableState(model)
    assert not unlike_calls(observe_call(model, arguments, world), observe_call(model, arguments, world), exact=True)
    wide = observe_call(model, arguments, world, wide=True)
    assert wide.facts["output 0"][0].dtype == torch.float64
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_copies_share_memory_where_the_originals_do():
    base = torch.randn(6)
    a, b, c = own_copies([base[:4], base[2:], torch.randn(2)])
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != c.untyped_storage().data_ptr()
    assert a.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    assert (a.storage_offset(), b.storage_offset()) == (0, 2)


def test_arguments_that_share_memory_are_called_so():
    base = torch.randn(6)

    def program(a, b):
        a.add_(1)
        return a[0] + b[0]

    assert not differences(program, base[:4], base[2:])
    assert not differences(program, base[:4], base[:4])


def test_gradients_that_the_call_leaves():
    model = nn.Linear(3, 3)

    def step(x):
        model(x).sum().backward()

    wrong = engine(lambda o, _: [None if x is None else x * 2 for x in o], backward=True)
    assert not differences(step, torch.randn(2, 3))
    assert any("the gradient that the call left in" in d for d in differences(step, torch.randn(2, 3), engine=wrong))
    assert model.weight.grad is None


def test_a_program_that_amplifies_roundings_is_judged_or_noted():
    def chaotic(x):
        for i in range(24):
            x = (x * (i + 1)).cos() + x
        return x

    def wrong(job):
        return engine(lambda o, _: [x + 0.5 for x in o])(job)

    report = eductor.verify(chaotic, torch.randn(3, 4), options={"engine": wrong})
    assert report.differences or report.limits
