"""An ordered list of passes as a value: change a copy, print it, read it back, run it."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import GraphModule

from eductor.errors import BadPass, OrderConflict, UnknownName
from eductor.options import SLOT_OPTIONS, Options
from eductor.pipeline.base import STAGES, Context, Pass, Stage, describe_options, foreign_pass
from eductor.pipeline.instruments import Instrument
from eductor.pipeline.registry import Registry, Step, numbered
from eductor.pipeline.runner import run_steps

SLOT_STAGES: dict[str, Stage] = {name: next(s for s in STAGES if name.startswith(s)) for name in SLOT_OPTIONS}


@dataclass(frozen=True)
class Pipeline:
    """The steps of all stages, in order. Every method returns another pipeline and leaves this one as it is."""

    steps: tuple[Step, ...]

    @staticmethod
    def default(
        registry: Registry | None = None, *, enable: Iterable[str] = (), disable: Iterable[str] = ()
    ) -> Pipeline:
        """All passes that are on, those of `enable` too, without those of `disable`."""
        steps = (registry or Registry.default()).steps()
        enable, disable = list(enable), list(disable)
        _check_names([*enable, *disable], steps)
        chosen = [s for s in steps if s.is_slot or s.load().on or any(s.is_called(n) for n in enable)]
        return Pipeline(tuple(chosen)).without(*disable) if disable else Pipeline(tuple(chosen))

    @staticmethod
    def of(options: Options) -> Pipeline:
        """The pipeline that the options ask for."""
        slotted = [foreign_pass(p, SLOT_STAGES[slot], slot) for slot in SLOT_OPTIONS for p in getattr(options, slot)]
        own = [p if isinstance(p, Pass) else _not_a_pass(p) for p in options.passes]
        registry = Registry.default().with_passes([*own, *slotted])
        if options.pipeline is None:
            pipeline = Pipeline.default(registry, enable=options.enable)
        elif isinstance(options.pipeline, str):
            pipeline = Pipeline.parse(options.pipeline, registry)
        else:
            pipeline = options.pipeline
            for p in [*own, *slotted]:
                pipeline = pipeline.with_pass(p)
            for name in options.enable:
                pipeline = pipeline._enabled(name, registry)
        return pipeline.without(*options.disable) if options.disable else pipeline

    @staticmethod
    def parse(text: str, registry: Registry | None = None) -> Pipeline:
        """Reads what `text()` printed: `pre_grad(a, b(level=2)), joint(c)`."""
        registry = registry or Registry.default()
        try:
            tree = ast.parse(f"[{text.strip().rstrip(',')}]", mode="eval").body
        except SyntaxError as error:
            raise BadPass(
                f"the pipeline {text!r} is not of the form stage(pass, pass(option=1)), ...: {error.msg}."
            ) from None
        assert isinstance(tree, ast.List)
        steps: list[Step] = []
        for call in tree.elts:
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
                raise BadPass(f"the pipeline {text!r} is not of the form stage(pass, pass(option=1)), ...")
            stage = next((s for s in STAGES if s == call.func.id), None)
            if stage is None:
                raise UnknownName("stage", call.func.id, STAGES)
            steps += [_read_step(registry, stage, item) for item in call.args]
        return Pipeline(tuple(s for stage in STAGES for s in numbered([s for s in steps if s.stage == stage])))

    def text(self) -> str:
        """The pipeline as text, which `parse` reads back."""
        stages = []
        for stage in STAGES:
            names = [s.name + (describe_options(s.pass_.options) if s.pass_ else "") for s in self.stage(stage)]
            stages.append(f"{stage}({', '.join(names)})")
        return ", ".join(stages)

    def __str__(self) -> str:
        return self.text()

    def stage(self, stage: Stage) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if s.stage == stage)

    def without(self, *names: str) -> Pipeline:
        """Drops passes by name: `name` drops all of that name, `name#2` the second, `joint/name` that of a stage."""
        _check_names(names, self.steps)
        return Pipeline(tuple(s for s in self.steps if not any(_means(name, s) for name in names)))

    def only(self, *names: str) -> Pipeline:
        """Keeps nothing but these passes."""
        _check_names(names, self.steps)
        return Pipeline(tuple(s for s in self.steps if any(_means(name, s) for name in names)))

    def with_pass(
        self, pass_: Pass, *, after: str | None = None, before: str | None = None, at: str | None = None
    ) -> Pipeline:
        """Adds a pass directly after one, directly before one, or at a slot; by default where it asks to be."""
        own = (after, before, at) == (None, None, None)
        afters = pass_.after if own else tuple(filter(None, [after]))
        befores = pass_.before if own else tuple(filter(None, [before]))
        slot = pass_.slot if own else at
        steps = list(self.steps)
        for stage in pass_.stages:
            here = [s for s in steps if s.stage == stage]
            placed = _insert(here, pass_, stage, afters, befores, slot)
            steps = [s for s in steps if s.stage != stage] + placed
        return Pipeline(tuple(s for stage in STAGES for s in steps if s.stage == stage))

    def replaced(self, name: str, pass_: Pass) -> Pipeline:
        """Puts another pass in the place of one."""
        _check_names([name], self.steps)
        new = [
            replace(s, name=pass_.name, pass_=pass_, source="replaced") if _means(name, s) else s for s in self.steps
        ]
        return Pipeline(tuple(s for stage in STAGES for s in numbered([n for n in new if n.stage == stage])))

    def cache_key(self) -> str:
        """Changes with the name, the place, the version or the options of any pass."""
        parts = []
        for step in self.steps:
            if not step.is_slot:
                p = step.load()
                parts.append(f"{step.address} {p.version} {sorted(p.options.items())!r}")
        return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()

    def run(self, stage: Stage, module: GraphModule, context: Context, instruments: Sequence[Instrument] = ()) -> None:
        """Runs the passes of a stage over a graph, in place."""
        run_steps(self.stage(stage), stage, module, context, instruments)

    def _enabled(self, name: str, registry: Registry) -> Pipeline:
        """With a pass that is off by default, at its place in the registry's order."""
        for stage in STAGES:
            order = registry.order(stage)
            wanted = [s for s in order if s.is_called(name)]
            here = list(self.stage(stage))
            for step in wanted:
                if not any(s.address == step.address for s in here):
                    earlier = {s.address for s in order[: order.index(step)]}
                    at = max((i + 1 for i, s in enumerate(here) if s.address in earlier), default=0)
                    here.insert(at, step)
            if wanted:
                rest = [s for s in self.steps if s.stage != stage]
                return Pipeline(tuple(s for st in STAGES for s in [*rest, *here] if s.stage == st))
        raise UnknownName("pass", name, [s.name for s in registry.steps()])


