"""Passes that are made of patterns: `stage/pass:rule@match`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from eductor.errors import BadPass, BadPattern, warn
from eductor.graph import GraphView, Rewriter, type_of
from eductor.graph.matches import Rejection
from eductor.patterns.compile.program import compiled
from eductor.patterns.language.pattern import ROUNDING, Pattern, Tolerance, listing, tolerances, walk
from eductor.patterns.replace.replacement_check import check_rule
from eductor.patterns.rules import (
    Check,
    Handled,
    Handler,
    Replaced,
    Rule,
    Rules,
    Said,
    Source,
    names_in,
    of_all,
    parameters_of,
)
from eductor.patterns.trace.search_function import Traced
from eductor.patterns.trace.tracing import search_inputs
from eductor.pipeline.base import Context, Contract, Numerics, Pass, Stage, is_name, words
from eductor.pipeline.rule_pass import RulePass
from eductor.pipeline.versions import added_by_others, digest, packages_of, source_hash, spelled

DEBUG = "EDUCTOR_DEBUG"
"""The environment variable that has each rule tested where it is declared."""


class PatternPass(Pass):
    """A pass made of pattern rules; where several match, the one that was declared first has its way."""

    def __init__(self, fn: Callable[..., Any], **declared: Any) -> None:
        super().__init__(fn, **declared)
        self.rules = Rules()
        self.calls: RulePass | None = None
        """What a pattern cannot say: functions that are tried on each call of some operators."""
        self._checked: set[Rule] = set()
        self._warned: set[str] = set()

    def _check_function(self) -> None:
        parameters = inspect.signature(self.fn).parameters.values()
        if any(p.kind is not p.KEYWORD_ONLY or p.default is p.empty for p in parameters):
            raise BadPass(
                f"pass {self.name!r}: its patterns do the work, so the parameters of its own function are its options: "
                "keyword-only, each with a default."
            )

    @property
    def version(self) -> str:
        rules = (*self.rules.rules, *(self.calls.rules if self.calls is not None else ()))
        return digest(self._version or self._source, *(f"{r.name} {r.version}" for r in rules))

    @property
    def unversioned(self) -> str:
        added = [(rule.name, rule.packages) for rule in self.rules.rules]
        return (
            super().unversioned
            or (self.calls.unversioned if self.calls is not None else "")
            or added_by_others(self.fn, added)
        )

    def enters_bodies(self, stage: Stage) -> bool:
        return True

    def run(self, view: GraphView, rewriter: Rewriter, context: Context) -> None:
        if context.options.debug:
            self.check_rules()
        refused = _refusals(rewriter, lambda: self.rules.apply(view, rewriter, self.asked(context)))
        if self.calls is not None:
            refused = self._settle(self.calls, view, rewriter, context, refused)
        rewriter.rejects += refused
        problem = next((rule.problem for rule in self.rules.rules if rule.problem), None)
        if problem is not None and context.options.strict:
            raise BadPattern(problem)
        if problem is not None and problem not in self._warned:
            self._warned.add(problem)
            warn(f"the pass {context.stage}/{self.name}: {problem}")

    def _settle(
        self, calls: RulePass, view: GraphView, rewriter: Rewriter, context: Context, refused: list[Rejection]
    ) -> list[Rejection]:
        """Applies functions of calls and patterns in turns until neither changes anything; what both refuse then."""
        left: list[Rejection] = []
        settled = -1
        while rewriter.edits != settled:
            edits = rewriter.edits
            left = _refusals(rewriter, lambda: calls.run(view, rewriter, context))
            settled = rewriter.edits
            if settled != edits:
                refused = _refusals(rewriter, lambda: self.rules.apply(view, rewriter, self.asked(context)))
        return [*refused, *left]

    def asked(self, context: Context) -> dict[str, Any]:
        """What checks and handlers may take by name, besides the graph: the context, and the options of the pass."""
        defaults = {name: p.default for name, p in self.parameters.items()}
        return {"context": context, **defaults, **self.options}

    def check_rules(self) -> None:
        """Runs each replacement against its search function, once; one that computes something else is an error."""
        for rule in self.rules.rules:
            if rule not in self._checked:
                check_rule(rule, self.contract.numerics, f"{self.stages[0]}/{self.name}", "pre_grad" in self.stages)
                self._checked.add(rule)

    def replace(
        self,
        search: Pattern | Callable[..., Any],
        replacement: Callable[..., Any],
        *,
        inputs: Sequence[Any] = (),
        check: Check | None = None,
        tolerate: str | Sequence[str] = (),
        joint: bool = False,
        name: str | None = None,
        stored: str | None = None,
    ) -> Rule:
        """Declares a rule: what `search` finds, an expression or a function, gives way to what `replacement` computes.

        `inputs` are examples for a function: f32(2, 3), tensors, numbers. Its numbers are free. With `joint`, the
        function's forward and backward are looked for together. `check` is asked about each match; a string is a
        reason why not. What to overlook is declared by `tolerate`. `stored` names the precompiled form of the pattern.
        """
        allowed = tolerances(tolerate)
        if allowed & ROUNDING and self.contract.numerics == "exact":
            raise BadPattern(
                f"pass {self.name!r} is exact, and tolerating {', '.join(sorted(allowed & ROUNDING))} changes roundings: declare it "
                "numerics='reassociates'."
            )
        source: Source
        if isinstance(search, Pattern):
            source, text, asked = Said(search), listing(search), _conditions(search)
            action = Replaced(replacement, parameters_of(replacement, names_in(search), in_order=False))
        else:
            given = search_inputs(search, inputs, joint=joint, any_kind="kinds" in allowed)
            dialect = "torch" if self.stages == ("pre_grad",) else "aten"
            source = Traced(search, given, dialect, stored, any_rank="rank" in allowed)
            text, asked = source_hash(search) + spelled((joint, _forms(given.examples))), [search]
            taken = parameters_of(replacement, given.names, in_order=True)
            action = Replaced(of_all(replacement, taken, given.names), given.names, given)
        version = _version(text, replacement, check, allowed)
        called = name or str(getattr(replacement, "__name__", ""))
        return self._add(Rule(called, source, action, check, allowed, version, packages_of(*asked, replacement, check)))

    def rule(
        self,
        pattern: Pattern,
        *,
        check: Check | None = None,
        tolerate: str | Sequence[str] = (),
        name: str | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declares a handler: a function of the match, the graph and the rewriter, called for each match."""

        def declare(fn: Handler) -> Handler:
            allowed = tolerances(tolerate)
            version = _version(listing(pattern), fn, check, allowed)
            packages = packages_of(*_conditions(pattern), fn, check)
            self._add(Rule(name or fn.__name__, Said(pattern), Handled(fn), check, allowed, version, packages))
            return fn

        return declare

    def call(self, *operators: Any, name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares a rule for what is no pattern: a function of the graph, the rewriter and a call of the operators.

        It may take `context`, too.
        """
        if self.calls is None:
            self.calls = RulePass(self.fn, name=self.name, stages=self.stages, contract=self.contract)
        return self.calls.rule(*operators, name=name)

    def _add(self, rule: Rule) -> Rule:
        if not is_name(rule.name):
            raise BadPass(
                f"pass {self.name!r}: a rule needs a name that is an identifier, not {rule.name!r}: give `name=`."
            )
        if any(r.name == rule.name for r in self.rules.rules):
            raise BadPass(f"pass {self.name!r} has two rules called {rule.name!r}: give one of them another `name=`.")
        if isinstance(rule.source, Said):
            for form in rule.forms:  # what is wrong with an expression is said where it is declared
                compiled(form, form.calls[0])
        self.rules.add(rule)
        if os.environ.get(DEBUG):
            self.check_rules()
        return rule


def _refusals(rewriter: Rewriter, run: Callable[[], object]) -> list[Rejection]:
    """What is refused meanwhile, taken off the record: only what is refused in the end counts."""
    before = len(rewriter.rejects)
    run()
    found = rewriter.rejects[before:]
    del rewriter.rejects[before:]
    return found


def _version(pattern: str, fn: Any, check: Any, allowed: frozenset[Tolerance]) -> str:
    return digest(pattern, source_hash(fn), source_hash(check) if check is not None else "", *sorted(allowed))


def _conditions(pattern: Pattern) -> list[Any]:
    """What the variables of an expression ask."""
    return [getattr(part, "where", None) for part in walk(pattern)]


def _forms(examples: Sequence[Any]) -> list[str]:
    """The examples as far as a trace depends on them."""
    return [type_of(x) if isinstance(x, torch.Tensor) else repr(x) for x in examples]


def pattern_pass(
    *,
    stage: Stage | Iterable[Stage],
    numerics: Numerics,
    devices: str | Iterable[str] = (),
    inference_only: bool = False,
    **declared: Any,
) -> Callable[[Callable[..., Any]], PatternPass]:
    """Makes a pass of patterns; the decorated function only names and documents it."""
    contract = Contract(numerics, words(devices), inference_only)
    return lambda fn: PatternPass(fn, stages=words(stage), contract=contract, **declared)
