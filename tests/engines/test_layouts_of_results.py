"""Results of the engine `inductor` that are views of computed values have eager's strides, and cost no copy."""

from __future__ import annotations

import pytest
import torch

import eductor
from programs.comparing import strides

VIEWS = (
    lambda x: torch.relu(x.permute(1, 0, 2))[:, :, :2],
    lambda x: torch.relu(x.permute(1, 0, 2))[1:],
    lambda x: (x.mT + 1).chunk(2, 1)[1],
    lambda x: (x.permute(2, 0, 1) + 1)[:1, :, 2:],
    lambda x: (x.mT + 1)[..., :1],
    lambda x: x.mT.flip(0)[:, :1],
    lambda x: (x.mT.contiguous() + 1).view(torch.int32)[:, 1:],
    lambda x: torch.bmm(x, x.mT).mT.relu()[:, :1],
    lambda x: torch.where(x.mT > 0, x.mT, 0.1)[..., 1:],
    lambda x: x.mT[torch.tensor([0, 1, 0])][..., 1:],
    lambda x: x.mT.double()[..., 1:].unsqueeze(0),
    lambda x: (x.mT * 2).split([1, 3], 2)[1],
    lambda x: torch.relu(x).flatten(1).unfold(1, 2, 1).diagonal(0, 1, -3),
)


def views(x):
    return [view(x) for view in VIEWS]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_views_of_computed_values_have_eagers_strides(dynamic):
    x = torch.randn(2, 4, 6)
    got = eductor.compile(views, engine="inductor", dynamic=dynamic)(x)
    for view, expected in zip(got, views(x), strict=True):
        assert strides(view) == strides(expected)
        torch.testing.assert_close(view, expected)


def test_a_view_is_not_copied():
    x = torch.randn(64, 64)
    got = eductor.compile(lambda x: torch.relu(x.t())[1:], engine="inductor")(x)
    assert got.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert got.storage_offset() == 1
