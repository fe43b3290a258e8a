"""A captured graph as a function of flat inputs, and those inputs as fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import TracingContext
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from eductor import compat
from eductor.compat import FakeTensor, FakeTensorMode, HigherOrderOperator, ShapeEnv
from eductor.errors import Unsupported
from eductor.graph.reading.static import is_static
from eductor.graph.snapshot import subgraphs
from eductor.graph.values.evaluate import given_back
from eductor.graph.values.module_tensors import first_names, swapped, tensors_of
from eductor.program.joint import Signature

Pairs = frozenset[tuple[int, int]]


class AsInEager(Interpreter):
    """Runs a graph; calls that return their operand in eager return the same object here, under any dispatcher."""

    def run_node(self, n: Node) -> Any:
        same = given_back(n)
        return self.env[same] if same is not None else super().run_node(n)


class Captured:
    """A captured graph as a function of flat inputs: the tensors that its module holds come first."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self._state = tensors_of(module)
        names = first_names(self._state)
        self.held = [self._state[name] for name in names]
        self.spec: Any = None
        """The structure of the outputs, once the graph has run; None where they are a flat tuple."""
        self.pairs: Pairs = frozenset()
        """Inputs that overlap, by their numbers, and are taken as one."""
        self.uncounted_writes: tuple[int, ...] = ()
        """Inputs whose version counters do not see that the graph writes them."""

    def flatten(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs of the traced graph, from those of the captured graph."""
        return list(inputs)

    def enter(self, flat: Sequence[Any]) -> list[Any]:
        """The inputs of the captured graph, from those of the traced graph."""
        return list(flat)

    def fits(self, inputs: Sequence[Any]) -> bool:
        """Whether the inputs of a call overlap in the same places as those the graph was traced for."""
        return True

    def run(self, inputs: Sequence[Any], interpreter: Interpreter | None = None) -> list[Any]:
        """Runs the graph, with the given interpreter if there is one; returns the outputs, flat."""
        count = len(self.held)
        given = {id(t): value for t, value in zip(self.held, inputs[:count], strict=True)}
        with swapped(self.module, {name: given[id(t)] for name, t in self._state.items()}):
            outputs = (interpreter or AsInEager(self.module)).run(*inputs[count:], enable_io_processing=False)
        if type(outputs) is tuple and not any(isinstance(x, (tuple, list, dict)) for x in outputs):
            return list(outputs)
        leaves, self.spec = pytree.tree_flatten(list(outputs) if isinstance(outputs, list) else outputs)
        return leaves

    def sources(self) -> list[Any]:
        """Where Dynamo found each of the flat inputs; None for those it did not."""
        placeholders = self.module.graph.find_nodes(op="placeholder")
        return [*[None] * len(self.held), *(getattr(p, "_dynamo_source", None) for p in placeholders)]

    def written(self, signature: Signature) -> frozenset[int]:
        """Inputs of a call that the graph writes."""
        return signature.written

    def static_inputs(self) -> frozenset[int]:
        """Inputs whose memory address is the same in each call: parameters and buffers."""
        count = len(self.held)
        found = set(range(count))
        found.update(count + i for i, p in enumerate(self.module.graph.find_nodes(op="placeholder")) if is_static(p))
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Fakes:
    """Fake inputs in their mode."""

    mode: FakeTensorMode
    values: tuple[Any, ...]

    @staticmethod
    def of(inputs: Sequence[Any], sources: Sequence[Any] = ()) -> Fakes:
        """Fake tensors for real inputs, with the symbols that Dynamo gave to their sizes, by where they come from."""
        context = TracingContext.try_get()
        mode = _mode(inputs, context)
        given = zip(inputs, (*sources, *[None] * (len(inputs) - len(sources))), strict=True)
        return Fakes(mode, tuple(_fake(x, source, mode, context) for x, source in given))


def _mode(inputs: Sequence[Any], context: TracingContext | None) -> FakeTensorMode:
    given = next((x.fake_mode for x in inputs if isinstance(x, FakeTensor)), None)
    if given is not None:
        return given
    if context is not None and context.fake_mode is not None:
        return context.fake_mode
    return FakeTensorMode(shape_env=ShapeEnv())


def _fake(value: Any, source: Any, mode: FakeTensorMode, context: TracingContext | None) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    if compat.is_wrapper_subclass(value):
        raise Unsupported(f"an input of the tensor subclass {type(value).__name__}")
    if value.is_mkldnn:
        raise Unsupported(f"an input in the layout {value.layout}, which fake tensors do not have")
    known = context.tensor_to_context.get(value) if context is not None and value in context.tensor_to_context else None
    if known is not None:
        return mode.from_tensor(value, symbolic_context=known, source=known.tensor_source, trace=False)
    is_number = value.dim() == 0 and value.dtype == torch.float64 and source is not None  # a Python float
    return mode.from_tensor(value, static_shapes=not is_number, source=source, trace=False)


def contains(module: GraphModule, predicate: Callable[[Any], bool]) -> bool:
    """Whether an operator of this kind is in a graph, or in a graph that one of its operators runs."""
    return any(predicate(call.target) for call in calls_in(module))


def calls_in(module: GraphModule) -> Iterator[Node]:
    """The calls of a graph, and of the graphs that its operators run."""
    yield from (n for n in module.graph.nodes if n.op in ("call_function", "call_method"))
    for body in subgraphs(module.graph).values():
        yield from calls_in(body)


def keeps_subgraphs(target: Any) -> bool:
    """Whether an operator runs graphs that stay graphs of their own in a trace."""
    return isinstance(target, HigherOrderOperator) and target not in _TRACED_THROUGH


_TRACED_THROUGH = (
    torch.ops.higher_order.tag_activation_checkpoint,
    torch.ops.higher_order.autograd_function_apply,
)


def refuse_subclasses(module: GraphModule) -> None:
    """Raises for a wrapper subclass that is made inside of the graph: it hides operators from the trace."""
    for node in module.graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("example_value")):
            if isinstance(value, torch.Tensor) and compat.is_wrapper_subclass(value):
                raise Unsupported(f"{node.name}, of the tensor subclass {type(value).__name__}")
