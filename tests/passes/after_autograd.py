"""A checked run of a post-grad pass over a program, captured as the functional graph that such passes see."""

from __future__ import annotations

from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.verification.verifier import Verifier


def ran(pass_, program, *inputs, dynamic=False):
    """Runs a pass: what it does is verified, and a second run does nothing."""
    module = capture(program, list(inputs), "aten", dynamic=dynamic)
    verifier = Verifier([x.clone() for x in inputs])
    run = run_pass(pass_, "post_grad", module, verifier)
    assert not verifier.notes, verifier.notes
    assert not run_pass(pass_, "post_grad", module).record.changed
    return run


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]
