"""The effects of an operator, read from its schema; where schemas are known to be silent, from the tables here."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from eductor.compat import MAYBE_ALIASING_TAG, OpOverload, is_composite
from eductor.graph.effects.effect import ACT, COLLECTIVE, PURE, RANDOM, Effect, tensors_among
from eductor.graph.reading.bind import Bound
from eductor.graph.reading.schema import parameters
from eductor.graph.values.meta import tensor_of

# Operators that must stay, and may be passed by: they check something, or wait for it.
_KEPT = {
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::_functional_assert_async",
    "aten::_functional_assert_scalar",
    "aten::_functional_sym_constrain_range",
    "aten::_functional_sym_constrain_range_for_size",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
    "_c10d_functional::wait_tensor",
}

# Norms that update `running_mean` and `running_var` without saying so, and the argument that switches it on.
_STATISTICS: dict[str, str | None] = {
    "aten::batch_norm": "training",
    "aten::_batch_norm_impl_index": "training",
    "aten::native_batch_norm": "training",
    "aten::cudnn_batch_norm": "training",
    "aten::miopen_batch_norm": "training",
    "aten::instance_norm": "use_input_stats",
    "aten::batch_norm_update_stats": None,
    "aten::batch_norm_gather_stats": None,
    "aten::batch_norm_gather_stats_with_counts": None,
}

# Operators that return an argument, a view of it, or something that lives in it, without saying so.
_SHARING = {
    *("aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"),  # they promise that nobody writes
    *("aten::lift", "aten::dequantize", "prims::device_put"),  # nothing is to be done: the argument itself
    *("aten::set", "aten::set_"),  # the tensor moves into the memory of the source
    "_c10d_functional::wait_tensor",  # the argument, once it has arrived
}

# Written in terms of others, so that the schema need not say what is shared: known to return new memory.
_FRESH = {
    f"aten::{name}"
    for name in (
        *("linear", "matmul", "bilinear", "outer", "conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("layer_norm", "group_norm", "rms_norm", "batch_norm", "instance_norm"),
        *("softmax", "log_softmax", "cross_entropy_loss", "embedding", "scaled_dot_product_attention", "one_hot"),
        *("where", "stack", "cat", "hstack", "vstack", "dstack", "column_stack", "tile", "repeat_interleave", "pad"),
        *("gelu", "silu", "relu6", "selu", "prelu", "log_sigmoid", "square", "floor_divide", "isclose", "isfinite"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        *("var", "std", "var_mean", "std_mean", "max", "min", "argsort", "linalg_norm", "cosine_similarity"),
    )
}

# Written in terms of others, and always a view, where most of their kind may copy.
_VIEWS = {
    f"aten::{name}"
    for name in (
        *("expand_as", "view_as", "narrow", "movedim", "unflatten", "numpy_T", "mT", "mH", "matrix_H", "adjoint"),
        *("chunk", "split", "tensor_split", "hsplit", "vsplit", "dsplit"),
    )
}

# Operators whose schema hides a write.
_HIDDEN_WRITES = {
    *("aten::_copy_from", "aten::_copy_from_and_resize", "aten::_saturate_weight_to_fp16"),
    "aten::_cudnn_rnn_flatten_weight",  # moves the weights into one buffer
}

_COLLECTIVES = {"_c10d_functional", "_c10d_functional_autograd", "_dtensor"}

# Where no element is dropped nothing is drawn; `native_dropout` draws all the same.
_DROPOUTS = {"aten::dropout", "aten::alpha_dropout", "aten::feature_dropout", "aten::feature_alpha_dropout"}


@dataclass(frozen=True, slots=True)
class Nature:
    """What an operator does, whatever its arguments are; `doubtful` are those that it shares in some cases.

    One that is `pure` does nothing but compute, with any arguments.
    """

    distrust: str
    writes: tuple[str, ...]
    shares: tuple[str, ...]
    doubtful: tuple[str, ...]
    order: str
    is_view: bool
    reshapes: bool
    is_random: bool
    is_pure: bool


@functools.lru_cache(maxsize=1 << 14)
def nature_of(op: OpOverload) -> Nature:
    name, params = op._schema.name, parameters(op)
    everything = tuple(p.name for p in params)
    writes = tuple(p.name for p in params if p.written)
    shares = tuple(p.name for p in params if p.shared)
    doubtful: tuple[str, ...] = ()
    is_view = bool(shares) and not writes and (name in _VIEWS or not is_composite(op))
    if name in _SHARING or _is_made_of_parts(name):
        shares = everything
    elif _need_not_say(op):
        shares, doubtful = (), shares or (() if name in _FRESH else everything)
    reshapes, is_random = torch.Tag.inplace_view in op.tags, torch.Tag.nondeterministic_seeded in op.tags
    distrust, order = _distrust(op), _order(op)
    is_pure = not (distrust or writes or shares or doubtful or order or is_random)
    is_pure = is_pure and name not in _STATISTICS and name not in _KEPT
    return Nature(distrust, writes, shares, doubtful, order, is_view, reshapes, is_random, is_pure)


def effect_by_schema(node: Node, bound: Bound) -> Effect:
    nature = nature_of(bound.op)
    if nature.is_pure:
        return PURE
    name = bound.op._schema.name
    if nature.distrust:
        return Effect(barrier=f"{name}, {nature.distrust}")
    writes = [bound[p] for p in nature.writes]
    if name in _STATISTICS:
        writes += _statistics(bound)
    shares = [bound[p] for p in nature.shares]
    if nature.doubtful:
        shares += [n for n in tensors_among(bound[p] for p in nature.doubtful) if not _is_other_memory(node, n)]
    ordered = RANDOM if nature.is_random and _draws(bound) else nature.order
    kept = name if name in _KEPT or ordered in (COLLECTIVE, ACT) else ""
    if not (writes or shares or ordered or kept):
        return PURE
    return Effect(
        writes=tensors_among(writes),
        shares=tensors_among(shares),
        ordered=ordered,
        kept=kept,
        is_view=nature.is_view,
        reshapes=nature.reshapes,
    )


def _order(op: OpOverload) -> str:
    """Which operators, other than random ones, keep their order among each other: what others can observe."""
    if op._schema.name in _KEPT:
        return ""
    if op.namespace in _COLLECTIVES:
        return COLLECTIVE
    return "" if op._schema.returns or op._schema.is_mutable else ACT


def _distrust(op: OpOverload) -> str:
    """Why the schema of an operator cannot be believed."""
    name, params = op._schema.name, parameters(op)
    if op.namespace in ("c10d", "fsdp", "streams", "symm_mem"):
        return "whose schema does not say what it waits for, writes and returns"
    named_as_write = name.endswith("_") and not name.endswith("__")
    if name in _HIDDEN_WRITES or (named_as_write and not any(p.written for p in params)):
        return "whose schema does not say what it writes"
    if MAYBE_ALIASING_TAG in op.tags and op.namespace != "aten":
        return "which may write and return its operands"
    tensors = any("Tensor" in p.kind for p in params)
    if not tensors and not op._schema.returns and name not in _KEPT:
        return "which takes and returns nothing, so that it changes something else"
    return ""


def _statistics(bound: Bound) -> list[Any]:
    switch = _STATISTICS[bound.op._schema.name]
    is_on = switch is None or bound[switch] is not False
    return [bound["running_mean"], bound["running_var"]] if is_on else []


def _need_not_say(op: OpOverload) -> bool:
    """An operator written in terms of others may return one of its arguments, or a view, without saying so."""
    returns_tensor = any("Tensor" in str(r.type) for r in op._schema.returns)
    return returns_tensor and (MAYBE_ALIASING_TAG in op.tags or is_composite(op))


def _is_made_of_parts(name: str) -> bool:
    """Sparse and nested tensors are made of strided ones, whose memory they keep."""
    return "sparse" in name or "nested" in name


def _is_other_memory(node: Node, operand: Node) -> bool:
    """A result of another dtype or device is a copy, but for the parts of a complex number."""
    result, given = tensor_of(node), tensor_of(operand)
    if result is None or given is None or result.is_complex() or given.is_complex():
        return False
    return result.dtype != given.dtype or result.device != given.device


def _draws(bound: Bound) -> bool:
    """Whether a random operator draws: not where dropout is switched off, or drops nothing."""
    op, arguments = bound.op, bound.arguments
    if arguments.get("train", arguments.get("training")) is False:
        return False
    probability = "p" if op._schema.name.removesuffix("_") in _DROPOUTS else "dropout_p"
    return not any(arguments.get(name, 1.0) == 0 for name in (probability, "dropout"))
