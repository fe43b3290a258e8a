"""Custom patterns: declared, checked, run on a model, and explained where they do not match. `docs/write_a_pattern.md` explains them."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.graph import GraphView, Rewriter, capture
from eductor.patterns import Match, const, op, pattern_pass, var, why_not
from eductor.pipeline import f32
from eductor.testing import check_contract

aten = torch.ops.aten


@pattern_pass(stage="pre_grad", numerics="reassociates")
def fuse_norms() -> None:
    """Fuses a norm written as single operators into one operator."""


def spelled_out(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x, [x.shape[-1]], weight, eps)


def is_worth_it(match: Match) -> str:
    """The reason to decline a match, or an empty text."""
    return "" if match.fake("x").shape[-1] >= 4 else "rows of fewer than four elements are as fast as they are"


fuse_norms.replace(
    spelled_out,
    rms_norm,
    inputs=[f32(4, 8), f32(8), 1e-6],
    tolerate=("casts", "scale", "rank"),
    check=is_worth_it,
)


@fuse_norms.example
def as_in_a_paper(x: torch.Tensor = f32(4, 8), w: torch.Tensor = f32(8)) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5) * w


@fuse_norms.example
def as_in_a_model(x: torch.Tensor = f32(2, 4, 8), w: torch.Tensor = f32(8)) -> torch.Tensor:
    wide = x.to(torch.float32)
    wide = wide * torch.rsqrt(wide.square().mean(2, keepdim=True) + 1e-6)
    return w * wide.to(x.dtype)


@fuse_norms.refuses("also returned by the graph")
def mean_is_returned(x: torch.Tensor = f32(4, 8), w: torch.Tensor = f32(8)) -> tuple[torch.Tensor, ...]:
    mean = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean + 1e-6) * w, mean


@fuse_norms.refuses("fewer than four")
def short_rows(x: torch.Tensor = f32(4, 2), w: torch.Tensor = f32(2)) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


@pattern_pass(stage=("joint", "post_grad"), numerics="exact")
def merge_permutes() -> None:
    """Merges two permutations into one."""


@merge_permutes.rule(op(aten.permute, op(aten.permute, var("x"), const("inner")), const("outer")))
def pair(match: Match, graph: GraphView, rewrite: Rewriter) -> None:
    dims = [match["inner"][d] for d in match["outer"]]
    rewrite.replace(match.output, aten.permute.default, match["x"], dims)


@merge_permutes.example
def turned_twice(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    return x.transpose(0, 1).permute(0, 2, 1) + 1


@merge_permutes.refuses("also used by")
def half_is_used(x: torch.Tensor = f32(2, 3, 4)) -> torch.Tensor:
    half = x.transpose(0, 1)
    return half.permute(0, 2, 1) + half.permute(0, 2, 1).sum() + half.sum()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.linear(x * scale * self.weight) + x


def near_miss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(0, keepdim=True) + 1e-6))


def main() -> int:
    check_contract(fuse_norms, "pre_grad")
    for stage in merge_permutes.stages:
        check_contract(merge_permutes, stage)
    print("Both passes keep their contracts.\n")

    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 8, requires_grad=True)
    recorder = eductor.Recorder()
    compiled = eductor.compile(model, passes=[fuse_norms], engine="aten", instruments=[recorder])
    expected, got = model(x), compiled(x)
    got.sum().backward()
    close = torch.allclose(expected, got, atol=1e-6)
    print(eductor.pass_table([r for r in recorder.records if r.name == "fuse_norms"]))
    print(f"\nas eager: {close}\n")

    print(why_not(fuse_norms, capture(near_miss, [torch.randn(4, 8), torch.randn(8)], "torch")))
    return 0 if close and "pre_grad/fuse_norms" in recorder.changed() else 1


if __name__ == "__main__":
    sys.exit(main())
