"""Cats and stacks of pieces of one tensor, as they were split or sliced."""

from __future__ import annotations

import torch

from eductor.passes.concats import claims
from eductor.pipeline.base import f32


@claims.split_cat_pass.example
def all_pieces_in_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat(torch.split(x, [3, 0, 5], 1), 1) * 2


@claims.split_cat_aten_pass.example
@claims.split_cat_pass.example
def along_another_dimension(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat(x.split(2, -1), 0) * 2


@claims.split_cat_pass.example
def slices(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat([x[:, :3], x[:, 3:]], -1).relu()


@claims.split_cat_pass.example
def returned(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.cat(torch.split(x, 2, 1), 1)


@claims.split_cat_aten_pass.refuses("no two neighbours")
@claims.split_cat_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.cat([b, a], 1)


@claims.split_cat_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    y = x.sin()
    parts = torch.split(y, 4, 1)
    y[0] = 0
    return torch.cat(parts, 1)


@claims.split_cat_pass.refuses("it is not a cat of all pieces")
def only_some_pieces(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b, c, d = torch.split(x, 2, 1)
    return torch.cat([b, c], 1) + a.sum() + d.sum()


@claims.merge_getitem_cat_pass.example
def first_two_of_three(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, c = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b], 1) + 1, c.sin()


@claims.merge_getitem_cat_pass.example
def empty_sections_between(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, _, b, c = torch.split(x, [2, 0, 2, 4], 1)
    return torch.cat([b, c], 1) * 2 + a.sum()


@claims.merge_getitem_cat_pass.refuses("it is not a cat of neighbouring pieces")
def a_piece_with_another_user(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, _ = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b], 1) + 1, b.sin()


@claims.merge_getitem_cat_pass.refuses("no two neighbours")
def pieces_that_are_no_neighbours(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, _, c = torch.split(x, [2, 3, 3], 1)
    return torch.cat([a, c], 1) + 1


@claims.mutate_cat_pass.example
def pieces_with_other_users(x: torch.Tensor = f32(4, 8)) -> tuple[torch.Tensor, torch.Tensor]:
    a, b, c = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b], 1) + 1, a.sin() + b.cos() + c.sum()


@claims.mutate_cat_pass.refuses("no two neighbours")
def one_piece_twice(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, _ = torch.split(x, 4, 1)
    return torch.cat([a, a], 1) + 1


@claims.mutate_cat_pass.refuses("it is not a cat of neighbouring pieces")
def another_tensor_among_them(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 2)) -> torch.Tensor:
    a, b, _ = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b, y], 1) + a.sum() + b.sum()


@claims.split_cat_to_slices_pass.example
def runs_of_two_tensors(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b, c, d = torch.split(x, 2, 1)
    e, f, _ = torch.split(y, [2, 2, 4], 1)
    return torch.cat([a, b, c, e, f, d], 1)


@claims.split_cat_to_slices_pass.refuses("no two neighbours")
def pieces_of_different_tensors(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    (a, _), (_, d) = torch.split(x, 4, 1), torch.split(y, 4, 1)
    return torch.cat([a, d], 1)


@claims.split_cat_to_slices_pass.refuses("no two neighbours")
def along_another_dimension_it_would_be_copied_twice(
    x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 4)
) -> torch.Tensor:
    return torch.cat([*torch.split(x, 4, 1), y], 0)


@claims.split_stack_to_cats_pass.example
def one_reshape(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.stack(torch.split(x, 2, 1), 1) * 2


@claims.split_stack_to_cats_pass.example
def stack_along_another_dimension(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.stack(x.chunk(4, -1), dim=0) * 2


@claims.split_stack_to_cats_pass.refuses("no two neighbours")
def stack_in_another_order(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.stack([b, a])


@claims.split_stack_to_cats_pass.refuses("may write")
def written_before_the_stack(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    y = x.sin()
    parts = torch.split(y, 4, 1)
    y.add_(1)
    return torch.stack(parts)


@claims.split_cat_aten_pass.example
def neighbouring_pieces(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    pieces = x.split(1, -1)
    return torch.cat(pieces[2:9], 1) * 2


@claims.split_cat_aten_pass.refuses("it is not a cat of pieces of one tensor")
def beside_another_tensor(x: torch.Tensor = f32(4, 8), y: torch.Tensor = f32(4, 1)) -> torch.Tensor:
    a, b, _ = torch.split(x, [2, 2, 4], 1)
    return torch.cat([a, b, y], 1)
