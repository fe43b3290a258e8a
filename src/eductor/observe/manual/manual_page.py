"""The Markdown page of a pass or a slot in the manual, generated from the pass and from running it."""

from __future__ import annotations

import dataclasses
import inspect
import re

from eductor.observe.manual.manual import nearest_misses, run_example
from eductor.observe.table import as_markdown
from eductor.options import Options
from eductor.patterns.pattern_pass import PatternPass
from eductor.patterns.rules import Rule, Said
from eductor.pipeline import Contract, Example, Pass, Registry, RulePass, Stage, Step
from eductor.pipeline.base import NUMERICS, describe_options

PAYS = "It pays "
"""The start of the docstring paragraph on when a pass pays, which becomes a section of the page."""


def page(registry: Registry, name: str) -> str:
    """The page of a name; if several stages have different passes of that name, their pages in turn."""
    called = [s for s in registry.steps() if s.is_called(name)]
    homes = dict.fromkeys(home_of(registry, step) for step in called)
    return "\n".join(page_of(registry, stage, called[0].name) for stage in homes)


def page_of(registry: Registry, stage: Stage, name: str) -> str:
    """The page of a stage's pass or slot, with all its places, including those in other stages."""
    first = registry.get(stage, name)
    steps = [s for s in registry.steps() if _is_same(s, first)]
    sections = _slot_sections(first) if first.is_slot else _pass_sections(first.load(), steps)
    return "\n\n".join([f"# {name}", *sections, _order_section(registry, steps)]) + "\n"


def home_of(registry: Registry, step: Step) -> Stage:
    """The stage whose folder has the page of a step: the first stage with the same pass."""
    return next(s.stage for s in registry.steps() if _is_same(s, step))


def link(registry: Registry, step: Step) -> str:
    """A link from the page of any step, or from the list of any stage, to the page of a step."""
    return f"[{step.name}](../{home_of(registry, step)}/{step.name}.md)"


def _is_same(a: Step, b: Step) -> bool:
    if a.name != b.name or a.is_slot != b.is_slot:
        return False
    return a.stage == b.stage if a.is_slot else a.load() is b.load()


def _slot_sections(step: Step) -> list[str]:
    given = f"eductor.compile(model, {step.name}=[my_pass])"
    declared = (
        f'@eductor.graph_pass(stage="{step.stage}", numerics="exact", slot="{step.name}")\n'
        "def my_pass(graph, rewrite): ...\n\n\neductor.compile(model, passes=[my_pass])"
    )
    is_option = any(option.name == step.name for option in dataclasses.fields(Options))
    return [
        "A place for your own passes: any number of them, in the order given. Without one, nothing happens here.",
        f"## How to fill it\n\n```python\n{given if is_option else declared}\n```",
        "[Write a pass](../../write_a_pass.md) explains what `my_pass` may be"
        + (": a function of a `torch.fx.Graph` that edits it in place will do." if is_option else "."),
    ]


def _pass_sections(p: Pass, steps: list[Step]) -> list[str]:
    paragraphs = (inspect.getdoc(p.fn) or p.purpose).strip().split("\n\n")
    pays = [text for text in paragraphs if text.startswith(PAYS)]
    sections = {
        "Contract": "\n".join(_contract(p, steps)),
        "Options": _options(p),
        "When it pays": "\n\n".join(pays),
        "Before and after": "\n\n".join(_changed(p, steps[0].stage, e) for e in p.examples),
        "What it refuses": "\n\n".join(_refused(p, steps[0].stage, e) for e in p.refusals),
        "Rules": _rules(p),
    }
    described = [text for text in paragraphs if text not in pays]
    return described + [f"## {title}\n\n{text}" for title, text in sections.items() if text]


