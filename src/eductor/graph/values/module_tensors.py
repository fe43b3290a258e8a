"""The tensors of a module by name, and swapping them for others."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule


def tensors_of(holder: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, buffers, and tensors that the graph of a module reads as attributes, by name."""
    found: dict[str, torch.Tensor] = dict(holder.named_parameters(remove_duplicate=False))
    found.update(holder.named_buffers(remove_duplicate=False))
    if isinstance(holder, GraphModule):
        for node in holder.graph.find_nodes(op="get_attr"):
            if isinstance(value := attribute_at(holder, str(node.target)), torch.Tensor):
                found.setdefault(str(node.target), value)
    return found


def first_names(state: Mapping[str, torch.Tensor]) -> list[str]:
    """The first name of each tensor."""
    return list({id(t): name for name, t in reversed(list(state.items()))}.values())[::-1]


@contextmanager
def swapped(holder: nn.Module, values: Mapping[str, Any]) -> Iterator[None]:
    """Replaces tensors of a module within the context."""
    homes = []
    for path, value in values.items():
        parent, _, name = path.rpartition(".")
        home = holder.get_submodule(parent)
        tables: tuple[dict[str, Any], ...] = (home._parameters, home._buffers)
        table = next((t for t in tables if name in t), home.__dict__)
        homes.append((table, name, table[name]))
        table[name] = value
    try:
        yield
    finally:
        for table, name, value in homes:
            table[name] = value


def attribute_at(module: nn.Module, path: str) -> Any:
    return operator.attrgetter(path)(module)
