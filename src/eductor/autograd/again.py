"""The captured graph once more, under eager's autograd: for what the compiled backward does not cover.

That is a gradient of a gradient (`create_graph=True`: gradient penalties, Hessian-vector products, any order), and a
backward that is called under autocast, where eager's backward would cast.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from eductor import compat
from eductor.autograd.captured import Captured
from eductor.autograd.joint import Joint
from eductor.graph.meta import requires_grad, value_of


@dataclass(frozen=True, slots=True)
class Kept:
    """What a forward call leaves for another run: its inputs, their versions, the state of the random generators."""

    inputs: Sequence[Any]
    versions: list[int]
    random_state: Any


class Again:
    """Runs the forward of a captured graph again, and eager's backward through it."""

    def __init__(self, captured: Captured, joint: Joint) -> None:
        self._captured = captured
        self._analysis = joint.analysis
        self._tangents = joint.tangents
        self._overwritten = joint.overwritten
        self._lost = _old_values_that_matter(joint)
        self._is_random = any(compat.is_random(n.target) for n in joint.module.graph.nodes)
        self._dispatch = compat.DispatchState()
        self._gradients = joint.gradients
        has_function = any(n.target is _FUNCTION for n in captured.module.graph.nodes)
        self._joint = _pure_copy(joint.module) if has_function else None
        self._watched = [i for i in _counted(joint) if i not in self._overwritten]

    def keep(self, inputs: Sequence[Any]) -> Kept | None:
        """Called by each forward; what it keeps is let go with the saved values."""
        if self._lost:
            return None
        versions = [inputs[i]._version for i in self._watched]
        return Kept(inputs, versions, compat.random_state() if self._is_random else None)

    def backward(self, kept: Kept | None, tangents: Sequence[Any]) -> list[Any]:
        """Gradients of all inputs, themselves differentiable where grad mode is on."""
        if kept is None:
            raise RuntimeError(
                "This gradient cannot be differentiated again: the compiled graph overwrites "
                f"{', '.join(f'input {i}' for i in self._lost)}, whose old value another run of the forward would need. "
                "Compute that part outside of the compiled function, or write to a copy of the input."
            )
        self._check(kept)
        with compat.replayed_randomness(kept.random_state) if self._is_random else nullcontext():
            return self._through_joint(kept, tangents) if self._joint else self._through_captured(kept, tangents)

    def _through_captured(self, kept: Kept, tangents: Sequence[Any]) -> list[Any]:
        """Eager's own forward and backward."""
        with self._dispatch.entered():
            entries = [_renamed(x) for x in kept.inputs]
            sources = [i for i, x in enumerate(entries) if requires_grad(x)]
            starts = [entries[i] for i in sources]
            for i in self._overwritten:
                entries[i] = entries[i].clone()
            outputs = self._captured.run(self._captured.enter(entries))
            returns = [r.pick(entries, outputs) for r in self._analysis.returns]
        defined = [(returns[t.of], g) for t, g in zip(self._tangents, tangents, strict=True) if g is not None]
        found = torch.autograd.grad(
            [y for y, _ in defined],
            starts,
            [g for _, g in defined],
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        return _spread(found, sources, len(entries))

    def _through_joint(self, kept: Kept, tangents: Sequence[Any]) -> list[Any]:
        """The joint graph run by eager's autograd: in it, the backward of a user's autograd.Function is ordinary code."""
        assert self._joint is not None
        if any(g is None for g in tangents):
            raise RuntimeError(
                "This gradient cannot be differentiated again: the graph has a torch.autograd.Function, and only some "
                "of its outputs are used. Use all of them, or leave the others out of the compiled function."
            )
        found = Interpreter(self._joint).run(*(_renamed(x) for x in kept.inputs), *tangents)
        return _spread(found[len(self._analysis.returns) :], self._gradients, len(kept.inputs))

    def _check(self, kept: Kept) -> None:
        for i, version in zip(self._watched, kept.versions, strict=True):
            now = kept.inputs[i]
            if now._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"input {i} of the compiled graph, a tensor of shape {tuple(now.shape)}, is at version "
                    f"{now._version}; expected version {version} instead."
                )


def _renamed(value: Any) -> Any:
    """An input by another name, so that its own history is not walked."""
    return value.view_as(value) if requires_grad(value) else value


def _spread(found: Sequence[Any], places: Sequence[int], count: int) -> list[Any]:
    gradients: list[Any] = [None] * count
    for i, gradient in zip(places, found, strict=True):
        gradients[i] = gradient
    return gradients


def _counted(joint: Joint) -> list[int]:
    """Inputs whose writes autograd counts: all tensors but those of inference mode."""
    values = [value_of(p) for p in joint.primals]
    return [i for i, x in enumerate(values) if isinstance(x, torch.Tensor) and not x.is_inference()]


_FUNCTION = torch.ops.higher_order.autograd_function_apply
"""A user's autograd.Function in a captured graph; eager cannot differentiate its backward again."""


def _pure_copy(module: GraphModule) -> GraphModule:
    """A copy that writes nothing back; passes edit the graph itself."""
    graph = Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        graph.erase_node(node)
    return GraphModule(module, graph)


_NORMS = frozenset(
    {
        torch.ops.aten._native_batch_norm_legit_functional.default,
        torch.ops.aten._batch_norm_with_update_functional.default,
    }
)
"""They update statistics, which their other results do not depend on."""

_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default
"""It takes the statistics, and reads them outside of training only."""


def _old_values_that_matter(joint: Joint) -> list[int]:
    """Overwritten inputs whose old value some output or gradient depends on."""
    needed: set[Node] = set()
    pending = list(joint.module.graph.output_node().all_input_nodes)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(_sources(node))
    return [i for i, p in enumerate(joint.primals) if i in joint.overwritten and p in needed]


def _sources(node: Node) -> list[Node]:
    """What the value of a node depends on."""
    operand = node.args[0] if node.target is operator.getitem else None
    if isinstance(operand, Node) and operand.target in _NORMS and str(node.args[1]) in "012":
        statistics = operand.args[3:5]
        return [n for n in operand.all_input_nodes if n not in statistics]
    if node.target is _NORM_BACKWARD and node.args[7] is True:
        return [n for n in node.all_input_nodes if n not in node.args[3:5]]
    return node.all_input_nodes
