"""Around the compiled graphs: a function that behaves as the captured one does.

It hands the inputs to the kernels, lets autograd know the whole as one step, writes back what was written, and makes
outputs that are inputs or views of them what they are in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.autograd.backward_variants import Backwards
from eductor.autograd.captured import Captured
from eductor.autograd.eager_replay import EagerReplay, has_function
from eductor.compat import FakeTensor
from eductor.errors import warn
from eductor.graph.effects.bases import base_node
from eductor.graph.values.meta import output_of
from eductor.program.job import Compiled, Run
from eductor.program.joint import Signature, Tangent
from eductor.program.parts import Parts


def assemble(
    captured: Captured,
    signature: Signature,
    parts: Parts,
    forward: Compiled,
    backwards: Backwards | None,
    replay: EagerReplay | None,
    *,
    exact: bool,
) -> Callable[..., Any]:
    """The function that stands in for the captured graph."""
    call = _without_autocast(forward.run) if compat.any_autocast() else forward.run
    call = _detaching(call, parts.forward)
    if backwards is not None:
        given = has_function(captured.module)
        call = _differentiable(signature, parts, call, backwards, replay, runs_users_backward=given, exact=exact)
    call = _in_grad_mode(call, signature, trains=backwards is not None)
    call = _keeping_versions(call, signature, forward.counts_writes) if signature.writes.forward else call
    call = _counting_idle_writes(call, signature)
    finish = _finisher(signature)
    held, spec, flatten = captured.held, captured.spec, captured.flatten
    if finish is None and spec is None and type(captured) is Captured:
        return (lambda *args: call([*held, *args])) if held else (lambda *args: call(list(args)))

    def run(*args: Any) -> Any:
        inputs = [*held, *args]
        flat = flatten(inputs)
        returns = call(list(flat))
        outputs = finish(inputs, flat, returns) if finish is not None else returns
        return outputs if spec is None else pytree.tree_unflatten(outputs, spec)

    return run


def _without_autocast(run: Run) -> Run:
    """The trace has the casts already."""

    def call(inputs: list[Any]) -> Sequence[Any]:
        with compat.without_autocast():
            return run(inputs)

    return call


def _detaching(run: Run, graph: GraphModule) -> Run:
    """Autograd must not take outputs for views of something inside of the graph, or for the inputs themselves.

    A view of another output shares the counter of its writes, so that a write to the one is noticed by who saved the other.
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
            result = results[k] if base in (None, k) else _counting_together(results[k], results[base])
            results[k] = result.detach()
        return results

    return call


