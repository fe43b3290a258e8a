"""Serializes fake values, constants and symbols to plain data, and reads them back."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eductor.compat import FakeTensor, FakeTensorMode, has_unbacked_symbols, symbol_of
from eductor.errors import BadGraph
from eductor.graph.text.symbolic_sizes import read_size, spell_size
from eductor.graph.values.meta import UNKNOWN

LARGEST_CONSTANT = 1 << 16
"""The largest constant, in bytes, that an entry may contain."""


class NotKept(Exception):
    """Raised if a compile cannot be cached on disk; the message completes "it has ..."."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols of the inputs' sizes, numbered by first appearance, so equal in every process."""

    names: Mapping[str, str] = field(default_factory=dict)
    known: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(values: Sequence[Any]) -> Symbols:
        names: dict[str, str] = {}
        known: dict[str, Any] = {}
        for size in sizes_of(values):
            symbol = symbol_of(size)
            if symbol is not None and str(symbol) not in names:
                names[str(symbol)] = f"s{len(names)}"
                known[names[str(symbol)]] = size
        return Symbols(names, known)

    def spell(self, size: Any) -> int | str:
        """A size as a number, or as text that reads back equal."""
        if type(size) is int:
            return size
        text = spell_size(size, self.names)
        try:
            is_same = str(self.read(text)) == str(size)
        except BadGraph:
            is_same = False
        if not is_same:
            raise NotKept(f"the size {size}, which does not follow from the sizes of the inputs")
        return text

    def read(self, size: int | str) -> Any:
        return size if type(size) is int else read_size(str(size), self.known)


def sizes_of(values: Sequence[Any]) -> Iterator[Any]:
    """Each size, stride and offset among some values."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield from (*value.shape, *value.stride(), value.storage_offset())
        else:
            yield value


def value_to_data(value: Any, symbols: Symbols) -> Any:
    """A fake value, or a sequence of them, as plain data."""
    if value is UNKNOWN or value is None:
        return None
    if isinstance(value, (list, tuple)):
        return {"several": [value_to_data(v, symbols) for v in value], "list": isinstance(value, list)}
    if isinstance(value, (torch.SymInt, torch.SymBool, torch.SymFloat)):
        if has_unbacked_symbols(value):
            raise NotKept(f"the number {value}, which depends on data")
        return {"size": symbols.spell(value)}
    if isinstance(value, (bool, int, float, str)):
        return {"number": value}
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        raise NotKept(f"a value of type {type(value).__name__}")
    if has_unbacked_symbols(value) or value.is_conj() or value.is_neg():
        raise NotKept("a tensor whose sizes depend on data, or whose memory holds its conjugate or negative")
    return [
        str(value.dtype).removeprefix("torch."),
        [symbols.spell(s) for s in value.shape],
        [symbols.spell(s) for s in value.stride()],
        symbols.spell(value.storage_offset()),
        str(value.device),
        value.requires_grad,
    ]


def value_from_data(data: Any, symbols: Symbols, mode: FakeTensorMode) -> Any:
    """Reads a fake value, with this compile's symbols for sizes."""
    if data is None:
        return UNKNOWN
    if isinstance(data, dict):
        if "size" in data:
            return symbols.read(data["size"])
        if "number" in data:
            return data["number"]
        several = [value_from_data(v, symbols, mode) for v in data["several"]]
        several = [None if v is UNKNOWN else v for v in several]
        return several if data["list"] else tuple(several)
    dtype, shape, strides, offset, device, requires_grad = data
    shape, strides = ([symbols.read(s) for s in sizes] for sizes in (shape, strides))
    if offset == 0:
        meta = torch.empty_strided(shape, strides, dtype=dtype_called(dtype), device="meta")
    else:
        start = symbols.read(offset)
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
        whole = torch.empty(start + last + 1, dtype=dtype_called(dtype), device="meta")
        meta = whole.as_strided(shape, strides, start)
    value = FakeTensor(mode, meta, torch.device(device))  # several times faster than a call in the mode
    return value.requires_grad_() if requires_grad else value


def constant_to_data(value: torch.Tensor) -> Any:
    """A small tensor with its contents as plain data."""
    is_plain = type(value) is torch.Tensor and value.layout is torch.strided and value.is_contiguous()
    if not is_plain or isinstance(value, FakeTensor) or value.is_conj() or value.is_neg():
        raise NotKept(f"a constant of type {type(value).__name__} that is not plain and contiguous")
    if value.nbytes > LARGEST_CONSTANT:
        raise NotKept(f"a constant of {value.nbytes} bytes")
    contents = bytes(value.detach().cpu().reshape(-1).view(torch.uint8).tolist())
    return [
        str(value.dtype).removeprefix("torch."),
        list(value.shape),
        str(value.device),
        base64.b64encode(contents).decode(),
    ]


def constant_from_data(data: Any) -> torch.Tensor:
    dtype, shape, device, contents = data
    flat = torch.tensor(list(base64.b64decode(contents)), dtype=torch.uint8)
    return flat.view(dtype_called(dtype)).reshape(shape).to(device)


def dtype_called(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise BadGraph(f"{name} is not a dtype")
    return found
