"""Analyses a captured graph by one run on fake tensors: which inputs it writes, and what its outputs alias.

inputs    written? seen by autograd? does a gradient flow through the write?
outputs   fresh, an input itself, another output, or a view of something the caller can observe
returns   what the forward graph returns: new values of inputs, fresh outputs, and the bases of views
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.autograd.function import BackwardCFunction

from eductor import compat
from eductor.autograd.captured import Captured, Fakes
from eductor.errors import Unsupported
from eductor.graph.values.kernel_layouts import KernelLayouts
from eductor.graph.values.meta import known_equal
from eductor.program.joint import Analysis, Input, Output, Return


def analyse(captured: Captured, fakes: Fakes) -> Analysis:
    """Runs the captured graph once on stand-ins for the fake inputs."""
    grad_mode = torch.is_grad_enabled()
    with fakes.mode:
        flat = stand_ins(fakes.values)
        before = [_InputState.of(x) for x in flat]
        with (
            compat.keeping_dispatch_state(),
            compat.forgetting_unbacked(fakes.mode),
            _dispatcher(fakes),
            KernelLayouts(),
        ):
            entries = captured.enter(flat)
            outputs = captured.run(entries)
            left = torch.is_grad_enabled()
    inputs = tuple(_input(i, x, state) for i, (x, state) in enumerate(zip(flat, before, strict=True)))
    tensors = [x for x in outputs if isinstance(x, torch.Tensor)]
    for value in tensors:
        if compat.is_wrapper_subclass(value):
            raise Unsupported(f"an output of the tensor subclass {type(value).__name__}")
        if value.requires_grad and value.is_leaf and not value._is_view() and not any(value is x for x in entries):
            raise Unsupported("an output that is a leaf of autograd and was made inside of the graph")
    inference = [x.is_inference() for x in tensors if not any(x is e for e in entries)]
    if any(inference) and not all(inference) and not torch.is_inference_mode_enabled():
        raise Unsupported("inference mode inside of the graph for some of its outputs")
    sorter = _Sorter(flat, entries, outputs, inputs)
    return Analysis(
        inputs,
        tuple(sorter.outputs),
        tuple(sorter.returns),
        tuple(r.pick(flat, outputs) for r in sorter.returns),
        left if left != grad_mode else None,
        any(inference) and not torch.is_inference_mode_enabled(),
    )


def _dispatcher(fakes: Fakes) -> AbstractContextManager[Any]:
    """The Python dispatcher, which is slow, only for symbolic sizes: not all of torch's C++ kernels take those."""
    return compat.enable_python_dispatcher() if has_symbols(fakes.values) else nullcontext()


def has_symbols(values: Sequence[Any]) -> bool:
    """Whether an input, or a size of one, is symbolic."""
    return any(_is_symbolic(n) for x in values for n in (*(x.shape if isinstance(x, torch.Tensor) else (x,)),))


@dataclass(frozen=True, slots=True)
class _InputState:
    """The state of an input that a write can change."""

    version: int
    requires_grad: bool
    grad_fn: Any
    geometry: tuple[Any, ...]
    storage: int

    @staticmethod
    def of(value: Any) -> _InputState | None:
        if not isinstance(value, torch.Tensor):
            return None
        version = compat.version_of(value)
        geometry = (tuple(value.shape), tuple(value.stride()), value.storage_offset())
        return _InputState(version, value.requires_grad, value.grad_fn, geometry, _storage(value))


def _input(index: int, value: Any, before: _InputState | None) -> Input:
    after = _InputState.of(value)
    if before is None or after is None:
        return Input(False, False, False)
    if after.storage != before.storage or len(after.geometry[0]) != len(before.geometry[0]):
        raise Unsupported(f"a new storage or shape for input {index} (`x.data = y`, `resize_`, `set_`)")
    if not known_equal(before.geometry, after.geometry):
        raise Unsupported(f"new sizes or strides for input {index} (`t_`, `squeeze_`, `resize_`)")
    flows = after.grad_fn is not before.grad_fn or after.requires_grad != before.requires_grad
    return Input(before.requires_grad, after.version != before.version, flows)


