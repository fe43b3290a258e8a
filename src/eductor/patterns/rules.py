"""Rules: a pattern, a condition and an action. A set of rules finds and applies all its matches."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch
from torch.fx import Node

from eductor.compat import FakeTensorMode
from eductor.errors import BadGraph, BadPattern
from eductor.graph import GraphView, No, Provenance, Rewriter, provenance_of, requires_grad, value_of
from eductor.graph.values.meta import fake_mode_of, metadata_key
from eductor.patterns.compile.forms import PatternForm
from eductor.patterns.compile.index import Candidate, Index, Part, Variant
from eductor.patterns.language.pattern import Const, Pattern, Tolerance, Var, walk
from eductor.patterns.match.match import Match, Surroundings, is_true, refusal
from eductor.patterns.match.node_readings import Readings
from eductor.patterns.replace.paste import Piece, paste
from eductor.patterns.replace.placement import may_be_done_at_its_end
from eductor.patterns.trace.tracing import TANGENT, TRACED, Known, SearchInputs, flattened, graph_like

Check = Callable[..., Any]
"""A condition on a match. It may also take `graph`, `context` and options of its pass, by these names."""
Handler = Callable[..., Any]
"""Edits at a match: takes the match, the graph and the rewriter, and by name what a check may take."""
Asked = Mapping[str, Any]
"""What checks and handlers may take by name."""


class Source(Protocol):
    """Where the pattern of a rule comes from, in all its spellings."""

    def variants(self) -> Sequence[Variant]: ...


@dataclass(frozen=True, eq=False)
class Said:
    """A pattern that is written down as an expression."""

    pattern: Pattern
    required: frozenset[Any] = frozenset()

    def variants(self) -> Sequence[Variant]:
        return (self,)


@dataclass(eq=False)
class Rule:
    """What to look for, under which condition, and what to do: an action that edits, or says why it does not."""

    name: str
    source: Source
    action: Action
    check: Check | None = None
    tolerated: frozenset[Tolerance] = frozenset()
    version: str = ""
    packages: frozenset[str] = frozenset()
    """Those that its functions come with."""

    @functools.cached_property
    def parts(self) -> tuple[Part, ...]:
        return tuple(Part(variant, self.tolerated) for variant in self.source.variants())

    @property
    def forms(self) -> tuple[PatternForm, ...]:
        """All forms of all spellings."""
        return tuple(form for part in self.parts for form in part.forms)

    @property
    def problem(self) -> str:
        """Why a spelling of it is left out; empty where none is, or none was asked for yet."""
        return next((f"the rule {self.name} is left out: {p.problem}" for p in self.parts if p.problem), "")

    def holds(self, match: Match, asked: Asked) -> Literal[True] | No:
        """Whether the condition holds. Unknown sizes count as no."""
        if self.check is None:
            return True
        try:
            answer = self.check(match, **wanted(self.check, asked))
        except Exception as error:
            raise BadPattern(f"the check of the rule {self.name} raises {type(error).__name__}: {error}") from error
        return True if is_true(answer) else refusal(answer, f"the check of {self.name} does not hold")


class Action(Protocol):
    """Edits the graph at a match, or says why not."""

    def __call__(self, match: Match, view: GraphView, rewrite: Rewriter, asked: Asked) -> Literal[True] | No: ...


@dataclass(frozen=True, eq=False)
class Handled:
    """A handler of the author's, which edits through the rewriter; what it refuses, it rejects there."""

    fn: Handler

    def __call__(self, match: Match, view: GraphView, rewrite: Rewriter, asked: Asked) -> Literal[True] | No:
        may = may_be_done_at_its_end(match, view.effects)
        if may:
            self.fn(match, view, rewrite, **wanted(self.fn, asked))
        return may


