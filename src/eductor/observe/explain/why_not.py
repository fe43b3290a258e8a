"""`eductor why-not`: for each graph that reaches a pass, what its rules matched, or why they did not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import Graph

from eductor.errors import UnknownName
from eductor.graph.matches import Rejection
from eductor.graph.provenance import source_line
from eductor.graph.snapshot import subgraphs
from eductor.observe.explain.explain import Explanation
from eductor.observe.report.tables import rules_of
from eductor.observe.scripts.interception import CompiledFunction
from eductor.observe.table import described, indent
from eductor.options import Options
from eductor.patterns.explain.why_not import WhyNot, why_not
from eductor.patterns.pattern_pass import PatternPass
from eductor.pipeline import Instrument, Pass, PassRecord, PassRun, Pipeline, Registry
from eductor.pipeline.steps import Step


@dataclass(frozen=True, slots=True)
class RefusedCandidate:
    """A candidate that a rule refused, the reason, and its line in the user's program."""

    reject: Rejection
    source: str


@dataclass(frozen=True, slots=True)
class RuleAnswer:
    """What one rule, or a pass without rules, did on one graph; `nearest` if it found no candidate."""

    name: str
    matches: int
    left: Sequence[RefusedCandidate]
    nearest: WhyNot | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it neither matched nor refused anything."""
        return not self.matches and not self.left and self.nearest is None


@dataclass(frozen=True, slots=True)
class PassAnswer:
    """What a pass did on one graph; `reason` is why it did not run, or failed."""

    address: str
    graph: int
    role: str
    status: str
    reason: str
    rules: Sequence[RuleAnswer]

    @property
    def place(self) -> str:
        return f"{self.address} in graph {self.graph} ({self.role})"


@dataclass
class Inquiry:
    """Observes a program's compiles, and answers why one pass, or one rule of it, did not match."""

    asked: str
    """`pass`, `stage/pass` or `pass:rule`."""
    explanation: Explanation = field(default_factory=Explanation)
    answers: list[PassAnswer] = field(default_factory=list)
    _options: list[Options] = field(default_factory=list)

    @property
    def pass_name(self) -> str:
        return self.asked.partition("@")[0].partition(":")[0]

    @property
    def rule_name(self) -> str:
        return self.asked.partition("@")[0].partition(":")[2]

    def compile(self, found: CompiledFunction, *others: Instrument) -> Any:
        """Compiles a function while this and other instruments observe."""
        self._options.append(found.options)
        return self.explanation.compile(found, _WhyNotObserver(self), *others)

    def finished(self) -> None:
        """Raises UnknownName if there is no such pass or rule."""
        steps = self._known()
        called = [step for step in steps if step.is_called(self.pass_name) and not step.is_slot]
        if not called:
            raise UnknownName("pass", self.pass_name, [step.name for step in steps if not step.is_slot])
        rules = {name: None for step in called for name in rules_of(step.load())}
        addresses = {step.address for step in called}
        for record in self.explanation.recorder.records:
            if record.address in addresses:
                rules |= dict.fromkeys(rule for rule in _rules_used(record) if rule)
        if self.rule_name and self.rule_name not in rules:
            raise UnknownName(f"rule of {self.pass_name}", self.rule_name, rules)

    def why_it_did_not_run(self) -> str:
        """Why no graph reached the pass."""
        step = next(s for s in self._known() if s.is_called(self.pass_name) and not s.is_slot)
        if any(step.is_called(name) for options in self._options for name in options.disable):
            return f"{step.address} did not run: the option `disable` disables it"
        if any(options.pipeline is not None for options in self._options):
            return f"{step.address} did not run: the option `pipeline` does not name it"
        if not step.load().on:
            return f'{step.address} did not run: it is off by default; options={{"enable": "{step.name}"}} enables it'
        return f"{step.address} did not run: no graph reached the stage {step.stage}"

    def _known(self) -> list[Step]:
        """All registered passes, and the program's own."""
        pipelines = [Pipeline.of(replace(options, disable=())) for options in self._options]
        return [*Registry.default().steps(), *(step for pipeline in pipelines for step in pipeline.steps)]

    def __str__(self) -> str:
        if not self.answers:
            return self.why_it_did_not_run()
        return "\n\n".join("\n".join(_pass_lines(answer)) for answer in self.answers)

    def to_json(self) -> dict[str, Any]:
        """The answers as plain data."""
        return {
            "asked": self.asked,
            "not_run": "" if self.answers else self.why_it_did_not_run(),
            "graphs": [_as_data(answer) for answer in self.answers],
        }


def _rules_used(run: PassRun | PassRecord) -> list[str]:
    """The rules named in a pass's matches and rejects."""
    return [*(match.rule for match in run.matches), *(reject.rule for reject in run.rejects)]


