"""Adapters for Dynamo: its compiles, their reasons, and its export."""

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

from eductor.compat.garbage import fewer_collections


class CompileState:
    """Dynamo's context of the current compile, to be re-entered when a backward is compiled later.

    It holds Dynamo's compile lock: neither traces nor code generators are thread-safe. Garbage is collected less often.
    """

    def __init__(self) -> None:
        self._tracing = TracingContext.try_get()
        self._compile = CompileContext.try_get()

    @contextmanager
    def entered(self) -> Iterator[None]:
        from torch._dynamo.convert_frame import compile_lock

        with ExitStack() as stack:
            stack.enter_context(compile_lock)
            stack.enter_context(fewer_collections())
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
    """Dynamo's id of the current compile, `frame/compile`; empty outside of a compile."""
    found = CompileContext.current_compile_id()
    return "" if found is None else str(found)


def code_name() -> str:
    """The name of the Python code that Dynamo compiles; empty outside of a compile."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if CompileContext.current_compile_id() is None:
        return ""
    return str(InstructionTranslator.current_tx().f_code.co_name)


def recompile_reason() -> str:
    """Why Dynamo recompiles: the guard that failed; empty if unknown."""
    from torch._dynamo.utils import get_metrics_context

    found = get_metrics_context()._metrics.get("recompile_reason") or ""
    first = next(iter(str(found).splitlines()), "")
    return re.sub(r"^\d+/\d+: ", "", first).strip()


RESUMED = r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)"
"""Dynamo's names of resume functions, which run the code after a graph break."""


def original_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function or module that was passed to torch.compile, of one that it returned."""
    from torch._dynamo.eval_frame import OptimizedModule, innermost_fn

    original: Callable[..., Any] = fn._orig_mod if isinstance(fn, OptimizedModule) else innermost_fn(fn)
    return original


def isolated_compile(fn: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    """torch.compile in an isolated cache, for observers: it neither reuses nor counts earlier compiles of the same code.

    Dynamo limits the compiles of one code object to eight: without isolation, the ninth observed compile of a function
    would show nothing, and the function itself would no longer be compiled.
    Before torch 2.13 this resets Dynamo: functions that the user compiled are recompiled when called.
    """
    compile: Callable[..., Callable[..., Any]] = torch.compile
    if "isolate_recompiles" in inspect.signature(compile).parameters:
        return compile(fn, **keywords, isolate_recompiles=True)
    torch._dynamo.reset()
    return compile(fn, **keywords)


def default_backend() -> Any:
    """The default backend of torch.compile, which newer versions of torch let the user set."""
    chosen = getattr(torch.compiler, "get_default_backend", None)
    return "inductor" if chosen is None else chosen()


def is_traced() -> bool:
    """Whether torch writes its structured trace (TORCH_TRACE)."""
    return bool(os.environ.get("TORCH_TRACE") and trace_log.handlers)


def trace_artifact(name: str, encoding: str, payload: Callable[[], Any]) -> None:
    """Adds an artifact to torch's structured trace, where tlparse shows it under this name."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": encoding},
        payload_fn=payload,
        expect_trace_id=False,  # a backward is compiled when it first runs, outside of Dynamo's compile
    )
