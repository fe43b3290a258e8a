"""An ordered list of passes as a value: change a copy, print it, read it back, run it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from eductor.errors import BadOption, BadPass, UnknownName
from eductor.options import SLOT_OPTIONS, Options
from eductor.pipeline.base import STAGES, Context, Pass, Stage, as_pass, describe_options
from eductor.pipeline.instruments import Instrument
from eductor.pipeline.registry import Registry, Row
from eductor.pipeline.runner import run_steps
from eductor.pipeline.steps import Extra, Step, numbered, place
from eductor.pipeline.versions import spelled


@dataclass(frozen=True, repr=False)
class Pipeline:
    """The steps of all stages, in order. It is immutable: methods return other pipelines."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        """Sorts by stage and numbers the steps: `name#2` is the second of a name in this pipeline."""
        ordered = [s for stage in STAGES for s in numbered(self.stage(stage))]
        object.__setattr__(self, "steps", tuple(ordered))

    @staticmethod
    def default(
        registry: Registry | None = None, *, enable: Iterable[str] = (), disable: Iterable[str] = ()
    ) -> Pipeline:
        """All passes that are on and those of `enable`, without those of `disable`."""
        steps = (registry or Registry.default()).steps()
        enable, disable = list(enable), list(disable)
        _check_names([*enable, *disable], steps)
        _check_droppable(steps, disable)
        on = [s for s in steps if s.is_slot or _is_any(s, enable) or s.on]
        return Pipeline(tuple(s for s in on if not _is_any(s, disable)))

    @staticmethod
    def of(options: Options, lower: Iterable[Row | Pass | str] | None = None) -> Pipeline:
        """The pipeline that the options select, with all passes that they add and all that the engine requires.

        `lower` are the rows of the engine's lower stage; by default those of the engine `inductor`.
        """
        _check_types(options)
        own = [p if isinstance(p, Pass) else _not_a_pass(p) for p in options.passes]
        slotted = [_in_slot(p, slot) for slot in SLOT_OPTIONS for p in getattr(options, slot)]
        default = Registry.default()
        registry = (default if lower is None else default.lowering(lower)).with_passes(own)
        if options.pipeline is None:
            given = [f"{stage}/{p.name}" for p in own for stage in p.stages]
            pipeline = Pipeline.default(registry, enable=[*given, *options.enable])._added(slotted)
        elif isinstance(options.pipeline, str):
            pipeline = Pipeline.parse(options.pipeline, registry.with_passes(slotted), default)
            pipeline = pipeline._added(_unnamed(pipeline, [*own, *slotted]))
        else:
            pipeline = options.pipeline._added([*own, *slotted])
        known = [*registry.steps(), *pipeline.steps]
        _check_names([*options.enable, *options.disable], [*known, *default.order("lower")])
        _check_droppable(registry.steps(), options.disable)
        pipeline = pipeline._for_engine(registry)._enabled(lambda s: s.required or _is_any(s, options.enable), registry)
        return Pipeline(tuple(s for s in pipeline.steps if not _is_any(s, options.disable)))

    @staticmethod
    def parse(text: str, registry: Registry | None = None, *others: Registry) -> Pipeline:
        """Parses the result of `text()`: `pre_grad(a, b(level=2)), joint(c[:3])`, where c makes only its first 3 matches.

        Passes that the registry lacks are looked up in the others.
        """
        registries = (registry or Registry.default(), *others)
        wrong = f"the pipeline {text!r} is not of the form stage(pass, pass(option=1)), ..."
        try:
            tree = ast.parse(f"[{text.strip().rstrip(',')}\n]", mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise BadPass(f"{wrong}: {error}.") from None
        steps: list[Step] = []
        for call in tree.elts if isinstance(tree, ast.List) else [tree]:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
                raise BadPass(f"{wrong}: found `{ast.unparse(call)}`.")
            stage = next((s for s in STAGES if s == call.func.id), None)
            if stage is None:
                raise UnknownName("stage", call.func.id, STAGES)
            steps += [_read_step(registries, stage, item) for item in call.args]
        return Pipeline(tuple(steps))

    def text(self) -> str:
        """The pipeline as text, which `parse` reads back."""
        return ", ".join(f"{stage}({', '.join(map(_step_text, self.stage(stage)))})" for stage in STAGES)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<pipeline {self.text()}>"

    def stage(self, stage: Stage) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if s.stage == stage)

    def without(self, *names: str) -> Pipeline:
        """Without these passes: `name` drops all of that name, `name#2` the second, `joint/name` that of a stage."""
        _check_names(names, self.steps)
        _check_droppable(self.steps, names)
        return Pipeline(tuple(s for s in self.steps if not _is_any(s, names)))

    def only(self, *names: str) -> Pipeline:
        """With only these passes; a compile adds those that its engine requires."""
        _check_names(names, self.steps)
        return Pipeline(tuple(s for s in self.steps if _is_any(s, names)))

    def limited(self, name: str, matches: int) -> Pipeline:
        """With a limit on the matches of a pass: it makes only the first ones."""
        _check_names([name], self.steps)
        if type(matches) is not int or matches < 0:
            raise BadPass(f"limited({name!r}, {matches!r}): the number of matches is 0 or more.")
        _check_droppable(self.steps, [name])
        return Pipeline(tuple(replace(s, limit=matches) if s.is_called(name) else s for s in self.steps))

    def with_pass(
        self,
        pass_: Pass | Callable[..., Any],
        *,
        after: str | Iterable[str] = (),
        before: str | Iterable[str] = (),
        at: str | None = None,
    ) -> Pipeline:
        """Adds a pass directly after one, directly before one, or at a slot; by default where it declares.

        It may be a plain function of a `torch.fx.Graph`. It is added to those of its stages that have such a place.
        """
        added = as_pass(pass_)
        if not (after or before or at):
            if added.foreign:
                raise BadPass(f"{added.name!r} is a plain function: say where it runs with after=, before= or at=.")
            return self._added([added], "pipeline")
        added = added.placed(after=after, before=before, slot=at)
        names = [*added.after, *added.before, *([at] if at else [])]
        stages = [s for s in added.stages if all(_is_known(name, self.stage(s)) for name in names)]
        if not stages:
            here = [s for s in self.steps if s.stage in added.stages]
            _check_names(names, here)
            raise BadPass(f"no stage of {added.name!r} has {' and '.join(names)} together.")
        return self._added([added.staged(*stages)], "pipeline")

    def replaced(self, name: str, pass_: Pass | Callable[..., Any]) -> Pipeline:
        """With one pass replaced by another, or by a plain function of a `torch.fx.Graph`."""
        _check_names([name], self.steps)
        _check_droppable(self.steps, [name])
        pass_ = as_pass(pass_)
        for step in self.steps:
            if step.is_called(name) and step.is_slot:
                raise BadPass(f"{step.address} is a slot: put passes into it with with_pass(..., at={step.name!r}).")
            if step.is_called(name) and step.stage not in pass_.stages:
                raise BadPass(f"{pass_.name!r} cannot replace {step.address}: it is for {', '.join(pass_.stages)}.")
            if step.name == pass_.name and step.stage in pass_.stages and not step.is_called(name):
                raise BadPass(f"the stage {step.stage} already has a pass called {pass_.name!r}, from {step.source}.")
        new = [
            replace(s, name=pass_.name, pass_=pass_, module="", source="pipeline") if s.is_called(name) else s
            for s in self.steps
        ]
        return Pipeline(tuple(new))

    def cache_key(self) -> str:
        """A hash of the name and place of every pass; and of its version, contract and options, if it is not as in the package."""
        parts = []
        for step in self.steps:
            if p := step.pass_:
                said = (p.version, p.contract, spelled(p.when), sorted(p.options.items()))
                parts.append(f"{step.address} {step.limit} {said!r}")
            elif not step.is_slot:
                parts.append(f"{step.address} {step.limit}")
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def run(self, stage: Stage, module: GraphModule, context: Context, instruments: Sequence[Instrument] = ()) -> bool:
        """Runs the passes of a stage on a graph, in place; returns whether one of them changed it."""
        return run_steps(self.stage(stage), stage, module, context, instruments)

    def _added(self, passes: Iterable[Pass], source: str = "options") -> Pipeline:
        """With passes added where they declare."""
        extras = [Extra(p, source) for p in passes]
        if not extras:
            return self
        placed = [place(stage, self.stage(stage), [e for e in extras if stage in e.pass_.stages]) for stage in STAGES]
        return Pipeline(tuple(s for steps in placed for s in steps))

    def _for_engine(self, registry: Registry) -> Pipeline:
        """Without built-in lowering passes of other engines."""
        wanted = {s.name for s in registry.order("lower")}
        others = [s for s in self.stage("lower") if s.is_built_in and s.name not in wanted]
        return Pipeline(tuple(s for s in self.steps if s not in others)) if others else self

    def _enabled(self, is_wanted: Callable[[Step], bool], registry: Registry) -> Pipeline:
        """With all wanted passes; missing ones are inserted at their place in the registry's order."""
        steps = list(self.steps)
        for stage in STAGES:
            order = registry.order(stage)
            here = [s.address for s in steps]
            for i, step in enumerate(order):
                if is_wanted(step) and step.address not in here:
                    earlier = {s.address for s in order[:i]}
                    at = max((k + 1 for k, s in enumerate(steps) if s.address in earlier), default=0)
                    while at < len(steps) and steps[at].slot:
                        at += 1
                    steps.insert(at, step)
        return Pipeline(tuple(steps))


