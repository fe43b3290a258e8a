"""Provenance of backward nodes: the user's line, module and sequence number of the forward node they differentiate.

Autograd numbers the nodes that it records. The run of the captured graph records the numbers that each of its nodes
took; a hook on each node of autograd looks up the forward node before its backward is traced.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.autograd.gradient_layouts import with_eagers_layout
from eductor.autograd.gradient_uses import autograd_nodes
from eductor.errors import Unsupported
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.values.evaluate import given_back
from eductor.graph.values.meta import BACKWARD, CAME_FROM

INHERITED = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")


class ForwardRun(Interpreter):
    """Runs the captured graph and records which nodes of autograd each node created, and which node each traced node came from."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self._starts: list[int] = []
        self._nodes: list[Node] = []
        self.unused: list[Any] = []
        """Random numbers without readers; eager draws them all the same."""
        self._ends: list[tuple[Node, str]] = []
        """The last node traced before each autograd node of the backward, and the forward node whose gradient it computes."""

    def run_node(self, n: Node) -> Any:
        if (same := given_back(n)) is not None:
            return self.env[same]
        last = compat.last_traced_node()
        before, outer = compat.sequence_number(), fx_traceback.current_meta
        fx_traceback.current_meta = n.meta
        try:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            if n.target is torch.nn.functional.one_hot:
                compat.check_one_hot(*args, **kwargs)
                # The kernel's result is contiguous, in the trace it has the layout of its input.
                args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, (args, kwargs))
            with _written(kwargs.get("out"), n):
                result = with_eagers_layout(getattr(self, n.op), n.target, args, kwargs)
        finally:
            fx_traceback.current_meta = outer
        came_from(last, n.name)
        if not n.users and n.op != "output" and effect_of(n).random:
            self.unused.append(result)
        if compat.sequence_number() != before:
            self._starts.append(before)
            self._nodes.append(n)
        return result

    def forward_of(self, number: int) -> Node | None:
        """The node that created the autograd node of this sequence number."""
        place = bisect_right(self._starts, number) - 1
        return self._nodes[place] if place >= 0 else None

    def mark_backward(self, forward_ends: Node) -> None:
        """Marks the nodes traced after the forward, each with the forward node whose gradient it computes."""
        node, steps, of = forward_ends, dict(self._ends), ""
        while True:
            of = steps.get(node, of)
            node = node.next
            if node.op == "root":
                return
            node.meta["partitioner_tag"] = BACKWARD
            if of:
                node.meta[CAME_FROM] = (of,)

    @contextmanager
    def tied(self, results: Sequence[torch.Tensor]) -> Iterator[None]:
        """Hooks each autograd node that leads to these results.

        Autograd nodes and hooks reference each other, and the garbage collector does not see the nodes: hooks that are not
        removed would leak.
        """
        hooks = [step.register_prehook(self._hook(step)) for step in autograd_nodes(x.grad_fn for x in results)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _hook(self, step: Any) -> Any:
        number = step._sequence_nr()

        def announce(gradients: Any) -> None:
            forward = self.forward_of(number)
            meta = {} if forward is None else {k: forward.meta[k] for k in INHERITED if k in forward.meta}
            meta["partitioner_tag"] = BACKWARD
            self._ends.append((compat.last_traced_node(), forward.name if forward is not None else ""))
            fx_traceback.current_meta = numbered(meta, number)

        return announce


@contextmanager
def _written(out: Any, node: Node) -> Iterator[None]:
    """Checks that `out=` is written: some composite functions of ATen do not write it while they are traced."""
    if not isinstance(out, torch.Tensor) or out.is_inference():
        yield
        return
    before = out._version
    yield
    if out._version == before:
        name = getattr(node.target, "__name__", node.target)
        raise Unsupported(f"out= of {name}, which writes nothing to it while it is traced")


class SecondRun(Interpreter):
    """Runs a traced graph again; the nodes traced from it keep the metadata of its nodes."""

    def run_node(self, n: Node) -> Any:
        before, last = fx_traceback.current_meta, compat.last_traced_node()
        fx_traceback.current_meta = numbered(n.meta, n.meta.get("seq_nr"))
        try:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            return getattr(self, n.op)(n.target, args, kwargs)
        finally:
            fx_traceback.current_meta = before
            came_from(last, *n.meta.get(CAME_FROM, ()))


def came_from(last: Node, *names: str) -> None:
    """Records that the nodes traced since `last` came from these nodes."""
    node = last.next
    while names and node.op != "root":
        node.meta[CAME_FROM] = names
        node = node.next


def record_inputs(
    placeholders: Sequence[Node], captured: Sequence[Node], held: int, results: Mapping[int, Node | None]
) -> None:
    """Records for each input of a joint graph the input of the captured graph it is, and for a tangent its output.

    The captured graph has no inputs for the tensors that its module holds, which come first.
    """
    for place, node in zip(placeholders[held:], captured, strict=False):
        place.meta[CAME_FROM] = (node.name,)
        if node.stack_trace:
            place.meta["stack_trace"] = node.stack_trace
    for i, result in results.items():
        if result is not None:
            inherited = {k: result.meta[k] for k in (*INHERITED, CAME_FROM) if k in result.meta}
            placeholders[i].meta.update(inherited)


def numbered(meta: dict[str, Any], number: int | None) -> dict[str, Any]:
    """The metadata that new nodes inherit, with their sequence number."""
    return {**meta, "in_grad_fn": 1, "grad_fn_seq_nr": [number]} if number is not None else dict(meta)
