"""Joint graphs for tests: of a function, as Dynamo captures it."""

from __future__ import annotations

import torch

from eductor.autograd import aot_dispatch_autograd_graph
from eductor.autograd.captured import Captured, Fakes


def joint_of(fn, *inputs, decompositions=None, dynamic=None):
    """The joint graph of the first graph that Dynamo captures."""
    found = []

    def backend(module, examples):
        captured = Captured(module)
        given = [*captured.held, *examples]
        found.append(aot_dispatch_autograd_graph(captured, Fakes.of(given, captured.sources()), decompositions or {}))
        return module.forward

    torch._dynamo.reset()
    torch.compile(fn, backend=backend, dynamic=dynamic)(*inputs)
    return found[0]


def targets(module):
    return [node.target for node in module.graph.nodes if node.op == "call_function"]
