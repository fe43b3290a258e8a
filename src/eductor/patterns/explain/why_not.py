"""Why a pattern does not match: `why_not(pattern, graph)` gives the nearest miss, in words.

print(why_not(op(aten.softmax, op(aten.bmm, var("q"), var("k")), -1), module))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, GraphModule

from eductor.errors import BadPattern
from eductor.graph import GraphView, around
from eductor.graph.snapshot import subgraphs
from eductor.patterns.compile.forms import Call, PatternForm
from eductor.patterns.compile.index import Index, possible
from eductor.patterns.compile.program import anchored
from eductor.patterns.compile.steps import called
from eductor.patterns.explain.nearest_miss import Missed, nearest
from eductor.patterns.language.pattern import Pattern, spelled, tolerances
from eductor.patterns.match.match import Match
from eductor.patterns.match.node_readings import Readings
from eductor.patterns.pattern_pass import PatternPass
from eductor.patterns.rules import Asked, Handled, Rule, Said
from eductor.pipeline.base import Context

LINES = 5
"""So many lines of the graph are shown around a node."""


@dataclass(frozen=True, slots=True)
class WhyNot:
    """How often a pattern matches, or its nearest miss: how far it came, and which node disagreed."""

    name: str
    """The rule, or the pattern itself."""
    matches: int = 0
    refused: tuple[Missed, ...] = ()
    """The matches that the check of a rule refuses, each with its reason."""
    found: int = 0
    calls: int = 0
    """So many calls the pattern has in the form that came nearest; `found` of them the graph has, too."""
    miss: Missed | None = None
    also: tuple[Missed, ...] = ()
    """What else the nearest miss has wrong."""
    lacking: tuple[str, ...] = ()
    """The operators of the pattern that the graph does not call at all."""
    rules: Mapping[str, WhyNot] = field(default_factory=dict)
    """For a pass, the answer of each of its rules."""

    def __str__(self) -> str:
        if self.rules:
            return "\n".join(map(str, self.rules.values()))
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.miss is None:
            refused = f", of which its check refuses {len(self.refused)}" if self.refused else ""
            yield f"{self.name} matches {'once' if self.matches == 1 else f'{self.matches} times'}{refused}"
            for missed in self.refused:
                yield f"  {missed}"
                yield from _place(missed)
            return
        yield f"{self.name} does not match: the nearest miss has {self.found} of its {_calls(self.calls)}"
        yield f"  {self.miss}"
        if self.miss.node is not None:
            yield f"  the pattern here: {self.miss.pattern}"
            yield from _place(self.miss)
            yield from (f"  {line}" for line in around(self.miss.node.graph, self.miss.node, LINES).splitlines())
        yield from (f"  also, {missed}" for missed in self.also)
        if self.lacking and self.miss.node is not None:
            yield f"  {_lacks(self.lacking)}"


def why_not(
    pattern: Pattern | Rule | PatternPass,
    graph: GraphModule | Graph | GraphView,
    *,
    tolerate: str | Sequence[str] = (),
    context: Context | None = None,
) -> WhyNot:
    """Why a pattern, a rule, or each rule of a pass does not match; that it does, where it does. Print the result.

    `tolerate` is for an expression; a rule declares its own. `context` is for the checks of rules, by default that of the
    default options. The graph does not change. Bodies of higher-order operators are searched as well.
    """
    if not isinstance(graph, (GraphModule, Graph, GraphView)):
        raise BadPattern(f"why_not(..., {graph!r}): give a graph, such as eductor.graph.capture(fn, inputs, 'aten').")
    views = list(_views(graph))
    if isinstance(pattern, PatternPass):
        asked = pattern.asked(context or Context(pattern.stages[0]))
        rules = {rule.name: _why_not(rule, views, asked) for rule in pattern.rules.rules}
        return WhyNot(pattern.name, sum(w.matches for w in rules.values()), rules=rules)
    if isinstance(pattern, Pattern):
        pattern = Rule(spelled(pattern), Said(pattern), Handled(_nothing), tolerated=tolerances(tolerate))
    if not isinstance(pattern, Rule):
        raise BadPattern(f"why_not({pattern!r}, ...): give an expression, a rule, or a pass that is made of patterns.")
    return _why_not(pattern, views, {"context": context or Context("joint")})


def _why_not(rule: Rule, views: Sequence[GraphView], asked: Asked) -> WhyNot:
    index = Index([rule.parts])
    found = [(view, c.found) for view in views for c in index.candidates(view) if isinstance(c.found, Match)]
    if found:
        answers = [(match, rule.holds(match, {**asked, "graph": view})) for view, match in found]
        refused = tuple(Missed(rule.name, match.output, answer.reason) for match, answer in answers if not answer)
        return WhyNot(rule.name, len(found), refused)
    forms = rule.forms
    if not forms:
        reason = rule.problem or f"this torch lacks an operator of the rule {rule.name}"
        return WhyNot(rule.name, 0, (), 0, 0, Missed(rule.name, None, reason))
    near = nearest(forms, views)
    form = near.form if near is not None else forms[0]
    lacking = tuple(_lacking(form, views))
    if near is None or (lacking and 2 * near.found < near.calls):
        shown = ", ".join(spelled(o.said if isinstance(o, Call) else o) for o in form.outputs)
        miss = Missed(shown, None, _lacks(lacking))
        found_of = (near.found, near.calls) if near is not None else (0, len(form.calls))
        return WhyNot(rule.name, 0, (), *found_of, miss, lacking=lacking)
    first, *also = near.failures
    return WhyNot(rule.name, 0, (), near.found, near.calls, first, tuple(also), lacking)


def _lacking(form: PatternForm, views: Sequence[GraphView]) -> dict[str, None]:
    """The operators that no graph calls, in any spelling."""
    readings = Readings()

    def is_called(call: Call) -> bool:
        nodes = (node for view in views for node in possible(view, call, form.tolerated))
        return any(anchored(readings, node, call, form) for node in nodes)

    return dict.fromkeys(called(call.keys, call.overloads) for call in form.calls if not is_called(call))


def _lacks(operators: Sequence[str]) -> str:
    return f"the graph has no {', no '.join(operators)}"


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"


def _place(missed: Missed) -> Iterator[str]:
    if missed.source:
        yield f"  at {missed.source}"


def _nothing(*given: Any) -> None:
    """The handler of an expression that is only searched for."""


class _Loose(GraphView):
    """A view of a graph that belongs to no module, or is a copy."""

    def __init__(self, graph: Graph) -> None:
        owner = graph.owning_module
        super().__init__(owner if isinstance(owner, GraphModule) else GraphModule({}, Graph()))
        self._graph = graph

    @property
    def graph(self) -> Graph:
        return self._graph


def _views(graph: GraphModule | Graph | GraphView) -> Iterator[GraphView]:
    """A graph, and the bodies of its higher-order operators."""
    if isinstance(graph, Graph):
        graph = _Loose(graph)
    view = graph if isinstance(graph, GraphView) else GraphView(graph)
    yield view
    for body in subgraphs(view.graph).values():
        yield from _views(body)