def _step_text(step: Step) -> str:
    options = describe_options(step.pass_.options) if step.pass_ else ""
    return step.name + options + (f"[:{step.limit}]" if step.limit is not None else "")


def _read_step(registries: Sequence[Registry], stage: Stage, item: ast.expr) -> Step:
    if isinstance(item, ast.Subscript) and not isinstance(item.value, ast.Subscript):
        step = replace(_read_step(registries, stage, item.value), limit=_read_limit(item))
        _check_droppable([step], [step.name])
        return step
    if isinstance(item, ast.Name):
        return _named(registries, stage, item.id)
    if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and not item.args:
        step = _named(registries, stage, item.func.id)
        try:
            options: dict[str, Any] = {str(k.arg): ast.literal_eval(k.value) for k in item.keywords}
        except ValueError:
            raise BadPass(
                f"`{ast.unparse(item)}`: the value of an option is a literal, such as 2, 'a' or [1, 2]."
            ) from None
        if step.is_slot:
            raise BadPass(f"`{ast.unparse(item)}`: {step.name} is a slot, which has no options.")
        return replace(step, pass_=step.load().configured(**options)) if options else step
    raise BadPass(f"`{ast.unparse(item)}` is neither the name of a pass nor pass(option=value).")


def _named(registries: Sequence[Registry], stage: Stage, name: str) -> Step:
    """The step of that name in the first registry that has it."""
    found = (s for r in registries for s in r.order(stage) if s.is_called(name))
    return next(found, None) or registries[0].get(stage, name)


