"""Backward variants: the backward graph, compiled on first use for each set of defined gradients of outputs.

A gradient is undefined where the loss does not use the output. As in eager's autograd, a value that depends on undefined
gradients alone is undefined, a sum drops its undefined part, and any other operator that mixes both gets zeros.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from eductor import compat
from eductor.errors import Unsupported
from eductor.graph.values.meta import output_of, tensor_of
from eductor.program.job import Run

Finish = Callable[[], Run]
"""Waits for the kernels of a graph, and returns its function."""

CompileBackward = Callable[[GraphModule, Sequence[bool], bool], Finish]
"""Compiles a backward graph for these defined tangents; the flag says that its saved values are needed afterwards."""

Variant = tuple[tuple[bool, ...], bool]
"""Which tangents are defined, and whether saved values are needed afterwards."""

Prune = Callable[[Sequence[bool]], tuple[GraphModule, list[bool]]]
"""From which tangents are defined to the backward that takes only those, and which gradients it computes."""

aten = torch.ops.aten
_SUMS = (aten.add.Tensor,)


class Backwards:
    """Compiled variants of one backward graph, by which tangents are defined and whether saved values stay alive."""

    def __init__(self, module: GraphModule, tangents: int, compile: CompileBackward, prune: Prune) -> None:
        self._module = module
        self._prune = prune
        self._tangents = tangents
        self._compile = compile
        self._made: dict[Variant, Run] = {}
        self._started: dict[Variant, Finish] = {}
        self._lock = threading.RLock()

    def __call__(self, defined: tuple[bool, ...], keeps: bool) -> Run:
        run = self._made.get((defined, keeps))
        if run is None:
            with self._lock:
                run = self._made.get((defined, keeps)) or self._finished(defined, keeps)
                self._made[defined, keeps] = run
        return run

    def prepare(self) -> None:
        """Compiles the ordinary variant now."""
        self((True,) * self._tangents, False)

    def start(self) -> None:
        """Lowers the variant that is likely to be called first, whose kernels are built until then."""
        defined = _likely(self._module, self._tangents)
        with suppress(Exception):  # its first call will raise it again
            self._started[defined, False] = self._start(defined, False)

    def _finished(self, defined: tuple[bool, ...], keeps: bool) -> Run:
        finish = self._started.pop((defined, keeps), None) or self._start(defined, keeps)
        return finish()

    def _start(self, defined: tuple[bool, ...], keeps: bool) -> Finish:
        if all(defined):
            return self._compile(self._module, defined, keeps)
        module, present = self._prune(defined)
        return partial(_completed, self._compile(module, defined, keeps), present)


def _likely(module: GraphModule, tangents: int) -> tuple[bool, ...]:
    """Which tangents a first call is likely to define: that of the loss, if one output alone is a scalar, otherwise all."""
    placeholders = module.graph.find_nodes(op="placeholder")
    values = map(tensor_of, placeholders[len(placeholders) - tangents :])
    scalars = tuple(value is not None and value.dim() == 0 for value in values)
    return scalars if sum(scalars) == 1 else (True,) * tangents


def _completed(finish: Finish, present: Sequence[bool]) -> Run:
    """A pruned backward as a function of all gradients, None for those that it does not compute."""
    run = finish()

    def call(inputs: list[Any]) -> Sequence[Any]:
        found = iter(run(inputs))
        return [next(found) if is_present else None for is_present in present]

    return call


def without_undefined(module: GraphModule, defined: Sequence[bool]) -> tuple[GraphModule, list[bool]]:
    """The backward without the undefined tangents among its inputs, and which gradients it still computes."""
    copier = _Copier(module, defined)
    outputs = output_of(module)
    present = [not (isinstance(n, Node) and n in copier.undefined) for n in outputs]
    wanted = tuple(copier.copies.get(n, n) for n, is_present in zip(outputs, present, strict=True) if is_present)
    copier.graph.output(wanted)
    result = GraphModule(module, copier.graph)
    result.graph.eliminate_dead_code()
    result.recompile()
    return result, present


class _Copier:
    """Copies a backward graph, leaving out what depends on undefined gradients alone."""

    def __init__(self, module: GraphModule, defined: Sequence[bool]) -> None:
        self.graph = Graph()
        self.copies: dict[Any, Any] = {}
        placeholders = module.graph.find_nodes(op="placeholder")
        tangents = placeholders[len(placeholders) - len(defined) :]
        self.undefined = {node for node, is_defined in zip(tangents, defined, strict=True) if not is_defined}
        self._gradients = set(tangents)
        for node in module.graph.nodes:
            if node.op != "output" and node not in self.undefined:
                self._add(node)

    def _add(self, node: Node) -> None:
        operands = [o for o in node.all_input_nodes if o in self._gradients]
        missing = [o for o in operands if o in self.undefined]
        if operands:
            self._gradients.add(node)
        if missing and len(missing) == len(operands):
            self.undefined.add(node)
            return
        if missing and node.target in _SUMS and not node.kwargs:
            (present,) = (o for o in node.args if o not in self.undefined)
            if isinstance(present, Node) and _same_form(present, node):
                self.copies[node] = self.copies[present]
                return
        for operand in missing:
            if operand not in self.copies:
                self.copies[operand] = self._zeros(operand)
        self.copies[node] = self.graph.node_copy(node, lambda o: self.copies[o])

    def _zeros(self, node: Node) -> Node:
        value = tensor_of(node)
        if value is None:
            raise Unsupported(f"{node.name}, which mixes undefined gradients with others and is no tensor")
        known = {compat.symbol_of(p.meta.get("val")): p for p in self.graph.find_nodes(op="placeholder")}
        sizes = [compat.size_as_node(self.graph, size, known) for size in value.shape]
        zeros = self.graph.call_function(aten.full.default, (sizes, 0), {"dtype": value.dtype, "device": value.device})
        zeros.meta = {**node.meta}
        return zeros


def _same_form(a: Node, b: Node) -> bool:
    x, y = tensor_of(a), tensor_of(b)
    return x is not None and y is not None and x.dtype == y.dtype and x.shape == y.shape
