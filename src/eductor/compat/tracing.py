"""The state of a trace, and of a running backward."""

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
    """Allows a module's real parameters and constants in a trace on fake inputs; they become attributes of its graph."""
    strict, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with enable_python_dispatcher():
            yield
    finally:
        mode.allow_non_fake_inputs = strict


@contextmanager
def tracing_autograd(mode: FakeTensorMode) -> Iterator[None]:
    """Sets up the trace of a backward: on this thread, without the user's hooks."""
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
    """Hides the ambient tracing context, so that a nested capture does not use the outer compile's fake mode."""
    with tracing(None):
        yield


def last_traced_node() -> Node:
    """The newest node of the current trace."""
    from torch.fx.experimental.proxy_tensor import get_innermost_proxy_mode

    mode = get_innermost_proxy_mode()
    assert mode is not None
    newest: Node = mode.tracer.graph._root.prev
    return newest


def sequence_number() -> int:
    """The sequence number of the next autograd node on this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def shape_of_last_gradient() -> tuple[Any, ...] | None:
    """The shape of the last operand to which the running node of autograd gives a gradient; None if none runs."""
    running = torch._C._current_autograd_node()
    if running is None or not running.next_functions:
        return None
    function, number = running.next_functions[-1]
    return None if function is None else tuple(function._input_metadata[number].shape)


def keeps_graph() -> bool:
    """Whether the running backward was called with retain_graph."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def has_saved_tensors_hooks() -> bool:
    """Whether the user set hooks on saved tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
