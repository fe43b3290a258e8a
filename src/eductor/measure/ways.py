"""The ways to run a model that are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from eductor import compiler
from eductor.pipeline.instruments import Instrument

Compile = Callable[[Any], Any]

EAGER, STOCK, OURS = "eager", "inductor", "eductor"
WITH_GRAPHS = "reduce-overhead"


def ways(device: str, *instruments: Instrument) -> dict[str, Compile]:
    """Each way by its name; those with CUDA graphs on CUDA only."""
    found: dict[str, Compile] = {
        EAGER: lambda model: model,
        STOCK: torch.compile,
        OURS: lambda model: compiler.compile(model, engine="inductor", instruments=instruments),
    }
    if device == "cuda":
        found[f"{STOCK}, {WITH_GRAPHS}"] = lambda model: torch.compile(model, mode=WITH_GRAPHS)
        found[f"{OURS}, {WITH_GRAPHS}"] = lambda model: compiler.compile(model, engine="inductor", mode=WITH_GRAPHS)
    return found
