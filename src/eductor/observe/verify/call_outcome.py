"""The observable outcome of a call, which must be the same for a compiled function and eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eductor.autograd.analysis import connected
from eductor.graph.values.value_comparison import strides_of, unlike_bits, unlike_rounding
from eductor.observe.verify.reachable_state import ReachableState
from eductor.verification.run_tensors import (
    gradients,
    keeping_states,
    own_copies,
    places,
    random_states,
    widened,
)

SEED = 0


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, which each run copies."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def flat(self) -> tuple[list[Any], Any]:
        """The leaves of all arguments, and their tree structure."""
        return pytree.tree_flatten((tuple(self.args), dict(self.kwargs)))


@dataclass
class CallOutcome:
    """Outputs, gradients, writes, aliasing and random state of a call; or what it raised."""

    facts: dict[str, Any]
    error: Exception | None = None
    drew: bool = False
    limit: str = ""
    """What could not be observed, and why."""


def reachable_state(fn: Callable[..., Any], arguments: Arguments) -> ReachableState:
    """The state that a call can reach besides its tensor arguments, which are copied."""
    leaves, _ = arguments.flat()
    return ReachableState(fn, *(x for x in leaves if not isinstance(x, torch.Tensor)))


def observe_call(
    fn: Callable[..., Any], arguments: Arguments, world: ReachableState, *, wide: bool = False
) -> CallOutcome:
    """Calls a function on copies of the arguments, and its backward. Restores the reachable state."""
    with keeping_states(), world.restored(), world.widened() if wide else nullcontext():
        torch.manual_seed(SEED)
        before = random_states()
        try:
            facts, outputs, leaves = _facts(fn, arguments, world, wide=wide)
        except Exception as error:
            return CallOutcome({}, error)
        call = CallOutcome(facts, drew=bool(unlike_bits(before, facts["the random state"])))
        try:
            found = gradients(outputs, list(leaves.values()))
        except Exception as error:  # the function may have run the backward itself
            facts["the backward"] = _outcome(error)
            call.limit = f"its results cannot be differentiated, so no gradients are compared: {_outcome(error)}"
            return call
        facts |= {f"the gradient of {name}": g for name, g in zip(leaves, found, strict=bool(found))}
        facts["the backward"] = _outcome(None)
        return call


def unlike_calls(
    expected: CallOutcome, got: CallOutcome, truth: CallOutcome | None = None, *, exact: bool = False
) -> list[str]:
    """The differences of two calls, in words: bitwise, or beyond rounding."""
    if expected.error is not None or got.error is not None:
        if _kind(expected.error) == _kind(got.error):
            return []
        return [f"eager {_outcome(expected.error)}, the compiled function {_outcome(got.error)}"]
    wide = truth.facts if truth is not None and truth.error is None else {}
    found = []
    for name, value in expected.facts.items():
        if name not in got.facts:
            found.append(f"{name} is missing")
        elif unlike := (
            unlike_bits(value, got.facts[name]) if exact else unlike_rounding(value, got.facts[name], wide.get(name))
        ):
            found.append(f"{name} differs: {unlike}")
    return found + [f"{name} is new" for name in got.facts if name not in expected.facts]


def _facts(
    fn: Callable[..., Any], arguments: Arguments, world: ReachableState, *, wide: bool
) -> tuple[dict[str, Any], list[Any], dict[str, torch.Tensor]]:
    """The observations of a call, its outputs, and the leaves to differentiate with respect to."""
    flat, spec = arguments.flat()
    copies = [widened(x) for x in own_copies(flat)] if wide else own_copies(flat)
    pairs = [_input(copy, original) for copy, original in zip(copies, flat, strict=True)]
    inputs = [x for x, _ in pairs]
    args, kwargs = pytree.tree_unflatten(inputs, spec)
    named = {f"input {i}": x for i, x in enumerate(inputs)} | world.tensors
    versions = _versions(named)
    outputs, structure = pytree.tree_flatten(fn(*args, **kwargs))
    results = {f"output {i}": x for i, x in enumerate(outputs)}
    facts: dict[str, Any] = {"the structure of the outputs": str(structure)}
    facts |= {name: _seen(x) for name, x in results.items()}
    facts |= {f"{name} after the call": _seen(x) for name, x in named.items() if isinstance(x, torch.Tensor)}
    after = _versions(named)
    facts |= {f"the version of {name}": "kept" if after[name] == v else "moved" for name, v in versions.items()}
    facts |= {f"the gradient that the call left in {name}": _seen(g) for name, g in _left(named).items()}
    facts |= places(named, results)
    facts["the random state"] = random_states()
    watched = {f"input {i}": leaf for i, (_, leaf) in enumerate(pairs) if leaf is not None}
    watched |= {name: x for name, x in world.tensors.items() if x.requires_grad and x.is_leaf}
    return facts, outputs, watched


def _input(copy: Any, original: Any) -> tuple[Any, torch.Tensor | None]:
    """What the function receives for an argument, and the leaf to differentiate with respect to."""
    if not isinstance(original, torch.Tensor) or not original.requires_grad:
        return copy, None
    if original.is_leaf:
        leaf = copy.requires_grad_()
        return leaf, leaf
    leaf = copy.detach().clone().requires_grad_()
    return connected(leaf, copy), leaf


def _seen(x: Any) -> Any:
    """A copy of an observed value, safe from later writes, with the properties that a copy loses."""
    if not isinstance(x, torch.Tensor):
        return x
    return (x.detach().clone(), f"strides {strides_of(x)}", f"requires_grad={x.requires_grad}")


def _versions(named: Mapping[str, Any]) -> dict[str, int]:
    """The version counters by which autograd notices writes; inference tensors have none."""
    return {n: x._version for n, x in named.items() if isinstance(x, torch.Tensor) and not x.is_inference()}


def _left(named: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {name: x for name, x in named.items() if isinstance(x, torch.Tensor) and x.is_leaf}
    return {name: x.grad for name, x in tensors.items() if x.grad is not None}


def _kind(error: Exception | None) -> str:
    """The class of an error; Dynamo has a separate one for errors of operators on fake tensors."""
    return type(error).__name__.replace("TorchRuntimeError", "RuntimeError")


def _outcome(error: Exception | None) -> str:
    if error is None:
        return "returned"
    first, *_ = str(error).splitlines() or [""]
    return f"raised {type(error).__name__}: {first}"
