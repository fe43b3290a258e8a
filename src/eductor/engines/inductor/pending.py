"""Kernels that are still being built when a compile returns, so that the next graph is lowered meanwhile.

A generated module waits for its kernels when it is loaded, at the end of a compile. Where a job allows it, this wait is
left for later, together with what torch does after it: storing the graph in its cache, with the Triton kernels as built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from eductor.engines.inductor.cpp_units import submit, wait_for_units


class Pending:
    """What is left to do when the kernels of a graph are built."""

    def __init__(self, graph: int) -> None:
        self._graph = graph
        self._wait: Callable[[], None] | None = None
        self._keep: Callable[[Any], None] | None = None

    @property
    def is_pending(self) -> bool:
        return self._wait is not None

    def wait_later(self, wait: Callable[[], None], scope: dict[str, Any]) -> bool:
        """Takes over the wait of a module with these names, unless its kernels run before the compile returns."""
        from torch._inductor import config
        from torch._inductor.virtualized import V

        is_module = "__file__" in scope  # kernels are also tuned in a plain dictionary
        is_whole = getattr(V.graph, "graph_id", None) == self._graph  # parts of it are measured as modules of their own
        if not (is_module and is_whole) or config.profile_bandwidth_output:
            return False
        self._wait = wait
        return True

    def keep_later(self, keep: Callable[[Any], None]) -> None:
        """Takes over storing the graph in torch's cache: a function of the Triton kernels."""
        self._keep = keep

    def finish(self) -> None:
        """Waits for the kernels, once, and stores the graph."""
        from torch._inductor.triton_bundler import TritonBundler

        wait, self._wait, keep, self._keep = self._wait, None, self._keep, None
        if wait is None:
            return
        TritonBundler.begin_compile()  # it notes the kernels as they arrive
        try:
            wait()
            kernels, _ = TritonBundler.collect()
        finally:
            TritonBundler.end_compile()
        if keep is not None:
            keep(kernels)


_current: ContextVar[Pending | None] = ContextVar("eductor_pending", default=None)


@contextmanager
def pending(graph: int, *, defers: bool) -> Iterator[Pending]:
    """Compile a graph; with `defers`, the compile returns while kernels are being built."""
    made = Pending(graph)
    token = _current.set(made if defers else None)
    try:
        yield made
    finally:
        _current.reset(token)


def wait_or_defer(wait: Callable[..., Any], compiler: Any, scope: dict[str, Any]) -> None:
    """`AsyncCompile.wait`, which a module calls after its last kernel."""
    current, builds = _current.get(), submit(compiler) | _builds_of_triton(scope)
    later = partial(wait_for_units, wait, compiler, scope, builds)
    if current is None or all(task.done() for task in builds) or not current.wait_later(later, scope):
        later()


def keep_or_defer(keep: Callable[..., Any], key: str, compiled: Any, *args: Any) -> None:
    """`FxGraphCache._save_graph`, which stores a graph as soon as it is compiled."""
    current = _current.get()
    if current is None or not current.is_pending:
        keep(key, compiled, *args)
        return

    def keep_with(later: Any) -> None:
        compiled.set_triton_bundle(_together(compiled._triton_bundle, later))
        keep(key, compiled, *args)

    current.keep_later(keep_with)


def _together(first: Any, later: Any) -> Any:
    """The Triton kernels that were built before the workers were ready, in this process, and those that came later."""
    return type(later)(
        [*first.kernel_artifacts, *later.kernel_artifacts], [*first.static_autotuners, *later.static_autotuners]
    )


def _builds_of_triton(scope: Mapping[str, Any]) -> dict[Future[Any], int]:
    """The tasks of worker processes behind the names of a module, which build one kernel each."""
    from torch._inductor.codecache import LambdaFuture

    futures = (value.future for value in scope.values() if isinstance(value, LambdaFuture))
    return {future: 1 for future in futures if future is not None}
