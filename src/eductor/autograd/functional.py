"""From a traced graph that writes to one that does not: writes become new values, and those of inputs are handed back.

Only graphs with a write, or with a higher-order operator that might hide one, come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx import GraphModule, Node
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

from eductor.autograd.provenance import SecondRun, is_backward
from eductor.compat import HigherOrderOperator, OpOverload, make_fx

Table = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Writes:
    """Inputs that a graph writes, and how many of them by its forward; the rest are written by its backward."""

    forward: tuple[int, ...] = ()
    backward: tuple[int, ...] = ()


def may_write(module: GraphModule) -> bool:
    """Whether a node of the graph writes, or is an operator that runs subgraphs or wraps kernels that might."""
    return any(
        node.op == "call_function"
        and (
            isinstance(node.target, HigherOrderOperator)
            or (isinstance(node.target, OpOverload) and node.target._schema.is_mutable)
        )
        for node in module.graph.nodes
    )


def functionalize(module: GraphModule, values: Sequence[Any], table: Table) -> tuple[GraphModule, Writes]:
    """The functional graph; its output is (outputs, new values of written inputs, those written by the backward)."""
    found: list[Writes] = []

    def run(*flat: Any) -> Any:
        with _wrapping():
            wrapped = [FunctionalTensor.to_functional(x) if isinstance(x, torch.Tensor) else x for x in flat]
            with fx_traceback.preserve_node_meta():
                second = _Watching(module, wrapped)
                outputs = second.run(*wrapped)
                second.watch()
            writes, forward, backward = second.writes()
            found.append(writes)
            return pytree.tree_map(_unwrapped, (outputs, forward, backward))

    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in values]
    with torch.no_grad(), FunctionalTensorMode(_allow_token_discovery=True):
        traced = make_fx(run, decomposition_table=table)(*detached)
    return traced, found[-1]


class _Watching(SecondRun):
    """Notes the values of the inputs where the forward ends and the backward begins, and at the very end."""

    def __init__(self, module: GraphModule, inputs: list[Any]) -> None:
        super().__init__(module)
        self._inputs = inputs
        self._seen: list[dict[int, Any]] = []

    def run_node(self, n: Node) -> Any:
        if not self._seen and is_backward(n):
            self.watch()
        return super().run_node(n)

    def watch(self) -> None:
        now = {}
        for i, x in enumerate(self._inputs):
            if isinstance(x, FunctionalTensor) and torch._functionalize_has_data_mutation(x.elem):
                now[i] = (_unwrapped(x), torch._functionalize_mutation_counter(x.elem))
        self._seen.append(now)

    def writes(self) -> tuple[Writes, list[Any], list[Any]]:
        first, last = self._seen[0], self._seen[-1]
        later = [i for i, (_, count) in last.items() if i not in first or first[i][1] != count]
        found = Writes(tuple(first), tuple(later))
        return found, [value for value, _ in first.values()], [last[i][0] for i in later]


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, FunctionalTensor):
        return value
    torch._sync(value)
    return torch._from_functional_tensor(value.elem)


def _wrapping() -> Any:
    """Functional tensors are wrapped by Python alone here, not by the dispatcher as well."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
