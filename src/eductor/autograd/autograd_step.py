"""The compiled forward and backward as one step of autograd."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from eductor import compat
from eductor.autograd.backward_variants import Backwards
from eductor.autograd.eager_replay import EagerReplay, Kept
from eductor.errors import warn
from eductor.launches import ReplayedProgram
from eductor.program.job import Run
from eductor.program.joint import Signature, Tangent
from eductor.program.parts import Parts, Saved


class AutogradStep:
    """A `torch.autograd.Function` around the two graphs of one program.

    The backward replays the captured graph in eager where the compiled graph would compute something else: for a
    gradient of a gradient, for batched gradients, and where eager casts or rounds differently.
    """

    def __init__(
        self,
        signature: Signature,
        parts: Parts,
        forward: Run,
        backwards: Backwards,
        replay: EagerReplay | None,
        *,
        launches: ReplayedProgram | None,
        runs_users_backward: bool,
        exact: bool,
    ) -> None:
        analysis = signature.analysis
        self._parts = parts
        self._run_forward = forward
        self._backwards = backwards
        self._replay = replay
        self._launches = launches
        self._runs_users_backward = runs_users_backward
        self._exact = exact
        self._tangents = signature.tangents
        self._inputs = len(analysis.inputs)
        self._returns = len(analysis.returns)
        self._fixed = [
            k
            for k, (r, value) in enumerate(zip(analysis.returns, analysis.values, strict=True))
            if not r.requires_grad and isinstance(value, torch.Tensor)
        ]
        differentiated = set(signature.gradients)
        self._detached = [i for i, x in enumerate(analysis.inputs) if x.requires_grad and i not in differentiated]
        self._positions, self._repeated = _arguments(signature.gradients, self._inputs)
        self._saved = _places(parts.saved)
        self._sizes = _places(parts.sizes)
        # Outputs may require gradients that reach no input: autograd must still see a step.
        self._anchor = [] if self._positions else [torch.empty(0, requires_grad=True)]
        self._arguments = self._inputs + len(self._repeated) + len(self._anchor)

    def as_run(self) -> Run:
        """The step as a function of a list of inputs."""
        step, detached, repeated, anchor = self, self._detached, self._repeated, self._anchor

        class EductorFunction(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                return step.forward(ctx, args)

            @staticmethod
            @torch.compiler.disable  # type: ignore[untyped-decorator]
            def backward(ctx: Any, *given: Any) -> Any:
                return step.backward(ctx, given)

        def call(inputs: list[Any]) -> Sequence[Any]:
            for i in detached:
                inputs[i] = inputs[i].detach()
            if torch.is_inference_mode_enabled():  # eager records nothing there, not even under `enable_grad`
                return self._run_forward(inputs)[: self._returns]
            args = (*inputs, *(inputs[i] for i in repeated), *anchor)
            results: Sequence[Any] = EductorFunction.apply(*args)  # type: ignore[no-untyped-call]
            return results

        return call

    def forward(self, ctx: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Runs the compiled forward and saves what the backward needs."""
        ctx.kept = self._replay.keep(args[: self._inputs]) if self._replay is not None else None
        outputs = self._run_forward(list(args[: self._inputs]))
        returns = tuple(outputs[: self._returns])
        ctx.save_for_backward(*(args[i] if is_input else outputs[i] for is_input, i in self._saved))
        ctx.launched = outputs[-1] if self._launches is not None else None
        ctx.sizes = [args[i] if is_input else outputs[i] for is_input, i in self._sizes]
        ctx.destinations = [args[i] for i in self._parts.destinations]
        ctx.hooked = compat.has_saved_tensors_hooks()
        ctx.set_materialize_grads(False)
        if self._fixed:
            ctx.mark_non_differentiable(*(returns[k] for k in self._fixed))
        return returns

    def backward(self, ctx: Any, given: Sequence[Any]) -> tuple[Any, ...]:
        """The gradient of each argument. No saved value or gradient is held here while the compiled backward runs."""
        gradients = [given[t.of] for t in self._tangents]
        values = _saved_tensors(ctx, self._parts)
        keeps, kept, launched = compat.keeps_graph(), ctx.kept, ctx.launched
        if not keeps:
            ctx.kept = ctx.launched = None
        if self._must_replay(kept, gradients):
            assert self._replay is not None
            return self._sorted(self._replay.backward(kept, gradients))
        del kept
        defined = tuple(g is not None for g in gradients)
        inputs = [*ctx.sizes, *values, *ctx.destinations]
        del values
        ctx.maybe_clear_saved_tensors()  # unless the graph is kept: each is freed after its last reader
        inputs += [_coerced(g, t) for g, t in zip(gradients, self._tangents, strict=True) if g is not None]
        del gradients
        keeps = keeps or ctx.hooked
        run = self._backwards(defined, keeps)
        if self._launches is not None:
            run = self._launches.backward(launched, defined, keeps=keeps, run=run)
        found = run(inputs)
        result: list[Any] = [None] * self._arguments
        for i, gradient in zip(self._positions, found, strict=True):
            result[i] = gradient
        return tuple(result)

    def _must_replay(self, kept: Kept | None, gradients: Sequence[Any]) -> bool:
        """Whether the gradients of this call come from eager; warns where they should and cannot."""
        if torch.is_grad_enabled() or any(compat.is_batched(g) for g in gradients):
            if self._replay is None:
                raise RuntimeError(
                    "This gradient cannot be differentiated again, because the option double_backward is off."
                )
            return True
        if not (self._exact or self._runs_users_backward):
            return False
        pairs = zip(gradients, self._tangents, strict=True)
        rounds = self._exact and any(_has_other_layout(g, t) for g, t in pairs)
        casts = compat.any_autocast()
        prunes = self._runs_users_backward and any(g is None for g in gradients)
        if (rounds or casts or prunes) and self._replay is not None and self._replay.can_run(kept):
            return True
        if casts:
            warn(
                "a backward runs under autocast, where eager's casts, and the compiled one may not: its forward cannot run "
                "again, for it draws random numbers of its own, its inputs were written, or the option double_backward "
                "is off. Call backward() outside of autocast, as torch advises."
            )
        return False

    def _sorted(self, found: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        """The parts of each input's gradient, as the gradients of the arguments that the input is."""
        result: list[Any] = [None] * self._arguments
        for i, parts in enumerate(found):
            again = (k for k, j in enumerate(self._repeated, self._inputs) if j == i)
            places = [i, *again] if self._repeated else [i]
            summed = parts if len(parts) <= len(places) else [reduce(operator.add, parts)]
            for k, part in zip(places, summed, strict=False):
                result[k] = part
        return tuple(result)


def _places(saved: Sequence[Saved]) -> list[tuple[bool, int]]:
    return [(place.source == "input", place.index) for place in saved]


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


def _has_other_layout(gradient: torch.Tensor | None, tangent: Tangent) -> bool:
    """Whether a gradient has another layout than the backward was traced for, so that eager's kernels round differently.

    An expanded gradient, such as that of a sum, has no layout of its own: it is copied instead.
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