def _read_limit(item: ast.Subscript) -> int:
    cut = item.slice
    if isinstance(cut, ast.Slice) and cut.lower is None and cut.step is None and isinstance(cut.upper, ast.Constant):
        if type(cut.upper.value) is int:
            return cut.upper.value
    raise BadPass(f"`{ast.unparse(item)}`: the first matches of a pass are written pass[:3].")


def _is_any(step: Step, names: Iterable[str]) -> bool:
    return any(step.is_called(name) for name in names)


def _is_known(name: str, steps: Iterable[Step]) -> bool:
    return any(step.is_called(name) for step in steps)


def _check_names(names: Iterable[str], steps: Iterable[Step]) -> None:
    steps = list(steps)
    for name in names:
        if not _is_known(name, steps):
            raise UnknownName("pass", name, [s.name for s in steps])


def _check_droppable(steps: Iterable[Step], names: Sequence[str]) -> None:
    """Raises BadPass for a pass that the engine requires: it runs in full in each compile with that engine."""
    for step in steps:
        if step.required and _is_any(step, names):
            raise BadPass(
                f"{step.address} cannot be dropped, limited or replaced, as the engine requires it: "
                f"{step.reason}. Choose another engine, or define an Engine with other rows of the stage lower."
            )


def _check_types(options: Options) -> None:
    """Checks the options that `Options` cannot check, as it does not import pipelines."""
    if not isinstance(options.pipeline, (Pipeline, str, type(None))):
        raise BadOption(f"option pipeline={options.pipeline!r}: it must be a Pipeline or its text.")
    for given in options.instruments:
        if not isinstance(given, Instrument):
            raise BadOption(
                f"option instruments: {given!r} is not an Instrument. Give objects of a subclass, such as Timer()."
            )


def _in_slot(given: Pass | Callable[..., Any], slot: str) -> Pass:
    stage = next(s for s in STAGES if slot.startswith(s))
    return as_pass(given).placed(slot=slot).staged(stage)


def _unnamed(pipeline: Pipeline, passes: list[Pass]) -> list[Pass]:
    """The passes that the text of a pipeline does not name."""
    named = {(s.stage, s.name) for s in pipeline.steps}
    by_name: dict[str, Pass] = {}
    for p in passes:
        if any((stage, p.name) in named for stage in p.stages) and by_name.setdefault(p.name, p).fn is not p.fn:
            raise BadPass(f"the text of the pipeline names {p.name!r}, and the options have two passes of that name.")
    return [p for p in passes if not any((stage, p.name) in named for stage in p.stages)]


def _not_a_pass(given: Callable[..., Any]) -> Pass:
    raise BadPass(
        f"options passes: {given!r} is not a pass. Declare it with @graph_pass(stage=..., numerics=...), or put a plain "
        f"function of a torch.fx.Graph into one of the slots {', '.join(SLOT_OPTIONS)}."
    )
