"""Captures a Python function as a graph in either dialect, and lowers Dynamo's dialect to ATen."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.traceback import preserve_node_meta

from eductor import compat
from eductor.compat import FakeTensor, FakeTensorMode, HigherOrderOperator, OpOverload, ShapeEnv, make_fx
from eductor.errors import BadGraph
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.snapshot import attribute_or_none
from eductor.graph.values import meta
from eductor.graph.values.evaluate import update
from eductor.graph.values.module_tensors import attribute_at, first_names, swapped, tensors_of

Dialect = Literal["torch", "aten"]


def capture(
    fn: Callable[..., Any], inputs: Sequence[Any], dialect: Dialect = "torch", *, dynamic: bool = False
) -> GraphModule:
    """Captures a function: as Dynamo's Torch-level graph, or as a functional ATen graph of the forward alone."""
    if dialect == "torch":
        with warnings.catch_warnings(), compat.without_tracing_context():
            warnings.simplefilter("ignore", FutureWarning)
            return compat.dynamo_export(fn, tuple(inputs), dynamic=dynamic)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [mode.from_tensor(x, static_shapes=not dynamic) if isinstance(x, torch.Tensor) else x for x in inputs]
    holder = fn if isinstance(fn, nn.Module) else nn.Module()
    traced = _trace(fn, holder, fakes, mode)
    paths = {str(node.target) for node in traced.graph.find_nodes(op="get_attr")}
    return GraphModule(
        {path: attribute_at(traced if attribute_or_none(holder, path) is None else holder, path) for path in paths},
        traced.graph,
    )


def dialect_of(module: GraphModule) -> Dialect:
    """`aten` where all calls on tensors are of ATen overloads."""
    for node in module.graph.nodes:
        if node.op == "call_method" or (node.op == "call_module" and node.target != compat.EXPORTED_CHECKS):
            return "torch"
        if node.op == "call_function" and not isinstance(node.target, (OpOverload, HigherOrderOperator)):
            if node.target is not operator.getitem and isinstance(
                meta.value_of(node), (torch.Tensor, type(meta.UNKNOWN))
            ):
                return "torch"
    return "aten"


def to_aten(module: GraphModule, inputs: Sequence[Any] | None = None) -> None:
    """Lowers a Torch-level graph to a functional ATen graph, in place. It needs fake values or example inputs.

    Parameters and buffers keep their names; what the graph writes of them it writes back at its end.
    """
    placeholders = module.graph.find_nodes(op="placeholder")
    values = list(inputs) if inputs is not None else [meta.value_of(p) for p in placeholders]
    missing = [p.name for p, v in zip(placeholders, values, strict=True) if v is meta.UNKNOWN]
    if missing:
        raise BadGraph(
            f"the graph is Torch-level and its inputs {', '.join(missing)} have no fake values, so it cannot be lowered "
            "to ATen. Capture it with torch._dynamo.export or torch.compile, or give each placeholder a meta['val']."
        )
    _refuse_opaque_calls(module)
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None) or FakeTensorMode()
    fakes = [
        mode.from_tensor(v) if isinstance(v, torch.Tensor) and not isinstance(v, FakeTensor) else v for v in values
    ]

    codegen = compat.codegen_of(module.graph)
    traced = _trace(_replay(module), module, fakes, mode)
    for node, old in zip(traced.graph.find_nodes(op="placeholder"), placeholders, strict=True):
        node.meta = {**old.meta, **node.meta}
    for node in traced.graph.find_nodes(op="get_attr"):
        if attribute_or_none(module, str(node.target)) is None:
            setattr(module, str(node.target), getattr(traced, str(node.target)))
    traced.graph.set_codegen(codegen)
    module.graph = traced.graph


def _refuse_opaque_calls(module: GraphModule) -> None:
    """Raises for calls that tracing would run instead of record: changes of the random state, unknown callables."""
    for node in module.graph.nodes:
        effect = effect_of(node)
        if effect.opaque and node.op != "call_module" and not isinstance(node.target, HigherOrderOperator):
            raise BadGraph(f"{node.name} cannot be lowered to ATen: it is {effect.barrier}.")


def _trace(fn: Callable[..., Any], holder: nn.Module, fakes: list[Any], mode: FakeTensorMode) -> GraphModule:
    """Traces a function; if the trace writes, traces its ATen graph again through functionalization.

    The tensors of the holder are inputs of the trace, so that it does not change them, and attributes afterwards.
    """
    state = tensors_of(holder)
    names = first_names(state)

    def flat(*args: Any) -> Any:
        given = dict(zip((id(state[name]) for name in names), args, strict=False))
        with swapped(holder, {name: given[id(t)] for name, t in state.items()}):
            return fn(*args[len(names) :])

    with compat.without_tracing_context(), compat.taking_real_tensors(mode), mode, torch.no_grad():
        held = [mode.from_tensor(state[name], static_shapes=True) for name in names]
        detached = [f.detach() if isinstance(f, torch.Tensor) else f for f in (*held, *fakes)]
        module = functional(make_fx(flat)(*detached), detached)
    _as_attributes(module, names)
    return module


def functional(module: GraphModule, inputs: Sequence[Any]) -> GraphModule:
    """A traced graph without writes: itself if it has none, else functionalized. Needs the fake mode of the trace."""
    if any(_writes(node) for node in module.graph.nodes):
        module = make_fx(torch.func.functionalize(_replay(module), remove="mutations"))(*inputs)
        update(module, [n for n in module.graph.nodes if n.op == "call_function"])
    return module


def _replay(module: GraphModule) -> Callable[..., Any]:
    """A function that runs a graph, so that a trace of it keeps the source lines of its nodes."""

    def run(*args: Any) -> Any:
        with preserve_node_meta():
            return Interpreter(module).run(*args, enable_io_processing=False)

    return run


def _as_attributes(module: GraphModule, names: list[str]) -> None:
    """Turns the first inputs of a trace into attributes with these names."""
    placeholders = module.graph.find_nodes(op="placeholder")
    for placeholder, name in zip(placeholders, names, strict=False):
        if placeholder.users:
            with module.graph.inserting_before(placeholder):
                attribute = module.graph.create_node("get_attr", name)
            attribute.meta = dict(placeholder.meta)
            placeholder.replace_all_uses_with(attribute)
        module.graph.erase_node(placeholder)
    first = next(iter(module.graph.nodes))
    if first.op == "get_attr":
        for placeholder in module.graph.find_nodes(op="placeholder"):
            first.prepend(placeholder)


def _writes(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable
