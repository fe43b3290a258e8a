"""How operators of our own are defined: from a schema and a function for each kind of device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from eductor.compat import register_fake

Function = Callable[..., Any]
_LIBRARY = torch.library.Library("eductor", "FRAGMENT")


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
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    _LIBRARY.impl(name, compute, "CompositeExplicitAutograd")
    if on_cuda is not None:
        _LIBRARY.impl(name, on_cuda, "CUDA")
    register_fake(_LIBRARY, name, fake or compute)
    return getattr(torch.ops.eductor, name)