class _Sorter:
    """Classifies outputs by what they alias."""

    def __init__(
        self, flat: Sequence[Any], entries: Sequence[Any], values: Sequence[Any], inputs: Sequence[Input]
    ) -> None:
        self._entries = entries
        self._values = values
        self.outputs: list[Output] = []
        self.returns = [Return("input", i, True) for i, given in enumerate(inputs) if given.flows]
        self._input_of = {_storage(x): i for i, x in reversed(list(enumerate(flat))) if isinstance(x, torch.Tensor)}
        self._groups: dict[int, list[int]] = {}
        for j, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                self._groups.setdefault(_storage(value), []).append(j)
        self._root_of: dict[int, int] = {}
        for j, value in enumerate(values):
            self.outputs.append(self._sort(j, value))

    def _sort(self, j: int, value: Any) -> Output:
        if not isinstance(value, torch.Tensor):
            if _is_symbolic(value):
                return Output("return", self._add(Return("output", j, False)))
            return Output("number", value=value)
        for i, entry in enumerate(self._entries):
            if value is entry:
                return Output("input", i)
        earlier = next((k for k in range(j) if self._values[k] is value), None)
        if earlier is not None:
            return Output("output", earlier)
        storage = _storage(value)
        if storage in self._input_of and not _made_by_a_function(value):
            return self._view(value, self._input_of[storage], "input")
        siblings = [k for k in self._groups[storage] if self._values[k] is not value]
        if not siblings or _made_by_a_function(value):
            return Output("return", self._add(Return("output", j, value.grad_fn is not None)))
        root = self._root(storage)
        if self.returns[root].source == "output" and self._values[self.returns[root].index] is value:
            return Output("return", root)
        return self._view(value, root, "return")

    @staticmethod
    def _view(value: torch.Tensor, index: int, root: Literal["input", "return"]) -> Output:
        return Output("view", index, not compat.made_without_grad_mode(value), value.requires_grad, root)

    def _root(self, storage: int) -> int:
        """The return that several outputs are views of: one of them, or their common base."""
        if storage not in self._root_of:
            group = self._groups[storage]
            requires_grad = any(self._values[j].requires_grad for j in group)
            roots: dict[int, Return] = {}
            for j in group:
                value = self._values[j]
                if _made_by_a_function(value):
                    continue
                root = value._base if value._is_view() else value
                if value.requires_grad == requires_grad:
                    found = Return("output" if root is value else "base", j, requires_grad)
                    if id(root) not in roots or found.source == "output":
                        roots[id(root)] = found
            if len(roots) > 1 and requires_grad:
                raise Unsupported("outputs that share memory and have several histories in autograd")
            self._root_of[storage] = self._add(next(iter(roots.values())))
        return self._root_of[storage]

    def _add(self, value: Return) -> int:
        self.returns.append(value)
        return len(self.returns) - 1


def _made_by_a_function(value: torch.Tensor) -> bool:
    """Whether a user's autograd.Function produced a view of its base: then its backward is not that of a view."""
    base: Any = value._base
    if base is None:
        return False
    step: Any = value.grad_fn
    while step is not None and step is not base.grad_fn:
        if isinstance(step, BackwardCFunction):
            return True
        if len(step.next_functions) != 1:
            return False
        step = step.next_functions[0][0]
    return False


def _storage(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def connected(leaf: torch.Tensor, carried: torch.Tensor) -> torch.Tensor:
    """A non-leaf tensor with the memory of `carried`, which autograd lets be written; its gradients flow to `leaf`."""
    made: torch.Tensor = _Connect.apply(leaf, [carried])  # type: ignore[no-untyped-call]
    return made


class _Connect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, carried: list[torch.Tensor]) -> torch.Tensor:
        return carried[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def stand_ins(values: Sequence[Any]) -> list[Any]:
    """Tensors on the same memory with their own history: a run does not change the fake inputs, and autograd does not
    connect one input with another."""
    anchor = torch.empty(0, requires_grad=True)
    return [_stand_in(x, anchor) if isinstance(x, torch.Tensor) else x for x in values]


def _stand_in(value: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0 and value.dtype == torch.float64 and not value.requires_grad:
        return value  # a Python float knows the symbol that `item` gives, which a copy would not
    copy = value.data
    if not value.requires_grad:
        return copy
    if value.is_leaf:
        # A leaf that is a view stays one: autograd treats views of it as views of its base, without gradients.
        return (copy.view_as(copy) if value._is_view() else copy).requires_grad_()
    with torch.enable_grad():
        return connected(anchor, copy)
