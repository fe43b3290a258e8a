"""What a trace, and a backward that runs, know of themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Node


@contextmanager
def taking_real_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """Lets parameters and constants of a module into a trace on fake inputs; they become attributes of its graph."""
    strict, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with enable_python_dispatcher():
            yield
    finally:
        mode.allow_non_fake_inputs = strict


@contextmanager
def tracing_autograd(mode: FakeTensorMode) -> Iterator[None]:
    """What a trace of a backward needs: all on this thread, no hooks of the user."""
    hooks: Any = torch._C._autograd
    before = hooks._saved_tensors_hooks_set_tracing(True)
    compiled_autograd: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    try:
        with ExitStack() as stack:
            if compiled_autograd is not None and compiled_autograd.compiled_autograd_enabled:
                stack.enter_context(compiled_autograd._disable())
            stack.enter_context(mode)
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            if hasattr(mode, "allow_scalar_outputs"):  # the backward of a while_loop counts with `item`
                stack.enter_context(patch.object(mode, "allow_scalar_outputs", True))
            yield
    finally:
        hooks._saved_tensors_hooks_set_tracing(before)


@contextmanager
def without_tracing_context() -> Iterator[None]:
    """Hides the ambient tracing context, so that a nested capture does not meet the outer compile's fake mode."""
    with tracing(None):
        yield


def last_traced_node() -> Node:
    """The newest node of the trace that goes on."""
    from torch.fx.experimental.proxy_tensor import get_innermost_proxy_mode

    mode = get_innermost_proxy_mode()
    assert mode is not None
    newest: Node = mode.tracer.graph._root.prev
    return newest


def sequence_number() -> int:
    """The number that autograd gives to the next step it records on this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def keeps_graph() -> bool:
    """Whether the backward that runs was asked to leave saved values for another one."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def has_saved_tensors_hooks() -> bool:
    """Whether the user looks at saved tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
