"""Random programs that write do, compiled, what they do in eager: results, inputs, and who shares memory with whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from eductor import Recorder, compile
from eductor.compiler import compile_graph
from eductor.graph.values.evaluate import propagate
from eductor.graph.values.value_comparison import is_bitwise_equal
from eductor.options import Options

from .comparing import is_roughly_close
from .writes import Program, generate

CHUNK = 125
FAST, SLOW = 500, 20_000
FIRED = 0.3
"""In how many of the programs something must be written in place."""


def observed(call: Callable[..., Any], program: Program) -> dict[str, Any]:
    """What can be seen of a call: what it returns, what it wrote, what shares memory, and what a later write changes."""
    inputs = program.make_inputs()
    outputs = list(call(*inputs))
    tensors = {f"input {i}": x for i, x in enumerate(inputs)} | {f"output {i}": x for i, x in enumerate(outputs)}
    facts: dict[str, Any] = {name: x.clone() for name, x in tensors.items()}
    facts |= {f"form of {name}": (x.dtype, x.shape) for name, x in tensors.items()}
    for name, x in tensors.items():
        homes = [
            other for other, y in tensors.items() if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        ]
        facts[f"memory of {name}"] = homes
        if any(home.startswith("input") for home in homes):  # new memory may lie as the functional operator has it
            facts[f"place of {name}"] = (strides_of(x), x.storage_offset())
        facts[f"{name} itself"] = [other for other, y in tensors.items() if y is x]
    for i, out in enumerate(outputs):
        if 0 not in out.stride():
            out.fill_(i + 1)
    return facts | {f"{name} after writes": x.clone() for name, x in tensors.items()}


def strides_of(x: torch.Tensor) -> list[int]:
    """The strides that mean something: that of a dimension of one element is anybody's choice."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def compiled(program: Program, **options: Any) -> Callable[..., Any]:
    module = program.module()
    inputs = program.make_inputs()
    propagate(module, inputs)
    return compile_graph(module, inputs, Options(**{"engine": "aten", "strict": True, **options}))


def differences(program: Program, **options: Any) -> list[str]:
    """What differs from eager."""
    expected = observed(program.module(), program)
    try:
        got = observed(compiled(program, **options), program)
    except Exception as error:
        return [f"raises {type(error).__name__}: {error}"]
    return [f"{name}: {a} and {got.get(name)}" for name, a in expected.items() if not _alike(a, got.get(name))]


def _alike(a: Any, b: Any) -> bool:
    return is_bitwise_equal(a, b) if isinstance(a, torch.Tensor) else a == b


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program without steps that the failure does not need."""
    while True:
        smaller = (program.without(k) for k in reversed(range(len(program.steps))))
        found = next((p for p in smaller if p is not None and fails(p)), None)
        if found is None:
            return program
        program = found


def options_of(number: int) -> dict[str, Any]:
    """Some with all checks."""
    return {"debug": number % 8 == 0}


def judged(numbers: Iterable[int]) -> Counter[str]:
    fired: Counter[str] = Counter()
    for number in numbers:
        program, recorder = generate(number), Recorder()
        found = differences(program, **options_of(number), instruments=(recorder,))
        if found:
            pytest.fail(told(number, program, options_of(number), found))
        fired.update({address.rpartition("/")[2] for address in recorder.changed()})
    return fired


def told(number: int, program: Program, options: dict[str, Any], found: list[str]) -> str:
    small = shrunk(program, lambda p: bool(differences(p, **options)))
    return "\n".join([f"program {number} differs: {found[0]}", f"smaller:\n{small}", *differences(small, **options)])


@pytest.mark.parametrize("start", range(0, FAST, CHUNK))
def test_programs_that_write_do_what_they_do_in_eager(start: int) -> None:
    fired = judged(range(start, start + CHUNK))
    assert fired["reinplace_inplaceable_ops"] > FIRED * CHUNK, fired


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_many_programs_that_write_do_what_they_do_in_eager(half: int) -> None:
    fired = judged(range(half, SLOW, 2))
    assert fired["reinplace_inplaceable_ops"] > FIRED * SLOW / 2, fired


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 80, 20))
def test_kernels_write_in_place_as_eager_does(start: int) -> None:
    """The same with the engine that makes kernels, where something is written in place."""
    for number in range(start, start + 20):
        program, recorder = generate(number), Recorder()
        found = differences(program, instruments=(recorder,))
        if any("reinplace_inplaceable_ops" in address for address in recorder.changed()):
            found = found or differences(program, engine="inductor")
        assert not found, told(number, program, {"engine": "inductor"}, found)


LARGE = 1000
"""Numbers above this are not compared: a rounding before them is a difference after them."""


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 800, 100))
def test_kernels_that_reduce_read_what_eager_reads(start: int) -> None:
    """Reads in loops of another shape, and by kernels of eager's, stay on their side of each write."""
    compared = 0
    for number in range(start, start + 100):
        program = generate(number, reductions=True)
        expected = observed(program.module(), program)
        if not all((x.double().abs() < LARGE).all() for x in expected.values() if isinstance(x, torch.Tensor)):
            continue
        compared += 1
        got = observed(compiled(program, engine="inductor", strict=False), program)
        far = [name for name, a in expected.items() if not _near(a, got.get(name))]
        assert not far, f"program {number} differs: {far}\n{program}"
    assert compared > 50


def _near(a: Any, b: Any) -> bool:
    return is_roughly_close(a, b) if isinstance(a, torch.Tensor) and a.shape == b.shape else a == b


def copied_then_written(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.copy_(x)
    x.mul_(2)
    return y.sum()


def exchanged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    held = x.clone()
    x.copy_(y)
    y.copy_(held)
    return x + 1


def turned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.copy_(x.t()) + y


def shown_and_refilled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shown = torch.slice_scatter(x, x[1:3], 0, 1, 3)
    x.fill_(7)
    return shown + y


@pytest.mark.parametrize("program", [copied_then_written, exchanged, shown_and_refilled])
def test_a_write_back_does_not_come_before_a_read(program: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    first, second = ([torch.arange(16.0).view(4, 4), torch.ones(4, 4)] for _ in range(2))
    expected, got = program(*first), compile(program, engine="aten", strict=True)(*second)
    for a, b in zip([expected, *first], [got, *second], strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore::eductor.EductorWarning")
def test_a_matrix_that_is_transposed_in_place_raises_as_in_eager() -> None:
    torch._dynamo.reset()
    for program in (turned, compile(turned, engine="aten")):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            program(torch.arange(16.0).view(4, 4), torch.zeros(4, 4))
