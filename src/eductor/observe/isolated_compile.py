"""Compiles a function in an isolated Dynamo cache, for instruments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from eductor.compat import isolated_compile
from eductor.compiler import compile_graph
from eductor.engines import choose_engine
from eductor.options import Options
from eductor.pipeline.pipeline import Pipeline


def compile_isolated(fn: Callable[..., Any], options: Options, **keywords: Any) -> Callable[..., Any]:
    """Like `eductor.compile`, but reuses no earlier compile, and does not count against the user's recompile limit.

    Dynamo limits the compiles of one code object to eight: without isolation, the ninth observed compile of a function
    would show nothing, and the function itself would no longer be compiled.
    """
    Pipeline.of(options)
    choose_engine(options)

    def eductor(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(module, inputs, options)

    compiled: Callable[..., Any] = isolated_compile(fn, backend=eductor, **keywords)
    return compiled


def capture_isolated(fn: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    """Like `compile_isolated`, but runs Dynamo's captured graphs in eager."""
    compiled: Callable[..., Any] = isolated_compile(fn, backend="eager", **keywords)
    return compiled
