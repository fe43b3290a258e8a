"""Compares two values: bitwise, or by their distance from a float64 run."""

from __future__ import annotations

from typing import Any

import torch

from eductor.graph.text.printer import type_of

FACTOR = 4.0
"""The factor by which the error against a float64 run may grow if a result need not be exact."""
OF_SUMS = 16.0
"""Allowed roundings of its dtype between a result and a wider run, for long sums in another order."""
ROUNDINGS = 64.0
"""Allowed roundings of its dtype between a result and a run that is no wider than itself."""
UNRELIABLE = {torch.float16: 1.0, torch.bfloat16: 1.0}
"""The relative error against a float64 run above which a result says little about rounding; 0.1 for other dtypes."""
NOISE = 10.0
"""The relative error above which a result is noise: only the sizes of errors can be compared."""
TOLERANCES = {
    torch.float16: 2e-2,
    torch.bfloat16: 2e-2,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
}
"""Tolerances, relative and absolute, of rounded results without a float64 run."""


def unlike_bits(a: Any, b: Any) -> str:
    """The bitwise difference of two values, in words; empty if equal."""
    return _unlike(a, b, None, exact=True)


def unlike_rounding(a: Any, b: Any, truth: Any = None, narrowest: torch.dtype | None = None) -> str:
    """The difference of two values beyond rounding; the second may be a little further from a float64 `truth`.

    `narrowest` is the least precise dtype that they were computed in, if not their own.
    """
    return _unlike(a, b, truth, exact=False, narrowest=narrowest)


def bits_equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors hold the same bits: NaN equals NaN, zero does not equal minus zero."""
    if a.dtype.is_complex:
        return bits_equal(torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())).all(-1)
    if not a.dtype.is_floating_point:
        return a == b
    if a.element_size() == 1:  # float8 has no comparison, but converts exactly
        a, b = a.float(), b.float()
    return (a.isnan() & b.isnan()) | ((a == b) & (a.signbit() == b.signbit()))


def is_bitwise_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(bits_equal(a, b).all())


def _unlike(a: Any, b: Any, truth: Any, *, exact: bool, narrowest: torch.dtype | None = None) -> str:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{len(a)} values and {len(b)}"
        truths = truth if isinstance(truth, (list, tuple)) and len(truth) == len(a) else [None] * len(a)
        pairs = zip(a, b, truths, strict=True)
        return next((u for x, y, t in pairs if (u := _unlike(x, y, t, exact=exact, narrowest=narrowest))), "")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return "" if _same_objects(a, b, exact=exact) else f"{_shown(a)} and {_shown(b)}"
    unlike = _unlike_types(a, b)
    if unlike or a.is_meta:
        return unlike
    a, b = _plain(a), _plain(b)
    same = bits_equal(a, b)
    if bool(same.all()):
        return ""
    judge = _plain(truth) if isinstance(truth, torch.Tensor) and truth.shape == a.shape else None
    if not exact and (a.dtype.is_floating_point or a.dtype.is_complex):
        tolerance = max(TOLERANCES.get(dtype, 0.1) for dtype in (a.dtype, narrowest or a.dtype))
        return _not_close(a, b, tolerance) if judge is None else _grown(a, b, judge, narrowest)
    if not exact and judge is not None and not bool((a == judge).all()):
        return _further(a, b, judge)
    at = int((~same).reshape(-1).nonzero()[0])
    return f"{int((~same).sum())} of {a.numel()} values, the first {a.reshape(-1)[at]} and {b.reshape(-1)[at]}"


def _plain(x: torch.Tensor) -> torch.Tensor:
    """A tensor that can be compared elementwise."""
    x = x.detach()
    return x if x.layout is torch.strided else x.to_dense()


def _same_objects(a: Any, b: Any, *, exact: bool) -> bool:
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        near = 0.0 if exact else 1e-4 * (1 + abs(a))
        return bool((a != a and b != b) or a == b or abs(a - b) <= near)
    try:
        same = a == b
        return bool(same.all() if hasattr(same, "all") else same)
    except Exception:  # an object without a usable comparison
        return True


def _shown(x: Any) -> str:
    if isinstance(x, str):
        return x
    return f"a tensor of {type_of(x)}" if isinstance(x, torch.Tensor) else repr(x)


def _unlike_types(a: torch.Tensor, b: torch.Tensor) -> str:
    for what, x, y in (
        ("type", type(a), type(b)),
        ("dtype", a.dtype, b.dtype),
        ("device", a.device, b.device),
        ("layout", a.layout, b.layout),
        ("shape", tuple(a.shape), tuple(b.shape)),
        ("requires_grad", a.requires_grad, b.requires_grad),
        ("strides", strides_of(a), strides_of(b)),
        ("conjugate and negative bits", (a.is_conj(), a.is_neg()), (b.is_conj(), b.is_neg())),
    ):
        if x != y:
            return f"{what} {x} and {y}"
    return ""


def strides_of(x: torch.Tensor) -> tuple[int, ...]:
    """The strides that matter: 0 for dimensions of size 1, and none for a tensor without elements."""
    if x.layout is not torch.strided or not x.numel():
        return ()
    return tuple(step if size > 1 else 0 for size, step in zip(x.shape, x.stride(), strict=True))


def _not_close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> str:
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    a, b = a.to(wide), b.to(wide)
    if torch.allclose(a, b, rtol=tolerance, atol=tolerance / 10, equal_nan=True):
        return ""
    return f"they differ by up to {float((a - b).abs().nan_to_num().max()):.3g}"


def _grown(a: torch.Tensor, b: torch.Tensor, truth: torch.Tensor, narrowest: torch.dtype | None) -> str:
    finite = truth.isfinite() & a.isfinite()
    if bool((finite & ~b.isfinite()).any()):
        return "a finite number became infinite or NaN"
    wide = torch.complex128 if a.dtype.is_complex else torch.float64
    x, y, t = (v.to(wide) for v in (a, b, truth))
    settled = ~truth.isfinite() & ((x == t) | (x.isnan() & t.isnan()))
    if bool((settled & ~((y == t) | (y.isnan() & t.isnan()))).any()):
        return "an infinity or NaN became something else"
    if not bool(finite.any()):
        return ""
    old, new = (float((v - t)[finite].abs().max()) for v in (x, y))
    scale = float(t[finite].abs().max())
    rounding = _rounding(a.dtype, truth.dtype, narrowest) * scale
    if UNRELIABLE.get(a.dtype, 0.1) * scale < old <= NOISE * scale and new > rounding:
        return _not_close(x[finite], y[finite], 0.1)
    allowed = FACTOR * old + rounding
    return "" if new <= allowed else f"its error against float64 grew from {old:.3g} to {new:.3g}"


def _rounding(dtype: torch.dtype, judge: torch.dtype, narrowest: torch.dtype | None) -> float:
    """The allowed error of a result relative to its size, even if the earlier error was smaller by luck."""
    own = torch.finfo(dtype).eps
    own *= OF_SUMS if torch.finfo(judge).eps < own else ROUNDINGS
    return max(own, torch.finfo(narrowest).eps) if narrowest is not None else own


def _further(a: torch.Tensor, b: torch.Tensor, truth: torch.Tensor) -> str:
    """Compares integers and flags computed from rounded numbers: errors may not grow."""
    old, new = ((v.double() - truth.double()).abs() for v in (a, b))
    wrong, now = int((old > 0).sum()), int((new > 0).sum())
    if now <= FACTOR * wrong and float(new.max()) <= FACTOR * float(old.max()):
        return ""
    return f"{wrong} of {a.numel()} values differed from a run in float64, now {now} do"
