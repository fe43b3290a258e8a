"""Compiles a function for somebody who looks on, apart from what was compiled of it before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from eductor.compat import compiled_apart
from eductor.compiler import compile_graph
from eductor.engines import choose_engine
from eductor.options import Options
from eductor.pipeline.pipeline import Pipeline


def compile_apart(fn: Callable[..., Any], options: Options, **keywords: Any) -> Callable[..., Any]:
    """As `eductor.compile`, but nothing compiled before is reused, and the user's own compiles are not used up.

    Dynamo keeps at most eight compiles of one code, whoever asked for them: without isolation, the ninth look at a
    function would show nothing, and the function itself would no longer be compiled.
    """
    Pipeline.of(options)
    choose_engine(options)

    def eductor(module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_graph(module, inputs, options)

    compiled: Callable[..., Any] = compiled_apart(fn, backend=eductor, **keywords)
    return compiled


def captured_apart(fn: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    """The same with nothing but Dynamo: its captured graphs run as they are."""
    compiled: Callable[..., Any] = compiled_apart(fn, backend="eager", **keywords)
    return compiled
