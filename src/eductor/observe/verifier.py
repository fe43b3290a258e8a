"""Checks each pass of a compile against what it promised, while compiling.

After a pass that changed the graph: structure, the laws of the stage, metadata against re-evaluation, the order of
effects, and numbers: the graph before and the graph after run on the same inputs. A pass that fails is undone and
reported by its address, as any failing pass is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch.fx import GraphModule

from eductor.graph.order import sort_in_place
from eductor.graph.rewriter import source_line
from eductor.observe.contracts import check_effects, check_metadata
from eductor.observe.execution import Manner, Observation, observe, why_not_run
from eductor.observe.given import Given
from eductor.observe.samples import CannotRun
from eductor.observe.values import unlike_bits, unlike_rounding
from eductor.pipeline.base import GraphName
from eductor.pipeline.checks import ContractBroken, check_sound, check_stage
from eductor.pipeline.instruments import Instrument, Numbering, PassRun, StageRun


@dataclass(frozen=True, slots=True)
class Finding:
    """A pass that broke its contract: its address, on which graph, which check saw it, and what it saw."""

    address: str
    graph: GraphName
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.address} on the {self.graph} broke its contract ({self.check}): {self.text}"


class Verifier(Instrument):
    """An instrument that checks every pass.

    `inputs` are values for the placeholders of a graph whose passes are run by hand; `report` is told the summary after
    each compile.
    """

    def __init__(self, inputs: Sequence[Any] = (), report: Callable[[str], None] | None = None) -> None:
        self.findings: list[Finding] = []
        self.notes: dict[str, None] = {}
        self.ran = self.checked = 0
        self.seconds = 0.0
        self._given = Given(inputs)
        self._numbering = Numbering()
        self._judged: PassRun | None = None
        self._report = report

    def before_stage(self, run: StageRun) -> None:
        self._numbering.number(run.graph, run.module)
        self._given.before_stage(run)

    def after_stage(self, run: StageRun) -> None:
        self._given.after_stage(run)
        if self._report is not None and run.name == "autograd":
            self._report(f"verified the {run.graph}: {self.summary()}")

    def failed_stage(self, run: StageRun, error: Exception) -> None:
        self.after_stage(run)

    def after_pass(self, run: PassRun) -> None:
        started = time.perf_counter()
        self.ran += 1
        self._judged = run
        try:
            before = GraphModule(run.module, run.before.graph())
            sort_in_place(before.graph)
            if run.status == "changed":
                self.checked += 1
                self._check(run, before)
            else:
                self._ask(run, "metadata", lambda: check_metadata(before, run.module))
        finally:
            self.seconds += time.perf_counter() - started

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        """What raised, or was refused before it came here, broke its contract as well."""
        if run is not self._judged:
            self.ran += 1
            self._found(run, "structure" if isinstance(error, ContractBroken) else "crash", run.reason)

    @property
    def graphs(self) -> int:
        """How many captured graphs were seen."""
        return len(self._numbering.met)

    def summary(self) -> str:
        """What was checked, what it cost, and what could not be checked."""
        head = (
            f"{self.ran} passes ran, {self.checked} of them changed a graph and were checked, in {self.seconds:.2f} s"
        )
        return "\n".join([head, *map(str, self.findings), *(f"not checked in full: {note}" for note in self.notes)])

    def _check(self, run: PassRun, before: GraphModule) -> None:
        checks: dict[str, Callable[[], None]] = {
            "structure": lambda: check_sound(run.module.graph, run.before),
            "legality": lambda: check_stage(run.module.graph, run.before, run.step.stage),
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
        except Exception as error:  # a fault of the check, for which no pass is blamed
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
                comparison = _Comparison(before, run, inputs)
                compared += comparison.holds()
                problem = problem or comparison.problem
        except CannotRun as cannot:
            reason = str(cannot)
        except _Unsteady as unsteady:
            reason = str(unsteady)
        if not compared and not reason:
            reason = f"the graph before it fails on every input that was tried ({problem})"
        if reason:
            self.notes[
                f"{run.address}: it was not executed{' on all inputs' if compared else ''}, because {reason}"
            ] = None


class _Unsteady(Exception):
    """A graph that gives another result each time."""


def _differ(a: Observation, b: Observation) -> bool:
    return any(unlike_bits(x, y) for (_, x), (_, y) in zip(a.facts(), b.facts(), strict=True))


@dataclass
class _Comparison:
    """The graph before a pass and the one after it, run on the same inputs."""

    before: GraphModule
    run: PassRun
    inputs: Sequence[Any]
    problem: str = ""
    """Why the graph before the pass cannot run on the inputs; made-up ones need not suit the program."""

    def holds(self) -> bool:
        """Raises where the graphs differ by more than the pass may make them; False where the first one cannot run."""
        try:
            expected = self._observe(self.before)
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}".split("\n")[0]
            return False
        try:
            got = self._observe(self.run.module)
        except Exception as error:
            raise ContractBroken(f"the graph before it runs, the graph after it raises {error!r}") from error
        unlike = self._first_unlike(expected, got)
        if not unlike:
            return True
        if _differ(expected, self._observe(self.before)):
            raise _Unsteady("the graph before it gives another result each time")
        raise ContractBroken(f"{unlike}{self._first_node()}")

    @property
    def _is_exact(self) -> bool:
        return self.run.step.load().contract.numerics != "reassociates"

    def _observe(self, module: GraphModule, *, wide: bool = False, keep: bool = False) -> Observation:
        captured = self.run.step.stage == "pre_grad"
        manner = Manner(captured, captured and not self.run.context.is_inference)
        return observe(module, self.inputs, manner, wide=wide, keep=keep)

    def _first_unlike(self, expected: Observation, got: Observation) -> str:
        old, new = dict(expected.facts()), dict(got.facts())
        missing = next((name for name in [*old, *new] if name not in old or name not in new), None)
        if missing is not None:
            return f"only one of the graphs has {missing}"
        for name in old:
            if unlike_bits(old[name], new[name]):
                unlike = self._unlike(old[name], new[name], self._truth.get(name))
                if unlike:
                    return f"{name} differs: {unlike}"
        return ""

    def _unlike(self, a: Any, b: Any, truth: Any = None) -> str:
        return unlike_bits(a, b) if self._is_exact else unlike_rounding(a, b, truth)

    @cached_property
    def _truth(self) -> dict[str, Any]:
        """What a run in float64 gives, where roundings may differ and the graph can be run so."""
        if self._is_exact:
            return {}
        try:
            return dict(self._observe(self.before, wide=True).facts())
        except Exception:
            return {}

    def _first_node(self) -> str:
        """The first node whose value differs from what it was, or from that of the node that it replaced."""
        old, new = (self._observe(m, keep=True).values for m in (self.before, self.run.module))
        replaced = {
            event.detail.removeprefix("by "): event.node
            for match in self.run.matches
            for event in match.events
            if event.kind == "replaced"
        }
        for node in self.run.module.graph.nodes:
            was = node.name if node.name in old else replaced.get(node.name)
            if was in old and node.name in new and self._unlike(old[was], new[node.name]):
                line = source_line(node)
                return f"; the first node that differs is {node.name}" + (f" ({line})" if line else "")
        return ""
