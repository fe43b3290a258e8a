"""The runtime wrapper around compiled graphs: a function that behaves as the captured graph in eager.

It passes the inputs to the kernels, records one step of autograd, writes back new values of inputs, and regenerates
outputs that are inputs or views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.autograd.autograd_step import AutogradStep
from eductor.autograd.backward_variants import Backwards
from eductor.autograd.captured import Captured
from eductor.autograd.eager_replay import EagerReplay, has_function
from eductor.compat import FakeTensor
from eductor.graph.effects.bases import base_node
from eductor.graph.values.meta import output_of, tensor_of
from eductor.launches import ReplayedProgram
from eductor.program.job import Compiled, Run
from eductor.program.joint import Signature
from eductor.program.parts import Parts


def assemble(
    captured: Captured,
    signature: Signature,
    parts: Parts,
    forward: Compiled,
    backwards: Backwards | None,
    replay: EagerReplay | None,
    *,
    launches: ReplayedProgram | None = None,
    exact: bool,
) -> Callable[..., Any]:
    """The function that replaces the captured graph."""
    call, counts_writes = forward.run, forward.counts_writes
    if launches is not None:
        call = launches.inference(call) if backwards is None else launches.forward(call)
        counts_writes = None if counts_writes else counts_writes  # a replay counts none
    call = _without_autocast(call) if compat.any_autocast() else call
    call = _detaching(call, parts.forward)
    if backwards is not None:
        given = has_function(captured.module)
        step = AutogradStep(
            signature, parts, call, backwards, replay, launches=launches, runs_users_backward=given, exact=exact
        )
        call = step.as_run()
    call = _in_grad_mode(call, signature, trains=backwards is not None)
    call = _keeping_versions(call, signature, counts_writes) if signature.writes.forward else call
    call = _counting_idle_writes(call, signature)
    finish = _finisher(signature)
    held, spec, flatten = captured.held, captured.spec, captured.flatten
    symbolic = _symbolic_sizes(captured.module, signature) if spec is None else {}
    if not symbolic and finish is None and spec is None and type(captured) is Captured:
        return (lambda *args: call([*held, *args])) if held else (lambda *args: call(list(args)))

    def run(*args: Any) -> Any:
        inputs = [*held, *args]
        flat = flatten(inputs)
        returns = call(list(flat))
        outputs = finish(inputs, flat, returns) if finish is not None else returns
        for k, dims in symbolic.items():
            compat.expect_dynamic(outputs[k], dims)
        return outputs if spec is None else pytree.tree_unflatten(outputs, spec)

    return run


def _symbolic_sizes(module: GraphModule, signature: Signature) -> dict[int, frozenset[int]]:
    """The symbolic dimensions of computed outputs: after a graph break, the next graph is compiled for them at once."""
    found = {}
    for k, (node, output) in enumerate(zip(output_of(module), signature.analysis.outputs, strict=True)):
        value = tensor_of(node) if output.kind != "input" else None
        dims = (
            frozenset(i for i, n in enumerate(value.shape) if isinstance(n, torch.SymInt)) if value is not None else ()
        )
        if dims:
            found[k] = dims
    return found


def _without_autocast(run: Run) -> Run:
    """Runs outside of autocast, whose casts are in the graph."""

    def call(inputs: list[Any]) -> Sequence[Any]:
        with compat.without_autocast():
            return run(inputs)

    return call


def _detaching(run: Run, graph: GraphModule) -> Run:
    """Detaches outputs that are views of values inside of the graph, or inputs, from those.

    A view of another output keeps sharing its version counter, so that autograd sees a write to one through the other.
    """
    outputs = [(k, node) for k, node in enumerate(output_of(graph)) if isinstance(node, torch.fx.Node)]
    places = {node: k for k, node in reversed(outputs)}
    views = {
        k: places.get(base_node(node))
        for k, node in outputs
        if (node.op == "placeholder" or base_node(node) is not node) and isinstance(node.meta.get("val"), FakeTensor)
    }
    if not views:
        return run

    def call(inputs: list[Any]) -> Sequence[Any]:
        results = list(run(inputs))
        for k, base in views.items():
            if results[k] is None:  # a replayed forward makes no tensor of an internal value
                continue
            result = results[k] if base in (None, k) else _counting_together(results[k], results[base])
            results[k] = result.detach()
        return results

    return call


def _counting_together(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """A view that torch records as a view of its base; an engine makes it from the memory alone."""
    if view.dtype != base.dtype or view.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
        return view
    return base.as_strided(view.shape, view.stride(), view.storage_offset())


def _in_grad_mode(run: Run, signature: Signature, *, trains: bool) -> Run:
    """Sets grad mode for the graph: on if it has gradients. Afterwards the mode is the one that the graph leaves."""
    analysis = signature.analysis
    left = analysis.grad_mode
    inference = analysis.makes_inference_tensors

    def call(inputs: list[Any]) -> Sequence[Any]:
        before = torch.is_grad_enabled()
        if inference:
            with torch.inference_mode():
                return run(inputs)
        if before == trains:
            results = run(inputs)
        else:
            torch.set_grad_enabled(trains)
            try:
                results = run(inputs)
            finally:
                torch.set_grad_enabled(before)
        return results

    if left is None:
        return call

    def leaving(inputs: list[Any]) -> Sequence[Any]:
        results = call(inputs)
        torch.set_grad_enabled(left)
        return results

    return leaving


def _keeping_versions(run: Run, signature: Signature, counts_writes: bool | None) -> Run:
    """Moves the versions of written inputs exactly as eager does, whatever the kernels do."""
    inputs = signature.analysis.inputs
    moves = [(i, int(inputs[i].seen_write)) for i in signature.writes.forward]
    seen = [i for i, move in moves if move]
    if (counts_writes is True and len(seen) == len(moves)) or (counts_writes is False and not seen):
        return run

    def counting(given: list[Any]) -> Sequence[Any]:
        torch.autograd.graph.increment_version([given[i] for i in seen])
        return run(given)

    def setting(given: list[Any]) -> Sequence[Any]:
        written = [(given[i], move) for i, move in moves if not given[i].is_inference()]
        versions = [t._version + move for t, move in written]
        results = run(given)
        compat.set_versions([t for t, _ in written], versions)
        return results

    return setting if counts_writes is not False or torch.is_inference_mode_enabled() else counting


def _counting_idle_writes(run: Run, signature: Signature) -> Run:
    """Moves the versions of inputs that were written with their own value (`x.copy_(x)`), which no graph contains."""
    inputs, known = signature.analysis.inputs, {*signature.writes.forward, *signature.writes.backward}
    idle = [i for i, given in enumerate(inputs) if given.seen_write and not given.flows and i not in known]
    if not idle:
        return run

    def counting(given: list[Any]) -> Sequence[Any]:
        torch.autograd.graph.increment_version([given[i] for i in idle if not given[i].is_inference()])
        return run(given)

    return counting


def _finisher(signature: Signature) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]] | None:
    """From the returns of the graph to the outputs of the caller; None if they are the same."""
    analysis = signature.analysis
    written = [(k, r.index) for k, r in enumerate(analysis.returns) if r.source == "input"]
    plain = [o.kind == "return" and o.index == k for k, o in enumerate(analysis.outputs)]
    if all(plain) and len(plain) == len(analysis.returns):
        return None
    with_gradient, without = signature.views
    slots = {
        flag: [j for j, o in enumerate(analysis.outputs) if o.kind == "view" and o.recorded == flag]
        for flag in (True, False)
    }

    def finish(inputs: Sequence[Any], flat: Sequence[Any], returns: Sequence[Any]) -> list[Any]:
        for k, i in written:
            with torch.enable_grad():
                flat[i].copy_(returns[k])
        outputs: list[Any] = [None] * len(analysis.outputs)
        if with_gradient is not None:
            with torch.enable_grad():
                for j, view in zip(slots[True], with_gradient(flat, returns), strict=True):
                    outputs[j] = view
        if without is not None:
            with torch.no_grad():
                for j, view in zip(slots[False], without(flat, returns), strict=True):
                    outputs[j] = view
        for j, output in enumerate(analysis.outputs):
            if output.kind == "return":
                outputs[j] = returns[output.index]
            elif output.kind == "input":
                outputs[j] = inputs[output.index]
            elif output.kind == "output":
                outputs[j] = outputs[output.index]
            elif output.kind == "number":
                outputs[j] = output.value
        return outputs

    return finish
