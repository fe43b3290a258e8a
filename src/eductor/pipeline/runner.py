"""Runs passes on a graph: cleans up and checks after each, undoes and reports one that failed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.fx import Graph, GraphModule

from eductor.errors import PassFailed, RequiredPassFailed, warn
from eductor.graph import GraphView, No, Rewriter, Snapshot, around, update, violations
from eductor.graph.effects.order import sort_in_place
from eductor.graph.matches import LimitReached, Match
from eductor.graph.rewriter import inner_first
from eductor.graph.text.compare import is_as_before
from eductor.graph.values import meta
from eductor.pipeline.base import Context, Pass, Stage
from eductor.pipeline.checks import (
    ContractBroken,
    Interface,
    check_bodies,
    check_reported,
    check_sound,
    check_stage,
    check_whole,
)
from eductor.pipeline.instruments import Instrument, PassRun
from eductor.pipeline.reproducer import attributes_of, write_reproducer
from eductor.pipeline.steps import Step


def run_steps(
    steps: Sequence[Step], stage: Stage, module: GraphModule, context: Context, instruments: Sequence[Instrument]
) -> bool:
    """Runs the steps of one stage in order on one graph; returns whether one of them changed it."""
    for instrument in instruments:
        instrument.before_pipeline(stage, module)
    try:
        view, interface = GraphView(module), Interface(module.graph)
        first = before = Snapshot(module.graph)
        for step in steps:
            if not step.is_slot:
                before = _Runner(step, context, view, interface, instruments).run(before)
        if before is not first:
            module.recompile()
        if context.options.debug:
            _warn_of_laws(module, stage, in_place=any(not s.is_slot and s.load().contract.in_place for s in steps))
    except Exception as error:
        for instrument in instruments:
            instrument.failed_pipeline(stage, error)
        raise
    for instrument in instruments:
        instrument.after_pipeline(stage, module)
    return before is not first


def skip_steps(
    steps: Sequence[Step],
    stage: Stage,
    module: GraphModule,
    context: Context,
    instruments: Sequence[Instrument],
    reason: str,
) -> None:
    """Skips a stage: notifies instruments of each skipped pass, and warns about those from the options."""
    noticed = [s for s in steps if not s.is_slot and (instruments or s.source == "options")]
    if noticed:
        view, interface, before = GraphView(module), Interface(module.graph), Snapshot(module.graph)
        for step in noticed:
            _Runner(step, context, view, interface, instruments).skip(before, reason)


def _warn_of_laws(module: GraphModule, stage: Stage, *, in_place: bool) -> None:
    """Warns of broken laws after a stage; its input broke them, as each of its passes was checked."""
    broken = violations(module.graph, stage, in_place=in_place)
    if broken:
        first = broken[0]
        warn(
            f"after the stage {stage}, {first.node.name} breaks the law {first.law!r} ({len(broken)} violations in all): "
            f"{first.text}\n{around(module.graph, first.node)}",
        )


@dataclass
class _Runner:
    """Runs one pass on one graph."""

    step: Step
    context: Context
    view: GraphView
    interface: Interface
    instruments: Sequence[Instrument]

    @property
    def _is_watched(self) -> bool:
        """Whether to look for edits without the rewriter; built-in passes are checked by tests instead."""
        return not self.step.is_built_in or self.context.options.debug

    def run(self, before: Snapshot) -> Snapshot:
        """Runs the pass; returns a snapshot of the graph after it, with which the next pass is compared."""
        pass_ = self.step.load()
        run = PassRun(self.step, self.context, self.view.module, before)
        failure: Exception | None = None
        try:
            applies = _applies(pass_, self.context, self.view)
            run.reason = "" if applies else applies.reason
        except Exception as error:
            failure = error
        limit = self._limit(run)
        if limit == 0:
            run.reason = run.reason or "its limit of matches is 0 here"
        if run.reason:
            return self.skip(before, run.reason)
        for instrument in self.instruments:
            instrument.before_pass(run)
        listener = _Matches(run, self.instruments) if self.instruments else None
        rewriter = Rewriter(self.view, self.step.address, limit=limit, listener=listener)
        held = self._held()
        versions = held.versions()
        try:
            if failure is not None:
                raise failure
            after = self._timed(pass_, rewriter, run)
            if versions != held.versions():
                raise ContractBroken("it wrote a tensor of the module")
            for instrument in self.instruments:
                instrument.after_pass(run)
            return after
        except Exception as error:
            held.restore(self.view.module)
            self._undo(run, rewriter, error, can_continue=versions == held.versions())
            return Snapshot(self.view.graph)

    def _held(self) -> _Held:
        if not self._is_watched:
            return _Held()
        held: _Held = self.view.derived("attributes", lambda: _Held.by(self.view.module))
        return held

    def _limit(self, run: PassRun) -> int | None:
        """How many matches the pipeline and the instruments allow the pass; None for all, as for a required pass."""
        if self.step.required:
            return None
        limits = [self.step.limit, *(instrument.most_matches(run) for instrument in self.instruments)]
        return min((limit for limit in limits if limit is not None), default=None)

    def skip(self, before: Snapshot, reason: str) -> Snapshot:
        """Skips the pass and notifies instruments of the reason; warns if the pass is from the options."""
        run = PassRun(self.step, self.context, self.view.module, before, status="skipped", reason=reason)
        for instrument in self.instruments:
            instrument.skipped_pass(run)
        if self.step.source == "options":
            warn(f"the pass {run.address} did not run: {reason}.")
        return before

    def _timed(self, pass_: Pass, rewriter: Rewriter, run: PassRun) -> Snapshot:
        started = time.perf_counter()
        try:
            return self._apply(pass_, rewriter, run)
        finally:
            run.seconds = time.perf_counter() - started

    def _apply(self, pass_: Pass, rewriter: Rewriter, run: PassRun) -> Snapshot:
        with _scope(self.view, rewriter):
            with suppress(LimitReached):
                if pass_.enters_bodies(self.context.stage):
                    inner_first(rewriter, lambda view, rewrite: pass_.run(view, rewrite, self._context_of(view)))
                else:
                    pass_.run(self.view, rewriter, self.context)
            rewriter.finish()
        graph, before = self.view.graph, run.before
        run.rejects = rewriter.rejects
        if not rewriter.matches and (not self._is_watched or before.is_same(graph)):
            run.status = "unchanged"
            if not pass_.foreign:
                return before
            self.view.forget()
            return Snapshot(graph)  # it may have changed metadata of nodes, or attributes
        if pass_.foreign:
            check_whole(graph)
            self.view.forget()
            _tidy(graph)
            update(self.view.module, before.changed_nodes(graph))
            check_sound(graph, before)
        else:
            if self._is_watched:
                _check_edits(graph, before, rewriter.matches)
            check_bodies(graph, before, self.context.stage)
        self.interface.check(graph, self.context.stage, restrides=pass_.contract.restrides)
        if self.context.options.debug:
            check_stage(graph, before, self.context.stage, in_place=pass_.contract.in_place)
        changed = not is_as_before(before, graph)
        run.status = "changed" if changed else "unchanged"
        run.matches = rewriter.matches if changed else ()
        after = Snapshot(graph)
        run.after = after if changed else None
        return after

    def _context_of(self, view: GraphView) -> Context:
        """The context; for the body of a higher-order operator, without the facts about the outputs of the whole graph."""
        return (
            self.context if view is self.view else replace(self.context, gradients=(), parameters=frozenset(), saved={})
        )

    def _undo(self, run: PassRun, rewriter: Rewriter, error: Exception, *, can_continue: bool) -> None:
        place = error.node if isinstance(error, ContractBroken) and error.node is not None else rewriter.place
        surroundings = _around(
            self.view.module, run.before, _replacement(rewriter, place.name) if place is not None else None
        )
        run.before.restore(self.view.module)
        self.view.forget()
        self.interface.outputs = Interface(self.view.graph).outputs
        run.status, run.after, run.matches, run.rejects = "failed", None, (), rewriter.rejects
        run.reason = str(error) if isinstance(error, ContractBroken) else f"{type(error).__name__}: {error}"
        try:
            run.reproducer = write_reproducer(run, self.context.options.repro_dir)
            where = f"The graph before it: python {run.reproducer}"
        except Exception as problem:
            where = f"The graph before it could not be written: {problem!r}"
        for instrument in self.instruments:
            instrument.failed_pass(run, error)
        message = f"the pass {run.address} failed: {run.reason}\n{surroundings}\n{where}"
        if not can_continue:
            raise PassFailed(f"{message}\nIt wrote tensors of the module, which cannot be undone.") from error
        if self.step.required:
            raise RequiredPassFailed(message) from error
        if self.context.options.strict:
            raise PassFailed(message) from error
        warn(f"{message}\nThe compile continues without it.")


@dataclass
class _Matches:
    """Notifies instruments of the matches of a pass."""

    run: PassRun
    instruments: Sequence[Instrument]

    def begin(self, match: Match) -> None:
        for instrument in self.instruments:
            instrument.before_match(self.run, match)

    def end(self, match: Match) -> None:
        for instrument in self.instruments:
            instrument.after_match(self.run, match)

    def fail(self, match: Match, error: Exception) -> None:
        for instrument in self.instruments:
            instrument.failed_match(self.run, match, error)


def _check_edits(graph: Graph, before: Snapshot, matches: Sequence[Match]) -> None:
    try:
        check_reported(graph, before, matches)
        check_sound(graph, before)
    except ContractBroken:
        check_whole(graph)  # its error is clearer
        raise


@contextmanager
def _scope(view: GraphView, rewriter: Rewriter) -> Iterator[None]:
    view.scope = rewriter
    try:
        yield
    except Exception as error:
        rewriter.failed(error)
        raise
    finally:
        view.scope = None


def _applies(pass_: Pass, context: Context, view: GraphView) -> Literal[True] | No:
    """Whether a pass applies to this compile, or a No with the reason."""
    contract = pass_.contract
    if context.options.profile == "exact" and contract.numerics != "exact":
        return No(f"the profile exact allows only exact passes; this one is {contract.numerics}")
    if contract.inference_only and not context.is_inference:
        return No("only for inference")
    if contract.devices:
        found: set[str] = view.derived("devices", lambda: _devices(view.graph))
        if found.isdisjoint(contract.devices):
            here = ", ".join(sorted(found)) or "no device"
            return No(f"only on {', '.join(contract.devices)}; the graph is on {here}")
    if pass_.when is not None:
        wanted = pass_.when(context)
        if isinstance(wanted, No):
            return wanted
        if isinstance(wanted, str) or not wanted:  # a string is a reason, too
            return No(wanted or "its condition `when` does not hold")
    return True


def _devices(graph: Graph) -> set[str]:
    values = map(meta.value_of, graph.nodes)
    found = (v for value in values for v in (value if isinstance(value, (list, tuple)) else (value,)))
    return {v.device.type for v in found if isinstance(v, torch.Tensor)}


def _tidy(graph: Graph) -> None:
    """Sorts the graph, with the output last; torch.fx inserts new nodes after the output by default."""
    (output,) = graph.find_nodes(op="output")
    last = next(iter(reversed(graph.nodes)))
    if output is not last:
        last.append(output)
    sort_in_place(graph)


def _replacement(rewriter: Rewriter, name: str) -> str:
    """The name of the node that replaced a node in this pass, or of the node itself."""
    for event in (event for match in rewriter.matches for event in match.events):
        if event.kind == "replaced" and event.node == name:
            name = event.detail.removeprefix("by ")
    return name


def _around(module: GraphModule, before: Snapshot, place: str | None) -> str:
    """The printed lines around a node, in the graph after the pass, or else in the graph before it."""
    try:
        if place is None or any(n.name == place for n in module.graph.nodes):
            return around(module.graph, place)
    except Exception:  # the graph after the pass cannot be printed
        pass
    return around(before.graph(), place)


class _Held:
    """The attributes of the module that the graph uses, which are restored if the pass is undone."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})
        tensors = (value for value in self._values.values() if isinstance(value, torch.Tensor))
        self._tensors = [tensor for tensor in tensors if not tensor.is_inference()]

    @staticmethod
    def by(module: GraphModule) -> _Held:
        return _Held(attributes_of(module, module.graph))

    def versions(self) -> list[int]:
        """The version counter of each tensor."""
        return [tensor._version for tensor in self._tensors]

    def restore(self, module: GraphModule) -> None:
        for path, value in self._values.items():
            parent, _, name = path.rpartition(".")
            home = module.get_submodule(parent)
            if getattr(home, name, None) is not value:
                setattr(home, name, value)
