"""Every difference between torch versions and every private name of torch that the lower rooms need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._guards import tracing
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx as make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.fx.experimental.symbolic_shapes import statically_known_true as statically_known_true
from torch.fx.proxy import _COPY_META_FIELDS

# What a node made in place of another inherits: torch's own list, and what Dynamo and export add.
INHERITED_META: tuple[str, ...] = (*_COPY_META_FIELDS, "stack_trace", "seq_nr")

# Operators whose schema does not tell everything: they may return an input, or write one.
MAYBE_ALIASING_TAG: Any = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)


SIZE_CHECKS: frozenset[Any] = frozenset({torch._check, torch._check_is_size, torch._check_value})
"""Functions that check sizes while tracing, and stay in a captured graph."""

TENSOR_BASE: type = torch._C.TensorBase
"""The class whose methods are the builtin methods of tensors."""


def operator_bindings() -> tuple[Any, ...]:
    """The modules whose builtin functions are bindings of operators of their own names."""
    c: Any = torch._C
    return (torch, c._VariableFunctions, c._nn, c._fft, c._linalg, c._special)


def codegen_of(graph: Graph) -> Any:
    """How a graph takes its inputs apart and puts its outputs together."""
    return graph._codegen


def sort_key(node: Node) -> Any:
    """The place of a node in its graph, comparable with that of its neighbours and kept by torch.fx at each insertion."""
    return node._sort_key


def is_dispatched(op: OpOverload) -> bool:
    """Whether the dispatcher knows the operator; TorchScript has others of its own (`aten::cpu`, `aten::add.int`)."""
    return bool(torch._C._dispatch_has_kernel(op.name()))


def is_composite(op: OpOverload) -> bool:
    """Whether the operator is written in terms of others, so that its schema need not say what it aliases."""
    return bool(op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


@contextmanager
def without_tracing_context() -> Iterator[None]:
    """Hides the ambient tracing context, so that a nested capture does not meet the outer compile's fake mode."""
    with tracing(None):
        yield


@contextmanager
def taking_real_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """Lets parameters and constants of a module into a trace on fake inputs; they become attributes of its graph."""
    strict, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with enable_python_dispatcher():
            yield
    finally:
        mode.allow_non_fake_inputs = strict


_GRAD_MODE = torch._C._set_grad_enabled
_AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
_INFERENCE = (torch.autograd.grad_mode._enter_inference_mode, torch.autograd.grad_mode._exit_inference_mode)
_SWITCHES = frozenset({_GRAD_MODE, *_AUTOCAST, *_INFERENCE})


def is_context_switch(target: Any) -> bool:
    """Whether a target switches grad mode, inference mode or autocast for what follows it."""
    try:
        return target in _SWITCHES
    except TypeError:
        return False


def switch_context(target: Any, *args: Any) -> Any:
    """Makes a switch; inference mode as no-grad mode, which can be undone even if its end is never reached."""
    if target is _INFERENCE[0]:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(before and not args[0])
        return before
    return torch._C._set_grad_enabled(args[0]) if target is _INFERENCE[1] else target(*args)


@contextmanager
def keeping_dispatch_state() -> Iterator[None]:
    """Restores grad mode and autocast afterwards, whatever the body switches."""
    grad = torch.is_grad_enabled()
    devices = [d for d in ("cpu", "cuda") if torch.amp.is_autocast_available(d)]
    autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices}
    cache = torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        for device, (enabled, dtype) in autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


def dynamo_export(fn: Callable[..., Any], args: tuple[Any, ...], *, dynamic: bool) -> torch.fx.GraphModule:
    """Dynamo's Torch-level graph of a function, without running or compiling it."""
    import torch._dynamo

    exported = torch._dynamo.export(fn, assume_static_by_default=not dynamic)(*args)
    module: torch.fx.GraphModule = exported.graph_module
    return module


def new_symbol(env: ShapeEnv, name: str, hint: int) -> torch.SymInt:
    """A size that is not known, with the value it had in an example."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    size: torch.SymInt = env.create_symintnode(symbol, hint=hint, source=source)  # type: ignore[assignment]
    return size
