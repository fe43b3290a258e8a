"""The comparison notices what a caller would notice, and the programs say what they claim to say."""

import pytest
import torch
from torch import nn

from . import test_programs
from .comparing import Case, Program, differences, each_call, leaf, observe, plain

PROGRAMS = test_programs.PROGRAMS


def eager(fn):
    return fn


def found(right, wrong, *inputs, exact=True, **flags):
    """The differences between two functions called with the same inputs."""

    def program(fn):
        return Program("program", (), lambda: Case(fn, tuple(make() for make in inputs)), **flags)

    return differences(observe(eager, program(right)), observe(eager, program(wrong)), exact=exact)


def a_plain_tensor():
    return plain(3, 4)


def a_leaf():
    return leaf(3, 4)


def test_a_program_equals_itself():
    assert not found(lambda x: (x * 2, x.t(), 3), lambda x: (x * 2, x.t(), 3), a_leaf)


def test_a_wrong_value():
    assert "values differ" in found(lambda x: x * 2, lambda x: x * 2.001, a_plain_tensor)[0]


def test_one_bit_counts_only_when_exact():
    def almost(x):
        return torch.nextafter(x, x + 1)

    assert found(lambda x: x * 1, almost, a_plain_tensor)
    assert not found(lambda x: x * 1, almost, a_plain_tensor, exact=False)


def test_negative_zero_is_another_value_and_nan_is_nan():
    assert found(lambda x: x * 0, lambda x: x.abs() * 0, a_plain_tensor)
    assert not found(lambda x: x.sqrt(), lambda x: x.sqrt() * 1, a_plain_tensor)


def test_a_wrong_dtype_and_a_wrong_shape():
    assert "dtype" in found(lambda x: x + 1, lambda x: x.double() + 1, a_plain_tensor)[0]
    assert "shape" in " ".join(found(lambda x: x + 1, lambda x: (x + 1).view(4, 3), a_plain_tensor))


def test_a_wrong_stride():
    assert "stride" in found(lambda x: x + 1, lambda x: (x.t() + 1).contiguous().t(), a_plain_tensor)[0]


def test_strides_of_single_elements_do_not_count():
    assert not found(lambda x: x[:1] + 1, lambda x: (x[:1] + 1).as_strided((1, 4), (9, 1)), a_plain_tensor)


def test_a_missing_mutation():
    def writes(x):
        x.add_(1)
        return x * 2

    problems = found(writes, lambda x: (x + 1) * 2, a_plain_tensor)
    assert any("input 0 after the call" in p for p in problems)
    assert any("input 0 was written" in p for p in problems)


def test_a_write_that_autograd_does_not_see():
    def hidden(x):
        x.data.add_(1)
        return x * 2

    def seen(x):
        x.add_(1)
        return x * 2

    assert found(seen, hidden, a_plain_tensor) == ["input 0 was written: expected True, got False"]


def test_a_lost_and_a_new_alias():
    assert "lost" in " ".join(found(lambda x: x[1:], lambda x: x[1:].clone(), a_plain_tensor))
    assert "new" in " ".join(found(lambda x: x + 0, lambda x: x.view_as(x), a_plain_tensor))


def test_outputs_that_no_longer_share_memory():
    def shares(x):
        y = x * 2
        return y, y.view_as(y)

    problems = found(shares, lambda x: (x * 2, x * 2), a_plain_tensor)
    assert problems[0] == "shares: lost 'output 0 shares memory with output 1'"


def test_a_view_of_another_place():
    def fn(start):
        return lambda x: x.zero_()[start]

    assert any("offset" in p for p in found(fn(0), fn(1), a_plain_tensor))


def test_a_lost_identity():
    assert "is: lost 'output 0 is input 0'" in found(lambda x: x, lambda x: x.view_as(x), a_plain_tensor)


def test_a_gradient_that_is_none_or_zeros():
    problems = found(lambda x, y: x * 2, lambda x, y: x * 2 + y * 0, a_leaf, a_leaf)
    assert any("input 1 gradient" in p for p in problems)


def test_a_wrong_gradient():
    problems = found(lambda x: x * x, lambda x: x * x.detach(), a_leaf)
    assert problems
    assert all("gradient" in p for p in problems)


def test_requires_grad_and_is_leaf():
    assert "requires_grad" in found(lambda x: x * 2, lambda x: (x * 2).detach(), a_leaf)[0]
    assert "is_leaf" in found(lambda x: x * 2, lambda x: (x * 2).detach().requires_grad_(), a_leaf)[0]


def test_another_rng_state_counts_only_when_exact():
    def draws(x):
        torch.rand(3)
        return x + 1

    assert found(lambda x: x + 1, draws, a_plain_tensor) == ["rng: differs", "rng at the end: differs"]
    assert not found(lambda x: x + 1, draws, a_plain_tensor, exact=False)


def test_another_grad_mode():
    def switches(x):
        torch.set_grad_enabled(False)
        return x + 1

    with torch.enable_grad():
        problems = found(lambda x: x + 1, switches, a_plain_tensor)
    assert any("grad mode" in p for p in problems)


def test_another_kind_of_output():
    assert found(lambda x: (x + 1, None), lambda x: (x + 1, 0), a_plain_tensor)
    assert found(lambda x: (x + 1,), lambda x: [x + 1], a_plain_tensor)
    assert found(lambda x: (x + 1,), lambda x: (x + 1, x), a_plain_tensor)


def test_a_buffer_that_was_not_updated():
    class Model(nn.Module):
        def __init__(self, writes):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))
            self.writes = writes

        def forward(self, x):
            if self.writes:
                self.count += 1
            return x * 2

    programs = [Program("program", (), lambda w=w: Case(Model(w), (plain(3),))) for w in (True, False)]
    expected, got = (observe(eager, p) for p in programs)
    assert any("buffer count" in p for p in differences(expected, got, exact=True))


def test_each_of_several_calls():
    def program(wrong):
        def fn(x, i):
            return x * 2 + (wrong and i == 1)

        return Program("program", (), lambda: Case(fn, calls=((plain(3), 0), (plain(3), 1))), steps=each_call)

    (problem, *_) = differences(observe(eager, program(False)), observe(eager, program(True)), exact=True)
    assert problem.startswith("call 1, output 0")


def test_an_error_on_one_side():
    def program(fn):
        return Program("program", (), lambda: Case(fn, (plain(3),)), raises=True)

    fails, works = observe(eager, program(lambda x: x.view(7))), observe(eager, program(lambda x: x + 1))
    assert "invalid for input of size" in differences(fails, works, exact=True)[0]
    assert not differences(fails, fails, exact=True)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_eager_equals_itself(program):
    assert not differences(observe(eager, program), observe(eager, program), exact=True)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_dynamo_alone_changes_nothing(program, dynamic):
    if program.differs_in_dynamo or (dynamic and not program.also_dynamic):
        pytest.skip(program.differs_in_dynamo or "static only")
    expected = observe(eager, program)
    torch._dynamo.reset()
    compiled = observe(lambda fn: torch.compile(fn, backend="eager", dynamic=dynamic or None), program)
    assert not differences(expected, compiled, exact=program.exact_on_aten)
