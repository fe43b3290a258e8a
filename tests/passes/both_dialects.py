"""Programs as a pre-grad pass sees them: captured by Dynamo, or exported before dispatch; and a checked run of a pass."""

from __future__ import annotations

import torch
from torch import nn

import eductor
from eductor.graph import capture
from eductor.graph.values.evaluate import propagate
from eductor.observe.manual.manual import run_pass
from eductor.verification.verifier import Verifier

DIALECTS = ("torch", "aten")


class Program(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def captured(program, inputs, dialect="torch", dynamic=False):
    if dialect == "torch":
        return capture(program, inputs, "torch", dynamic=dynamic)
    shapes = ([torch.export.Dim.DYNAMIC] * x.dim() if dynamic else None for x in inputs)
    module = torch.export.export(Program(program), tuple(inputs), dynamic_shapes={"inputs": tuple(shapes)}).module()
    propagate(module, inputs)
    return module


def run(pass_, program, *inputs, dialect="torch", dynamic=False):
    """Runs a pass over a program: what it does is verified, in numbers and gradients, and a second run does nothing."""
    module = captured(program, inputs, dialect, dynamic)
    verifier = Verifier([x.detach().clone().requires_grad_(x.requires_grad) for x in inputs])
    ran = run_pass(pass_, "pre_grad", module, verifier)
    if pass_.contract.numerics != "changes":
        assert not verifier.notes, verifier.notes
    assert not run_pass(pass_, "pre_grad", module).record.changed
    return ran


def fires(pass_, program, *inputs, **how):
    """The graph after a pass that changes it."""
    ran = run(pass_, program, *inputs, **how)
    assert ran.record.changed, f"it does not fire: {reasons(ran)}\n{ran.before}"
    return ran.after


def refuses(because, pass_, program, *inputs, **how):
    """The pass leaves the program, and gives a reason with these words in it."""
    ran = run(pass_, program, *inputs, **how)
    assert not ran.record.changed, f"it fires:\n{ran.after}"
    assert any(because in reason for reason in reasons(ran)), reasons(ran)


def reasons(ran):
    return [r.reason for r in ran.record.rejects]


def result(module, *inputs):
    """What a captured program with one result returns."""
    found = module(*inputs)
    return found[0] if isinstance(found, (list, tuple)) else found


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def compiled(pass_, program):
    """A program compiled with this pass alone, and run operator by operator."""
    return eductor.compile(program, pipeline=f"pre_grad({pass_.name})", engine="aten", strict=True)
