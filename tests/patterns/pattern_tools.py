"""What the tests of patterns share: a pass of one rule, run over a program and checked, and matches without a pass."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from eductor.graph import GraphView, capture
from eductor.observe.manual.manual import run_pass
from eductor.patterns import Match, pattern_pass
from eductor.patterns.compile.index import Index, possible
from eductor.patterns.compile.program import compiled
from eductor.patterns.language.pattern import Pattern, tolerances
from eductor.patterns.match.match import completed
from eductor.patterns.match.node_readings import Readings
from eductor.patterns.rules import Handled, Rule, Said
from eductor.verification.verifier import Verifier

aten = torch.ops.aten


def passing(stage="joint", numerics="exact"):
    """An empty pass of patterns."""

    @pattern_pass(stage=stage, numerics=numerics)
    def made():
        """Replaces what its rules say."""

    return made


def one_rule(search, replacement, *, stage="joint", tolerate=(), **declared):
    """A pass with one rule, called `rule`."""
    rounds = set([tolerate] if isinstance(tolerate, str) else tolerate) - {"rank"}
    made = passing(stage, "reassociates" if rounds else "exact")
    made.replace(search, replacement, name="rule", tolerate=tolerate, **declared)
    return made


def graph_of(program, given, stage="joint", dynamic=False):
    if isinstance(program, GraphModule):
        return program
    return capture(program, given, "torch" if stage == "pre_grad" else "aten", dynamic=dynamic)


def replaced(search, replacement, program, given, *, stage="joint", dynamic=False, again=True, **declared):
    """Runs a pass of one rule, verified; what it changes once it does not change again."""
    made = one_rule(search, replacement, stage=stage, **declared)
    module = graph_of(program, given, stage, dynamic)
    verifier = Verifier(given)
    run = run_pass(made, stage, module, verifier)
    assert not verifier.findings
    assert not [n for n in verifier.notes if "not executed" in n], verifier.notes
    if again:
        assert not run_pass(made, stage, module).record.changed
    return run


def changed(run):
    assert run.record.changed, (reasons(run), run.before)
    return run.module


def refused(run, because):
    assert not run.record.changed, run.after
    assert any(because in reason for reason in reasons(run)), (because, reasons(run))


def untouched(run):
    """Neither changed nor looked at closely: the steps of the pattern do not fit."""
    assert not run.record.changed, run.after


def reasons(run):
    return [r.reason for r in run.record.rejects]


def targets(module):
    return [n.target for n in module.graph.nodes if n.op in ("call_function", "call_method", "call_module")]


def count(module, *packets):
    """How many calls of these operators a graph has, in any overload."""
    found = [getattr(t, "overloadpacket", t) for t in targets(module)]
    return sum(t in packets for t in found)


def rule_of(pattern: Pattern, tolerate=()):
    return Rule("rule", Said(pattern), Handled(lambda *_: None), tolerated=tolerances(tolerate))


def matches(pattern, module, tolerate=()):
    """All matches of a pattern in a graph."""
    found = Index([rule_of(pattern, tolerate).parts]).candidates(GraphView(module))
    return [c.found for c in found if isinstance(c.found, Match)]


def misses(pattern, module, tolerate=()):
    """The reasons of what was found, but for something that concerns it as a whole."""
    found = Index([rule_of(pattern, tolerate).parts]).candidates(GraphView(module))
    return [c.found.reason for c in found if not isinstance(c.found, Match)]


def facts(match):
    """What a match says, as a value: nodes by name, so that two searches of one graph can be compared."""
    shown = {name: str(value) for name, value in match.bindings.items()}
    outputs = tuple(o.name if o is not None else None for o in match.outputs)
    return (tuple(n.name for n in match.nodes), outputs, tuple(sorted(shown.items())))


def by_anchor(pattern, module, tolerate=()):
    """The matches of each form of a pattern, once for each call that the search can start at."""
    view = GraphView(module)
    for form in rule_of(pattern, tolerate).forms:
        yield [_from(form, call, view) for call in form.calls]


def _from(form, call, view):
    program, readings, found = compiled(form, call), Readings(), set()
    for node in possible(view, call, form.tolerated):
        for start in program.starts(readings, node):
            for slots in program.solutions(readings, start):
                match = completed(program, slots, readings, node)
                if isinstance(match, Match):
                    found.add(facts(match))
    return found
