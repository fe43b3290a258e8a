"""Runs a graph on given inputs and records everything observable, for verification."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves, tree_map

from eductor import ops
from eductor.autograd.analysis import connected
from eductor.compat import (
    HigherOrderOperator,
    OpOverload,
    has_effects,
    is_transform,
    without_autocast,
)
from eductor.graph import effect_of, value_of
from eductor.graph.snapshot import subgraphs
from eductor.graph.values.value_comparison import is_bitwise_equal
from eductor.verification.run_tensors import NARROW, gradients, keeping_states, own_copies, places, widened
from eductor.verification.seeded_draws import is_redrawn, redrawn, seed_of

aten = torch.ops.aten


@dataclass
class Observation:
    """Everything observable of a run of a graph and its backward; `values` are those of nodes, if requested."""

    outputs: list[Any]
    inputs: list[Any]
    written: dict[str, Any]
    """Attributes of the module that the run wrote."""
    gradients: dict[str, Any]
    """Gradients by name of input or attribute; those without one are omitted."""
    sharing: dict[str, str]
    values: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> Iterator[tuple[str, Any]]:
        """Everything except the values of nodes, by name."""
        yield from ((f"output {i}", x) for i, x in enumerate(self.outputs))
        yield from ((f"input {i} after the run", x) for i, x in enumerate(self.inputs))
        yield from ((f"{name} after the run", x) for name, x in self.written.items())
        yield from ((f"the gradient of {name}", x) for name, x in self.gradients.items())
        yield from self.sharing.items()


@dataclass(frozen=True, slots=True)
class RunMode:
    """How a graph is run: as a captured one, under the current autocast; with or without a backward of its outputs."""

    captured: bool = False
    gradients: bool = False


def observe(
    module: GraphModule, inputs: Sequence[Any], mode: RunMode = RunMode(), *, wide: bool = False, keep: bool = False
) -> Observation:
    """Runs a graph on copies of the inputs and of its module's state, so that nothing outside is written.

    `wide` computes in float64, `keep` records the value of each node. Random draws depend only on a node's origin, so that
    a graph before and after a pass draws the same. A graph of another device runs on the device of its inputs.
    """
    given = own_copies(inputs)
    given = [widened(x) for x in given] if wide else given
    leaves = [
        x.detach().clone().requires_grad_() if mode.gradients and _differentiable(x, like) else None
        for x, like in zip(given, inputs, strict=True)
    ]
    watcher = _RecordedRun(module, wide=wide, gradients=mode.gradients, keep=keep, moved=_is_moved(module, inputs))
    with keeping_states(), torch.set_grad_enabled(mode.gradients), _autocast(mode):
        inputs = [x if leaf is None else connected(leaf, x) for x, leaf in zip(given, leaves, strict=True)]
        outputs = tree_leaves(watcher.run(*inputs, enable_io_processing=False))
        sources = {f"input {i}": leaf for i, leaf in enumerate(leaves) if leaf is not None} | watcher.leaves
        found = dict(zip(sources, gradients(outputs, list(sources.values())), strict=False))
    held = {name: value.detach() for name, (value, _) in watcher.held.items()}
    written = {name: held[name] for name, (_, was) in watcher.held.items() if not is_bitwise_equal(held[name], was)}
    known = {f"input {i}": x for i, x in enumerate(inputs)} | held
    sharing = places(known, {f"output {i}": x for i, x in enumerate(outputs)})
    given_gradients = {name: g for name, g in found.items() if g is not None}
    return Observation(outputs, inputs, written, given_gradients, sharing, watcher.seen)


def _is_moved(module: GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether inputs are on the CPU that the graph expects on another device."""
    wanted = (value_of(p) for p in module.graph.find_nodes(op="placeholder"))
    both = [(w, x) for w, x in zip(wanted, inputs, strict=False) if _is_tensor(w) and _is_tensor(x)]
    return any(w.device.type != x.device.type == "cpu" for w, x in both)


def _autocast(mode: RunMode) -> Any:
    return nullcontext() if mode.captured else without_autocast()


def why_not_run(module: GraphModule) -> str:
    """Why a graph must not be executed twice: it calls something with side effects; empty if it does not."""
    for node in module.graph.nodes:
        if node.op == "call_function" and _may_act(node.target):
            return f"{node.name} calls {getattr(node.target, '__name__', node.target)}, which may do more than compute"
    return next((reason for body in subgraphs(module.graph).values() if (reason := why_not_run(body))), "")


