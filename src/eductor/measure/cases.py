"""Cases of the bench: a model, its arguments, whether it is trained; and the ways to run it that are compared."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from eductor import compiler
from eductor.errors import BadScript, UnknownName
from eductor.measure.models import BUILT_IN
from eductor.pipeline.instruments import Instrument

Make = Callable[[str], tuple[nn.Module, tuple[Any, ...]]]
"""Makes a model and its arguments on a device."""


@dataclass(frozen=True)
class Case:
    """A model and its arguments, for inference or for a training step."""

    model: nn.Module
    inputs: tuple[Any, ...]
    training: bool

    def step(self, fn: Callable[..., Any], model: nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
        """Runs one step of the compiled model and returns its results; gradients stay in the model."""
        with torch.set_grad_enabled(self.training):
            found = [x for x in tree_leaves(fn(*inputs)) if isinstance(x, torch.Tensor)]
        if self.training:
            losses = [x.float().square().mean() for x in found if x.requires_grad]
            torch.stack(losses).sum().backward()
        return found

    def wide(self) -> tuple[Any, ...]:
        """The arguments in float64."""
        return tuple(tree_map(_widened, x) for x in self.inputs)


def _widened(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def makers(source: str | None) -> Mapping[str, Make]:
    """The models by their names: the built-in ones, or those of a file, `FILE.py` or `FILE.py:name`."""
    if source is None:
        return BUILT_IN
    path, _, name = source.partition(":")
    if not Path(path).is_file():
        raise BadScript(f"{path}: no such file. `eductor bench FILE.py` takes one with a dictionary MODELS.")
    models = runpy.run_path(path).get("MODELS")
    if not isinstance(models, dict) or not models or not all(callable(make) for make in models.values()):
        raise BadScript(
            f"{path}: it has no dictionary MODELS of functions that take the name of a device and return a model and the "
            "tuple of its arguments, as in MODELS = {'mine': lambda device: (Model().to(device), (x.to(device),))}."
        )
    if name and name not in models:
        raise UnknownName(f"model of {path}", name, list(models))
    return {name: models[name]} if name else models


def case(make: Make, device: str, *, training: bool) -> Case:
    """Makes a case; the same one in each process."""
    torch.manual_seed(0)
    model, inputs = make(device)
    return Case(model.train(training), tuple(inputs), training)


Way = Callable[[Any], Any]

EAGER, STOCK, OURS = "eager", "inductor", "eductor"
WITH_GRAPHS = "reduce-overhead"


def ways(device: str, *instruments: Instrument) -> dict[str, Way]:
    """Each way by its name; those with CUDA graphs on CUDA only."""
    found: dict[str, Way] = {
        EAGER: lambda model: model,
        STOCK: torch.compile,
        OURS: lambda model: compiler.compile(model, engine="inductor", instruments=instruments),
    }
    if device == "cuda":
        found[f"{STOCK}, {WITH_GRAPHS}"] = lambda model: torch.compile(model, mode=WITH_GRAPHS)
        found[f"{OURS}, {WITH_GRAPHS}"] = lambda model: compiler.compile(model, engine="inductor", mode=WITH_GRAPHS)
    return found