@dataclass(frozen=True, eq=False)
class Replaced:
    """A function whose graph takes the place of the match; its parameters are names of the pattern."""

    fn: Callable[..., Any]
    names: tuple[str, ...]
    inputs: SearchInputs | None = None

    def __call__(self, match: Match, view: GraphView, rewrite: Rewriter, asked: Asked) -> Literal[True] | No:
        mode = fake_mode_of(view.graph) or FakeTensorMode()
        given = [match[name] for name in self.names]
        later = self._tangents(match)
        values = [_value(x) for x in given]
        try:
            module = self._remembered(view, values, [value_of(t) for t in later], mode)
        except BadPattern:
            raise
        except Exception as error:
            return No(
                f"the replacement cannot be traced here: {type(error).__name__}: {error}".split("\n")[0], match.output
            )
        pairs = zip(flattened(_lists(given)), flattened(values), strict=True)
        inputs = [x for x, v in pairs if isinstance(v, TRACED)]
        return paste(view, rewrite, match, Piece(module, [*inputs, *later]))

    def _tangents(self, match: Match) -> list[Any]:
        """What the backward is given, in the order of the results."""
        if self.inputs is None or not self.inputs.is_joint:
            return []
        numbers = [int(name.removeprefix(TANGENT)) for name in match.bindings if name.startswith(TANGENT)]
        return [match[f"{TANGENT}{i}"] for i in sorted(numbers)]

    def _remembered(self, view: GraphView, values: list[Any], tangents: list[Any], mode: FakeTensorMode) -> Any:
        """Models repeat themselves: values of the same form are traced once."""
        given = list(flattened([*values, *tangents]))
        tensors = [v for v in given if isinstance(v, torch.Tensor)]
        sizes = [size for t in tensors for size in (*t.shape, *t.stride(), t.storage_offset())]
        if any(isinstance(x, (torch.SymInt, torch.SymFloat, Known)) for x in (*given, *sizes)):
            return self._graph(view, values, tangents, mode)
        same = tuple(next(i for i, other in enumerate(tensors) if other is t) for t in tensors)
        key = (self, metadata_key(values), metadata_key(tangents), same, tuple(map(requires_grad, tensors)))
        if key not in view.memo:
            view.memo[key] = self._graph(view, values, tangents, mode)
        return view.memo[key]

    def _graph(self, view: GraphView, values: list[Any], tangents: list[Any], mode: FakeTensorMode) -> Any:
        gradients = self.inputs.gradients if self.inputs is not None else (False,) * len(values)
        return graph_like(view.module, self.fn, values, gradients, mode, tangents)


def wanted(fn: Callable[..., Any], asked: Asked) -> dict[str, Any]:
    """What a function takes of what it may take by name."""
    return {name: asked[name] for name in _keywords(fn) if name in asked}


@functools.lru_cache(maxsize=1 << 10)
def _keywords(fn: Callable[..., Any]) -> tuple[str, ...]:
    try:
        found = inspect.signature(fn).parameters.values()
    except ValueError:  # a builtin, which does not say
        return ()
    return tuple(p.name for p in found if p.kind is p.KEYWORD_ONLY)


def _lists(given: Any) -> Any:
    return [_lists(x) for x in given] if isinstance(given, (list, tuple)) else given


