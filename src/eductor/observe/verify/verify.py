"""`eductor.verify`: checks every pass of a compile against its contract, and the compiled function against eager."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from eductor.compat import isolated_compile
from eductor.compiler import checked_backend
from eductor.engines import choose_engine
from eductor.errors import EductorWarning, NotVerified
from eductor.observe.scripts.interception import name_of
from eductor.observe.verify.call_outcome import Arguments, CallOutcome, observe_call, reachable_state, unlike_calls
from eductor.observe.verify.reachable_state import ReachableState
from eductor.options import Options
from eductor.verification.verifier import Finding, Verifier


@dataclass
class Report:
    """What verification found: broken contracts, and differences between the compiled function and eager."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)
    """What could not be checked or compared, and why."""
    passes: int = 0
    changes: int = 0
    seconds: float = 0.0
    """The time of the checks of passes."""
    total_seconds: float = 0.0
    """The total time: calls in eager, compiling, the checks, the compiled calls."""

    @property
    def ok(self) -> bool:
        """Whether verification found nothing wrong."""
        return not self.findings and not self.differences

    def __str__(self) -> str:
        ran = f"passes that ran: {self.passes}; that changed a graph: {self.changes}"
        lines = [f"{self.name}: {ran}; their checks took {self.seconds:.2f} s of {self.total_seconds:.2f} s."]
        lines += [f"  wrong: {finding}" for finding in self.findings]
        lines += [f"  unlike eager: {difference}" for difference in self.differences]
        lines += [f"  note: {note}" for note in (*self.notes, *self.limits)]
        if self.ok:
            right = "Every pass kept its contract, and the compiled function does what eager does."
            lines.append(f"  {'Nothing wrong was found in what could be checked.' if self.limits else right}")
        return "\n".join(lines)


def verify(
    fn: Callable[..., Any], *args: Any, options: Mapping[str, Any] | Options | None = None, **kwargs: Any
) -> Report:
    """Compiles a function, checks each pass while compiling, and compares a call and its backward with eager.

    The call gets copies of the arguments; modules, optimizers and tensors that the function holds are restored. With the
    option `strict`, any finding raises.
    """
    return Verification(fn, Options.of(options)).call(Arguments(args, kwargs))


class Verification:
    """A function compiled once with each pass checked, whose calls are compared with eager one by one."""

    def __init__(self, fn: Callable[..., Any], options: Options, name: str = "", **keywords: Any) -> None:
        """`keywords` are those of `torch.compile`."""
        self._fn, self._options, self._keywords = fn, options, keywords
        self._name = name or name_of(fn)
        self._verifier = Verifier()
        self.compiled = self._compiled(instruments=(*options.instruments, self._verifier), strict=False)

    def call(self, arguments: Arguments) -> Report:
        """Verifies a call, and the compiles that it causes."""
        started, before = time.perf_counter(), self._verifier.seconds
        verifier, report = self._verifier, Report(self._name)
        known = len(verifier.findings), len(verifier.notes), verifier.ran, verifier.checked
        world = reachable_state(self._fn, arguments)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EductorWarning)
            expected = observe_call(self._fn, arguments, world)
            got = observe_call(self.compiled, arguments, world)
            if expected.drew and draws_differently(self._options):
                report.notes.append("it draws random numbers; for the comparison, they were drawn as in eager")
                got = observe_call(self._drawing_as_eager, arguments, world)
        report.findings = verifier.findings[known[0] :]
        report.notes += _first_lines(caught, report.findings)
        report.limits += list(verifier.notes)[known[1] :]
        report.passes, report.changes = verifier.ran - known[2], verifier.checked - known[3]
        self._compare(report, expected, got, arguments, world)
        if not verifier.graphs:
            report.limits.append("Dynamo captured no graph of it, so nothing was compiled")
        report.seconds, report.total_seconds = verifier.seconds - before, time.perf_counter() - started
        if self._options.strict and not report.ok:
            raise NotVerified(str(report))
        return report

    def _compiled(self, **changes: Any) -> Callable[..., Any]:
        backend = checked_backend(replace(self._options, **changes))
        return isolated_compile(self._fn, backend=backend, **self._keywords)

    @cached_property
    def _drawing_as_eager(self) -> Callable[..., Any]:
        return self._compiled(fallback_random=True)

    def _compare(
        self, report: Report, expected: CallOutcome, got: CallOutcome, arguments: Arguments, world: ReachableState
    ) -> None:
        """Compares bitwise in the profile `exact`, else up to rounding, judged by a float64 run of eager."""
        exact = self._options.profile == "exact"
        found = unlike_calls(expected, got, exact=exact)
        if found and not exact:
            found = unlike_calls(expected, got, observe_call(self._fn, arguments, world, wide=True))
        if found and unlike_calls(expected, observe_call(self._fn, arguments, world), exact=exact):
            report.limits.append("eager gives another result each time, so the calls cannot be compared")
        else:
            report.differences = found
        if expected.error is not None:
            report.limits.append(f"eager raises {type(expected.error).__name__}, so there is no result to compare")
        elif expected.limit:
            report.limits.append(expected.limit)


def draws_differently(options: Options) -> bool:
    """Whether a compile with these options draws different random numbers than eager."""
    return options.profile == "fast" and not options.fallback_random and choose_engine(options).seeded_random


def _first_lines(caught: list[warnings.WarningMessage], findings: list[Finding]) -> list[str]:
    """The first lines of the compile's warnings, except those in the findings."""
    texts = [str(w.message) for w in caught if issubclass(w.category, EductorWarning)]
    addresses = {finding.address for finding in findings}
    return [t.split("\n")[0] for t in texts if not any(f"the pass {a} failed" in t for a in addresses)]
