"""Measures a product unpadded and padded, on random tensors of its sizes and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from eductor.compat import uses_tf32, without_autocast
from eductor.cost.measured import kept, seconds
from eductor.passes.joint.padding.plan import NO_PADS, Dim, Matrix, MatrixProduct, Pads


def measure_product(product: MatrixProduct, pads: Pads, *, where: torch.device) -> tuple[float, float]:
    """Seconds of a product unpadded and with these pads, copies included; cached on disk."""
    now, padded = kept(key_of(product, pads), 2, lambda: _measure(product, pads, where))
    return now, padded


def key_of(product: MatrixProduct, pads: Pads) -> dict[str, Any]:
    """The cache key of the times: the product, the device, and the library that computes it."""
    given = {name: repr(getattr(product, name)) for name in MatrixProduct.__slots__ if name != "device"}
    rest = {"pads": repr(pads), "device": product.device.name, "torch": torch.__version__, "tf32": uses_tf32()}
    return {**given, **rest}


def _measure(product: MatrixProduct, pads: Pads, where: torch.device) -> list[float]:
    with torch.no_grad(), without_autocast():
        return seconds([candidate(product, NO_PADS, where), candidate(product, pads, where)], where)


def candidate(product: MatrixProduct, pads: Pads, where: torch.device) -> Callable[[], torch.Tensor]:
    """The product on random tensors, with the padding it needs in a graph: operands whose padding fuses come padded."""
    generator = torch.Generator(where).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=where).to(product.dtype)

    def factor(matrix: Matrix, dims: tuple[Dim, Dim]) -> Callable[[], torch.Tensor]:
        high, wide = dims if matrix.along == dims[1] else dims[::-1]
        row = product.size(wide)
        rows = random(product.batch, product.size(high), max(row, -(-row // matrix.step) * matrix.step))[..., :row]
        laid = (lambda x: x) if matrix.along == dims[1] else (lambda x: x.mT)
        added = [0, getattr(pads, wide), 0, getattr(pads, high)]
        return _source(rows, added, matrix.fuses, laid)

    left, right = factor(product.left, ("m", "k")), factor(product.right, ("k", "n"))
    bias = _bias(product, pads, random)

    def run() -> torch.Tensor:
        a, b = left(), right()
        if bias is not None and product.bias is not None:
            result = torch.addmm(bias(), a[0], b[0], beta=product.bias.beta, alpha=product.bias.alpha)[None]
        else:
            result = torch.bmm(a, b) if product.batch > 1 else torch.mm(a[0], b[0])[None]
        result = result[:, : product.m, : product.n]
        return result.contiguous() if product.is_copied(pads) else result

    return run


def _bias(product: MatrixProduct, pads: Pads, random: Callable[..., torch.Tensor]) -> Callable[[], torch.Tensor] | None:
    if product.bias is None:
        return None
    dims: tuple[Dim, ...] = ("m", "n")
    own = [dim if dim in product.bias.dims else None for dim in dims]
    given = random(*(product.size(dim) if dim else 1 for dim in own))
    added = [amount for dim in reversed(own) for amount in (0, getattr(pads, dim) if dim else 0)]
    return _source(given, added, product.bias.fuses)


def _source(
    given: torch.Tensor,
    added: list[int],
    fuses: bool,
    laid: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
) -> Callable[[], torch.Tensor]:
    """An operand, padded beforehand or in each call."""
    if not any(added):
        return lambda: laid(given)
    if fuses:
        padded = F.pad(given, added)
        return lambda: laid(padded)
    return lambda: laid(F.pad(given, added))
