"""Runs one pass on a printed graph: what a reproducer calls."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eductor.errors import BadPass
from eductor.graph.parser import from_python
from eductor.graph.printer import to_python
from eductor.options import Options
from eductor.pipeline.base import Context, Pass, Stage
from eductor.pipeline.registry import Step
from eductor.pipeline.runner import run_steps


def replay(
    graph: str,
    *,
    stage: Stage,
    pass_: str,
    options: Mapping[str, Any] | None = None,
    is_inference: bool = False,
    tensors: str | None = None,
) -> None:
    """Runs a pass, found as `module:name` or `file.py:name`, strictly on a printed graph, and prints the result."""
    root = torch.nn.Module()
    for name, value in (torch.load(tensors) if tensors else {}).items():
        _set(root, name, value)
    module = from_python(graph, root)
    found = load_pass(pass_).configured(**dict(options or {}))
    step = Step(stage, found.name, 1, "replayed", pass_, found)
    run_steps([step], stage, module, Context(stage, Options(strict=True, debug=True), is_inference), ())
    print(to_python(module.graph))
    print(f"# {step.address} did not fail here.")


def load_pass(where: str) -> Pass:
    """The pass at `module:name` or `file.py:name`."""
    home, _, name = where.rpartition(":")
    if home.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(home).stem, home)
        if spec is None or spec.loader is None:
            raise BadPass(f"cannot import {home}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(home)
    found = [p for p in vars(module).values() if isinstance(p, Pass) and p.name == name]
    if not found:
        raise BadPass(
            f"{home} defines no pass called {name!r} at its top level, so it cannot be replayed from here: "
            "move the pass to the top level of a module that can be imported."
        )
    return found[0]


def _set(root: torch.nn.Module, path: str, value: torch.Tensor) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(root, parent):
            root.add_module(parent, torch.nn.Module())
        root = getattr(root, parent)
    root.register_buffer(name, value)
