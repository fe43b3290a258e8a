"""Eager replay: the captured graph under eager's autograd, for what the compiled backward does not cover.

That is a gradient of a gradient (`create_graph=True`: gradient penalties, Hessian-vector products, any order), gradients
in batches (`is_grads_batched`), and a backward under autocast, where eager's would cast: of a `torch.autograd.Function`, and of
anything in the profile `exact`. There it is also for gradients in another layout than the backward was traced for, where
eager's kernels would round otherwise.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from eductor import compat
from eductor.autograd.captured import Captured, contains
from eductor.autograd.gradient_uses import gradients_by_use, gradients_in_sum
from eductor.graph import Bound, No, bind, output_of, requires_grad, tensor_of, value_of
from eductor.graph.effects.order import ancestors
from eductor.graph.snapshot import copy_of
from eductor.program.joint import Joint, Signature
from eductor.program.parts import ReplayNeeds


@dataclass(frozen=True, slots=True)
class Kept:
    """What a forward call keeps for a replay: its inputs, their versions, the state of the random generators."""

    inputs: Sequence[Any]
    versions: list[int]
    random_state: Any


@dataclass(frozen=True, slots=True)
class TensorForm:
    """An input that no gradient depends on: any tensor of its form will do, so its memory is released."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @staticmethod
    def of(x: torch.Tensor) -> TensorForm:
        return TensorForm(tuple(x.shape), x.stride(), x.dtype, x.device, x.requires_grad)

    def filled(self) -> torch.Tensor:
        made = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device).zero_()
        return made.requires_grad_(self.requires_grad)


def replay_needs(joint: Joint, *, redraws: bool) -> ReplayNeeds:
    """What a replay needs of each call. `redraws`: the compiled graphs draw other random numbers than eager."""
    is_random = contains(joint.module, compat.is_random)
    outputs = output_of(joint.module)
    needed = ancestors(outputs[len(joint.analysis.returns) :], _sources)
    unneeded = {p for p in joint.primals if p not in needed and _is_array(p)}
    return ReplayNeeds(
        is_random,
        tuple(i for i in _counted(joint, needed) if i not in joint.overwritten),
        tuple(i for i in _counted(joint, unneeded) if i not in joint.static),
        _refusal(joint, ancestors(outputs, _sources), redraws=redraws and is_random),
    )


def has_function(module: GraphModule) -> bool:
    """Whether a captured graph has a user's autograd.Function, whose backward is differentiated in the joint graph."""
    return contains(module, lambda target: target is _FUNCTION)


class EagerReplay:
    """Runs the forward of a captured graph again, and eager's backward through it."""

    def __init__(
        self,
        captured: Captured,
        signature: Signature,
        needs: ReplayNeeds,
        function_graph: GraphModule | None,
        *,
        by_use: bool = False,
    ) -> None:
        self._captured = captured
        self._by_use = by_use
        self._analysis = signature.analysis
        self._tangents = signature.tangents
        self._overwritten = signature.overwritten
        self._gradients = signature.gradients
        self._dispatch = compat.DispatchState()
        self._is_random = needs.is_random
        self._watched = needs.watched
        self._let_go = needs.let_go
        self._refusal = needs.refusal
        self._joint = function_graph

    def keep(self, inputs: Sequence[Any]) -> Kept | None:
        """Called by each forward; what it keeps is released with the saved values."""
        if self._refusal is not None:
            return None
        versions = [compat.version_of(inputs[i]) for i in self._watched]
        if self._let_go:
            inputs = list(inputs)
            for i in self._let_go:
                inputs[i] = TensorForm.of(inputs[i])
        return Kept(inputs, versions, compat.random_state() if self._is_random else None)

    def can_run(self, kept: Kept | None) -> bool:
        """Whether the inputs are unchanged."""
        if kept is None:
            return False
        return all(compat.version_of(kept.inputs[i]) == v for i, v in zip(self._watched, kept.versions, strict=True))

    def backward(self, kept: Kept | None, tangents: Sequence[Any]) -> list[list[Any]]:
        """The parts of the gradients of all inputs, themselves differentiable where grad mode is on."""
        if kept is None:
            raise RuntimeError(f"This gradient cannot be differentiated again: {self._refusal}")
        self._check(kept)
        inputs = [x.filled() if isinstance(x, TensorForm) else x for x in kept.inputs]
        with compat.replayed_randomness(kept.random_state) if self._is_random else nullcontext():
            if self._joint is not None and torch.is_grad_enabled():
                return self._through_joint(self._joint, inputs, tangents)
            return self._through_captured(inputs, tangents)

    def _through_captured(self, inputs: Sequence[Any], tangents: Sequence[Any]) -> list[list[Any]]:
        """Eager's own forward and backward."""
        with self._dispatch.entered():
            entries = [_renamed(x) for x in inputs]
            sources = [i for i, x in enumerate(entries) if requires_grad(x)]
            starts = [entries[i] for i in sources]
            for i in self._overwritten:
                entries[i] = entries[i].clone()
            outputs = self._captured.run(self._captured.enter(entries))
            returns = [r.pick(entries, outputs) for r in self._analysis.returns]
        defined = [(returns[t.of], g) for t, g in zip(self._tangents, tangents, strict=True) if g is not None]
        find = gradients_by_use if self._by_use else gradients_in_sum
        found = find([y for y, _ in defined], starts, [g for _, g in defined], create_graph=torch.is_grad_enabled())
        parts: list[list[Any]] = [[] for _ in entries]
        for i, given in zip(sources, found, strict=True):
            parts[i] = given
        return parts

    def _through_joint(self, joint: GraphModule, inputs: Sequence[Any], tangents: Sequence[Any]) -> list[list[Any]]:
        """Eager's autograd through the joint graph, where the backward of a user's autograd.Function is ordinary code."""
        if any(g is None for g in tangents):
            raise RuntimeError(
                "This gradient cannot be differentiated again: the graph has a torch.autograd.Function, and only some "
                "of its outputs are used. Use all of them, or leave the others out of the compiled function."
            )
        found = Interpreter(joint).run(*(_renamed(x) for x in inputs), *tangents)
        parts: list[list[Any]] = [[] for _ in inputs]
        for i, part in zip(self._gradients, found[len(self._analysis.returns) :], strict=True):
            parts[i].append(part)
        return parts

    def _check(self, kept: Kept) -> None:
        for i, version in zip(self._watched, kept.versions, strict=True):
            now = kept.inputs[i]
            if compat.version_of(now) != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"input {i} of the compiled graph, a tensor of shape {tuple(now.shape)}, is at version "
                    f"{compat.version_of(now)}; expected version {version} instead."
                )


