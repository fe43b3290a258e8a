"""What a function can reach besides its arguments: the tensors of modules and optimizers in closures, globals, self."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from eductor.observe.tensors import NARROW


class World:
    """The modules, optimizers and tensors that a function holds; they can be brought back to what they were."""

    def __init__(self, *roots: Any) -> None:
        self.modules: dict[int, nn.Module] = {}
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self._seen: set[int] = set()
        for root in roots:
            self._visit(root, "")
        for module in self.modules.values():
            named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            self.tensors |= {f"{type(module).__name__}.{name}": t for name, t in named.items()}

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Everything is afterwards as it was before: contents, gradients, attributes of modules, state of optimizers."""
        tensors = list(self.tensors.values())
        contents = [(t, t.detach().clone(), t.grad if t.is_leaf else None) for t in tensors]
        gradients = [None if grad is None else grad.clone() for _, _, grad in contents]
        parts = [m for module in self.modules.values() for m in module.modules()]
        attributes = [(m, dict(m.__dict__), dict(m._parameters), dict(m._buffers)) for m in parts]
        states = [(o, copy.deepcopy(o.state_dict())) for o in self.optimizers.values()]
        try:
            yield
        finally:
            with torch.no_grad():
                for (tensor, content, grad), was in zip(contents, gradients, strict=True):
                    if not _same_bits(tensor, content):
                        tensor.copy_(content)
                    if tensor.is_leaf:
                        tensor.grad = grad if grad is None or was is None else grad.copy_(was)
            for module, own, parameters, buffers in attributes:
                module.__dict__.clear()
                module.__dict__.update(own)
                module._parameters.clear()
                module._parameters.update(parameters)
                module._buffers.clear()
                module._buffers.update(buffers)
            for optimizer, state in states:
                optimizer.load_state_dict(state)

    @contextmanager
    def widened(self) -> Iterator[None]:
        """Numbers are float64 meanwhile."""
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
        if id(x) in self._seen:
            return
        self._seen.add(id(x))
        if isinstance(x, torch.Tensor):
            self.tensors[name or "a tensor"] = x
        elif isinstance(x, nn.Module):
            self.modules[id(x)] = x
        elif isinstance(x, torch.optim.Optimizer):
            self.optimizers[id(x)] = x
        elif isinstance(x, functools.partial):
            for part in (x.func, *x.args, *x.keywords.values()):
                self._visit(part, name)
        elif isinstance(x, types.MethodType):
            self._visit(x.__self__, name)
            self._visit(x.__func__, name)
        elif isinstance(x, (list, tuple, set)):
            for i, part in enumerate(x):
                self._visit(part, f"{name}[{i}]")
        elif isinstance(x, dict):
            for key, part in x.items():
                self._visit(part, f"{name}[{key!r}]")
        elif isinstance(x, types.FunctionType) and not x.__module__.startswith("torch"):
            self._visit_function(x)

    def _visit_function(self, fn: types.FunctionType) -> None:
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                self._visit(cell.cell_contents, name)
            except ValueError:  # not filled yet
                continue
        for name in fn.__code__.co_names:
            if name in fn.__globals__:
                self._visit(fn.__globals__[name], name)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())
