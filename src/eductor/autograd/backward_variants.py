"""Backward variants: the backward graph, compiled on first use for each set of defined tangents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from eductor.program.job import Run

Compile = Callable[[GraphModule, bool], Run]
"""Compiles a backward graph; the flag says that its saved values are needed afterwards."""

Prune = Callable[[Sequence[bool]], tuple[GraphModule, list[bool]]]
"""From which tangents are defined to the backward that takes only those, and which gradients it computes."""


class Backwards:
    """Compiled variants of one backward graph, by which tangents are defined and whether saved values stay alive."""

    def __init__(self, module: GraphModule, tangents: int, compile: Compile, prune: Prune) -> None:
        self._module = module
        self._prune = prune
        self._tangents = tangents
        self._compile = compile
        self._made: dict[tuple[tuple[bool, ...], bool], Run] = {}
        self._lock = threading.RLock()

    def __call__(self, defined: tuple[bool, ...], keeps: bool) -> Run:
        run = self._made.get((defined, keeps))
        if run is None:
            with self._lock:
                run = self._made.get((defined, keeps)) or self._make(defined, keeps)
                self._made[defined, keeps] = run
        return run

    def prepare(self) -> None:
        """Compiles the ordinary variant now."""
        self((True,) * self._tangents, False)

    def _make(self, defined: tuple[bool, ...], keeps: bool) -> Run:
        if all(defined):
            return self._compile(self._module, keeps)
        module, present = self._prune(defined)
        run = self._compile(module, keeps)

        def call(inputs: list[Any]) -> Sequence[Any]:
            found = iter(run(inputs))
            return [next(found) if is_present else None for is_present in present]

        return call