def _contract(p: Pass, steps: list[Step]) -> list[str]:
    c = p.contract
    stages = " and ".join(f"[{stage}](../{stage}/index.md)" for stage in dict.fromkeys(s.stage for s in steps))
    finite = ", for finite numbers" if c.finite_only else ""
    skipped = "" if c.numerics == "exact" else ' `profile="exact"` leaves it out.'
    switch = f'`disable=["{p.name}"]` switches it off.' if p.on else f'`enable=["{p.name}"]` switches it on.'
    if any(step.required for step in steps):
        switch = "It cannot be switched off: the engine cannot do without it."
    lines = [
        f"- **Stage**: {stages}",
        f"- **Numerics**: {c.numerics}: {NUMERICS[c.numerics]}{finite}.{skipped}",
        f"- **Devices**: {_devices(c)}",
        f"- **Runs in**: {'inference alone' if c.inference_only else 'training and inference'}",
        f"- **By default**: {'on' if p.on else 'off'}. {switch}",
    ]
    lines += ["- **Graph**: functional before, may write in place afterwards"] if c.in_place else []
    lines += [] if c.enters_bodies else ["- **Graphs**: not the bodies of higher-order operators"]
    return [*lines, "- **Outputs**: they may have other strides afterwards"] if c.restrides else lines


def _devices(contract: Contract) -> str:
    named = ", ".join(contract.devices) or "any"
    return named if not contract.devices or "cpu" in contract.devices else f"{named}; the examples show it on the CPU"


def _options(p: Pass) -> str:
    """The options; the meaning of each is the docstring's sentences that name it."""
    text = " ".join((inspect.getdoc(p.fn) or "").split())
    sentences = re.split(r"(?<=[.]) ", text)
    rows = [
        (f"`{name}`", f"`{o.default!r}`", " ".join(s for s in sentences if f"`{name}`" in s))
        for name, o in p.parameters.items()
    ]
    return as_markdown(("option", "default", "meaning"), rows) if rows else ""


def _rules(p: Pass) -> str:
    calls = p.calls if isinstance(p, PatternPass) else p
    rows = [
        (f"`{r.name}`", _looked_for(r), _docstring(r.action))
        for r in (p.rules.rules if isinstance(p, PatternPass) else [])
    ]
    rows += [
        (f"`{r.name}`", ", ".join(f"`{_spelled(op)}`" for op in r.operators), _docstring(r))
        for r in (calls.rules if isinstance(calls, RulePass) else [])
    ]
    if not any(text for *_, text in rows):
        return as_markdown(("rule", "looks at"), [row[:2] for row in rows]) if rows else ""
    return as_markdown(("rule", "looks at", "what it does"), rows)


def _looked_for(rule: Rule) -> str:
    if isinstance(rule.source, Said):
        return f"`{rule.source.pattern}`"
    fn = getattr(rule.source, "fn", None)
    return f"what `{getattr(fn, '__name__', rule.name)}` computes"


def _docstring(does: object) -> str:
    return " ".join((inspect.getdoc(getattr(does, "fn", None)) or "").split())


def _spelled(operator: object) -> str:
    return operator.__name__ if inspect.isroutine(operator) or inspect.isclass(operator) else str(operator)


def _changed(p: Pass, stage: Stage, example: Example) -> str:
    ran = run_example(p, stage, example)
    return f"{_title(p, example)}\n\nBefore:\n\n```python\n{ran.before}```\n\nAfter:\n\n```python\n{ran.after}```"


def _refused(p: Pass, stage: Stage, example: Example) -> str:
    """A refused example; of several reasons, the one that the example states."""
    ran = run_example(p, stage, example)
    rejects = [r for r in ran.record.rejects if example.because in r.reason] or ran.record.rejects
    rejects = rejects or nearest_misses(p, stage, example)
    places = {r.reason: f", at `{r.nodes[0]}`" if r.nodes else "" for r in reversed(rejects)}
    reasons = "\n\n".join(f"Its reason{where}: {reason}." for reason, where in reversed(places.items()))
    return f"{_title(p, example)}\n\n```python\n{ran.before}```\n\n{reasons}"


def _title(p: Pass, example: Example) -> str:
    options = f", with `{p.name}{describe_options(example.options)}`" if example.options else ""
    return f"### {example.name.replace('_', ' ').capitalize()}{options}"


def _order_section(registry: Registry, steps: list[Step]) -> str:
    """Each place of the pass between its neighbours."""
    parts = ["## Its place in the order"]
    for step in steps:
        order = registry.order(step.stage)
        at = order.index(step)
        rows = [
            (link(registry, s) if s is not step else f"**{s.name}**", s.reason) for s in order[max(at - 1, 0) : at + 2]
        ]
        parts += [f"`{step.address}`:", as_markdown(("step", "why it is there"), rows)]
    return "\n\n".join(parts)
