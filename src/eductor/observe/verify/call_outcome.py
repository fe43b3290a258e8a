"""Everything that a caller can see of one call of a function: what a compiled function must share with eager."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eductor.graph.values.value_comparison import strides_of, unlike_bits, unlike_rounding
from eductor.observe.verify.reachable_state import World
from eductor.observe.verify.run_tensors import (
    gradients,
    handed,
    keeping_states,
    own_copies,
    places,
    random_states,
    widened,
)

SEED = 0


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call, from which each run gets copies of its own."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def flat(self) -> tuple[list[Any], Any]:
        """The leaves of all arguments, and how they stand together: as a tuple and a dictionary."""
        return pytree.tree_flatten((tuple(self.args), dict(self.kwargs)))


@dataclass
class Call:
    """Outputs, gradients, what was written, who shares memory with whom, and the random state; or what was raised."""

    facts: dict[str, Any]
    error: Exception | None = None
    drew: bool = False
    limit: str = ""
    """What could not be seen of it, and why."""


def world_of(fn: Callable[..., Any], arguments: Arguments) -> World:
    """What a call can reach besides the tensors that it is given, of which it gets copies."""
    leaves, _ = arguments.flat()
    return World(fn, *(x for x in leaves if not isinstance(x, torch.Tensor)))


def observe_call(fn: Callable[..., Any], arguments: Arguments, world: World, *, wide: bool = False) -> Call:
    """Calls a function on copies of the arguments, and the backward of what it returns. The world is as it was after."""
    with keeping_states(), world.restored(), world.widened() if wide else nullcontext():
        torch.manual_seed(SEED)
        before = random_states()
        try:
            facts, outputs, leaves = _facts(fn, arguments, world, wide=wide)
        except Exception as error:
            return Call({}, error)
        call = Call(facts, drew=bool(unlike_bits(before, facts["the random state"])))
        try:
            found = gradients(outputs, list(leaves.values()))
        except Exception as error:  # perhaps the function ran the backward of what it returns itself
            facts["the backward"] = _outcome(error)
            call.limit = (
                f"what it returns cannot be differentiated, so that no gradients are compared: {_outcome(error)}"
            )
            return call
        facts |= {f"the gradient of {name}": g for name, g in zip(leaves, found, strict=bool(found))}
        facts["the backward"] = _outcome(None)
        return call


def unlike_calls(expected: Call, got: Call, truth: Call | None = None, *, exact: bool = False) -> list[str]:
    """What tells two calls apart, in words: bit by bit, or but for roundings."""
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
    fn: Callable[..., Any], arguments: Arguments, world: World, *, wide: bool
) -> tuple[dict[str, Any], list[Any], dict[str, torch.Tensor]]:
    """What a call shows, what it returns, and the leaves by which that can be differentiated."""
    flat, spec = arguments.flat()
    copies = [widened(x) for x in own_copies(flat)] if wide else own_copies(flat)
    pairs = [_input(copy, original) for copy, original in zip(copies, flat, strict=True)]
    inputs = [x for x, _ in pairs]
    args, kwargs = pytree.tree_unflatten(inputs, spec)
    outputs, structure = pytree.tree_flatten(fn(*args, **kwargs))
    named = {f"input {i}": x for i, x in enumerate(inputs)} | world.tensors
    results = {f"output {i}": x for i, x in enumerate(outputs)}
    facts: dict[str, Any] = {"the structure of the outputs": str(structure)}
    facts |= {name: _seen(x) for name, x in results.items()}
    facts |= {f"{name} after the call": _seen(x) for name, x in named.items() if isinstance(x, torch.Tensor)}
    facts |= {f"the gradient that the call left in {name}": _seen(g) for name, g in _left(named).items()}
    facts |= places(named, results)
    facts["the random state"] = random_states()
    watched = {f"input {i}": leaf for i, (_, leaf) in enumerate(pairs) if leaf is not None}
    watched |= {name: x for name, x in world.tensors.items() if x.requires_grad and x.is_leaf}
    return facts, outputs, watched


def _input(copy: Any, original: Any) -> tuple[Any, torch.Tensor | None]:
    """What the function gets for an argument, and the leaf by which it is differentiated; a leaf is its own."""
    if not isinstance(original, torch.Tensor) or not original.requires_grad:
        return copy, None
    if original.is_leaf:
        leaf = copy.requires_grad_()
        return leaf, leaf
    leaf = copy.detach().clone().requires_grad_()
    return handed(leaf, copy), leaf


def _seen(x: Any) -> Any:
    """A copy of what a caller gets, for a later write must not change it, and what a copy does not keep."""
    if not isinstance(x, torch.Tensor):
        return x
    return (x.detach().clone(), f"strides {strides_of(x)}", f"requires_grad={x.requires_grad}")


def _left(named: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {name: x for name, x in named.items() if isinstance(x, torch.Tensor) and x.is_leaf}
    return {name: x.grad for name, x in tensors.items() if x.grad is not None}


def _kind(error: Exception | None) -> str:
    """The class of an error; Dynamo has one of its own for errors of operators on fake tensors."""
    return type(error).__name__.replace("TorchRuntimeError", "RuntimeError")


def _outcome(error: Exception | None) -> str:
    if error is None:
        return "returned"
    first, *_ = str(error).splitlines() or [""]
    return f"raised {type(error).__name__}: {first}"