@dataclass
class _WhyNotObserver(Instrument):
    """Records a pass's answers; it must follow the recorder, whose numbers it uses."""

    inquiry: Inquiry

    def after_pass(self, run: PassRun) -> None:
        self._answer(run)

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        answers = self.inquiry.answers
        if answers and run.step.is_called(self.inquiry.pass_name) and self._is_last(answers[-1], run):
            answers.pop()
        self._answer(run)

    def skipped_pass(self, run: PassRun) -> None:
        self._answer(run)

    def _is_last(self, answer: PassAnswer, run: PassRun) -> bool:
        """Whether an answer is of this run, given before the pass was found to break its contract."""
        record = self.inquiry.explanation.recorder.records[-1]
        return (answer.address, answer.graph, answer.role) == (run.address, record.graph, record.role)

    def _answer(self, run: PassRun) -> None:
        if not run.step.is_called(self.inquiry.pass_name):
            return
        record = self.inquiry.explanation.recorder.records[-1]
        rules = _rules(run, self.inquiry.rule_name) if run.status in ("changed", "unchanged") else iter(())
        self.inquiry.answers.append(
            PassAnswer(run.address, record.graph, record.role, run.status, run.reason, tuple(rules))
        )


def _rules(run: PassRun, wanted: str) -> Iterator[RuleAnswer]:
    pass_ = run.step.load()
    before = run.before.graph()
    before.owning_module = run.module
    lines = _lines(before)
    for name in rules_of(pass_) or dict.fromkeys(_rules_used(run)) or [""]:
        if wanted in ("", name):
            matches = sum(match.rule == name for match in run.matches)
            left = tuple(_left(reject, lines) for reject in run.rejects if reject.rule == name)
            nearest = None if matches or left else _nearest(pass_, name, before)
            yield RuleAnswer(name or pass_.name, matches, left, nearest)


def _lines(graph: Graph, path: str = "") -> dict[str, str]:
    """The source lines of nodes, by the names that passes use for them."""
    found = {f"{path}{node.name}": source_line(node) for node in graph.nodes}
    for name, body in subgraphs(graph).items():
        found |= _lines(body.graph, f"{path}{name}.")
    return found


def _nearest(pass_: Pass, name: str, graph: Graph) -> WhyNot | None:
    rules = pass_.rules.rules if isinstance(pass_, PatternPass) else ()
    return next((why_not(rule, graph) for rule in rules if rule.name == name), None)


def _left(reject: Rejection, lines: dict[str, str]) -> RefusedCandidate:
    return RefusedCandidate(reject, next((lines[name] for name in reversed(reject.nodes) if lines.get(name)), ""))


def _pass_lines(answer: PassAnswer) -> Iterator[str]:
    yield f"{answer.place}: {answer.status}" + (f", {answer.reason}" if answer.reason else "")
    silent = [rule.name for rule in answer.rules if rule.is_silent]
    for rule in answer.rules:
        if not rule.is_silent:
            yield from _rule_lines(rule)
    if silent:
        yield f"  found no candidates: {', '.join(silent)}"


def _rule_lines(rule: RuleAnswer) -> Iterator[str]:
    if rule.nearest is not None:
        idle = "" if rule.nearest.miss is not None else ", but the rule did not apply"
        yield indent(f"{rule.nearest}{idle}")
        return
    times = "once" if rule.matches == 1 else f"{rule.matches} times"
    yield f"  {rule.name} matched {times}" if rule.matches else f"  {rule.name} did not match"
    for left in rule.left:
        yield f"    left alone: {described(left.reject)}"
        if left.source:
            yield f"      at {left.source}"


def _as_data(answer: PassAnswer) -> dict[str, Any]:
    return {
        "address": answer.address,
        "graph": answer.graph,
        "role": answer.role,
        "status": answer.status,
        "reason": answer.reason,
        "rules": [_rule_data(rule) for rule in answer.rules],
    }


def _rule_data(rule: RuleAnswer) -> dict[str, Any]:
    left = [{"reason": x.reject.reason, "nodes": list(x.reject.nodes), "source": x.source} for x in rule.left]
    return {"rule": rule.name, "matches": rule.matches, "left_alone": left, "nearest": _nearest_data(rule.nearest)}


def _nearest_data(nearest: WhyNot | None) -> dict[str, Any] | None:
    miss = nearest.miss if nearest is not None else None
    if nearest is None or miss is None:
        return None
    return {
        "found": nearest.found,
        "calls": nearest.calls,
        "pattern": miss.pattern,
        "node": miss.node.name if miss.node is not None else None,
        "reason": miss.reason,
        "source": miss.source,
        "also": [str(missed) for missed in nearest.also],
        "lacking": list(nearest.lacking),
    }
