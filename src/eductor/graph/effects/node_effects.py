"""The side effects of one node: writes, aliases, barriers, what must stay.

They come from the schema of its operator, else from the name of its callable.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import EXPORTED_CHECKS, HigherOrderOperator, OpOverload, is_context_switch, is_marked_impure
from eductor.graph.effects.callable_effects import effect_by_name
from eductor.graph.effects.effect import ACT, PURE, Effect, tensors_among
from eductor.graph.effects.operator_effects import effect_by_schema, nature_of
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound, bind
from eductor.graph.values.meta import UNKNOWN, tensor_of, value_of

_FUNCTIONAL_WRAPPERS = ("auto_functionalized", "auto_functionalized_v2", "triton_kernel_wrapper_functional")
"""They call a mutating operator or kernel on copies of its arguments, and return the copies."""


def effect_of(node: Node, bind: Callable[[Node], Bound | No] = bind) -> Effect:
    """The side effects of a node: by schema, else by name, else every effect."""
    # In addition, the user may have marked a call: it then stays, and in order.
    effect = _declared(node, bind)
    if effect.kept or effect.barrier or node.op != "call_function" or not is_marked_impure(node.target):
        return effect
    return effect._replace(kept=ACT, ordered=effect.ordered or ACT)


def _declared(node: Node, bind: Callable[[Node], Bound | No]) -> Effect:
    if node.op in ("placeholder", "get_attr", "output"):
        return PURE
    if node.op == "call_module" and node.target == EXPORTED_CHECKS:
        return Effect(kept="a check of the inputs")
    if node.op == "call_module":
        return Effect(barrier=f"a call of the module {node.target}")
    target = node.target
    if isinstance(target, OpOverload) and nature_of(target).is_pure:
        return PURE
    if target is operator.getitem:
        return _getitem(node)
    if target in (operator.setitem, "__setitem__") and tensor_of(node.args[0]) is not None:
        return Effect(writes=tensors_among(node.args[:1]), kept="an assignment to an index")
    if is_context_switch(target):
        return Effect(barrier="a switch of grad mode, inference mode or autocast", is_switch=True)
    bound = bind(node)
    if isinstance(bound, Bound):
        return effect_by_schema(node, bound)
    if isinstance(target, HigherOrderOperator):
        is_functional = target.name() in _FUNCTIONAL_WRAPPERS
        return Effect(kept=ACT) if is_functional else Effect(barrier=f"the higher-order operator {target}")
    return effect_by_name(node, bound.reason)


def _getitem(node: Node) -> Effect:
    """Indexing by integers, slices and None is a view, by tensors, lists and booleans a copy; anything else may be either."""
    source, index = node.args
    shares = tensors_among([source])
    if tensor_of(source) is None:
        return Effect(shares=shares, is_view=isinstance(source, Node) and value_of(source) is not UNKNOWN)
    kinds = [_kind_of_index(p) for p in (index if isinstance(index, tuple) else (index,))]
    if "copy" in kinds:
        return PURE
    return Effect(shares=shares, is_view=all(kind == "view" for kind in kinds))


def _kind_of_index(part: Any) -> str:
    value = value_of(part)
    if isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dim() > 0):
        return "copy"
    if isinstance(value, (int, torch.SymInt, slice)) or value is None or value is Ellipsis:
        return "view"
    if isinstance(value, (list, tuple)) and all(isinstance(value_of(v), (int, torch.SymInt)) for v in value):
        return "copy"
    return "either"  # an integer tensor without dimensions selects, a list with a slice in it is a tuple
