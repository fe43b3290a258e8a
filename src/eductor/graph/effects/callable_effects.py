"""The effects of a Python callable that is not a single operator, from tables of pure functions.

An unknown callable is assumed to have every effect.
"""

from __future__ import annotations

import inspect
import operator
from dataclasses import is_dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from eductor.compat import SIZE_CHECKS
from eductor.graph.effects.effect import PURE, Effect, is_number, tensors_among
from eductor.graph.values.meta import tensor_of, value_of

# Functions and methods that are several operators, none of which writes or draws; their results are new tensors.
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

# The same, but they may return an argument or a view of it.
_MAY_RETURN_ARGUMENT: frozenset[Any] = frozenset(
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


def effect_by_name(node: Node, reason: str) -> Effect:
    target, name = node.target, getattr(node.target, "__name__", str(node.target))
    if _is_in(target, _COMPUTING) and not _has_out(node):
        return PURE
    if _is_in(target, _MAY_RETURN_ARGUMENT):
        return Effect(shares=tensors_among(node.all_input_nodes))
    if target is getattr and tensor_of(node.args[0]) is not None and node.args[1] in _METADATA:
        return PURE
    if _is_plain_data(target) and not node.all_input_nodes:
        return PURE
    if all(is_number(value_of(n)) for n in node.all_input_nodes):
        if _is_in(target, SIZE_CHECKS):
            return Effect(kept="a check of sizes")
        if _is_arithmetic(target, name):
            return PURE
    if name in ("manual_seed", "seed", "set_rng_state", "get_rng_state"):
        return Effect(barrier="a change of the random number generator's state")
    return Effect(barrier=f"an unknown callable ({reason})")


def _is_plain_data(target: Any) -> bool:
    """Whether a call only makes a record of constants, as the options of a quantized region are."""
    return isinstance(target, type) and is_dataclass(target) and bool(target.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _has_out(node: Node) -> bool:
    """Whether a call has an `out` tensor, by keyword or by position."""
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
    """Whether a function of numbers is pure; `print` and `torch.set_num_threads` are not."""
    home = getattr(target, "__module__", "")
    if home == "builtins":
        return name in _SIZE_FUNCTIONS
    if home == "torch":
        return name.startswith(("sym_", "_sym_"))
    return home == "math" or (home == "_operator" and name != "call")
