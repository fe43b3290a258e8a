"""What one node does besides computing its result: writes, shared memory, barriers, what must stay.

By the schema of its operator first; where schemas are known to be silent, a table here says it. What nobody tells (a
Python callable) is assumed to do the worst.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.compat import (
    EXPORTED_CHECKS,
    MAYBE_ALIASING_TAG,
    SIZE_CHECKS,
    HigherOrderOperator,
    OpOverload,
    is_composite,
    is_context_switch,
)
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound, bind
from eductor.graph.reading.schema import parameters
from eductor.graph.values.meta import UNKNOWN, tensor_of, value_of

RANDOM = "draws random numbers"
COLLECTIVE = "is a collective"
ACT = "is called for what it does, not for a result"


class Effect(NamedTuple):
    """What one node does besides computing its result.

    `writes` are the operands it changes, `shares` those with which its result may share memory (and does, for a view).
    Nothing moves across a `barrier`; a switch (of grad mode, autocast) is one that touches no memory. Nodes that are
    `ordered` alike keep their order among each other. A node that is `kept` must stay, though nobody uses it. One
    that `reshapes` changes the geometry of what it writes: `t_`, `resize_`, `set_`.
    """

    writes: tuple[Node, ...] = ()
    shares: tuple[Node, ...] = ()
    barrier: str = ""
    ordered: str = ""
    kept: str = ""
    is_view: bool = False
    is_switch: bool = False
    reshapes: bool = False

    @property
    def random(self) -> bool:
        return self.ordered == RANDOM

    @property
    def opaque(self) -> bool:
        """Whether it may read, write, keep and return any memory it can reach."""
        return bool(self.barrier) and not self.is_switch

    @property
    def removable(self) -> bool:
        """Whether nobody would notice if a node without users were gone."""
        return not (self.writes or self.barrier or self.ordered or self.kept)


PURE = Effect()
_FUNCTIONAL_WRAPPERS = ("auto_functionalized", "auto_functionalized_v2", "triton_kernel_wrapper_functional")
"""They call an operator, or a kernel, that writes on copies of its arguments, and return those."""


def effect_of(node: Node, bind: Callable[[Node], Bound | No] = bind) -> Effect:
    """What a node does besides computing its result: by schema first, by spelling next, the worst otherwise."""
    if node.op in ("placeholder", "get_attr", "output"):
        return PURE
    if node.op == "call_module" and node.target == EXPORTED_CHECKS:
        return Effect(kept="a check of the inputs")
    if node.op == "call_module":
        return Effect(barrier=f"a call of the module {node.target}")
    target = node.target
    if isinstance(target, OpOverload) and _nature(target).is_pure:
        return PURE
    if target is operator.getitem:
        return _getitem(node)
    if target in (operator.setitem, "__setitem__") and tensor_of(node.args[0]) is not None:
        return Effect(writes=tensors_among(node.args[:1]), kept="an assignment to an index")
    if is_context_switch(target):
        return Effect(barrier="a switch of grad mode, inference mode or autocast", is_switch=True)
    bound = bind(node)
    if isinstance(bound, Bound):
        return _by_schema(node, bound)
    if isinstance(target, HigherOrderOperator):
        is_functional = target.name() in _FUNCTIONAL_WRAPPERS
        return Effect(kept=ACT) if is_functional else Effect(barrier=f"the higher-order operator {target}")
    return _by_spelling(node, bound.reason)


# ------------------------------------------------------------------------------------------------------- by schema

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
class _Nature:
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
def _nature(op: OpOverload) -> _Nature:
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
    return _Nature(distrust, writes, shares, doubtful, order, is_view, reshapes, is_random, is_pure)


def _by_schema(node: Node, bound: Bound) -> Effect:
    nature = _nature(bound.op)
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


# ----------------------------------------------------------------------------------------------------- by spelling

# Functions and methods that are several operators, none of which writes or draws; what they return is new.
_COMPUTING: frozenset[Any] = frozenset(
    {
        *(operator.truediv, operator.floordiv, operator.lshift, operator.rshift),
        *(torch.cdist, torch.nonzero, torch.norm, torch.stft, torch.tensor, torch.tensordot),
        *(torch.unique, torch.unique_consecutive, torch.unravel_index),
        *("istft", "lu", "new_tensor", "nonzero", "norm", "stft", "unique", "unique_consecutive"),
        *(getattr(F, f"adaptive_{kind}_pool{d}d") for kind in ("avg", "max") for d in (1, 2, 3)),
        *(getattr(F, f"{kind}pool{d}d") for kind in ("max_", "max_un", "lp_") for d in (1, 2, 3)),
        *(F.softmax, F.log_softmax, F.softmin, F.softsign, F.tanhshrink, F.normalize),
        *(F.interpolate, F.upsample, F.unfold, F.fold, F.grid_sample, F.affine_grid),
        *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.cross_entropy, F.ctc_loss, F.nll_loss),
        *(F.cosine_embedding_loss, F.gaussian_nll_loss, F.hinge_embedding_loss, F.poisson_nll_loss, F.kl_div),
        *(F.huber_loss, F.l1_loss, F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss, F.margin_ranking_loss),
        *(F.multi_margin_loss, F.multilabel_margin_loss, F.multilabel_soft_margin_loss, F.triplet_margin_loss),
    }
)

# The same, but that they may return an argument, or a view of it.
_PASSING_ON: frozenset[Any] = frozenset(
    {
        *(torch.atleast_1d, torch.atleast_2d, torch.atleast_3d, torch.as_tensor, torch.asarray),
        *(torch.broadcast_tensors, torch.einsum, torch.meshgrid, F.local_response_norm, "type"),
    }
)

_METADATA = frozenset(
    {
        *("shape", "ndim", "dtype", "device", "layout", "names", "itemsize", "nbytes", "requires_grad", "is_leaf"),
        *("is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_nested", "is_quantized", "is_sparse", "is_sparse_csr"),
    }
)

_SIZE_FUNCTIONS = frozenset({"abs", "bool", "divmod", "float", "int", "len", "max", "min", "pow", "round", "sum"})


def _by_spelling(node: Node, reason: str) -> Effect:
    target, name = node.target, getattr(node.target, "__name__", str(node.target))
    if _is_in(target, _COMPUTING) and not _has_out(node):
        return PURE
    if _is_in(target, _PASSING_ON):
        return Effect(shares=tensors_among(node.all_input_nodes))
    if target is getattr and tensor_of(node.args[0]) is not None and node.args[1] in _METADATA:
        return PURE
    if _is_plain_data(target) and not node.all_input_nodes:
        return PURE
    if all(_is_number(value_of(n)) for n in node.all_input_nodes):
        if _is_in(target, SIZE_CHECKS):
            return Effect(kept="a check of sizes")
        if _is_arithmetic(target, name):
            return PURE
    if name in ("manual_seed", "seed", "set_rng_state", "get_rng_state"):
        return Effect(barrier="a change of the state of random numbers")
    return Effect(barrier=f"an unknown callable ({reason})")


def _is_plain_data(target: Any) -> bool:
    """Whether a call makes nothing but a record of constants: the options of a quantized region are one."""
    return isinstance(target, type) and is_dataclass(target) and bool(target.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _has_out(node: Node) -> bool:
    """Whether a function was given a tensor to write into, which may also be by position."""
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments  # type: ignore[arg-type]
    except (TypeError, ValueError):
        given = dict(node.kwargs)
    return given.get("out") is not None


def _is_in(target: Any, known: frozenset[Any]) -> bool:
    try:
        return target in known
    except TypeError:
        return False


def _is_arithmetic(target: Any, name: str) -> bool:
    """Whether a function of numbers does nothing but compute; `print` and `torch.set_num_threads` do more."""
    home = getattr(target, "__module__", "")
    if home == "builtins":
        return name in _SIZE_FUNCTIONS
    if home == "torch":
        return name.startswith(("sym_", "_sym_"))
    return home == "math" or (home == "_operator" and name != "call")


def _getitem(node: Node) -> Effect:
    """Indexing by integers, slices and None is a view; by tensors, lists and booleans a copy; else it may be either."""
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool))


def may_be_tensor(node: Node) -> bool:
    """Whether a node is not known to be something else than a tensor, or a sequence of them."""
    value = value_of(node)
    return not (_is_number(value) or value is None or isinstance(value, (str, torch.dtype, torch.device, torch.Size)))


def tensors_among(values: Iterable[Any]) -> tuple[Node, ...]:
    """The nodes among values, and in lists of them, that may be tensors."""
    found: dict[Node, None] = {}
    for value in values:
        if isinstance(value, Node):
            if may_be_tensor(value):
                found[value] = None
        elif isinstance(value, (list, tuple)):
            found.update(dict.fromkeys(tensors_among(value)))
    return tuple(found)
