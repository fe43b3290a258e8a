"""Functionalizes a traced graph: writes become new values, and the new values of inputs are returned.

Only for graphs with a write, or with a higher-order operator that might hide one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode, disable_functional_mode
from torch.fx import GraphModule, Node
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

from eductor.autograd.decompose import Table
from eductor.autograd.provenance import SecondRun
from eductor.compat import HigherOrderOperator, OpOverload, gets_tokens, make_fx
from eductor.graph.values.meta import is_backward, known_equal, output_of, requires_grad, tensor_of
from eductor.ops.copies import laid_out

_functions: Any = torch  # its functions on functional tensors have no types


@dataclass(frozen=True, slots=True)
class NewValues:
    """The nodes of the new values of inputs, written by the forward and by the backward."""

    forward: Sequence[tuple[int, Node]] = ()
    backward: Sequence[tuple[int, Node]] = ()


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


def listed_writes(module: GraphModule) -> set[int]:
    """Inputs that are written as members of a list (`_foreach_add_`, `out=[x, y]`), which fake tensors do not count as writes."""
    places = {node: i for i, node in enumerate(module.graph.find_nodes(op="placeholder"))}
    lists = (given for node in module.graph.nodes for given in written_by(node) if isinstance(given, (list, tuple)))
    return {places[x] for given in lists for x in given if x in places}


def written_by(node: Node) -> list[Any]:
    """The arguments that a call writes, nodes and lists of nodes."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return []
    arguments = node.target._schema.arguments
    named = {a.name: x for a, x in zip(arguments, node.args, strict=False)} | node.kwargs
    written = [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    return [named[name] for name in written if named.get(name) is not None]


def functionalize(
    module: GraphModule, values: Sequence[Any], table: Table, *, exact: bool = False
) -> tuple[GraphModule, NewValues]:
    """The functional graph with the same outputs, and the new values of inputs; with `exact`, in the layouts of eager."""
    found: list[tuple[list[int], list[int]]] = []

    def run(*flat: Any) -> Any:
        with _wrapping_by_python_alone():
            wrapped = [FunctionalTensor.to_functional(x) if isinstance(x, torch.Tensor) else x for x in flat]
            with fx_traceback.preserve_node_meta():
                second = _Watching(module, wrapped, exact=exact)
                outputs = second.run(*wrapped)
                second.watch()
            forward, backward = second.written()
            found.append((list(forward), list(backward)))
            return pytree.tree_map(_unwrapped, (outputs, list(forward.values()), list(backward.values())))

    detached = [x.detach() if requires_grad(x) else x for x in values]
    with torch.no_grad(), FunctionalTensorMode(_allow_token_discovery=True):
        traced = make_fx(run, decomposition_table=table)(*detached)
    outputs, forward, backward = output_of(traced)
    traced.graph.output_node().args = (outputs,)
    first, later = found[-1]
    return traced, NewValues(list(zip(first, forward, strict=True)), list(zip(later, backward, strict=True)))


class _Watching(SecondRun):
    """Records the values of the inputs at the end of the forward and at the end of the backward."""

    def __init__(self, module: GraphModule, inputs: list[Any], *, exact: bool) -> None:
        super().__init__(module)
        self._exact = exact
        self._inputs = inputs
        self._seen: list[dict[int, Any]] = []

    def run_node(self, n: Node) -> Any:
        if not self._seen and is_backward(n):
            self.watch()
        if self._exact and n.op == "call_function":
            for operand in n.all_input_nodes:
                self._lay_out(operand)
        return super().run_node(n)

    def _lay_out(self, operand: Node) -> None:
        """Reads a value that was written in place in its old strides, as eager does, not in those of the new value."""
        value, seen = self.env[operand], tensor_of(operand)
        if not isinstance(value, FunctionalTensor) or seen is None or seen.layout is not torch.strided:
            return
        if not all(type(stride) is int for stride in seen.stride()):
            return  # nothing differs: views are regenerated with the same strides, and other parts are refused
        now = _unwrapped(value)
        if not known_equal(_strides(now), _strides(seen)):
            with disable_functional_mode():
                _functions._functionalize_replace(value.elem, laid_out(now, seen.stride()))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Keeps ATen's checks as plain nodes: the tokens that would order them would be further inputs."""
        if not gets_tokens(target):
            return super().call_function(target, args, kwargs)
        with disable_functional_mode():
            args, kwargs = pytree.tree_map(_unwrapped, (args, kwargs))
            return super().call_function(target, args, kwargs)

    def watch(self) -> None:
        now = {}
        for i, x in enumerate(self._inputs):
            if isinstance(x, FunctionalTensor) and _functions._functionalize_has_data_mutation(x.elem):
                now[i] = (_unwrapped(x), _functions._functionalize_mutation_counter(x.elem))
        self._seen.append(now)

    def written(self) -> tuple[dict[int, Any], dict[int, Any]]:
        """New values by input: at the end of the forward, and at the end of the backward those that it wrote."""
        first, last = self._seen[0], self._seen[-1]
        later = {i: value for i, (value, count) in last.items() if i not in first or first[i][1] != count}
        return {i: value for i, (value, _) in first.items()}, later


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, FunctionalTensor):
        return value
    _functions._sync(value)
    return _functions._from_functional_tensor(value.elem)


def _strides(value: torch.Tensor) -> list[Any]:
    """The strides that matter: those of dimensions of more than one element."""
    return [stride for size, stride in zip(value.shape, value.stride(), strict=True) if not known_equal(size, 1)]


def _wrapping_by_python_alone() -> Any:
    """Keeps the dispatcher from wrapping functional tensors a second time."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize))
