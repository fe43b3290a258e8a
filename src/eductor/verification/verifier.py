"""The instrument that checks each pass against its contract while compiling.

After a pass that changed the graph it checks: structure, legality for the stage, metadata against re-evaluation, the
order of effects, and numbers, by running the graph before and after on the same inputs. A pass that fails a check is
undone and reported by its address, like any failing pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from eductor.graph.effects.order import sort_in_place
from eductor.pipeline.base import GraphName
from eductor.pipeline.checks import ContractBroken, check_sound, check_stage
from eductor.pipeline.instruments import Instrument, Numbering, PassRun, StageRun
from eductor.verification.contracts import check_effects, check_metadata
from eductor.verification.execution import why_not_run
from eductor.verification.graph_comparison import Comparison, Nondeterministic
from eductor.verification.samples import CannotRun, UserInputs


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken contract: the pass's address, the graph, the check that failed, and its message."""

    address: str
    graph: GraphName
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.address} on the {self.graph} broke its contract ({self.check}): {self.text}"


class Verifier(Instrument):
    """An instrument that checks every pass.

    `inputs` are values for the placeholders of a graph whose passes are run by hand; `report` receives the summary after
    each compile.
    """

    def __init__(self, inputs: Sequence[Any] = (), report: Callable[[str], None] | None = None) -> None:
        self.findings: list[Finding] = []
        self.notes: dict[str, None] = {}
        self.ran = self.checked = 0
        self.seconds = 0.0
        self._given = UserInputs(inputs)
        self._numbering = Numbering()
        self._judged: PassRun | None = None
        self._report = report

    def before_stage(self, run: StageRun) -> None:
        self._numbering.number(run.graph, run.module)
        self._given.before_stage(run)

    def after_stage(self, run: StageRun) -> None:
        self._given.after_stage(run)
        self._judged = None
        if self._report is not None and run.name == "link":
            self._report(f"verified the {run.graph}: {self.summary()}")

    def failed_stage(self, run: StageRun, error: Exception) -> None:
        self.after_stage(run)

    def after_pass(self, run: PassRun) -> None:
        started = time.perf_counter()
        self.ran += 1
        self._judged = run
        try:
            before = run.before.module(run.module)
            sort_in_place(before.graph)
            if run.status == "changed":
                self.checked += 1
                self._check(run, before)
            else:
                self._ask(run, "metadata", lambda: check_metadata(before, run.module))
        finally:
            self.seconds += time.perf_counter() - started

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        """Records a pass that raised, or that an earlier check refused, as a finding as well."""
        if run is not self._judged:
            self.ran += 1
            self._found(run, "structure" if isinstance(error, ContractBroken) else "crash", run.reason)

    @property
    def graphs(self) -> int:
        """The number of captured graphs."""
        return len(self._numbering.met)

    def summary(self) -> str:
        """What was checked, what it cost, and what could not be checked."""
        ran = f"passes that ran: {self.ran}; that changed a graph: {self.checked}"
        head = f"{ran}; their checks took {self.seconds:.2f} s"
        return "\n".join([head, *map(str, self.findings), *(f"not checked in full: {note}" for note in self.notes)])

    def _check(self, run: PassRun, before: GraphModule) -> None:
        checks: dict[str, Callable[[], None]] = {
            "structure": lambda: check_sound(run.module.graph, run.before),
            "legality": lambda: check_stage(
                run.module.graph, run.before, run.step.stage, in_place=run.step.load().contract.in_place
            ),
            "metadata": lambda: check_metadata(before, run.module),
            "effects": lambda: check_effects(before.graph, run.module.graph),
            "numbers": lambda: self._check_numbers(run, before),
        }
        for name, check in checks.items():
            self._ask(run, name, check)

    def _ask(self, run: PassRun, name: str, check: Callable[[], None]) -> None:
        try:
            check()
        except ContractBroken as broken:
            self._found(run, name, str(broken))
            raise
        except Exception as error:  # an error in the check itself is not the pass's fault
            self.notes[f"{run.address}: its {name} could not be checked: {type(error).__name__}: {error}"] = None

    def _found(self, run: PassRun, check: str, text: str) -> None:
        graph = replace(run.context.graph, number=self._numbering.number(run.context.graph, run.module))
        self.findings.append(Finding(run.address, graph, check, text))

    def _check_numbers(self, run: PassRun, before: GraphModule) -> None:
        numerics = run.step.load().contract.numerics
        reason = "it may change results" if numerics == "changes" else why_not_run(before)
        compared, problem = 0, ""
        try:
            for inputs in self._given.inputs(run, before) if not reason else ():
                comparison = Comparison(before, run, inputs)
                compared += comparison.holds()
                problem = problem or comparison.problem
        except CannotRun as cannot:
            reason = str(cannot)
        except Nondeterministic as nondeterministic:
            reason = str(nondeterministic)
        if not compared and not reason:
            reason = f"the graph before it fails on every input that was tried ({problem})"
        if reason:
            self.notes[
                f"{run.address}: it was not executed{' on all inputs' if compared else ''}, because {reason}"
            ] = None