def _counting_together(view: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """A view as one that torch knows to be of its base; an engine makes it from the memory alone."""
    if view.dtype != base.dtype or view.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
        return view
    return base.as_strided(view.shape, view.stride(), view.storage_offset())


def _differentiable(
    signature: Signature,
    parts: Parts,
    forward: Run,
    backwards: Backwards,
    replay: EagerReplay | None,
    *,
    runs_users_backward: bool,
    exact: bool,
) -> Run:
    """The two graphs as one step of autograd."""
    analysis, tangents = signature.analysis, signature.tangents
    count, total, given_inputs = len(analysis.returns), len(analysis.inputs), len(analysis.inputs)
    fixed = [
        k
        for k, (r, value) in enumerate(zip(analysis.returns, analysis.values, strict=True))
        if not r.requires_grad and isinstance(value, torch.Tensor)
    ]
    no_gradient = [
        i for i, given in enumerate(analysis.inputs) if given.requires_grad and i not in set(signature.gradients)
    ]
    positions, repeated = _arguments(signature.gradients, given_inputs)
    saved = [(s.source == "input", s.index) for s in parts.saved]
    sizes = [(s.source == "input", s.index) for s in parts.sizes]
    destinations = parts.destinations
    # Outputs may require gradients that reach no input: autograd must still see a step.
    anchor = [] if positions else [torch.empty(0, requires_grad=True)]
    total += len(repeated) + len(anchor)

    class EductorFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            ctx.kept = replay.keep(args[:given_inputs]) if replay is not None else None
            outputs = forward(list(args[:given_inputs]))
            returns = tuple(outputs[:count])
            ctx.save_for_backward(*(args[i] if is_input else outputs[i] for is_input, i in saved))
            ctx.sizes = [args[i] if is_input else outputs[i] for is_input, i in sizes]
            ctx.destinations = [args[i] for i in destinations]
            ctx.hooked = compat.has_saved_tensors_hooks()
            ctx.set_materialize_grads(False)
            if fixed:
                ctx.mark_non_differentiable(*(returns[k] for k in fixed))
            return returns

        @staticmethod
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *given: Any) -> Any:
            gradients = [given[t.of] for t in tangents]
            values = _saved_tensors(ctx, parts)
            keeps, kept = compat.keeps_graph(), ctx.kept
            if not keeps:
                ctx.kept = None
            defined = tuple(g is not None for g in gradients)
            if torch.is_grad_enabled() or any(compat.is_batched(g) for g in gradients):
                if replay is None:
                    raise RuntimeError(
                        "This gradient cannot be differentiated again, because the option double_backward is off."
                    )
                return handed_back(replay.backward(kept, gradients))
            otherwise = exact and any(_lies_otherwise(g, t) for g, t in zip(gradients, tangents, strict=True))
            casts = (exact or runs_users_backward) and compat.any_autocast()
            as_eager = otherwise or casts or (runs_users_backward and not all(defined))
            if as_eager and replay is not None and replay.can_run(kept):
                return handed_back(replay.backward(kept, gradients))
            if casts:
                warn(
                    "a backward runs under autocast, where eager's casts, and the compiled one may not: its forward cannot run "
                    "again, for it draws random numbers of its own, its inputs were written, or the option double_backward "
                    "is off. Call backward() outside of autocast, as torch advises."
                )
            del kept
            inputs = [*ctx.sizes, *values, *ctx.destinations]
            del values
            ctx.maybe_clear_saved_tensors()  # unless the graph is kept: each is freed after its last reader
            inputs += [_coerced(g, t) for g, t in zip(gradients, tangents, strict=True) if g is not None]
            del gradients
            found = backwards(defined, keeps or ctx.hooked)(inputs)
            result: list[Any] = [None] * total
            for i, gradient in zip(positions, found, strict=True):
                result[i] = gradient
            return tuple(result)

    def handed_back(found: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        result: list[Any] = [None] * total
        for i, parts in enumerate(found):
            places = [i, *(k for k, j in enumerate(repeated, given_inputs) if j == i)] if repeated else [i]
            summed = parts if len(parts) <= len(places) else [reduce(operator.add, parts)]
            for k, part in zip(places, summed, strict=False):
                result[k] = part
        return tuple(result)

    def call(inputs: list[Any]) -> Sequence[Any]:
        for i in no_gradient:
            inputs[i] = inputs[i].detach()
        args = (*inputs, *(inputs[i] for i in repeated), *anchor)
        results: Sequence[Any] = EductorFunction.apply(*args)  # type: ignore[no-untyped-call]
        return results

    return call


def _arguments(gradients: Sequence[int], count: int) -> tuple[list[int], list[int]]:
    """For which argument each gradient is, and the inputs that are arguments again, after all others, once for each further gradient."""
    positions: list[int] = []
    repeated: list[int] = []
    for i in gradients:
        if i in positions:
            positions.append(count + len(repeated))
            repeated.append(i)
        else:
            positions.append(i)
    return positions, repeated


def _saved_tensors(ctx: Any, parts: Parts) -> Sequence[torch.Tensor]:
    """What was saved; an error of autograd also says what to do where eager would have saved something else."""
    try:
        saved: Sequence[torch.Tensor] = ctx.saved_tensors
    except RuntimeError as error:
        if not parts.trusts_parameters or "modified by an inplace operation" not in str(error):
            raise
        raise RuntimeError(
            f"{error}\nThe backward recomputes values from parameters that eager does not save. If these must "
            "change before it, compile with recompute=False."
        ) from error
    return saved


def _lies_otherwise(gradient: torch.Tensor | None, tangent: Tangent) -> bool:
    """Whether a gradient has another layout than the backward was traced for, so that eager's kernels take another way.

    One that is expanded, as that of a sum is, lies like no value does, and is copied instead.
    """
    if gradient is None or 0 in gradient.stride():
        return False
    if tangent.strides is None:
        return not gradient.is_contiguous(memory_format=tangent.memory_format)
    wanted = zip(gradient.shape, gradient.stride(), tangent.strides, strict=True)
    return any(size > 1 and stride != as_traced for size, stride, as_traced in wanted)


def _coerced(gradient: torch.Tensor, tangent: Tangent) -> torch.Tensor:
    """A gradient in the layout that the backward was traced for."""
    if gradient.is_conj() or gradient.is_neg():
        gradient = gradient.resolve_conj().resolve_neg()
    if tangent.strides is None:
        return gradient.contiguous(memory_format=tangent.memory_format)
    if gradient.stride() == tangent.strides:
        return gradient
    return torch.empty_strided(gradient.shape, tangent.strides, dtype=gradient.dtype, device=gradient.device).copy_(
        gradient
    )


def _in_grad_mode(run: Run, signature: Signature, *, trains: bool) -> Run:
    """With gradients where the graph has any, without them otherwise; and the mode that the graph leaves behind."""
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
    """A written input's version moves where it would in eager, and only there, whatever the kernels do."""
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
    """The versions of inputs move that were written with what they held (`x.copy_(x)`), of which no graph knows."""
    inputs, known = signature.analysis.inputs, {*signature.writes.forward, *signature.writes.backward}
    idle = [i for i, given in enumerate(inputs) if given.seen_write and not given.flows and i not in known]
    if not idle:
        return run

    def counting(given: list[Any]) -> Sequence[Any]:
        torch.autograd.graph.increment_version([given[i] for i in idle if not given[i].is_inference()])
        return run(given)

    return counting


def _finisher(signature: Signature) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]] | None:
    """From what the graph returns to what the caller gets."""
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
