"""What runs the final graph. An engine takes a `Job` and returns a function of a list of inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from eductor.engines.aten import aten
from eductor.errors import UnknownName

Compiled = Callable[[list[Any]], Sequence[Any]]
"""Takes the inputs as a list, which it empties, so that nothing outlives its last use; returns the outputs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A final graph to be made runnable."""

    module: GraphModule
    inputs: Sequence[Any]
    is_inference: bool


Engine = Callable[[Job], Compiled]

ENGINES: dict[str, Engine] = {"aten": lambda job: aten(job.module)}


def find_engine(engine: str | Engine) -> Engine:
    """An engine by its name; a function is its own."""
    if not isinstance(engine, str):
        return engine
    if engine not in ENGINES:
        raise UnknownName("engine", engine, ENGINES)
    return ENGINES[engine]