def _value(given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [_value(x) for x in given]
    if isinstance(given, (torch.SymInt, torch.SymFloat)):
        return Known(given)
    return value_of(given) if isinstance(given, Node) else given


def parameters_of(replacement: Callable[..., Any], known: Sequence[str], *, in_order: bool) -> tuple[str, ...]:
    """Which names of a pattern a replacement takes, in the order of its parameters; `in_order` allows other names."""
    wanted = tuple(inspect.signature(replacement).parameters)
    missing = [name for name in wanted if name not in known]
    if not missing:
        return wanted
    if in_order and len(wanted) == len(known):
        return tuple(known)
    raise BadPattern(
        f"the replacement {getattr(replacement, '__name__', '')} takes {', '.join(wanted) or 'nothing'}; the pattern has "
        f"{', '.join(known) or 'no names'}. Give it parameters that the pattern has."
    )


def of_all(fn: Callable[..., Any], taken: Sequence[str], names: Sequence[str]) -> Callable[..., Any]:
    """A replacement as a function of all inputs of its search function, in their order: so are its gradients."""
    places = [names.index(name) for name in taken]
    return fn if places == list(range(len(names))) else lambda *given: fn(*(given[i] for i in places))


def names_in(pattern: Any) -> tuple[str, ...]:
    """The names that a pattern gives, in the order in which they are written."""
    return tuple(dict.fromkeys(p.name for p in walk(pattern) if isinstance(p, (Var, Const))))


@dataclass(eq=False)
class Rules:
    """Rules in their order: where several match, the first has its way."""

    rules: list[Rule] = field(default_factory=list)
    _index: Index | None = None

    def add(self, rule: Rule, *, first: bool = False) -> None:
        self.rules.insert(0 if first else len(self.rules), rule)
        self._index = None

    @property
    def index(self) -> Index:
        if self._index is None:
            self._index = Index([rule.parts for rule in self.rules])
        return self._index

    def apply(self, view: GraphView, rewrite: Rewriter, asked: Asked = MappingProxyType({})) -> int:
        """Applies the rules until none applies any more; how often one did. `asked`: what their functions take by name."""
        made = 0
        asked = {"graph": view, **asked}
        before, limit = len(rewrite.rejects), len(view.graph.nodes) + 100
        readings = Readings(view.bind)
        while (now := self._sweep(view, rewrite, readings, asked)) > 0:
            made += now
            if made > limit:
                raise BadGraph("the rules do not settle: they keep on creating what they look for")
            del rewrite.rejects[before:]  # the next sweep says again what still holds
        return made

    def _sweep(self, view: GraphView, rewrite: Rewriter, readings: Readings, asked: Asked) -> int:
        made = 0
        candidates = self.index.candidates(view, readings)
        around: list[Surroundings | None] = []  # as they were before the first edit
        for rule in self.rules:
            if rule.problem:
                rewrite.reject(rule.problem)
        for i, candidate in enumerate(candidates):
            found = self._still(view, readings, candidate, around[i]) if made else candidate.found
            if found is None:
                continue
            if not rewrite.open(candidate.anchor):
                return 0
            rule = self.rules[candidate.rule]
            try:
                with rewrite.rule(rule.name):
                    match = _wanted_match(rule, found, rewrite, asked)
                    if match is not None:
                        around = around or [
                            Surroundings.of(c.found) if isinstance(c.found, Match) else None for c in candidates
                        ]
                        made += _acted(rule, match, view, rewrite, asked)
            except BaseException:
                rewrite.leave()
                raise
            rewrite.close()
        return made

    def _still(
        self, view: GraphView, readings: Readings, candidate: Candidate, seen: Surroundings | None
    ) -> Match | No | None:
        """What a candidate is after earlier edits."""
        if candidate.anchor not in view:
            return None
        if seen is not None and seen.are_the_same():
            return candidate.found
        return self.index.again(candidate, readings)


def _wanted_match(rule: Rule, found: Match | No, rewrite: Rewriter, asked: Asked) -> Match | None:
    """A match that the rule has not made itself, and for which its condition holds."""
    if isinstance(found, No):
        rewrite.reject(found)
        return None
    if _made_by_itself(found, rewrite, rule):
        return None
    holds = rule.holds(found, asked)
    if not holds:
        rewrite.reject(holds, *found.nodes)
        return None
    return found


def _acted(rule: Rule, match: Match, view: GraphView, rewrite: Rewriter, asked: Asked) -> bool:
    """Does what the rule says with a match; whether that changed anything."""
    before = rewrite.edits
    done = rule.action(match, view, rewrite, asked)
    if not done:
        rewrite.reject(done)
    return rewrite.edits > before


def _made_by_itself(match: Match, rewrite: Rewriter, rule: Rule) -> bool:
    """Whether all of a match goes back to one match of the same rule: a replacement may contain what it replaces."""
    made = f"{rewrite.address}:{rule.name}@"
    common = [{a for a in _lineage(provenance_of(node)) if a.startswith(made)} for node in match.nodes]
    return bool(set.intersection(*common))


def _lineage(provenance: Provenance | None) -> Iterator[str]:
    """The addresses of the matches that a node goes back to."""
    pending = [provenance] if provenance is not None else []
    while pending:
        at = pending.pop()
        yield at.address
        pending.extend(at.origins)
