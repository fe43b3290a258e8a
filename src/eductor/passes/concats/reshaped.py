"""Cats and stacks of pieces of one tensor that were reshaped, squeezed or unsqueezed."""

from __future__ import annotations

import torch

from eductor.passes.concats import claims
from eductor.pipeline.base import f32


@claims.fuse_chunk_reshape_concat_pass.example
def one_reshape(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(4, 2, 2) for t in torch.chunk(x, 3, 1)], 1) + 1


@claims.fuse_chunk_reshape_concat_pass.example
def along_another_dimension(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(2, 8) for t in x.split(4, dim=-1)], dim=0).relu()


@claims.fuse_chunk_reshape_concat_pass.example
def result_that_leaves_the_graph(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(4, 2, 2) for t in torch.chunk(x, 3, 1)], 1)


@claims.fuse_chunk_reshape_concat_pass.refuses("no two neighbours")
def last_chunk_is_short(x: torch.Tensor = f32(4, 10)) -> torch.Tensor:
    return torch.cat([t.reshape(1, -1) for t in torch.chunk(x, 4, 1)][::3], 1)


@claims.fuse_chunk_reshape_concat_pass.refuses("no two neighbours")
def another_order(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    a, b, c = torch.chunk(x, 3, 1)
    return torch.cat([c.reshape(8, 2), b.reshape(8, 2), a.reshape(8, 2)], 1)


@claims.fuse_chunk_reshape_concat_pass.refuses("may write")
def written_between(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    y = x.sin()
    parts = [t.reshape(8, 2) for t in torch.chunk(y, 3, 1)]
    y.mul_(2)
    return torch.cat(parts, 1)


@claims.fuse_chunk_reshape_concat_pass.refuses("a barrier separates")
def chunks_without_gradient(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    with torch.no_grad():
        parts = [t.reshape(8, 2) for t in torch.chunk(x, 3, 1)]
    return torch.cat(parts, 1) + x.sum()


@claims.fuse_chunk_squeeze_cat_pass.example
def one_flatten(x: torch.Tensor = f32(2, 4, 3)) -> torch.Tensor:
    return torch.cat([t.squeeze(1) for t in torch.split(x, 1, 1)], 1) * 2


@claims.fuse_chunk_squeeze_cat_pass.example
def squeezed_along_another_dimension(x: torch.Tensor = f32(2, 4, 3)) -> torch.Tensor:
    return torch.cat([t.squeeze(dim=-2) for t in x.chunk(4, dim=-2)], dim=0) * 2


@claims.fuse_chunk_squeeze_cat_pass.example
def only_some_of_the_chunks(x: torch.Tensor = f32(2, 4, 3)) -> torch.Tensor:
    parts = torch.chunk(x, 4, 1)
    return torch.cat([t.squeeze() for t in parts[1:3]], -1) * 2


@claims.fuse_chunk_squeeze_cat_pass.refuses("no two neighbours")
def squeezed_in_another_order(x: torch.Tensor = f32(2, 3, 3)) -> torch.Tensor:
    return torch.cat([t.squeeze(1) for t in reversed(torch.split(x, 1, 1))], 1)


@claims.fuse_chunk_squeeze_cat_pass.refuses("it is not a cat of squeezed chunks")
def another_tensor_among_them(x: torch.Tensor = f32(2, 2, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.cat([*(t.squeeze(1) for t in torch.split(x, 1, 1)), y], 1)


@claims.fuse_chunk_squeeze_cat_pass.refuses("may write")
def squeezed_and_written_between(x: torch.Tensor = f32(2, 2, 3)) -> torch.Tensor:
    y = x.sin()
    parts = [t.squeeze(1) for t in torch.split(y, 1, 1)]
    y.add_(1)
    return torch.cat(parts, 1)


@claims.fuse_chunk_reshape_unsqueeze_concat_pass.example
def one_reshape_of_unsqueezed_chunks(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(4, 2, 2).unsqueeze(1) for t in torch.chunk(x, 3, 1)], 1) + 1


@claims.fuse_chunk_reshape_unsqueeze_concat_pass.example
def unsqueezed_along_another_dimension(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t.reshape(2, 8).unsqueeze(-1) for t in torch.chunk(x, 3, 1)], 0).relu()


@claims.fuse_chunk_reshape_unsqueeze_concat_pass.example
def index_with_none(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat([t[None] for t in x.split(4, 1)]) * 3


@claims.fuse_chunk_reshape_unsqueeze_concat_pass.refuses("no two neighbours")
def uneven_chunks(x: torch.Tensor = f32(4, 10)) -> torch.Tensor:
    return torch.cat([t.reshape(-1).unsqueeze(0)[:, :4] for t in torch.chunk(x, 4, 1)], 0)


@claims.fuse_chunk_reshape_unsqueeze_concat_pass.refuses("no two neighbours")
def the_same_chunk_twice(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    a, _, _ = torch.chunk(x, 3, 1)
    return torch.cat([a.unsqueeze(0), a.unsqueeze(0)], 0)


@claims.fuse_chunk_reshape_unsqueeze_concat_pass.refuses("a barrier separates")
def chunks_under_autocast(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts = [t.unsqueeze(0) for t in torch.chunk(x, 3, 1)]
    return torch.cat(parts, 0)


@claims.fuse_split_getitem_squeeze_cat.example
def between_other_operands(x: torch.Tensor = f32(2, 4, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    a, b, c, d = torch.split(x, 1, 1)
    return torch.cat([a.squeeze(1), y, b.squeeze(1), c.squeeze(1), d.squeeze(1)], 1)


@claims.fuse_split_getitem_squeeze_cat.example
def in_a_stack(x: torch.Tensor = f32(2, 4, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.stack([*(t.squeeze(1) for t in torch.split(x, 1, 1)), y], 1)


@claims.fuse_split_getitem_squeeze_cat.refuses("no two neighbours")
def operands_in_between(x: torch.Tensor = f32(2, 2, 3), y: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    a, b = torch.split(x, 1, 1)
    return torch.cat([a.squeeze(1), y, b.squeeze(1)], 1)


@claims.fuse_split_getitem_squeeze_cat.refuses("no two neighbours")
def of_two_tensors(x: torch.Tensor = f32(2, 2, 3), y: torch.Tensor = f32(2, 2, 3)) -> torch.Tensor:
    return torch.cat([torch.split(x, 1, 1)[0].squeeze(1), torch.split(y, 1, 1)[1].squeeze(1)], 1)


@claims.move_reshape_out_of_split_stack_pass.example
def reshaped_pieces(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.stack([t.reshape(4, 2, 2) for t in torch.split(x, 4, 1)], 1) * 2


@claims.move_reshape_out_of_split_stack_pass.example
def that_must_be_copied(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.stack([t.reshape(2, 8) for t in torch.split(x, 4, 1)], 1) * 2


@claims.move_reshape_out_of_split_stack_pass.refuses("no two neighbours")
def reshaped_in_different_ways(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    a, b = torch.split(x, 4, 1)
    return torch.stack([a.reshape(16), b.t().reshape(16)])


@claims.move_reshape_out_of_split_stack_pass.refuses("it is not a stack of reshaped pieces")
def nothing_is_reshaped(x: torch.Tensor = f32(4, 8)) -> torch.Tensor:
    return torch.stack(torch.split(x, 4, 1))


@claims.move_view_after_cat_aten_pass.example
def viewed_pieces(x: torch.Tensor = f32(12, 4)) -> torch.Tensor:
    return torch.cat([piece.view(2, 8) for piece in x.split(4)], 1) * 2


@claims.move_view_after_cat_aten_pass.refuses("it is not a cat of reshaped pieces")
def pieces_as_they_are(x: torch.Tensor = f32(4, 12)) -> torch.Tensor:
    return torch.cat(x.split(4, 1), 0) * 2


@claims.move_view_after_cat_aten_pass.refuses("no two neighbours")
def reshaped_tensors(x: torch.Tensor = f32(4, 6), y: torch.Tensor = f32(4, 6)) -> torch.Tensor:
    return torch.cat([x.reshape(2, 12), y.reshape(2, 12)], 1)
