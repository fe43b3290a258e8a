"""Checks of passes against their contracts: for the tests of this package, and for yours.

`check_contract` takes everything from the pass itself: each example fires, the result is correct, a second run changes
nothing, each refusal is refused for the stated reason. `assert_pass` and `assert_refused` do the same for a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from eductor.errors import PassFailed
from eductor.graph import capture, first_difference, to_function
from eductor.observe.manual.manual import ExampleRun, capture_example, nearest_misses, run_example, run_pass
from eductor.patterns.pattern_pass import PatternPass
from eductor.pipeline import Example, Pass, Pipeline, Registry, Stage, TensorSpec
from eductor.verification.verifier import Verifier


def check_contract(pass_: Pass, stage: Stage) -> None:
    """Checks a pass against its own examples, refusals and contract; raises AssertionError with what fails."""
    where = f"{stage}/{pass_.name}"
    assert pass_.purpose, f"{where} has no docstring, which is its entry in the manual"
    assert pass_.examples, f"{where} has no example: declare one with @{pass_.name}.example"
    assert pass_.refusals, f"{where} has no refusal: declare one with @{pass_.name}.refuses(reason)"
    registry = Registry.default()
    known = any(s.name == pass_.name for s in registry.order(stage))
    registry = registry if known else registry.with_passes([pass_])
    text = Pipeline.default(registry, enable=[pass_.name]).only(f"{stage}/{pass_.name}").text()
    assert Pipeline.parse(text, registry).text() == text, f"{where}: the text form {text!r} does not round-trip"
    if isinstance(pass_, PatternPass):
        pass_.check_rules()
    for example in pass_.examples:
        check_example(pass_, stage, example)
    for example in pass_.refusals:
        check_refusal(pass_, stage, example)


def check_example(pass_: Pass, stage: Stage, example: Example) -> None:
    """The pass fires on the example, and is correct there, with dynamic sizes and in bfloat16, whether it fires there or not."""
    where = f"{stage}/{pass_.name} on {example.name}"
    run = check_run(pass_, stage, example, where)
    assert run.record.changed, (
        f"{where}: it does not fire. Rejected: {[r.reason for r in run.record.rejects]}\n{run.before}"
    )
    check_run(pass_, stage, example, f"{where}, dynamic sizes", dynamic=True)
    inputs = [_as_bfloat16(x) for x in example.make_inputs()]
    if any(x.dtype is torch.bfloat16 for x in inputs):
        check_run(pass_, stage, example, f"{where}, bfloat16", inputs=inputs)


def check_refusal(pass_: Pass, stage: Stage, example: Example) -> None:
    """The pass leaves the example unchanged, and gives the stated reason."""
    where = f"{stage}/{pass_.name} on {example.name}"
    run = run_example(pass_, stage, example)
    assert not run.record.changed, f"{where}: it must refuse this, but changed it to\n{run.after}"
    reasons = [r.reason for r in run.record.rejects]
    reasons += [r.reason for r in nearest_misses(pass_, stage, example)]
    assert any(example.because in reason for reason in reasons), f"{where}: {example.because!r} is not in {reasons}"


def check_run(
    pass_: Pass, stage: Stage, example: Example, where: str, *, dynamic: bool = False, inputs: list[Any] | None = None
) -> ExampleRun:
    """Runs the pass: the graph after it does what the graph before it does, and a second run changes nothing."""
    pass_ = pass_.configured(**example.options)
    module = capture_example(stage, example, dynamic=dynamic, inputs=inputs)
    verifier = Verifier([_differentiable(x, stage) for x in inputs or example.make_inputs()])
    try:
        run = run_pass(pass_, stage, module, verifier, facts=example.context)
    except PassFailed as failed:
        raise AssertionError(f"{where}: {failed}") from failed
    assert not verifier.notes or pass_.contract.numerics == "changes", f"{where}: {', '.join(verifier.notes)}"
    again = run_pass(pass_, stage, run.module, facts=example.context)
    assert not again.record.changed, f"{where}: a second run changes\n{run.after}\nto\n{again.after}"
    return run


def assert_pass(
    pass_: Pass,
    before: Callable[..., Any],
    after: Callable[..., Any],
    inputs: Sequence[TensorSpec],
    *,
    stage: Stage | None = None,
) -> None:
    """The pass rewrites one program into another, correctly. Graphs are compared by structure."""
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
    """The pass leaves a program unchanged, and gives the reason."""
    example = Example(getattr(program, "__name__", "program"), program, tuple(inputs), because)
    check_refusal(pass_, stage or pass_.stages[0], example)


def _as_bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16() if x.dtype is torch.float32 else x


def _differentiable(x: torch.Tensor, stage: Stage) -> torch.Tensor:
    """Before autograd, gradients are part of the result; later graphs contain their backward or are one."""
    return x.requires_grad_() if stage == "pre_grad" and x.dtype.is_floating_point else x
