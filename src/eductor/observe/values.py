"""What tells two values apart: bit by bit, or by their distance from a run in float64."""

from __future__ import annotations

from typing import Any

import torch

FACTOR = 4.0
"""How much further from a float64 run than before may a result be that need not be exact."""
TOLERANCES = {
    torch.float16: 2e-2,
    torch.bfloat16: 2e-2,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}
"""How far apart, relative and absolute, rounded results may be where no float64 run says better."""


def unlike_bits(a: Any, b: Any) -> str:
    """What tells two values apart, bit by bit; empty where nothing does."""
    return _unlike(a, b, None, exact=True)


def unlike_rounding(a: Any, b: Any, truth: Any = None) -> str:
    """What tells two values apart but for roundings; with a float64 `truth`, the second may be a little further from it."""
    return _unlike(a, b, truth, exact=False)


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors hold the same bits: NaN equals NaN, zero does not equal minus zero."""
    if a.dtype.is_complex:
        return bits_equal(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())).all(-1)
    if not a.dtype.is_floating_point:
        return a == b
    return (a.isnan() & b.isnan()) | ((a == b) & (a.signbit() == b.signbit()))


def is_bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are of one shape and dtype and hold the same bits."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(bits_equal(a, b).all())


def _unlike(a: Any, b: Any, truth: Any, *, exact: bool) -> str:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{len(a)} values and {len(b)}"
        truths = truth if isinstance(truth, (list, tuple)) and len(truth) == len(a) else [None] * len(a)
        pairs = zip(a, b, truths, strict=True)
        return next((u for x, y, t in pairs if (u := _unlike(x, y, t, exact=exact))), "")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return _unlike_numbers(a, b, exact=exact)
    unlike = _unlike_types(a, b)
    if unlike or a.is_meta or a.layout is not torch.strided:
        return unlike
    a, b = a.detach(), b.detach()
    same = bits_equal(a, b)
    if bool(same.all()):
        return ""
    if not exact and (a.dtype.is_floating_point or a.dtype.is_complex):
        if not isinstance(truth, torch.Tensor) or truth.shape != a.shape:
            return _not_close(a, b)
        return _grown(a, b, truth.detach())
    at = int((~same).reshape(-1).nonzero()[0])
    return f"{int((~same).sum())} of {a.numel()} values, the first {a.reshape(-1)[at]} and {b.reshape(-1)[at]}"


def _unlike_numbers(a: Any, b: Any, *, exact: bool) -> str:
    if isinstance(a, str) and isinstance(b, str):
        return "" if a == b else f"{a} and {b}"
    if type(a) is not type(b):
        return f"{a!r} and {b!r}"
    if isinstance(a, float) and a != a and b != b:
        return ""
    if isinstance(a, float) and not exact:
        return "" if abs(a - b) <= 1e-4 * (1 + abs(a)) else f"{a!r} and {b!r}"
    return "" if a is b or bool(a == b) else f"{a!r} and {b!r}"


def _unlike_types(a: torch.Tensor, b: torch.Tensor) -> str:
    for what, x, y in (
        ("type", type(a), type(b)),
        ("dtype", a.dtype, b.dtype),
        ("device", a.device, b.device),
        ("layout", a.layout, b.layout),
        ("shape", tuple(a.shape), tuple(b.shape)),
        ("requires_grad", a.requires_grad, b.requires_grad),
        ("strides", _strides(a), _strides(b)),
        ("conjugate and negative bits", (a.is_conj(), a.is_neg()), (b.is_conj(), b.is_neg())),
    ):
        if x != y:
            return f"{what} {x} and {y}"
    return ""


def _strides(x: torch.Tensor) -> tuple[int, ...]:
    """The strides that matter: none where a dimension has one element, none at all where there is no element."""
    if x.layout is not torch.strided or not x.numel():
        return ()
    return tuple(step if size > 1 else 0 for size, step in zip(x.shape, x.stride(), strict=True))


def _not_close(a: torch.Tensor, b: torch.Tensor) -> str:
    tolerance = TOLERANCES.get(a.dtype, 0.1)
    if torch.allclose(a, b, rtol=tolerance, atol=tolerance / 10, equal_nan=True):
        return ""
    return f"they differ by up to {float((a - b).abs().nan_to_num().max()):.3g}"


def _grown(a: torch.Tensor, b: torch.Tensor, truth: torch.Tensor) -> str:
    finite = truth.isfinite() & a.isfinite()
    if bool((finite & ~b.isfinite()).any()):
        return "a number became infinite or no number"
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    x, y, t = (v.to(wide)[finite] for v in (a, b, truth))
    if not t.numel():
        return ""
    old, new = float((x - t).abs().max()), float((y - t).abs().max())
    allowed = FACTOR * old + torch.finfo(a.dtype).eps * float(t.abs().max())
    return "" if new <= allowed else f"its error against float64 grew from {old:.3g} to {new:.3g}"
