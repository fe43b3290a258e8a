"""The three stages of passes as functions, under the names and with the signatures of the documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.graph import UNKNOWN, dialect_of, propagate, requires_grad, to_aten, value_of
from eductor.graph.values.evaluate import correct_captured
from eductor.graph.values.module_tensors import tensors_of
from eductor.options import Options
from eductor.pipeline import Context, Pipeline, Stage


def pre_grad_passes(
    gm: GraphModule,
    example_inputs: Sequence[Any] = (),
    add_passes: str | Iterable[str] | None = None,
    remove_passes: str | Iterable[str] | None = None,
    *,
    options: Mapping[str, Any] | Options | None = None,
) -> GraphModule:
    """Runs the pre-grad passes over a captured graph, in place. Names of passes come as a list or with commas."""
    chosen = Options.of(options)
    chosen = replace(chosen, enable=_more(chosen.enable, add_passes), disable=_more(chosen.disable, remove_passes))
    if example_inputs and _lacks_values(gm):
        propagate(gm, example_inputs)
    correct_captured(gm)
    differentiates = _differentiates(gm)
    if differentiates and not any(requires_grad(value_of(n)) for n in gm.graph.nodes if n.op.startswith("call")):
        propagate(gm)  # the values of an exported graph do not say what requires a gradient
    return _run("pre_grad", gm, chosen, is_inference=not differentiates)


def joint_graph_passes(gm: GraphModule, *, options: Mapping[str, Any] | Options | None = None) -> GraphModule:
    """Runs the joint-graph passes over an ATen graph, in place; a Torch-level graph is lowered to ATen first."""
    _bring_to_aten(gm)
    return _run("joint", gm, Options.of(options), is_inference=False)


def post_grad_passes(
    gm: GraphModule, is_inference: bool, *, options: Mapping[str, Any] | Options | None = None
) -> GraphModule:
    """Runs the post-grad passes over a forward or backward ATen graph, in place; a Torch-level one is lowered to ATen first."""
    _bring_to_aten(gm)
    return _run("post_grad", gm, Options.of(options), is_inference=is_inference)


def _run(stage: Stage, gm: GraphModule, options: Options, *, is_inference: bool) -> GraphModule:
    Pipeline.of(options).run(stage, gm, Context(stage, options, is_inference), options.instruments)
    return gm


def _differentiates(gm: GraphModule) -> bool:
    """Whether autograd is enabled and an input or a tensor of the module requires a gradient."""
    inputs = map(value_of, gm.graph.find_nodes(op="placeholder"))
    return torch.is_grad_enabled() and any(map(requires_grad, (*tensors_of(gm).values(), *inputs)))


def _bring_to_aten(gm: GraphModule) -> None:
    if dialect_of(gm) == "torch":
        to_aten(gm)
    elif _lacks_values(gm):
        propagate(gm)


def _lacks_values(gm: GraphModule) -> bool:
    return any(value_of(n) is UNKNOWN for n in gm.graph.nodes if n.op != "output" and n.users)


def _more(names: Sequence[str], given: str | Iterable[str] | None) -> tuple[str, ...]:
    added = given.split(",") if isinstance(given, str) else list(given or ())
    return (*names, *(n.strip() for n in added if n.strip()))
