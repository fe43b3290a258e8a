"""How operators of our own are defined: from a schema and a function for each kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

Function = Callable[..., Any]


def define(
    schema: str,
    compute: Function,
    *,
    on_cuda: Function | None = None,
    fake: Function | None = None,
    tags: Iterable[torch.Tag] = (),
) -> Any:
    """Defines `eductor::schema`. An operator without a `fake` of its own computes fake values as it computes real ones."""
    name = schema.partition("(")[0]
    address = f"eductor::{name}"
    torch.library.define(address, schema.removeprefix(name), tags=(torch.Tag.pt2_compliant_tag, *tags))
    torch.library.impl(address, "CompositeExplicitAutograd", compute)
    if on_cuda is not None:
        torch.library.impl(address, "CUDA", on_cuda)
    torch.library.register_fake(address, fake or compute)
    return getattr(torch.ops.eductor, name)
