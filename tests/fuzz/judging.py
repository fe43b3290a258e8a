"""A random program, compiled, beside eager: bit by bit where that is promised, else by the distance from float64."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import eductor
from eductor.errors import EductorWarning
from programs.comparing import Case, Observation, Seen, compare, differences, observe
from programs.comparing import Program as Compared

from .program import Random, case_of


@dataclass(frozen=True)
class Verdict:
    """What is different from eager; what the compile warned of."""

    differences: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()


def in_eager(program: Random, *, widely: bool = False) -> Observation | None:
    """What a program does in eager, or in float64; None for one that eager refuses."""
    return ran(program.compared(widely=widely))


def ran(made: Compared) -> Observation | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return observe(lambda fn: fn, made)
    except Exception:
        return None


def judge(program: Random, engine: str, expected: Observation | None = None) -> Verdict:
    """The differences of a program that runs in eager."""
    expected = expected or in_eager(program)
    if expected is None:
        return Verdict()
    return judged(program.compared(), [program], expected, engine, dict(program.options))


def judge_batch(programs: Sequence[Random], engine: str) -> Verdict:
    """The differences of several programs that are compiled as one, with the options of the first."""
    sources = [p.source() for p in programs]
    made = Compared("batch", (), lambda: together(sources), low_precision=any(p.is_rough for p in programs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = observe(lambda fn: fn, made)
    except Exception as error:
        return Verdict((f"eager refuses the batch: {error}",))
    return judged(made, programs, expected, engine, dict(programs[0].options))


class Together(nn.Module):
    """Several models, called one after the other, each with its inputs."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, *given: Any) -> Any:
        return [model(*inputs) for model, inputs in zip(self.models, given, strict=True)]


def together(sources: Sequence[str]) -> Case:
    cases = [case_of(source) for source in sources]
    return Case(Together([c.fn for c in cases]), tuple(c.inputs for c in cases))


def judged(
    made: Compared, programs: Sequence[Random], expected: Observation, engine: str, options: dict[str, Any]
) -> Verdict:
    torch._dynamo.reset()
    exact = options.get("profile") == "exact" and engine == "aten" and not outputs_alias(expected)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            options = {"fallback_random": True, **options}
            got = observe(lambda fn: eductor.compile(fn, engine=engine, **options), made)
        except Exception as error:
            return Verdict((f"raised {type(error).__name__}: {str(error).splitlines()[0]}",))
    warned = tuple(str(w.message).splitlines()[0] for w in caught if issubclass(w.category, EductorWarning))
    broken = tuple(w for w in warned if w.startswith(("the pass ", "the engine ")))
    found = tuple(differences(expected, got, exact=exact, low_precision=made.low_precision))
    if found and not exact:
        found = tuple(apart(programs, expected, got, found))
    return Verdict(broken + found, warned)


def outputs_alias(seen: Observation) -> bool:
    """Whether an output aliases another one, whose gradients may then be added in another order (see docs/engines.md)."""
    relations = (*seen.facts.get("is", ()), *seen.facts.get("shares", ()))
    return any("output" in relation for relation in relations)


def apart(programs: Sequence[Random], expected: Observation, got: Observation, found: Sequence[str]) -> list[str]:
    """The differences that rounding does not explain: eager's own distance from float64 is the measure."""
    truth = in_float64(programs)
    if truth is None:
        return list(found)
    kept: list[str] = []
    for name in [*expected.facts, *(n for n in got.facts if n not in expected.facts)]:
        a, b, t = (x.facts.get(name) for x in (expected, got, truth))
        if isinstance(a, Seen) and isinstance(b, Seen) and isinstance(t, Seen):
            kept += [d for d in _compared(name, a, b) if "values differ" not in d]
            if a.value.shape == b.value.shape and is_further(a.value, b.value, t.value):
                kept.append(f"{name}: values differ: expected {a}, got {b}, in float64 {t}")
        elif "rng" not in name:
            kept += [d for d in found if d.startswith((f"{name}:", f"{name},"))]
    return list(dict.fromkeys(kept))


def _compared(name: str, a: Seen, b: Seen) -> list[str]:
    return compare(name, a, b, lambda x, y: True)


def in_float64(programs: Sequence[Random]) -> Observation | None:
    """What the programs do in float64; one of several that is refused there runs as it is. None if nothing runs."""
    if len(programs) == 1:
        return in_eager(programs[0], widely=True)
    wide = [p.source(widely=True) for p in programs]
    truth = ran(Compared("wide", (), lambda: together(wide)))
    if truth is None:
        wide = [p.source(widely=in_eager(p, widely=True) is not None) for p in programs]
        truth = ran(Compared("wide", (), lambda: together(wide)))
    return truth


def is_further(a: torch.Tensor, b: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether the second value is further away from the truth than the first one and rounding account for."""
    if not (a.is_floating_point() and b.is_floating_point()) or truth.shape != a.shape:
        return not torch.equal(a, b)
    x, y, t = (v.double() for v in (a, b, truth))
    if not torch.equal(x.isnan(), y.isnan()) or not torch.equal(x.isinf(), y.isinf()):
        return True
    finite = x.isfinite() & t.isfinite()
    if not finite.any():
        return False
    x, y, t = x[finite], y[finite], t[finite]
    scale = max(1.0, float(t.abs().max()))
    allowed = 8 * float((x - t).abs().max()) + 64 * torch.finfo(a.dtype).eps * scale
    return float((y - t).abs().max()) > allowed
