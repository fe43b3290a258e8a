"""The last step: links compiled graphs into the function that stands in for the captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from eductor import compat
from eductor.autograd.backward_variants import Backwards, Finish, Prune, without_undefined
from eductor.autograd.captured import Captured, Pairs
from eductor.autograd.eager_replay import EagerReplay
from eductor.autograd.input_overlaps import watching_overlaps
from eductor.autograd.runtime import assemble
from eductor.errors import BadGraph, Unsupported, warn
from eductor.launches import ReplayedProgram
from eductor.program.job import Compiled, Job, Run, backward_job
from eductor.program.parts import Program

Compile = Callable[[Job], Compiled]

_MOST_VARIANTS = 4


def compile_job(compile: Compile, job: Job) -> Compiled:
    """Compiles a graph outside of grad mode and autocast, whose casts are in the graph."""
    with torch.no_grad(), compat.without_autocast():
        return compile(job)


def deferred_backward(
    program: Program, forward: Compiled, compile: Compile, prune: Prune | None, shared: dict[str, Any]
) -> Backwards | None:
    """The backward, compiled when it is first called; at once where sizes are saved, whose guards Dynamo waits for.

    While kernels of the forward are being built, the variant that is likely to be called first is lowered. Without `prune`,
    undefined tangents are pruned from the backward of the program, which must be functional then. `shared` has the engine's
    notes about the forward.
    """
    parts, strides = program.parts, forward.strides
    if parts.backward is None:
        return None
    state, chosen = compat.CompileState(), prune or partial(without_undefined, parts.backward)

    def compile_backward(module: GraphModule, defined: Sequence[bool], keeps_saved: bool) -> Finish:
        job = backward_job(program, strides, module, defined, keeps_saved=keeps_saved, shared=shared)
        with state.entered():
            compiled = compile_job(compile, job)

        def finish() -> Run:
            with state.entered():
                return compiled.built().run

        return finish

    def pruned(defined: Sequence[bool]) -> tuple[GraphModule, list[bool]]:
        with state.entered(), torch.no_grad(), compat.without_autocast():
            return chosen(defined)

    backwards = Backwards(parts.backward, len(program.signature.tangents), compile_backward, pruned)
    if parts.sizes:
        backwards.prepare()
    elif forward.wait is not None:
        backwards.start()
    return backwards


def link(
    captured: Captured,
    inputs: Sequence[Any],
    program: Program,
    forward: Compiled,
    backward: Backwards | None,
    *,
    recompile: Callable[[GraphModule, Sequence[Any]], Callable[..., Any]],
    launches: ReplayedProgram | None = None,
    exact: bool = False,
) -> Callable[..., Any]:
    """The function that the caller gets. `recompile` is for later inputs that overlap in another way than `inputs`."""
    signature, replay = program.signature, None
    if program.replay is not None:
        replay = EagerReplay(captured, signature, program.replay, program.function_graph, by_use=exact)
    run = assemble(captured, signature, program.parts, forward, backward, replay, launches=launches, exact=exact)
    if captured.uncounted_writes:
        run = _counting(run, captured)
    written = captured.written(signature)
    if not written:
        return run
    variants = _Variants(partial(recompile, captured.module), captured.module, inputs)
    return watching_overlaps(run, captured, written, variants)


def check_fits(program: Program, captured: Captured, inputs: Sequence[Any]) -> None:
    """Raises if a program was made for another number of inputs."""
    made, given = len(program.signature.analysis.inputs), len(captured.held) + len(inputs)
    if made != given:
        raise BadGraph(f"it was made for {made} inputs, not for {given}")


def _counting(run: Callable[..., Any], captured: Captured) -> Callable[..., Any]:
    """Moves the version counters of inputs that are written through their storage."""

    def call(*args: Any) -> Any:
        inputs = [*captured.held, *args]
        torch.autograd.graph.increment_version([inputs[i] for i in captured.uncounted_writes])
        return run(*args)

    return call


class _Variants:
    """The compiled functions for inputs that overlap in another way than those of the first call."""

    def __init__(
        self, compile: Callable[[Sequence[Any]], Callable[..., Any]], module: GraphModule, inputs: Sequence[Any]
    ) -> None:
        self._compile = compile
        self._module = module
        self._is_static = not any(isinstance(x, (int, torch.SymInt)) for x in inputs)
        self._state = compat.CompileState()
        self._made: dict[Pairs, Callable[..., Any]] = {}

    def __call__(self, pairs: Pairs, args: tuple[Any, ...]) -> Callable[..., Any]:
        """Compiled for the new overlap; with dynamic sizes, or after several overlaps, the graph as captured."""
        if pairs not in self._made:
            if not self._is_static or len(self._made) >= _MOST_VARIANTS:
                return self._module
            try:
                with self._state.entered():
                    self._made[pairs] = self._compile(args)
            except Unsupported as construct:
                warn(
                    f"ahead-of-time autograd does not support {construct}; the captured graph runs uncompiled, as in eager.",
                )
                self._made[pairs] = self._module
        return self._made[pairs]