def _insert(
    steps: list[Step], pass_: Pass, stage: Stage, afters: tuple[str, ...], befores: tuple[str, ...], slot: str | None
) -> list[Step]:
    if any(s.name == pass_.name for s in steps):
        raise BadPass(
            f"the stage {stage} already has a pass called {pass_.name!r}; use replaced() to put another in its place."
        )
    for name in (*afters, *befores, *([slot] if slot else [])):
        if not any(_means(name, s) for s in steps):
            raise UnknownName(f"pass of the stage {stage}", name, [s.name for s in steps])
    step = Step(stage, pass_.name, 1, "added to the pipeline", "pipeline", pass_)
    if slot or not (afters or befores):
        ends = _slot_ends(steps, slot) if slot else [len(steps)]
        for end in reversed(ends):
            steps.insert(end, step)
        return numbered(steps)
    low = max((i + 1 for i, s in enumerate(steps) for a in afters if _means(a, s)), default=0)
    high = min((i for i, s in enumerate(steps) for b in befores if _means(b, s)), default=len(steps))
    if low > high:
        raise OrderConflict(
            f"{pass_.name!r} wants to run after {', '.join(afters)} and before {', '.join(befores)}, "
            f"but {steps[low - 1].name!r} runs after {steps[high].name!r}. Drop one of these constraints."
        )
    steps.insert(low if afters else high, step)
    return numbered(steps)


def _slot_ends(steps: list[Step], slot: str) -> list[int]:
    """Where a slot's passes end, for each slot of that name."""
    ends = []
    for i, step in enumerate(steps):
        if step.is_slot and _means(slot, step):
            end = i + 1
            while end < len(steps) and steps[end].pass_ is not None and steps[end].source in ("pipeline", "options"):
                end += 1
            ends.append(end)
    return ends


def _read_step(registry: Registry, stage: Stage, item: ast.expr) -> Step:
    if isinstance(item, ast.Name):
        return registry.get(stage, item.id)
    if isinstance(item, ast.Call) and isinstance(item.func, ast.Name) and not item.args:
        step = registry.get(stage, item.func.id)
        options: dict[str, Any] = {str(k.arg): ast.literal_eval(k.value) for k in item.keywords}
        return replace(step, pass_=step.load().configured(**options))
    raise BadPass(f"`{ast.unparse(item)}` is neither the name of a pass nor pass(option=value).")


def _means(name: str, step: Step) -> bool:
    stage, _, plain = name.rpartition("/")
    return (not stage or stage == step.stage) and step.is_called(plain)


def _check_names(names: Iterable[str], steps: Iterable[Step]) -> None:
    steps = list(steps)
    for name in names:
        if not any(_means(name, step) for step in steps):
            raise UnknownName("pass", name, [s.name for s in steps])


def _not_a_pass(given: Callable[..., Any]) -> Pass:
    raise BadPass(
        f"options passes: {given!r} is not a pass. Declare it with @graph_pass(stage=..., numerics=...), or put a plain "
        f"function of a torch.fx.Graph into one of the slots {', '.join(SLOT_OPTIONS)}."
    )
