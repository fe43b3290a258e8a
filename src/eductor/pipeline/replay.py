"""Runs one pass on a printed graph: what a reproducer calls."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.errors import BadPass
from eductor.graph import from_python, to_python
from eductor.options import Options
from eductor.pipeline.base import Context, GraphName, Pass, Stage, as_pass
from eductor.pipeline.runner import run_steps
from eductor.pipeline.steps import Step


def replay(
    graph: str,
    *,
    stage: Stage,
    pass_: str,
    home: str = "",
    options: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    attributes: str | Path | None = None,
) -> None:
    """Runs a pass, found as `module:name` or `file.py:name`, strictly on a printed graph, and prints the result.

    `home` is the folder from which the pass is imported, `attributes` the file with the graph's attributes of `self`.
    """
    step = rebuilt_step(stage, pass_, home, options)
    # The file was written with the reproducer, so it is as trusted as that.
    module = rebuilt_module(graph, torch.load(attributes, weights_only=False) if attributes else {})
    run_steps([step], stage, module, rebuilt_context(stage, context), ())
    print(to_python(module.graph))
    print(f"# {step.address} did not fail here.")


def rebuilt_step(stage: Stage, where: str, home: str, options: Mapping[str, Any] | None) -> Step:
    """The step of a reproducer; `home` is the folder from which its pass is imported."""
    if home:
        sys.path.append(home)
    found = load_pass(where).configured(**dict(options or {}))
    return Step(stage, found.name, 1, "replayed", where, found)


def rebuilt_module(graph: str, attributes: Mapping[str, Any]) -> GraphModule:
    """Parses a printed graph and sets its attributes of `self`."""
    root = torch.nn.Module()
    for name, value in attributes.items():
        _set(root, name, value)
    return from_python(graph, root)


def rebuilt_context(stage: Stage, given: Mapping[str, Any] | None) -> Context:
    """The context of a pass from a reproducer, strict."""
    known = dict(given or {})
    facts = {name: known.pop(name) for name in Context(stage).facts() if name in known}
    name = GraphName(role=known.pop("role", "captured"))
    return Context(stage, Options(strict=True, **known), graph=name, **facts)


def load_pass(where: str) -> Pass:
    """The pass or plain function at `module:name` or `file.py:name`."""
    home, _, name = where.rpartition(":")
    if home.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(home).stem, home)
        if spec is None or spec.loader is None:
            raise BadPass(f"cannot import {home}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    elif home:
        module = importlib.import_module(home)
    found = getattr(module, name, None) if home else None
    if not isinstance(found, Pass) and not callable(found):
        raise BadPass(
            f"{home or 'what was typed into a console'} defines no pass called {name!r} at its top level, so it cannot be "
            "replayed from here: move the pass to the top level of a module that can be imported."
        )
    return as_pass(found)


def _set(root: torch.nn.Module, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        if not hasattr(root, parent):
            root.add_module(parent, torch.nn.Module())
        root = getattr(root, parent)
    setattr(root, name, value)
