"""Cats and stacks of what was unbound or selected from one tensor."""

from __future__ import annotations

import torch

from eductor.passes.concats import claims
from eductor.pipeline.base import f32


@claims.unbind_cat_to_view_pass.example
def moved_over_two_dimensions(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.cat(torch.unbind(x, 0), 1) * 2


@claims.unbind_cat_to_view_pass.example
def a_flatten(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.cat(x.unbind(1), -1) * 2


@claims.unbind_cat_to_view_pass.example
def beside_another_tensor(x: torch.Tensor = f32(3, 4), y: torch.Tensor = f32(5)) -> torch.Tensor:
    return torch.cat([*x.unbind(0), y]) * 2


@claims.unbind_cat_to_view_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    a, b = x.unbind(0)
    return torch.cat([b, a])


@claims.unbind_cat_to_view_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    y = x.clone()
    parts = y.unbind(0)
    y.zero_()
    return torch.cat(parts)


@claims.unbind_stack_aten_pass.example
@claims.unbind_stack_pass.example
def the_tensor_itself(x: torch.Tensor = f32(3, 4)) -> torch.Tensor:
    return torch.stack(torch.unbind(x, 1), -1) * 2


@claims.unbind_stack_pass.example
def another_dimension(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.stack(x.unbind(0), dim=2) * 2


@claims.unbind_stack_pass.example
def a_part(x: torch.Tensor = f32(5, 4)) -> torch.Tensor:
    return torch.stack([x[1], x[2], x[3]]) * 2


@claims.unbind_stack_aten_pass.refuses("no two neighbours")
@claims.unbind_stack_pass.refuses("no two neighbours")
def stack_in_another_order(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    a, b = x.unbind(0)
    return torch.stack([b, a])


@claims.unbind_stack_pass.refuses("a barrier separates")
def unbound_without_gradient(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    with torch.no_grad():
        parts = x.unbind(0)
    return torch.stack(parts) * x


@claims.unbind_stack_to_slices_pass.example
def a_run_beside_another_tensor(x: torch.Tensor = f32(4, 3), y: torch.Tensor = f32(3)) -> torch.Tensor:
    a, b, c, _ = x.unbind(0)
    return torch.stack([a, b, c, y], 1)


@claims.unbind_stack_to_slices_pass.refuses("it is not a stack of unbound")
def more_others_than_unbound(
    x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(3), z: torch.Tensor = f32(3), w: torch.Tensor = f32(3)
) -> torch.Tensor:
    return torch.stack([*x.unbind(0), y, z, w])


@claims.unbind_stack_to_slices_pass.refuses("no two neighbours")
def others_in_between(x: torch.Tensor = f32(2, 3), y: torch.Tensor = f32(3)) -> torch.Tensor:
    a, b = x.unbind(0)
    return torch.stack([a, y, b])


@claims.select_cat_aten_pass.example
def rows_side_by_side(x: torch.Tensor = f32(3, 4, 2)) -> torch.Tensor:
    return torch.cat([x[0], x[1], x[2]], 1) * 2


@claims.select_cat_aten_pass.example
def of_a_transposed_tensor(x: torch.Tensor = f32(4, 3)) -> torch.Tensor:
    y = x.t()
    return torch.cat([y[0], y[1], y[2]]) * 2


@claims.select_cat_aten_pass.refuses("no two neighbours")
def rows_in_another_order(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    return torch.cat([x[1], x[0]])


@claims.select_cat_aten_pass.refuses("it is not a cat of what was selected")
def pieces(x: torch.Tensor = f32(2, 4)) -> torch.Tensor:
    return torch.cat([x[:, :2], x[:, 2:]], 1) * 2


@claims.unbind_stack_aten_pass.example
def a_stack_of_unsqueezed_rows(x: torch.Tensor = f32(3, 4)) -> torch.Tensor:
    return torch.cat([x[i].unsqueeze(0) for i in range(3)]) * 2


@claims.unbind_stack_aten_pass.refuses("it is not a stack of what was unbound")
def rows_one_behind_the_other(x: torch.Tensor = f32(3, 4)) -> torch.Tensor:
    return torch.cat([x[0], x[1], x[2]]) * 2
