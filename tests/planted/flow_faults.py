"""Faults planted into the flow around the passes: trace, split, backward variants, runtime wrapper.

No pass makes them, so only a comparison of the whole call with eager can see them; but for one in the pass of the stage
partition, which a run on made-up inputs cannot reach: what it does depends on what the partitioner chose. Each row replaces one function of the
flow by a wrong one, and has a program in which that shows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from eductor import compiler
from eductor.autograd import runtime
from eductor.autograd.autograd_step import AutogradStep
from eductor.engines import ATEN, Engine
from eductor.partition import prices
from eductor.passes.partition import compress_saved_values
from eductor.program.joint import Joint, Signature
from eductor.program.parts import Parts

aten = torch.ops.aten
FUSING = Engine("aten as if it fused", ATEN.compile, fuses=True)
"""Flags are saved in a smaller form only for an engine that fuses what unpacks them."""
Faulty = AbstractContextManager[Any]


@dataclass(frozen=True)
class FlowFault:
    """One wrong function of the flow, and a program that shows it."""

    stage: str
    plant: Callable[[], Faulty]
    program: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    shows: str
    """What differs from eager, as verification says it."""
    options: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.stage}-{self.plant.__name__}"


FLOW_FAULTS: list[FlowFault] = []


def fault(
    stage: str, program: Callable[..., Any], *inputs: torch.Tensor, shows: str, **options: Any
) -> Callable[..., Any]:
    """Declares a wrong function of a stage, with a program and what differs from eager there."""

    def declare(plant: Callable[[], Faulty]) -> Callable[[], Faulty]:
        FLOW_FAULTS.append(FlowFault(stage, plant, program, inputs, shows, options))
        return plant

    return declare


def f32(*shape: int, grad: bool = True) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_(grad)


# ------------------------------------------------------------------------------------------------------------- programs


def products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Saves two matrices of one shape for its backward."""
    return (x @ y).tanh() @ (y @ x).sigmoid()


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sin() * y


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y)
    return x * 2


def writes_with_gradients(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.mul_(x)  # y does not require gradients until then
    return y * 2


def writes_unseen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One write moves no version, the other one does; kernels of one engine count all writes, those of the other none."""
    x.data.add_(1)
    return x * y.mul_(2)


def returns_a_view(x: torch.Tensor) -> torch.Tensor:
    return x[1:]


def returns_indices(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.exp(), x.argsort(0).float()


def drops_out(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x.exp(), 0.5).sin()


def uses_one_result(x: torch.Tensor) -> torch.Tensor:
    """Its backward leaves one tangent of the compiled graph undefined."""
    first, _ = _two(x)
    return first


@torch.compiler.disable
def _graph_break() -> None: ...


def _two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    results = x.sin() * 2, x.cos() * 3
    _graph_break()  # the results are those of one graph, of which the next one uses the first
    return results


# ---------------------------------------------------------------------------------------------------------------- trace


def traced_with(edit: Callable[[Joint], Joint]) -> Faulty:
    right = compiler.trace_joint

    def wrong(*args: Any, **named: Any) -> Any:
        traced = right(*args, **named)
        return replace(traced, joint=edit(traced.joint))

    return patch.object(compiler, "trace_joint", wrong)


@fault("trace", scaled, f32(3, 3), f32(3, 3), shows="the gradient of input 0 differs")
def gradients_of_swapped_inputs() -> Faulty:
    return traced_with(lambda joint: replace(joint, gradients=tuple(reversed(joint.gradients))))


@fault("trace", returns_a_view, f32(4, 3), shows="the memory of output 0 differs")
def a_view_that_is_a_copy() -> Faulty:
    def copied(joint: Joint) -> Joint:
        with_gradient, without = joint.views
        assert with_gradient is not None
        return replace(joint, views=(lambda *given: [v.clone() for v in with_gradient(*given)], without))

    return traced_with(copied)


# ------------------------------------------------------------------------------------------------------------ partition


def split_into(edit: Callable[[Parts], Parts]) -> Faulty:
    right = compiler.split
    return patch.object(compiler, "split", lambda *args, **named: edit(right(*args, **named)))


@fault("partition", products, f32(4, 4), f32(4, 4), shows="the gradient of input 0 differs")
def swapped_saved_values() -> Faulty:
    return split_into(lambda parts: replace(parts, saved=tuple(reversed(parts.saved))))


@fault("partition", writes, f32(3, grad=False), f32(3, grad=False), shows="input 0 after the call differs")
def a_dropped_copy_back() -> Faulty:
    def dropped(parts: Parts) -> Parts:
        graph: Graph = parts.forward.graph
        for node in graph.find_nodes(op="call_function", target=aten.copy_.default):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
        return parts

    return split_into(dropped)


@fault("partition", drops_out, f32(64), shows="the gradient of input 0 differs", memory_budget=0)
def random_numbers_drawn_twice() -> Faulty:
    return patch.object(prices, "may_be_repeated", lambda node: True)


@fault("partition", drops_out, f32(1 << 16, 8), shows="partition/compress_saved_values", engine=FUSING)
def flags_turned_around_in_their_small_form() -> Faulty:
    right = compress_saved_values._from_bits

    def wrong(call: Callable[..., Node], packed: Node, flags: Node) -> Node:
        return call(aten.logical_not.default, right(call, packed, flags))

    return patch.object(compress_saved_values, "_from_bits", wrong)


# ----------------------------------------------------------------------------------------------------------------- link


@fault("link", writes_unseen, f32(3, grad=False), f32(3, grad=False), shows="the version of input")
def versions_as_the_kernels_leave_them() -> Faulty:
    return patch.object(runtime, "_keeping_versions", lambda run, signature, counts_writes: run)


@fault("link", writes_with_gradients, f32(3), f32(3, grad=False), shows="input 1 after the call differs")
def a_copy_back_into_a_copy() -> Faulty:
    right = runtime._finisher

    def misled(signature: Signature) -> Any:
        finish = right(signature)
        return finish and (lambda inputs, flat, returns: finish(inputs, [x.clone() for x in flat], returns))

    return patch.object(runtime, "_finisher", misled)


@fault("link", returns_indices, f32(3), shows="output 1 differs")
def an_output_that_must_not_require_gradients() -> Faulty:
    right = AutogradStep.__init__

    def forgetful(self: AutogradStep, *args: Any, **named: Any) -> None:
        right(self, *args, **named)
        self._fixed = []

    return patch.object(AutogradStep, "__init__", forgetful)


@fault("link", uses_one_result, f32(3), shows="the gradient of input 0 differs")
def a_gradient_that_is_lost_with_an_undefined_one() -> Faulty:
    right = compiler.without_undefined

    def lost(*given: Any) -> Any:
        module, present = right(*given)
        return module, [False for _ in present]

    return patch.object(compiler, "without_undefined", lost)
