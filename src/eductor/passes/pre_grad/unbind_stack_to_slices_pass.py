"""Makes one slice of each run of what was unbound among the operands of a stack."""

from __future__ import annotations

import torch

from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="pre_grad", numerics="exact")
def unbind_stack_to_slices_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes one slice of each run of what was unbound among the operands of a stack.

    It pays where a stack has many operands: it stays a copy, but of few.
    """
    fuse_nests(graph, rewrite, context, aten.stack, claims=_claims, what="a stack of unbound and other operands")


def _claims(nest: Nest) -> bool:
    few_others = sum(run.plan is None for run in nest.runs) <= sum(len(run.operands) for run in nest.merged)
    return not nest.is_one and "unbind" in nest.kinds and few_others


@unbind_stack_to_slices_pass.example
def a_run_beside_another_tensor(x: torch.Tensor = f32(4, 3), y: torch.Tensor = f32(3)) -> torch.Tensor:
    a, b, c, _ = x.unbind(0)
    return torch.stack([a, b, c, y], 1)


@unbind_stack_to_slices_pass.refuses("it is not a stack of unbound")
def more_others_than_unbound(
    x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(3), z: torch.Tensor = f32(3), w: torch.Tensor = f32(3)
) -> torch.Tensor:
    return torch.stack([*x.unbind(0), y, z, w])


@unbind_stack_to_slices_pass.refuses("no two neighbours")
def others_in_between(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(3)) -> torch.Tensor:
    a, b = x.unbind(0)
    return torch.stack([a, y, b])
