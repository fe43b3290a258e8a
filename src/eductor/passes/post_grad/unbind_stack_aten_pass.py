"""Makes a view of a stack of what was unbound from one tensor."""

from __future__ import annotations

import torch

from eductor.graph.core_rewriter import in_core_operators
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, f32, graph_pass
from eductor.views import Nest, fuse_nests

aten = torch.ops.aten


@graph_pass(stage="post_grad", numerics="exact", on=False)
def unbind_stack_aten_pass(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
    """Makes a view of a stack of what was unbound from one tensor.

    It pays where all that was unbound is stacked again: a copy becomes a view.
    """
    fuse_nests(
        graph,
        in_core_operators(rewrite),
        context,
        aten.stack,
        aten.cat,
        claims=_claims,
        what="a stack of what was unbound from one tensor",
    )


def _claims(nest: Nest) -> bool:
    return nest.is_one and "unbind" in nest.kinds and (nest.is_stack or "unsqueeze" in nest.kinds)


@unbind_stack_aten_pass.example
def the_tensor_itself(x: torch.Tensor = f32(3, 4)) -> torch.Tensor:
    return torch.stack(torch.unbind(x, 1), -1) * 2


@unbind_stack_aten_pass.example
def a_stack_that_was_taken_apart(x: torch.Tensor = f32(3, 4)) -> torch.Tensor:
    return torch.cat([x[i].unsqueeze(0) for i in range(3)]) * 2


@unbind_stack_aten_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    a, b = x.unbind(0)
    return torch.stack([b, a])


@unbind_stack_aten_pass.refuses("it is not a stack of what was unbound")
def rows_side_by_side(x: torch.Tensor = f32(3, 4)) -> torch.Tensor:
    return torch.cat([x[0], x[1], x[2]]) * 2
