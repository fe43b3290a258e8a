"""Dynamo: what it compiles, why, and how to ask it for a graph."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._guards import CompileContext, TracingContext, compile_context, tracing
from torch._logging._internal import trace_log, trace_structured


class CompileState:
    """What Dynamo knows of the compile that goes on, to be entered again when a backward is compiled later.

    No other thread compiles meanwhile: neither traces nor code generators bear that.
    """

    def __init__(self) -> None:
        self._tracing = TracingContext.try_get()
        self._compile = CompileContext.try_get()

    @contextmanager
    def entered(self) -> Iterator[None]:
        from torch._dynamo.convert_frame import compile_lock

        with ExitStack() as stack:
            stack.enter_context(compile_lock)
            if TracingContext.try_get() is not self._tracing:
                stack.enter_context(tracing(self._tracing))
            if CompileContext.try_get() is not self._compile:
                stack.enter_context(compile_context(self._compile))
            yield


def dynamo_export(fn: Callable[..., Any], args: tuple[Any, ...], *, dynamic: bool) -> torch.fx.GraphModule:
    """Dynamo's Torch-level graph of a function, without running or compiling it."""
    import torch._dynamo

    exported = torch._dynamo.export(fn, assume_static_by_default=not dynamic)(*args)
    module: torch.fx.GraphModule = exported.graph_module
    return module


def compile_id() -> str:
    """Dynamo's name of the graph that is being compiled, `frame/compile`; empty outside of a compile."""
    found = CompileContext.current_compile_id()
    return "" if found is None else str(found)


def code_name() -> str:
    """The name of the Python code whose graph Dynamo hands over; empty outside of a compile."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if CompileContext.current_compile_id() is None:
        return ""
    return str(InstructionTranslator.current_tx().f_code.co_name)


def recompile_reason() -> str:
    """Why Dynamo compiles code again that it has compiled before: the guard that failed; empty where it does not say."""
    from torch._dynamo.utils import get_metrics_context

    found = get_metrics_context()._metrics.get("recompile_reason") or ""
    first = next(iter(str(found).splitlines()), "")
    return re.sub(r"^\d+/\d+: ", "", first).strip()


RESUMED = r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)"
"""How Dynamo calls the code of a function behind a graph break."""


def original_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What was given to torch.compile, where a function or a module is what that made of it."""
    from torch._dynamo.eval_frame import OptimizedModule, innermost_fn

    original: Callable[..., Any] = fn._orig_mod if isinstance(fn, OptimizedModule) else innermost_fn(fn)
    return original


def compiled_apart(fn: Callable[..., Any], **keywords: Any) -> Any:
    """torch.compile that neither reuses nor counts what was compiled of the same code before.

    Before torch 2.13 that is only to be had by forgetting it: what the user compiled is compiled anew when it is called.
    """
    compile: Any = torch.compile
    if "isolate_recompiles" in inspect.signature(compile).parameters:
        return compile(fn, **keywords, isolate_recompiles=True)
    torch._dynamo.reset()
    return compile(fn, **keywords)


def default_backend() -> Any:
    """What torch.compile compiles with where it is given no backend, which newer versions of torch let one choose."""
    chosen = getattr(torch.compiler, "get_default_backend", None)
    return "inductor" if chosen is None else chosen()


def is_traced() -> bool:
    """Whether torch writes its structured trace, as TORCH_TRACE asks for it."""
    return bool(os.environ.get("TORCH_TRACE") and trace_log.handlers)


def trace_artifact(name: str, encoding: str, payload: Callable[[], Any]) -> None:
    """Puts something of our own into torch's structured trace, where tlparse shows it under this name."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": encoding},
        payload_fn=payload,
        expect_trace_id=False,  # a backward is compiled when it first runs, outside of a compile of Dynamo
    )
