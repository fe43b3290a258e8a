"""The state that a function can reach besides its arguments, through closures, globals and self."""

from __future__ import annotations

import copy
import dis
import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from eductor.graph.values.value_comparison import is_bitwise_equal
from eductor.verification.run_tensors import NARROW

DEEPEST = 50
"""The maximal nesting of objects that are visited."""


class ReachableState:
    """Tensors, modules, optimizers and other objects that a function can reach, which can be restored."""

    def __init__(self, *roots: Any) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._generators: list[torch.Generator] = []
        self._objects: list[Any] = []
        """Modules and other objects with attributes."""
        self._containers: list[Any] = []
        self._bindings: list[tuple[Callable[[Any], None], Callable[[], Any]]] = []
        """Setters and getters of variables outside of a function."""
        self._depth = 0
        self._seen: set[int] = set()
        for root in roots:
            self._visit(root, "")

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restores everything on exit."""
        with ExitStack() as stack:
            # Callbacks run in reverse: attributes first, so that the original tensors are in place.
            stack.callback(random.setstate, random.getstate())
            numpy = sys.modules.get("numpy")
            if numpy is not None:
                stack.callback(numpy.random.set_state, numpy.random.get_state())
            for restore, value in self._bindings:
                stack.callback(restore, value())
            for generator in self._generators:
                stack.callback(generator.set_state, generator.get_state())
            for tensor in self.tensors.values():
                stack.callback(_put_back, tensor, tensor.detach().clone(), _gradient(tensor))
            for optimizer in self._optimizers:
                stack.callback(_restore_optimizer, optimizer, *_state_of(optimizer))
            for container in self._containers:
                stack.callback(_refill, container, copy.copy(container))
            for thing in self._objects:
                stack.callback(_restore_attributes, thing, dict(vars(thing)), *map(dict, _registers(thing)))
            yield

    @contextmanager
    def widened(self) -> Iterator[None]:
        """Widens tensors to float64 during the context."""
        narrow = [(t, t.data) for t in self.tensors.values() if t.dtype in NARROW]
        try:
            for tensor, data in narrow:
                tensor.data = data.to(NARROW[data.dtype])
            yield
        finally:
            for tensor, data in narrow:
                tensor.grad = None
                tensor.data = data

    def _visit(self, x: Any, name: str) -> None:
        known = id(x) in self._seen or isinstance(x, (type, types.ModuleType, str, bytes, int, float, type(None)))
        if known or self._depth > DEEPEST:
            return
        self._seen.add(id(x))
        self._depth += 1
        self._look_into(x, name)
        self._depth -= 1

    def _look_into(self, x: Any, name: str) -> None:
        if isinstance(x, torch.Tensor):
            if not is_lazy(x) and not x.is_meta:
                self.tensors[name if name not in self.tensors else f"{name} ({len(self.tensors)})"] = x
        elif isinstance(x, torch.optim.Optimizer):
            self._optimizers.append(x)
            self._visit_all((f"{name} parameter", p) for group in x.param_groups for p in group["params"])
            self._visit_all((f"{name} {key}", v) for entries in x.state.values() for key, v in entries.items())
        elif isinstance(x, torch.Generator):
            self._generators.append(x)
        elif isinstance(x, partial):
            self._visit_all((name, part) for part in (x.func, *x.args, *x.keywords.values()))
        elif isinstance(x, types.MethodType):
            self._visit_all((name, part) for part in (x.__self__, x.__func__))
        elif isinstance(x, (list, tuple, set)):
            self._containers += [] if isinstance(x, tuple) else [x]
            self._visit_all((f"{name}[{i}]", part) for i, part in enumerate(list(x)))
        elif isinstance(x, dict):
            self._containers.append(x)
            self._visit_all((f"{name}[{key!r}]", part) for key, part in list(x.items()))
        elif isinstance(x, types.FunctionType):
            if not _is_of_torch(x):
                self._visit_function(x, x.__code__)
        elif hasattr(x, "__dict__") and (isinstance(x, nn.Module) or _is_of_the_user(type(x))):
            self._visit_object(x, name)

    def _visit_all(self, parts: Any) -> None:
        for name, part in parts:
            self._visit(part, name)

    def _visit_object(self, x: Any, name: str) -> None:
        self._objects.append(x)
        home = name or type(x).__name__
        self._visit_all((f"{home}.{key}", part) for register in _registers(x) for key, part in list(register.items()))
        self._visit_all((f"{home}.{key}", part) for key, part in list(vars(x).items()))

    def _visit_function(self, fn: types.FunctionType, code: types.CodeType) -> None:
        """Visits closure cells and named globals of a function, including those of inner functions."""
        if code is fn.__code__:
            for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
                if contents := _contents(cell):
                    self._bindings.append(
                        (partial(setattr, cell, "cell_contents"), partial(getattr, cell, "cell_contents"))
                    )
                    self._visit(contents[0], name)
        self._visit_all((name, fn.__globals__[name]) for name in code.co_names if name in fn.__globals__)
        for name in {
            i.argval for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"
        } & fn.__globals__.keys():
            self._bindings.append(
                (partial(fn.__globals__.__setitem__, name), partial(fn.__globals__.__getitem__, name))
            )
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                self._visit_function(fn, inner)


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(contents)
    else:
        container.update(contents)


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # not filled yet
        return []


def _home(x: Any) -> str:
    return (getattr(x, "__module__", "") or "").partition(".")[0]


def _is_of_torch(x: Any) -> bool:
    return _home(x) == "torch"


def _is_of_the_user(kind: type) -> bool:
    """Whether objects of a class may hold user state: those of torch and the standard library do not."""
    return not _is_of_torch(kind) and (_home(kind) not in sys.stdlib_module_names or kind is types.SimpleNamespace)


def _registers(x: Any) -> list[dict[str, Any]]:
    """The dictionaries of a module's parameters, buffers and submodules."""
    return [x._parameters, x._buffers, x._modules] if isinstance(x, nn.Module) else []


