"""Spellings of attention, and programs that look like attention: data for tests and for a table in the documents.

`S` queries and `T` keys of width `D`, in `H` heads and `B` batches. Each program takes its tensors by position; masks are made so
that a query sees some keys, none in a few rows where a program says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

B, H, S, T, D = 2, 4, 18, 20, 8
INF = math.inf


@dataclass(frozen=True)
class Spelling:
    """A program with the makers of its inputs, and the family (a row of the table of known patterns) that it is of."""

    name: str
    fn: Callable[..., Any]
    inputs: tuple[Callable[[torch.Generator], Tensor], ...]
    family: str = ""
    because: str = ""
    """Of a program that must be left: a part of the reason."""
    differentiable: bool = True
    """Whether it is fused in training, too."""

    def make(self, seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return [make(generator) for make in self.inputs]


def normal(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.randn(shape, generator=g)


def keep(*shape: int) -> Callable[[torch.Generator], Tensor]:
    """True for about three of four; each row has one True at least."""

    def make(g: torch.Generator) -> Tensor:
        kept = torch.rand(shape, generator=g) < 0.75
        kept[..., 0] = True
        return kept

    return make


def some_rows_hidden(*shape: int) -> Callable[[torch.Generator], Tensor]:
    def make(g: torch.Generator) -> Tensor:
        kept = keep(*shape)(g)
        kept[..., 3, :] = False
        return kept

    return make


def zero_or(value: float, *shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.where(keep(*shape)(g), 0.0, value)


def flags(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: keep(*shape)(g).long()


QKV = (normal(B, H, S, D), normal(B, H, T, D), normal(B, H, T, D))
BSHD = (normal(B, S, H, D), normal(B, T, H, D), normal(B, T, H, D))
SQUARE = (normal(B, H, S, D), normal(B, H, S, D), normal(B, H, S, D))
GQA = (normal(B, H, S, D), normal(B, 2, T, D), normal(B, 2, T, D))
ADDED = normal(B, 1, S, T)
KEPT = keep(B, 1, S, T)

SPELLINGS: list[Spelling] = []
LOOK_ALIKES: list[Spelling] = []


def spelled(family: str = "", *more: Any, base: tuple[Any, ...] = QKV, differentiable: bool = True) -> Any:
    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        SPELLINGS.append(Spelling(fn.__name__, fn, (*base, *more), family, differentiable=differentiable))
        return fn

    return declare


def left(because: str, *more: Any, base: tuple[Any, ...] = QKV) -> Any:
    def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
        LOOK_ALIKES.append(Spelling(fn.__name__, fn, (*base, *more), because=because))
        return fn

    return declare


# ------------------------------------------------------------------------------------------------------------- scales


@spelled("1")
def divided(q, k, v):
    return (q @ k.transpose(-2, -1) / math.sqrt(D)).softmax(-1) @ v


@spelled("2")
def multiplied(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * 0.3, dim=-1), v)


@spelled("")
def not_scaled(q, k, v):
    return F.softmax(q @ k.mT, -1) @ v


@spelled("9, 10")
def query_scaled_first(q, k, v):
    return ((q / math.sqrt(D)) @ k.transpose(-2, -1)).softmax(dim=3) @ v


@spelled("")
def key_scaled_first(q, k, v):
    return (q @ (k * 0.35).transpose(-2, -1)).softmax(-1) @ v


@spelled("")
def scaled_twice(q, k, v):
    return ((q * 0.5) @ k.transpose(-2, -1) / 1.4).softmax(-1) @ v


@spelled("29, 30")
def both_scaled_by_the_root(q, k, v):
    root = D**-0.25
    return ((q * root) @ (k.transpose(-2, -1) * root)).softmax(-1) @ v


@spelled("18, 19")
def divided_by_a_full_tensor(q, k, v):
    return (q @ k.permute(0, 1, 3, 2) / torch.full([], D**0.5, dtype=q.dtype)).softmax(-1) @ v


@spelled("")
def scaled_by_a_constant_tensor(q, k, v):
    return (q @ k.transpose(-2, -1) * torch.tensor(0.25)).softmax(-1) @ v


@spelled("")
def scale_from_the_left(q, k, v):
    return (0.25 * (q @ k.transpose(-2, -1))).softmax(-1) @ v


@spelled("")
def negative_scale(q, k, v):
    return (q @ k.transpose(-2, -1) * -0.25).softmax(-1) @ v


# ------------------------------------------------------------------------------------------------------------- masks


@spelled("5", ADDED)
def added_mask(q, k, v, mask):
    return (q @ k.transpose(-2, -1) / math.sqrt(D) + mask).softmax(-1) @ v


@spelled("", ADDED)
def mask_plus_scores(q, k, v, mask):
    return (mask + q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


@spelled("14, 16", zero_or(torch.finfo(torch.float32).min, B, 1, 1, T), base=BSHD)
def bert(q, k, v, mask):
    q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
    weights = (torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D) + mask).softmax(-1)
    return torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(B, S, H * D)


@spelled("", zero_or(-INF, S, T))
def added_infinities(q, k, v, mask):
    return (q @ k.transpose(-2, -1) * 0.3 + mask).softmax(-1) @ v


@spelled("", some_rows_hidden(B, 1, S, T), differentiable=False)
def rows_hidden_by_infinities(q, k, v, kept):
    """Eager gives NaN in these rows."""
    return (q @ k.transpose(-2, -1) * 0.3).masked_fill(~kept, -INF).softmax(-1) @ v


@spelled("", some_rows_hidden(B, 1, S, T), differentiable=False)
def rows_hidden_by_an_added_mask(q, k, v, kept):
    mask = torch.zeros(B, 1, S, T, dtype=q.dtype).masked_fill(~kept, -INF)
    return (q @ k.transpose(-2, -1) * 0.3 + mask).softmax(-1) @ v


@spelled("", some_rows_hidden(B, 1, S, T))
def rows_hidden_by_the_least_number(q, k, v, kept):
    """Eager gives the mean of the values in these rows."""
    scores = q @ k.transpose(-2, -1) * 0.3
    return scores.masked_fill(~kept, torch.finfo(scores.dtype).min).softmax(-1) @ v


@spelled("", KEPT)
def where_kept(q, k, v, kept):
    return torch.where(kept, q @ k.transpose(-2, -1) * 0.3, -INF).softmax(-1) @ v


@spelled("", KEPT)
def where_hidden(q, k, v, kept):
    scores = q @ k.transpose(-2, -1) * 0.3
    return torch.where(~kept, torch.finfo(scores.dtype).min, scores).softmax(-1) @ v


@spelled("15, 17, 20", flags(B, T), base=BSHD)
def distilbert(q, k, v, mask):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.matmul(q / math.sqrt(D), k.transpose(2, 3))
    hidden = (mask == 0).view(B, 1, 1, T).expand_as(scores)
    weights = scores.masked_fill(hidden, torch.tensor(torch.finfo(scores.dtype).min)).softmax(-1)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, S, H * D)


@spelled("", flags(B, 1, 1, T))
def mask_made_of_flags(q, k, v, mask):
    mask = (1.0 - mask.to(q.dtype)) * torch.finfo(q.dtype).min
    return (q @ k.transpose(-2, -1) * 0.3 + mask).softmax(-1) @ v


@spelled("", KEPT, ADDED)
def filled_then_added(q, k, v, kept, bias):
    return ((q @ k.transpose(-2, -1) * 0.3).masked_fill(~kept, -INF) + bias).softmax(-1) @ v


@spelled("", KEPT, ADDED)
def added_then_filled(q, k, v, kept, bias):
    return (q @ k.transpose(-2, -1) * 0.3 + bias).masked_fill(~kept, -INF).softmax(-1) @ v


@spelled("", normal(1, H, S, T), ADDED)
def two_masks(q, k, v, bias, mask):
    return (q @ k.transpose(-2, -1) + bias + mask).softmax(-1) @ v


@spelled("", ADDED)
def scaled_after_the_mask(q, k, v, mask):
    return ((q @ k.transpose(-2, -1) + mask) * 0.3).softmax(-1) @ v


@spelled("", KEPT)
def added_booleans(q, k, v, kept):
    """Nothing is masked: what is True gets a larger score."""
    return (q @ k.transpose(-2, -1) * 0.3 + kept).softmax(-1) @ v


@spelled("", normal(S, T))
def mask_of_two_dimensions(q, k, v, mask):
    return (q @ k.transpose(-2, -1) * 0.3 + mask).softmax(-1) @ v


@spelled("", normal(T))
def bias_of_the_keys(q, k, v, bias):
    return (q @ k.transpose(-2, -1) * 0.3 + bias).softmax(-1) @ v


@spelled("", normal(H, 1, 1))
def alibi(q, k, v, slopes):
    distance = torch.arange(T)[None, :] - torch.arange(S)[:, None]
    return (q @ k.transpose(-2, -1) * 0.3 + slopes * distance).softmax(-1) @ v


# ------------------------------------------------------------------------------------------------------------ causal


@spelled("", base=SQUARE)
def causal_by_tril(q, k, v):
    past = torch.tril(torch.ones(S, S, dtype=torch.bool))
    return (q @ k.transpose(-2, -1) * 0.3).masked_fill(~past, -INF).softmax(-1) @ v


@spelled("", base=SQUARE)
def causal_by_triu(q, k, v):
    future = torch.triu(torch.full((S, S), -INF, dtype=q.dtype), diagonal=1)
    return (q @ k.transpose(-2, -1) * 0.3 + future).softmax(-1) @ v


@spelled("")
def causal_by_positions(q, k, v):
    past = torch.arange(T)[None, :] <= torch.arange(S)[:, None]
    scores = q @ k.transpose(-2, -1) * 0.3
    return torch.where(past, scores, torch.finfo(scores.dtype).min).softmax(-1) @ v


@spelled("", base=SQUARE)
def causal_by_a_float_mask(q, k, v):
    past = torch.tril(torch.ones(S, S)).view(1, 1, S, S)
    return (q @ k.transpose(-2, -1) * 0.3).masked_fill(past == 0, -INF).softmax(-1) @ v


@spelled("", base=SQUARE)
def a_window(q, k, v):
    distance = torch.arange(S)[:, None] - torch.arange(S)[None, :]
    seen = (distance >= 0) & (distance < 5)
    return (q @ k.transpose(-2, -1) * 0.3).masked_fill(~seen, -INF).softmax(-1) @ v


@spelled("", keep(B, 1, 1, S), base=SQUARE)
def causal_and_padded(q, k, v, kept):
    seen = torch.tril(torch.ones(S, S, dtype=torch.bool)) & kept
    return (q @ k.transpose(-2, -1) * 0.3).masked_fill(~seen, -INF).softmax(-1) @ v


@spelled("18, 19", keep(1, 1, S, S), zero_or(torch.finfo(torch.float32).min, B, 1, 1, S), base=SQUARE)
def gpt2(q, k, v, causal, mask):
    scores = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], D**0.5, dtype=q.dtype)
    scores = torch.where(causal, scores, torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)) + mask
    return torch.matmul(F.softmax(scores, dim=-1).type(v.dtype), v).permute(0, 2, 1, 3).reshape(B, S, H * D)


# ----------------------------------------------------------------------------------------------------------- layouts


@spelled("11", base=BSHD)
def heads_inside(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = (q @ k.transpose(-2, -1) / math.sqrt(D)).softmax(-1) @ v
    return out.transpose(1, 2).reshape(B, S, H * D)


@spelled("", base=BSHD)
def einsum(q, k, v):
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


@spelled("", base=BSHD)
def einsum_with_keys_inside(q, k, v):
    weights = (torch.einsum("bqhd,bkhd->bqhk", q, k) * 0.3).softmax(-1)
    return torch.einsum("bqhk,bkhd->bqhd", weights, v)


@spelled("13", base=(normal(6, S, D), normal(6, T, D), normal(6, T, D)))
def batched_products(q, k, v):
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)


@spelled("", base=(normal(S, D), normal(T, D), normal(T, D)))
def one_head(q, k, v):
    return (q @ k.t() / math.sqrt(D)).softmax(-1) @ v


@spelled("24", normal(B, 1, S, T))
def bart(q, k, v, mask):
    q, k, v = (x.reshape(B * H, -1, D) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(B, H, S, T) + mask
    weights = F.softmax(scores.view(B * H, S, T), dim=-1)
    return torch.bmm(weights, v).view(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)


@spelled("", base=(normal(2, 3, H, S, D), normal(2, 3, H, T, D), normal(2, 3, H, T, D)))
def five_dimensions(q, k, v):
    return (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


@spelled(
    "",
    normal(3, 1, 1, T),
    base=(normal(2, 3, H, S, D), normal(2, 3, H, T, D), normal(2, 3, H, T, D)),
)
def five_dimensions_masked(q, k, v, mask):
    return (q @ k.transpose(-2, -1) * 0.3 + mask).softmax(-1) @ v


@spelled("", base=(normal(1, H, S, D), normal(1, H, T, D), normal(1, H, T, D)))
def one_batch(q, k, v):
    return (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


@spelled("", base=(normal(B, H, 1, D), normal(B, H, T, D), normal(B, H, T, D)))
def one_query(q, k, v):
    return (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


@spelled("", ADDED)
def keys_by_queries(q, k, v, mask):
    """The scores transposed: the softmax runs over the rows."""
    weights = ((k @ q.transpose(-2, -1)) * 0.3 + mask.transpose(-2, -1)).softmax(-2)
    return weights.transpose(-2, -1) @ v


@spelled("")
def transposed_result(q, k, v):
    weights = (q @ k.transpose(-2, -1) * 0.3).softmax(-1)
    return v.transpose(-2, -1) @ weights.transpose(-2, -1)


@spelled("", base=(normal(B, H, S, D), normal(B, H, D, T), normal(B, H, T, D)))
def keys_given_transposed(q, k, v):
    return (q @ k * 0.3).softmax(-1) @ v


@spelled("28", base=(normal(B, 3, H, S, D),))
def packed(qkv):
    q, k, v = qkv.unbind(1)
    return (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


# ----------------------------------------------------------------------------------------------------- grouped heads


@spelled("", base=GQA)
def heads_repeated_by_expand(q, k, v):
    k, v = (x[:, :, None].expand(B, 2, 2, T, D).reshape(B, H, T, D) for x in (k, v))
    return (q @ k.transpose(2, 3) * 0.3).softmax(-1) @ v


@spelled("", normal(B, 1, S, T), base=GQA)
def llama(q, k, v, mask):
    k, v = (x[:, :, None].expand(B, 2, 2, T, D).reshape(B, H, T, D) for x in (k, v))
    weights = torch.matmul(q, k.transpose(2, 3)) * D**-0.5 + mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


@spelled("", base=GQA)
def heads_repeated(q, k, v):
    k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    return (q @ k.transpose(2, 3) * 0.3).softmax(-1) @ v


@spelled("", normal(B, 1, 1, S, T), base=GQA)
def grouped_queries(q, k, v, mask):
    q = q.view(B, 2, 2, S, D)
    weights = (torch.einsum("bkgqd,bktd->bkgqt", q, k) * 0.3 + mask).softmax(-1)
    return torch.einsum("bkgqt,bktd->bkgqd", weights, v).reshape(B, H, S, D)


@spelled("", base=(normal(B, H, S, D), normal(B, 1, T, D), normal(B, 1, T, D)))
def one_key_for_all_heads(q, k, v):
    return (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


# ---------------------------------------------------------------------------------------------- dtypes and the softmax


@spelled("7, 8")
def softmax_in_float32(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)
    return scores.float().softmax(-1).to(q.dtype) @ v


@spelled("21, 25", normal(1, H, S, T))
def t5(q, k, v, bias):
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += bias
    weights = F.softmax(scores.float(), dim=-1).type_as(scores)
    return torch.matmul(weights, v).transpose(1, 2).contiguous().view(B, -1, H * D)


@spelled("22, 23, 26, 27", base=BSHD)
def t5_with_its_cache(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.matmul(q, k.transpose(3, 2))
    out = torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)
    return out.transpose(1, 2).reshape(B, S, H * D), k, v


@spelled("")
def softmax_with_a_dtype(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) * 0.3, dim=-1, dtype=torch.float32).to(v.dtype) @ v


@spelled("")
def products_in_float32(q, k, v):
    return ((q.float() @ k.float().transpose(-2, -1)) * 0.3).softmax(-1).to(v.dtype) @ v


@spelled("3, 4, 6, 12")
def dropout_of_nothing(q, k, v):
    return F.dropout((q @ k.transpose(-2, -1) * 0.3).softmax(-1), p=0.1, training=False) @ v


@spelled("")
def softmax_taken_apart(q, k, v):
    scores = q @ k.transpose(-2, -1) * 0.3
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers / powers.sum(-1, keepdim=True)) @ v


# -------------------------------------------------------------------------------------------------------- look-alikes


@left("does not run over", base=SQUARE)
def softmax_over_queries(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-2) @ v


@left("does not run over", base=(normal(16, 16, 16, 16),) * 3)
def softmax_over_heads(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(1) @ v


@left("does not run over", base=(normal(4, 4, 16, 16),) * 3)
def softmax_over_batches(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(0) @ v


@left("", base=(normal(16, 16, 16, 16),) * 3)
def key_permuted_otherwise(q, k, v):
    """Still a product of rows of q with columns of k: attention, with keys that lie elsewhere."""
    return (q @ k.permute(0, 3, 1, 2)).softmax(-1) @ v


@left("alpha=2", ADDED)
def mask_with_alpha(q, k, v, mask):
    return torch.add(q @ k.transpose(-2, -1), mask, alpha=2).softmax(-1) @ v


@left("alpha=0.5", ADDED)
def scores_with_alpha(q, k, v, mask):
    return torch.add(mask, q @ k.transpose(-2, -1), alpha=0.5).softmax(-1) @ v


@left("an ordinary number", KEPT)
def filled_with_zero(q, k, v, kept):
    return (q @ k.transpose(-2, -1)).masked_fill(~kept, 0).softmax(-1) @ v


@left("an ordinary number", KEPT)
def filled_with_a_small_number(q, k, v, kept):
    return torch.where(kept, q @ k.transpose(-2, -1), -10.0).softmax(-1) @ v


@left("an ordinary number", KEPT)
def filled_with_infinity(q, k, v, kept):
    return torch.where(kept, q @ k.transpose(-2, -1), INF).softmax(-1) @ v


@left("whose value is not known", KEPT, normal(1))
def filled_with_a_tensor(q, k, v, kept, value):
    return torch.where(kept, q @ k.transpose(-2, -1), value).softmax(-1) @ v


@left("whose value is not known", normal(1))
def learned_scale(q, k, v, scale):
    return (q @ k.transpose(-2, -1) * scale).softmax(-1) @ v


@left("whose value is not known", normal(H, 1, 1))
def learned_scale_of_heads(q, k, v, scale):
    return (q @ k.transpose(-2, -1) / scale).softmax(-1) @ v


@left("used elsewhere")
def scores_used_elsewhere(q, k, v):
    scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1) @ v, scores.sum()


@left("used elsewhere")
def weights_returned(q, k, v):
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    return weights @ v, weights


@left("used elsewhere")
def weights_used_twice(q, k, v):
    weights = (q @ k.transpose(-2, -1)).softmax(-1)
    return weights @ v, weights @ v.relu()


@left("used elsewhere", ADDED)
def masked_scores_used_elsewhere(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) + mask
    return scores.softmax(-1) @ v, scores.amax()


@left("pass through")
def weights_squared(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1).square() @ v


@left("pass through")
def scores_capped(q, k, v):
    scores = torch.tanh(q @ k.transpose(-2, -1) / 5) * 5
    return scores.softmax(-1) @ v


@left("a number is added")
def a_number_added(q, k, v):
    return (q @ k.transpose(-2, -1) + 1).softmax(-1) @ v


@left("pass through", ADDED)
def mask_subtracted(q, k, v, mask):
    return (q @ k.transpose(-2, -1) - mask).softmax(-1) @ v


@left("another shape", normal(3, B, H, S, T))
def scores_broadcast_by_the_mask(q, k, v, mask):
    return (q @ k.transpose(-2, -1) + mask).softmax(-1).sum(0) @ v


@left("is not a product", base=(normal(B, H, S, T), normal(B, H, T, D)))
def no_scores(x, v):
    return x.softmax(-1) @ v


@left("sums over|different batches|not known", base=(normal(B, H, S, D), normal(B, H, S, D), normal(B, H, S, D)))
def weights_transposed(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1).transpose(-2, -1) @ v


@left("", base=(normal(4, 4, 16, 16),) * 3)
def weights_of_other_heads(q, k, v):
    """Attention all the same, with the values of other heads."""
    return (q @ k.transpose(-2, -1)).softmax(-1).transpose(0, 1) @ v


@left("as wide as", base=(normal(B, H, S, D), normal(B, H, T, D), normal(B, H, T, 2 * D)))
def wider_values(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@left("no dropout")
def dropout(q, k, v):
    return F.dropout((q @ k.transpose(-2, -1)).softmax(-1), 0.5) @ v


@left("scaled after", KEPT)
def scaled_after_the_fill(q, k, v, kept):
    scores = q @ k.transpose(-2, -1)
    return (scores.masked_fill(~kept, torch.finfo(scores.dtype).min) * 0.5).softmax(-1) @ v


@left("negative", KEPT)
def negated_after_the_fill(q, k, v, kept):
    return ((q @ k.transpose(-2, -1)).masked_fill(~kept, -INF) * -1.0).softmax(-1) @ v


@left("fewer than", base=(normal(B, H, 8, D),) * 3)
def few_keys(q, k, v):
    return (q @ k.transpose(-2, -1)).softmax(-1) @ v


@left("", flags(B, 1, 1, T))
def flags_compared_with_one(q, k, v, mask):
    """What is 1 is hidden."""
    return (q @ k.transpose(-2, -1)).masked_fill(mask == 1, -INF).softmax(-1) @ v


@left("", lambda g: torch.randint(0, 3, (B, 1, 1, T), generator=g))
def flags_of_other_values(q, k, v, mask):
    return (q @ k.transpose(-2, -1)).masked_fill(mask == 0, -INF).softmax(-1) @ v
