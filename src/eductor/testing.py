"""Checks of passes against what they promise: for the tests of this package, and for yours.

`check_contract` takes everything from the pass itself: each example fires, the result is right, a second run changes
nothing, each refusal is refused for the stated reason. `assert_pass` and `assert_refused` do the same for a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.graph.capture import capture
from eductor.graph.compare import first_difference
from eductor.graph.order import sort_in_place
from eductor.graph.printer import to_function
from eductor.observe.manual import ExampleRun, capture_example, run_example, run_pass
from eductor.pipeline.base import Example, Pass, Stage, TensorSpec
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.registry import Registry

GROWTH = 2.0
"""How much further from a float64 run than the graph before may a reassociated result be."""


def check_contract(pass_: Pass, stage: Stage) -> None:
    """Checks a pass against its own examples, refusals and contract; raises AssertionError with what does not hold."""
    where = f"{stage}/{pass_.name}"
    assert pass_.purpose, f"{where} has no docstring, which is its entry in the manual"
    assert pass_.examples, f"{where} has no example: declare one with @{pass_.name}.example"
    assert pass_.refusals, f"{where} has no refusal: declare one with @{pass_.name}.refuses(reason)"
    registry = Registry.default()
    known = any(s.name == pass_.name for s in registry.order(stage))
    registry = registry if known else registry.with_passes([pass_])
    text = Pipeline.default(registry, enable=[pass_.name]).only(f"{stage}/{pass_.name}").text()
    assert Pipeline.parse(text, registry).text() == text, f"{where}: the text form {text!r} does not round-trip"
    for example in pass_.examples:
        check_example(pass_, stage, example)
    for example in pass_.refusals:
        check_refusal(pass_, stage, example)


def check_example(pass_: Pass, stage: Stage, example: Example) -> None:
    """The pass fires on the example as it is; with dynamic sizes and in bfloat16 it is right, whether it fires or not."""
    where = f"{stage}/{pass_.name} on {example.name}"
    run = run_example(pass_, stage, example)
    assert run.record.changed, (
        f"{where}: it does not fire. Rejected: {[r.reason for r in run.record.rejects]}\n{run.before}"
    )
    check_result(pass_, stage, example, run, where)
    check_result(pass_, stage, example, run_example(pass_, stage, example, dynamic=True), f"{where}, dynamic sizes")
    inputs = [_as_bfloat16(x) for x in example.make_inputs()]
    if any(x.dtype is torch.bfloat16 for x in inputs):
        halved = run_example(pass_, stage, example, inputs=inputs)
        check_result(pass_, stage, example, halved, f"{where}, bfloat16", inputs)


def check_refusal(pass_: Pass, stage: Stage, example: Example) -> None:
    """The pass leaves the example as it is, and says the stated reason."""
    where = f"{stage}/{pass_.name} on {example.name}"
    run = run_example(pass_, stage, example)
    assert not run.record.changed, f"{where}: it must refuse this, but changed it to\n{run.after}"
    reasons = [r.reason for r in run.record.rejects]
    assert any(example.because in reason for reason in reasons), f"{where}: {example.because!r} is not in {reasons}"


def check_result(
    pass_: Pass, stage: Stage, example: Example, run: ExampleRun, where: str, inputs: list[Any] | None = None
) -> None:
    """The graph after the pass does what the graph before it does, and a second run changes nothing."""
    before = capture_example(stage, example, inputs=inputs)
    sort_in_place(before.graph)
    before.recompile()
    for given in _inputs(inputs or example.make_inputs(), pass_.contract.numerics):
        _compare(pass_, stage, before, run.module, given, where)
    again = run_pass(pass_, stage, run.module)
    assert not again.record.changed, f"{where}: a second run changes\n{run.after}\nto\n{again.after}"


def assert_pass(
    pass_: Pass,
    before: Callable[..., Any],
    after: Callable[..., Any],
    inputs: Sequence[TensorSpec],
    *,
    stage: Stage | None = None,
) -> None:
    """The pass turns one program into another one, and does it right. The two are compared as they are spelled."""
    stage = stage or pass_.stages[0]
    example = Example(getattr(before, "__name__", "before"), before, tuple(inputs))
    run = run_example(pass_, stage, example)
    wanted = capture(after, example.make_inputs(), "torch" if stage == "pre_grad" else "aten")
    unlike = first_difference(run.module.graph, wanted.graph)
    assert unlike is None, f"expected\n{to_function(wanted.graph)}\ngot\n{run.after}\nThey differ in {unlike}."
    check_example(pass_, stage, example)


def assert_refused(
    pass_: Pass, program: Callable[..., Any], inputs: Sequence[TensorSpec], because: str, *, stage: Stage | None = None
) -> None:
    """The pass leaves a program as it is, and says why."""
    example = Example(getattr(program, "__name__", "program"), program, tuple(inputs), because)
    check_refusal(pass_, stage or pass_.stages[0], example)


def bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bits: NaN equals NaN, zero does not equal minus zero."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.is_complex:
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    nans = torch.isnan(a) & torch.isnan(b) if a.dtype.is_floating_point else torch.zeros_like(a, dtype=torch.bool)
    signs = torch.signbit(a) == torch.signbit(b) if a.dtype.is_floating_point else torch.ones_like(a, dtype=torch.bool)
    return bool((nans | ((a == b) & signs)).all())


# ------------------------------------------------------------------------------------------------------- comparing


def _inputs(example: list[Any], numerics: str) -> Iterator[list[Any]]:
    """The example's inputs, and the same with awkward values strewn in where the result must be exact."""
    yield example
    if numerics == "exact" and any(x.dtype.is_floating_point for x in example):
        yield [_awkward(x) if x.dtype.is_floating_point else x for x in example]