def _may_act(target: Any) -> bool:
    """Whether a callable may have side effects; torch's own computing functions do not."""
    if has_effects(target) or "c10d" in str(target):
        return True
    home = (getattr(target, "__module__", "") or "").partition(".")[0]
    known = isinstance(target, (OpOverload, HigherOrderOperator)) or home in ("torch", "_operator", "math", "builtins")
    return not known and not is_transform(target)


class _RecordedRun(Interpreter):
    """An interpreter on copies of the module's state that replays random draws; widens and moves on request."""

    def __init__(self, module: GraphModule, *, wide: bool, gradients: bool, keep: bool, moved: bool) -> None:
        super().__init__(module)
        self.wide, self.keep, self.with_gradients, self.moved = wide, keep, gradients, moved
        self.seen: dict[str, Any] = {}
        self.held: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        """Each tensor of the module that the run uses, with its original contents."""
        self.leaves: dict[str, torch.Tensor] = {}
        self._copies: dict[int, Any] = {}

    def run_node(self, n: Node) -> Any:
        if effect_of(n).random:
            torch.manual_seed(seed_of(n))
        value = super().run_node(n)
        if is_redrawn(n):
            value = redrawn(n, value, *self.fetch_args_kwargs_from_env(n))
        if _is_unset(n):
            value.zero_()
        if self.wide:
            value = tree_map(widened, value)
        if self.keep and n.op not in ("placeholder", "output"):
            # Copy: a later write must not change the recorded value.
            self.seen[n.name] = tree_map(lambda x: x.detach().clone() if _is_tensor(x) else x, value)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._adapted(args, kwargs)
        if target in ops.random.SEEDED:
            seeds, _, size, *_ = args
            return torch.empty(size, device=seeds.device, **kwargs)
        if target is aten._scaled_dot_product_efficient_attention.default and args[0].is_cpu:
            return _attention(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._adapted(args, kwargs)
        return super().call_method("cpu" if self.moved and target == "cuda" else target, args, kwargs)

    def _adapted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Adapts dtype and device arguments to a run in float64 or on the CPU."""
        if self.wide:
            args, kwargs = tree_map(_wide_dtype, (args, kwargs))
        return tree_map(_cpu, (args, kwargs)) if self.moved else (args, kwargs)

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if isinstance(value, GraphModule) or not isinstance(value, (torch.Tensor, nn.Module)):
            return value
        if id(value) not in self._copies:
            self._copies[id(value)] = self._copied(target, value)
        return self._copies[id(value)]

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fetch_attr(target)(*args, **kwargs)

    def _copied(self, name: str, value: Any) -> Any:
        if isinstance(value, nn.Module):
            module = copy.deepcopy(value)
            module = module.double() if self.wide else module
            module = module.cpu() if self.moved else module
            parameters = dict(module.named_parameters(prefix=name))
            self.leaves |= {n: p for n, p in parameters.items() if p.requires_grad and self.with_gradients}
            tensors = {**parameters, **dict(module.named_buffers(prefix=name))}
            self.held |= {n: (t, t.detach().clone()) for n, t in tensors.items()}
            return module
        (made,) = own_copies([value])
        made = made.cpu() if self.moved else made
        made = widened(made) if self.wide else made
        self.held[name] = (made, made.clone())
        if not self.with_gradients or not value.requires_grad:
            return made
        self.leaves[name] = made.detach().clone().requires_grad_()
        return connected(self.leaves[name], made)


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """A kernel that CUDA alone has, by its formula."""
    if dropout_p or compute_log_sumexp:
        raise NotImplementedError("attention with dropout or for a backward, which the CPU has no such kernel for")
    none = torch.zeros((), dtype=torch.int64)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, is_causal=is_causal, scale=scale)
    return out, q.new_empty((*q.shape[:2], 0), dtype=torch.float32), none, none


def _is_unset(node: Node) -> bool:
    """Whether a node returns uninitialized memory, which differs in each run."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name.removeprefix("new_").startswith("empty")


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _differentiable(x: Any, like: Any) -> bool:
    return isinstance(like, torch.Tensor) and like.requires_grad and (x.dtype.is_floating_point or x.dtype.is_complex)


def _cpu(x: Any) -> Any:
    is_device = isinstance(x, torch.device) or (isinstance(x, str) and x.partition(":")[0] == "cuda")
    return torch.device("cpu") if is_device else x


def _wide_dtype(x: Any) -> Any:
    return NARROW.get(x, x) if isinstance(x, torch.dtype) else x
