"""From a Python function to a graph in either dialect, and from Dynamo's dialect to ATen's."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Interpreter
from torch.fx.traceback import preserve_node_meta

from eductor import compat
from eductor.compat import FakeTensor, FakeTensorMode, HigherOrderOperator, OpOverload, ShapeEnv, make_fx
from eductor.errors import BadGraph
from eductor.graph import meta

Dialect = Literal["torch", "aten"]


def capture(
    fn: Callable[..., Any], inputs: Sequence[Any], dialect: Dialect = "torch", *, dynamic: bool = False
) -> GraphModule:
    """The graph of a function: Dynamo's Torch-level one, or a functional ATen graph of the forward alone."""
    if dialect == "torch":
        with warnings.catch_warnings(), compat.without_tracing_context():
            warnings.simplefilter("ignore", FutureWarning)
            return compat.dynamo_export(fn, tuple(inputs), dynamic=dynamic)
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    fakes = [mode.from_tensor(x, static_shapes=not dynamic) if isinstance(x, torch.Tensor) else x for x in inputs]
    return _trace(fn, fakes, mode)


def dialect_of(module: GraphModule) -> Dialect:
    """`aten` where all calls on tensors are of ATen overloads."""
    for node in module.graph.nodes:
        if node.op in ("call_method", "call_module"):
            return "torch"
        if node.op == "call_function" and not isinstance(node.target, (OpOverload, HigherOrderOperator)):
            if node.target is not operator.getitem and isinstance(
                meta.value_of(node), (torch.Tensor, type(meta.UNKNOWN))
            ):
                return "torch"
    return "aten"


def to_aten(module: GraphModule, inputs: Sequence[Any] | None = None) -> None:
    """Brings a Torch-level graph to a functional ATen graph, in place. It needs fake values or example inputs."""
    placeholders = module.graph.find_nodes(op="placeholder")
    values = list(inputs) if inputs is not None else [meta.value_of(p) for p in placeholders]
    missing = [p.name for p, v in zip(placeholders, values, strict=True) if v is meta.UNKNOWN]
    if missing:
        raise BadGraph(
            f"the graph is Torch-level and its inputs {', '.join(missing)} have no fake values, so it cannot be brought to "
            "ATen. Capture it with torch._dynamo.export or torch.compile, or give each placeholder a meta['val']."
        )
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None) or FakeTensorMode()
    fakes = [
        mode.from_tensor(v) if isinstance(v, torch.Tensor) and not isinstance(v, FakeTensor) else v for v in values
    ]

    def run(*args: Any) -> Any:
        with preserve_node_meta():
            return Interpreter(module).run(*args, enable_io_processing=False)

    codegen = module.graph._codegen
    traced = _trace(run, fakes, mode)
    for node, old in zip(traced.graph.find_nodes(op="placeholder"), placeholders, strict=True):
        node.meta = {**old.meta, **node.meta}
    for name, attribute in [*traced.named_buffers(recurse=False), *traced.named_parameters(recurse=False)]:
        module.register_buffer(name, attribute)
    for name, child in traced.named_children():
        module.add_module(name, child)
    for node in traced.graph.find_nodes(op="get_attr"):
        if not hasattr(module, str(node.target)):
            setattr(module, str(node.target), getattr(traced, str(node.target)))
    traced.graph.set_codegen(codegen)
    module.graph = traced.graph


def _trace(fn: Callable[..., Any], fakes: list[Any], mode: FakeTensorMode) -> GraphModule:
    """One trace; a second one through functionalization only where the first shows a write."""

    def flat(*args: Any) -> Any:
        return fn(*args)

    with compat.without_tracing_context(), compat.taking_real_tensors(mode), mode, torch.no_grad():
        detached = [f.detach() if isinstance(f, torch.Tensor) else f for f in fakes]
        module = make_fx(flat)(*detached)
        if any(_writes(node) for node in module.graph.nodes):
            functional = torch.func.functionalize(flat, remove="mutations")
            module = make_fx(functional)(*detached)
            _refill_values(module)
    return module


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable


def _refill_values(module: GraphModule) -> None:
    """Fake values as the graph itself gives them, not as functionalization's wrappers left them."""
    meta.update(module, [n for n in module.graph.nodes if n.op == "call_function"])