def _renamed(value: Any) -> Any:
    """A view of an input, so that autograd does not walk the input's own history."""
    return value.view_as(value) if requires_grad(value) else value


def _counted(joint: Joint, among: Collection[Node]) -> list[int]:
    """Those inputs whose writes autograd counts: all tensors but inference tensors."""
    values = [(i, value_of(p)) for i, p in enumerate(joint.primals) if p in among]
    return [i for i, x in values if isinstance(x, torch.Tensor) and not x.is_inference()]


def _is_array(node: Node) -> bool:
    """Whether a value is a floating-point tensor of at least one dimension, which the graph does not read as a number."""
    value = tensor_of(node)
    return value is not None and value.dim() > 0 and (value.is_floating_point() or value.is_complex())


def _refusal(joint: Joint, needed: Collection[Node], *, redraws: bool) -> No | None:
    """Why a replay would not compute what the compiled forward did; None if it would."""
    if redraws:
        return No("the compiled graph drew random numbers of its own. Compile with the option fallback_random=True.")
    lost = [f"input {i}" for i, p in enumerate(joint.primals) if i in joint.overwritten and p in needed]
    if lost:
        return No(
            f"the compiled graph overwrites {', '.join(lost)}, whose old value a replay of the forward would need. "
            "Compute that part outside of the compiled function, or write to a copy of the input."
        )
    return None


_FUNCTION = torch.ops.higher_order.autograd_function_apply
"""A user's autograd.Function in a captured graph; eager cannot differentiate its traced backward."""


def pure_copy(module: GraphModule) -> GraphModule:
    """A copy without write-backs, made before passes edit the graph."""
    graph = copy_of(module.graph)
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        graph.erase_node(node)
    return GraphModule(module, graph)


_NORMS = frozenset(
    {
        torch.ops.aten._native_batch_norm_legit_functional.default,
        torch.ops.aten._batch_norm_with_update_functional.default,
    }
)
"""Their other results do not depend on the statistics they update."""

_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default
"""It takes the statistics, but reads them in evaluation mode only."""


def _sources(node: Node) -> list[Node]:
    """The nodes that the value of a node depends on."""
    operand = node.args[0] if node.target is operator.getitem else None
    if isinstance(operand, Node) and operand.target in _NORMS and node.args[1] in (0, 1, 2):
        return _but_statistics(operand)
    if node.target is _NORM_BACKWARD and _argument(node, "train") is True:
        return _but_statistics(node)
    return node.all_input_nodes


def _but_statistics(norm: Node) -> list[Node]:
    statistics = (_argument(norm, "running_mean"), _argument(norm, "running_var"))
    return [n for n in norm.all_input_nodes if n not in statistics]


def _argument(node: Node, name: str) -> Any:
    bound = bind(node)
    assert isinstance(bound, Bound)
    return bound[name]