def _awkward(x: torch.Tensor) -> torch.Tensor:
    awkward = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0], dtype=x.dtype)
    x = x.clone()
    flat = x.view(-1)
    flat[: len(awkward)] = awkward[: flat.numel()]
    return x


def _as_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16() if x.dtype is torch.float32 else x


def _compare(pass_: Pass, stage: Stage, before: GraphModule, after: GraphModule, inputs: list[Any], where: str) -> None:
    numerics = pass_.contract.numerics
    gradients = stage == "pre_grad"  # later graphs contain their backward, or are one
    expected, got = _execute(before, inputs, gradients), _execute(after, inputs, gradients)
    for key, a in expected.items():
        b = got[key]
        what = f"{where}: {key}"
        if not isinstance(a, torch.Tensor):
            assert a == b, f"{what} was {a} and is {b}"
            continue
        assert isinstance(b, torch.Tensor), f"{what} was a tensor and is {b}"
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), (
            f"{what}: {a.dtype, a.shape, a.stride()} became {b.dtype, b.shape, b.stride()}"
        )
        if numerics == "exact":
            assert bitwise_equal(a, b), f"{what} changed:\n{a}\n{b}"
        elif numerics == "reassociates":
            truth = _execute(before, [x.double() if x.dtype.is_floating_point else x for x in inputs], gradients)[key]
            old, new = (a.double() - truth).abs().max(), (b.double() - truth).abs().max()
            assert new <= GROWTH * old + torch.finfo(a.dtype).eps, f"{what}: the error grew from {old} to {new}"
        elif numerics == "redraws":
            assert torch.allclose(a.float().mean(), b.float().mean(), atol=0.2), f"{what}: another distribution"
            assert torch.allclose(a.float().std(), b.float().std(), atol=0.2), f"{what}: another distribution"


def _execute(module: GraphModule, inputs: list[Any], gradients: bool) -> dict[str, Any]:
    """Everything that a caller can see of a run: outputs, who shares memory with whom, written inputs, gradients."""
    torch.manual_seed(1234)
    given = [x.clone().requires_grad_(gradients and x.dtype.is_floating_point) for x in inputs]
    handed = [x.clone() if x.requires_grad else x for x in given]
    result = module(*handed)
    outputs = list(result) if isinstance(result, (list, tuple)) else [result]
    seen: dict[str, Any] = {
        f"output {i}": o.detach() if isinstance(o, torch.Tensor) else o for i, o in enumerate(outputs)
    }
    tensors = [("input", i, x) for i, x in enumerate(handed)] + [("output", i, o) for i, o in enumerate(outputs)]
    tensors = [t for t in tensors if isinstance(t[2], torch.Tensor)]
    for i, (kind, n, a) in enumerate(tensors):
        for other, m, b in tensors[:i]:
            shares = a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() > 0
            seen[f"{kind} {n} shares memory with {other} {m}"] = (shares, a is b)
    for i, x in enumerate(handed):
        seen[f"input {i} afterwards"] = x.detach().clone()
    differentiable = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    leaves = [x for x in given if x.requires_grad]
    if differentiable and leaves:
        grads = torch.autograd.grad([o.float().sum() for o in differentiable], leaves, allow_unused=True)
        seen.update({f"gradient {i}": g for i, g in enumerate(grads)})
    return seen
