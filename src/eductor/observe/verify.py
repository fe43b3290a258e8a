"""`eductor.verify`: every pass of a compile against its contract, and the compiled function against eager."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eductor.compiler import choose_engine
from eductor.errors import EductorWarning, NotVerified
from eductor.observe.apart import compile_apart
from eductor.observe.calls import Arguments, Call, observe_call, unlike_calls, world_of
from eductor.observe.verifier import Finding, Verifier
from eductor.observe.world import World
from eductor.options import Options


@dataclass
class Report:
    """What verification found: passes that broke their contracts, and what tells the compiled function from eager."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    passes: int = 0
    changes: int = 0
    seconds: float = 0.0
    """What the checks of the passes cost."""
    total_seconds: float = 0.0
    """What everything cost: calls in eager, compiling, the checks, the compiled calls."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings and not self.differences

    def __str__(self) -> str:
        ran = f"passes that ran: {self.passes}; that changed a graph: {self.changes}"
        lines = [f"{self.name}: {ran}; their checks took {self.seconds:.2f} s of {self.total_seconds:.2f} s."]
        lines += [f"  wrong: {finding}" for finding in self.findings]
        lines += [f"  unlike eager: {difference}" for difference in self.differences]
        lines += [f"  note: {note}" for note in self.notes]
        if self.ok and self.passes:
            lines.append("  Every pass kept its contract, and the compiled function does what eager does.")
        return "\n".join(lines)


def verify(
    fn: Callable[..., Any], *args: Any, options: Mapping[str, Any] | Options | None = None, **kwargs: Any
) -> Report:
    """Compiles a function, checks each pass while compiling, and compares a call, and its backward, with eager.

    The call gets copies of the arguments; modules, optimizers and tensors that the function holds are afterwards as they
    were. With the option `strict`, anything wrong is raised.
    """
    return verify_call(fn, Arguments(args, kwargs), Options.of(options))


def verify_call(
    fn: Callable[..., Any], arguments: Arguments, options: Options, name: str = "", **keywords: Any
) -> Report:
    """Verifies one call; `keywords` are those of `torch.compile`."""
    started = time.perf_counter()
    report = Report(name or getattr(fn, "__qualname__", type(fn).__name__))
    verifier = Verifier()
    world = world_of(fn, arguments)
    expected = observe_call(fn, arguments, world)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EductorWarning)
        watching = replace(options, instruments=(*options.instruments, verifier), strict=False)
        got = observe_call(compile_apart(fn, watching, **keywords), arguments, world)
        if expected.drew and draws_anew(options):
            report.notes.append(
                "it draws random numbers; to compare it with eager, they were drawn as eager draws them"
            )
            got = observe_call(compile_apart(fn, replace(options, fallback_random=True), **keywords), arguments, world)
    if expected.error is not None:
        report.notes.append(f"eager raises {type(expected.error).__name__}, so that there is no result to compare")
    report.differences = _differences(fn, arguments, world, expected, got, options, report)
    report.findings, report.passes, report.changes = verifier.findings, verifier.ran, verifier.checked
    report.notes += [*verifier.notes, *_first_lines(caught, verifier)]
    report.seconds, report.total_seconds = verifier.seconds, time.perf_counter() - started
    if not verifier.graphs:
        report.notes.append("Dynamo captured no graph of it, so that nothing was compiled")
    if options.strict and not report.ok:
        raise NotVerified(str(report))
    return report


def draws_anew(options: Options) -> bool:
    """Whether a compile with these options draws other random numbers than eager does."""
    return options.profile == "fast" and not options.fallback_random and choose_engine(options).seeded_random


def _differences(
    fn: Callable[..., Any],
    arguments: Arguments,
    world: World,
    expected: Call,
    got: Call,
    options: Options,
    report: Report,
) -> list[str]:
    """Bitwise in the profile `exact`; otherwise roundings may differ, judged by a run of eager in float64."""
    exact = options.profile == "exact"
    found = unlike_calls(expected, got, exact=exact)
    if found and not exact:
        found = unlike_calls(expected, got, observe_call(fn, arguments, world, wide=True))
    if found and unlike_calls(expected, observe_call(fn, arguments, world), exact=exact):
        report.notes.append("eager gives another result each time, so that the compiled function cannot be compared")
        return []
    return found


def _first_lines(caught: list[warnings.WarningMessage], verifier: Verifier) -> list[str]:
    """What the compile warned of, but for what is among the findings."""
    texts = [str(w.message) for w in caught if issubclass(w.category, EductorWarning)]
    addresses = {finding.address for finding in verifier.findings}
    return [t.split("\n")[0] for t in texts if not any(f"the pass {a} failed" in t for a in addresses)]
