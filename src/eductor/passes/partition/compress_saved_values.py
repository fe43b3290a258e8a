"""Saves flags as bits and indices in few bytes: the backward makes the values again from these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.fx import Node, map_arg

from eductor.compat import sort_key
from eductor.graph import GraphView, No, Rewriter, value_of
from eductor.graph.effects.order import ancestors
from eductor.graph.values.meta import IN_BACKWARD, is_backward, results_of
from eductor.pipeline.base import Context, f32, graph_pass

aten, prims = torch.ops.aten, torch.ops.prims

_CONVERT = prims.convert_element_type.default  # the engine's decompositions are over: engines know this one


@graph_pass(
    stage="partition",
    numerics="exact",
    when=lambda context: any(context.saved.values()) or No("nothing is saved that has a smaller form"),
)
def compress_saved_values(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Saves flags as bits and indices in few bytes: the backward makes the values again from these.

    The partitioner chooses what is saved, and in which form. This pass adds the small value beside the whole one, and what
    makes the whole one from it in front of its first reader in the backward.

    It pays where memory or its bandwidth is short: a mask of a dropout takes an eighth of its bytes.
    """
    backward, compressed = _Backward(graph, context), {n.meta.get(IN_BACKWARD) for n in graph.nodes}
    for node in graph.candidates([n for n in graph.nodes if context.saved.get(n.name)]):
        form = context.saved[node.name]
        if node.name in compressed:
            rewrite.reject("it is saved in a smaller form already", node)
            continue
        if not all(isinstance(size, int) for size in value_of(node).shape):
            rewrite.reject("its size is not known", node)
            continue
        readers = backward.readers(node)
        if not readers:
            rewrite.reject("nothing in the backward reads it", node)
            continue
        insert = partial(rewrite.insert, before=node.next, like=node)
        small = _to_bits(insert, node) if form == "bits" else insert(_CONVERT, node, getattr(torch, form))
        small.meta[IN_BACKWARD] = node.name
        insert = partial(rewrite.insert, before=readers[0], like=node)
        whole = _from_bits(insert, small, node) if form == "bits" else insert(_CONVERT, small, value_of(node).dtype)
        backward.read_instead(rewrite, node, whole, readers)


class _Backward:
    """What the backward computes: from what is saved, everything that gradients need."""

    def __init__(self, graph: GraphView, context: Context) -> None:
        outputs = results_of(graph.module)
        count = len(outputs) - len(context.gradients)
        acts = [n for n in graph.nodes if n.op == "call_function" and not graph.effects.of(n).removable]
        reached = ancestors(
            [*outputs[count:], *filter(is_backward, acts)],
            lambda n: () if n.name in context.saved else n.all_input_nodes,
        )
        self._computed = {n for n in reached if n.name not in context.saved}
        self._forward = ancestors([*outputs[:count], *(n for n in acts if not is_backward(n))])
        self._again: dict[Node, None] = {}
        """What of the forward the backward computes again from the value at hand, in the order of the graph."""

    def readers(self, node: Node) -> list[Node]:
        """The nodes of the backward that read a value, or what the backward recomputes from it, in the order of the graph."""
        found, again, pending = set[Node](), {node}, [node]
        while pending:
            for user in pending.pop().users:
                if user not in self._forward:
                    found |= {user} & self._computed
                elif user in self._computed and user not in again:
                    again.add(user)
                    pending.append(user)
        self._again = dict.fromkeys(sorted(again - {node}, key=sort_key))
        return sorted(found, key=sort_key)

    def read_instead(self, rewrite: Rewriter, node: Node, whole: Node, readers: Sequence[Node]) -> None:
        """Replaces a value by another node in the backward, and recomputes there what forward and backward shared of it."""
        instead = {node: whole}

        def operand(n: Node) -> Node:
            return instead.get(n, n)

        for reader in readers:
            needed = ancestors(reader.all_input_nodes, lambda n: n.all_input_nodes if n in self._again else ())
            for again in self._again:
                if again in needed and again not in instead:
                    args, kwargs = map_arg((again.args, again.kwargs), operand)
                    instead[again] = rewrite.insert(again.target, *args, before=reader, like=again, **kwargs)
                    instead[again].meta[IN_BACKWARD] = again.name
                    self._computed.add(instead[again])
            args, kwargs = map_arg((reader.args, reader.kwargs), operand)
            rewrite.update(reader, args=args, kwargs=kwargs, respelled=True)


def _to_bits(call: Callable[..., Node], flags: Node) -> Node:
    """Eight flags in a byte, the first one lowest."""
    rows = call(aten.view.default, call(_CONVERT, flags, torch.uint8), [-1, 8])
    byte = call(aten.select.int, rows, 1, 0)
    for bit in range(1, 8):
        shifted = call(aten.bitwise_left_shift.Tensor_Scalar, call(aten.select.int, rows, 1, bit), bit)
        byte = call(aten.bitwise_or.Tensor, byte, shifted)
    return byte


def _from_bits(call: Callable[..., Node], packed: Node, flags: Node) -> Node:
    value = value_of(flags)
    kind = {"dtype": torch.uint8, "device": value.device, "requires_grad": False}
    shifts = call(prims.iota.default, 8, start=0, step=1, **kind)
    bits = call(aten.bitwise_right_shift.Tensor, call(aten.unsqueeze.default, packed, -1), shifts)
    flags_again = call(_CONVERT, call(aten.bitwise_and.Scalar, bits, 1), torch.bool)
    return call(aten.view.default, flags_again, [*value.shape])


@compress_saved_values.example(context={"gradients": (0,), "saved": {"gt": "bits"}})
def flags_of_a_dropout(
    x: torch.Tensor = f32(4, 8), noise: torch.Tensor = f32(4, 8), tangent: torch.Tensor = f32(4, 8)
) -> tuple[torch.Tensor, torch.Tensor]:
    kept = noise > 0.5
    return x * kept, tangent * kept


@compress_saved_values.example(context={"gradients": (0,), "saved": {"argmax": "uint8"}})
def indices_of_a_maximum(
    x: torch.Tensor = f32(4, 8), tangent: torch.Tensor = f32(4, 1)
) -> tuple[torch.Tensor, torch.Tensor]:
    largest = x.argmax(1, keepdim=True)
    return x.gather(1, largest), torch.zeros_like(tangent).expand(4, 8).scatter(1, largest, tangent)


@compress_saved_values.example(context={"gradients": (0,), "saved": {"gt": "bits"}})
def value_that_is_computed_again_from_flags(
    x: torch.Tensor = f32(4, 8), tangent: torch.Tensor = f32(4, 8)
) -> tuple[torch.Tensor, torch.Tensor]:
    half = (x > 0).float() * 0.5
    return x * half, tangent * half


@compress_saved_values.refuses("nothing in the backward reads it", context={"gradients": (0,), "saved": {"gt": "bits"}})
def flags_that_the_forward_reads_alone(
    x: torch.Tensor = f32(4, 8), tangent: torch.Tensor = f32(4, 8)
) -> tuple[torch.Tensor, torch.Tensor]:
    return x * (x > 0), tangent * 2
