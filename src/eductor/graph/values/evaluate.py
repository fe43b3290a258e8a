"""Propagates fake values: through a whole graph, or only from changed nodes."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node, map_arg

from eductor import compat
from eductor.compat import FakeTensor, FakeTensorMode, HigherOrderOperator, OpOverload
from eductor.errors import BadGraph
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.reading.bind import Bound, bind
from eductor.graph.values.meta import UNKNOWN, difference, fake_mode_of, requires_grad, set_value, value_of


def propagate(module: GraphModule, inputs: Iterable[Any] | None = None) -> None:
    """Computes the fake value of each node; `inputs` are the values of the placeholders if these have none."""
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    given = list(inputs) if inputs is not None else [value_of(p) for p in placeholders]
    if len(given) != len(placeholders):
        raise BadGraph(f"the graph has {len(placeholders)} inputs, {len(given)} example inputs were given")
    missing = [p.name for p, v in zip(placeholders, given, strict=True) if v is UNKNOWN]
    if missing:
        raise BadGraph(
            f"no fake value for the inputs {', '.join(missing)}: give example inputs, or capture the graph with them"
        )
    mode = (
        next((v.fake_mode for v in given if isinstance(v, FakeTensor)), None) or fake_mode_of(graph) or FakeTensorMode()
    )
    for placeholder, value in zip(placeholders, given, strict=True):
        real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        placeholder.meta["val"] = mode.from_tensor(value, static_shapes=True) if real else value
    update(module, graph.nodes, mode)


def update(module: GraphModule, changed: Iterable[Node], mode: FakeTensorMode | None = None) -> int:
    """Recomputes the fake values of changed nodes, and of their users wherever a value differs.

    Returns how many nodes were recomputed.
    """
    pending = set(changed)
    computed = 0
    for node, new in reevaluated(module, pending, mode):
        computed += 1
        if _differ(value_of(node), new):
            set_value(node, new)
            pending.update(node.users)
    return computed


def _differ(old: Any, new: Any) -> bool:
    """Whether two fake values differ in anything that passes read."""
    return old is UNKNOWN or difference(old, new) is not None or _require_grad(old) != _require_grad(new)


def _require_grad(value: Any) -> list[bool]:
    """Which of the tensors of a value require grad."""
    return [requires_grad(v) for v in (value if isinstance(value, (list, tuple)) else (value,))]


def reevaluated(
    module: GraphModule, nodes: Collection[Node], mode: FakeTensorMode | None = None
) -> Iterator[tuple[Node, Any]]:
    """Yields each of the nodes, in graph order, with its recomputed fake value.

    `nodes` may grow meanwhile. Switches of grad mode and autocast are executed, and undone at the end.
    """
    mode = mode or fake_mode_of(module.graph)
    if not nodes or mode is None:
        return
    contexts: dict[Node, Any] = {}
    with compat.keeping_dispatch_state(), mode, compat.enable_python_dispatcher():
        for node in module.graph.nodes:
            if compat.is_context_switch(node.target):
                contexts[node] = compat.switch_context(node.target, *map_arg(node.args, contexts.__getitem__))
            elif node in nodes and node.op not in ("placeholder", "output"):
                value = evaluate(module, node, mode)
                if value is not UNKNOWN:
                    yield node, value


def evaluate(module: GraphModule, node: Node, mode: FakeTensorMode) -> Any:
    """The fake value of a node from those of its operands; UNKNOWN where running it would have effects or create symbols."""
    if node.op == "get_attr":
        value = operator.attrgetter(str(node.target))(module)
        return mode.from_tensor(value, static_shapes=True) if isinstance(value, torch.Tensor) else value
    values = [value_of(n) for n in node.all_input_nodes]
    effect = effect_of(node)
    # `t_`, `resize_` and so on would change the fake value of their operand a second time.
    if any(v is UNKNOWN for v in values) or "unbacked_bindings" in node.meta or effect.reshapes:
        return UNKNOWN
    if (same := given_back(node)) is not None:
        return value_of(same)
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: compat.with_history(value_of(n)))
    if isinstance(node.target, HigherOrderOperator):
        return _evaluate_higher_order(node.target, args, kwargs)
    if node.op == "call_module" or (effect.opaque and not isinstance(node.target, OpOverload)):
        return UNKNOWN
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


_DROPOUTS = (F.dropout, torch.dropout, torch.ops.aten.dropout.default)


def given_back(node: Node) -> Node | None:
    """The operand that a dropout returns uncopied, because it drops nothing; torch's Python kernel copies it."""
    bound = bind(node) if node.target in _DROPOUTS else None
    if not isinstance(bound, Bound) or bound.packet is not torch.ops.aten.dropout:
        return None
    operand = bound["input"]
    drops_nothing = bound["train"] is False or bound["p"] == 0
    return operand if drops_nothing and isinstance(operand, Node) else None


def correct_captured(module: GraphModule) -> None:
    """Corrects captured values from torch's Python kernels where these differ from eager."""
    dropouts = [n for target in _DROPOUTS for n in module.graph.find_nodes(op="call_function", target=target)]
    given = [(node, operand) for node in dropouts if (operand := given_back(node)) is not None]
    update(module, [node for node, operand in given if _differ(value_of(node), value_of(operand))])


def _evaluate_higher_order(op: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
    """Runs a higher-order operator on fake values; UNKNOWN if it fails."""
    try:
        return op(*args, **kwargs)
    except Exception:
        return UNKNOWN
