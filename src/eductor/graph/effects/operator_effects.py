"""The effects of an operator, from its schema, and from tables where schemas are known to omit effects."""

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

# Operators that must stay and that others may pass: they check something, or wait for it.
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

# Norms that update `running_mean` and `running_var` undeclared, and the argument that switches it on.
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

# Operators that return an argument, a view of it, or something in its memory, undeclared.
_SHARING = {
    *("aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes"),  # callers must not write
    *("aten::lift", "aten::dequantize", "prims::device_put"),  # may return the argument itself
    *("aten::set", "aten::set_"),  # the tensor moves into the memory of the source
    "_c10d_functional::wait_tensor",  # the argument, once it has arrived
}

# Composite operators, whose schemas need not declare aliases: known to return new memory.
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

# Composite operators that always return a view, where most composites may copy.
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

# With probability 0 these draw nothing; `native_dropout` draws anyway.
_DROPOUTS = {"aten::dropout", "aten::alpha_dropout", "aten::feature_dropout", "aten::feature_alpha_dropout"}


@dataclass(frozen=True, slots=True)
class Nature:
    """The effects of an operator for any arguments; it may alias those in `unsure` in some cases.

    `untrusted` is why its schema cannot be trusted. A `pure` operator has no effects, whatever its arguments.
    """

    untrusted: str
    writes: tuple[str, ...]
    shares: tuple[str, ...]
    unsure: tuple[str, ...]
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
    unsure: tuple[str, ...] = ()
    is_view = bool(shares) and not writes and (name in _VIEWS or not is_composite(op))
    if name in _SHARING or _wraps_strided_tensors(name):
        shares = everything
    elif _may_alias_undeclared(op):
        shares, unsure = (), shares or (() if name in _FRESH else everything)
    reshapes, is_random = torch.Tag.inplace_view in op.tags, torch.Tag.nondeterministic_seeded in op.tags
    untrusted, order = _why_untrusted(op), _order(op)
    is_pure = not (untrusted or writes or shares or unsure or order or is_random)
    is_pure = is_pure and name not in _STATISTICS and name not in _KEPT
    return Nature(untrusted, writes, shares, unsure, order, is_view, reshapes, is_random, is_pure)


def effect_by_schema(node: Node, bound: Bound) -> Effect:
    nature = nature_of(bound.op)
    if nature.is_pure:
        return PURE
    name = bound.op._schema.name
    if nature.untrusted:
        return Effect(barrier=f"{name}, {nature.untrusted}")
    writes = [bound[p] for p in nature.writes]
    if name in _STATISTICS:
        writes += _statistics(bound)
    shares = [bound[p] for p in nature.shares]
    if nature.unsure:
        shares += [n for n in tensors_among(bound[p] for p in nature.unsure) if not _is_other_memory(node, n)]
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
    """The class of non-random operators whose relative order is observable; empty if this one has none."""
    if op._schema.name in _KEPT:
        return ""
    if op.namespace in _COLLECTIVES:
        return COLLECTIVE
    return "" if op._schema.returns or op._schema.is_mutable else ACT


def _why_untrusted(op: OpOverload) -> str:
    """Why the schema of an operator cannot be trusted; empty if it can."""
    name, params = op._schema.name, parameters(op)
    if op.namespace in ("c10d", "fsdp", "streams", "symm_mem"):
        return "whose schema does not declare what it waits for, writes and returns"
    named_as_write = name.endswith("_") and not name.endswith("__")
    if name in _HIDDEN_WRITES or (named_as_write and not any(p.written for p in params)):
        return "whose schema does not declare what it writes"
    if MAYBE_ALIASING_TAG in op.tags and op.namespace != "aten":
        return "which may write and return its operands"
    tensors = any("Tensor" in p.kind for p in params)
    if not tensors and not op._schema.returns and name not in _KEPT:
        return "which takes and returns nothing, so it must have another effect"
    return ""


def _statistics(bound: Bound) -> list[Any]:
    switch = _STATISTICS[bound.op._schema.name]
    is_on = switch is None or bound[switch] is not False
    return [bound["running_mean"], bound["running_var"]] if is_on else []


def _may_alias_undeclared(op: OpOverload) -> bool:
    """Whether an operator, such as a composite one, may return an argument or a view of it undeclared."""
    returns_tensor = any("Tensor" in str(r.type) for r in op._schema.returns)
    return returns_tensor and (MAYBE_ALIASING_TAG in op.tags or is_composite(op))


def _wraps_strided_tensors(name: str) -> bool:
    """Whether an operator is about sparse or nested tensors, which alias the strided tensors they are made of."""
    return "sparse" in name or "nested" in name


def _is_other_memory(node: Node, operand: Node) -> bool:
    """Whether a result is a copy: of another dtype or device, and not a part of a complex tensor."""
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