def _restore_attributes(x: Any, attributes: dict[str, Any], *registers: dict[str, Any]) -> None:
    vars(x).clear()
    vars(x).update(attributes)
    for now, then in zip(_registers(x), registers, strict=True):
        now.clear()
        now.update(then)


def _gradient(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The gradient of a leaf, and a copy of it."""
    grad = tensor.grad if tensor.is_leaf else None
    return (grad, None if grad is None else grad.clone())


def _put_back(tensor: torch.Tensor, contents: torch.Tensor, gradient: tuple[Any, Any]) -> None:
    with torch.no_grad():
        # Do not write unchanged tensors, as a bumped version may invalidate a saved tensor.
        if tensor.layout is not torch.strided or not is_bitwise_equal(tensor.detach(), contents):
            tensor.detach().copy_(contents)
        if tensor.is_leaf:
            grad, copy = gradient
            tensor.grad = None if grad is None else grad.copy_(copy)


def _state_of(optimizer: torch.optim.Optimizer) -> tuple[dict[Any, dict[str, tuple[Any, Any]]], list[dict[str, Any]]]:
    """Each entry of the state with a copy of it, and the parameter groups."""
    state = {
        p: {k: (v, v.clone() if isinstance(v, torch.Tensor) else v) for k, v in entries.items()}
        for p, entries in optimizer.state.items()
    }
    return state, [dict(group) for group in optimizer.param_groups]


def _restore_optimizer(optimizer: torch.optim.Optimizer, state: Any, groups: list[dict[str, Any]]) -> None:
    optimizer.state.clear()
    for parameter, entries in state.items():
        optimizer.state[parameter] = {
            key: value.copy_(was) if isinstance(value, torch.Tensor) else was for key, (value, was) in entries.items()
        }
    for group, then in zip(optimizer.param_groups, groups, strict=True):
        group.clear()
        group.update(then)
