"""Runs passes over a graph: cleans up after each, checks it, undoes and reports one that failed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.fx import GraphModule

from eductor.errors import EductorWarning, PassFailed
from eductor.graph import meta
from eductor.graph.compare import is_equal
from eductor.graph.legal import violations
from eductor.graph.order import is_sorted, sort_in_place
from eductor.graph.printer import around, type_of
from eductor.graph.rewriter import Match, Rewriter
from eductor.graph.snapshot import Snapshot
from eductor.graph.view import GraphView
from eductor.pipeline.base import Context, Pass, Stage
from eductor.pipeline.instruments import Instrument, PassRun
from eductor.pipeline.registry import Step
from eductor.pipeline.reproducer import write_reproducer


class ContractBroken(Exception):
    """A pass did what it had promised not to do."""


def run_steps(
    steps: Sequence[Step], stage: Stage, module: GraphModule, context: Context, instruments: Sequence[Instrument]
) -> None:
    """Runs the steps of one stage in order, each on what the one before it left."""
    for instrument in instruments:
        instrument.before_pipeline(stage, module)
    try:
        view = GraphView(module)
        before = Snapshot(module.graph)
        for step in steps:
            if not step.is_slot:
                before = _Runner(step, context, view, instruments).run(before)
        module.recompile()
    except Exception as error:
        for instrument in instruments:
            instrument.failed_pipeline(stage, error)
        raise
    for instrument in instruments:
        instrument.after_pipeline(stage, module)


@dataclass
class _Runner:
    """One pass over one graph."""

    step: Step
    context: Context
    view: GraphView
    instruments: Sequence[Instrument]

    def run(self, before: Snapshot) -> Snapshot:
        """Runs the pass; returns the graph as it is afterwards, for the next one to compare with."""
        module = self.view.module
        pass_ = self.step.load()
        run = PassRun(self.step, self.context, module, before)
        run.reason = _why_skipped(pass_, self.context, self.view)
        if run.reason:
            run.status = "skipped"
            for instrument in self.instruments:
                instrument.skipped_pass(run)
            return before
        for instrument in self.instruments:
            instrument.before_pass(run)
        rewriter = Rewriter(
            self.view, self.step.address, listener=_Matches(run, self.instruments) if self.instruments else None
        )
        started = time.perf_counter()
        try:
            after = self._apply(pass_, rewriter, run)
            for instrument in self.instruments:
                instrument.after_pass(run)
            return after
        except Exception as error:
            self._undo(run, rewriter, error, time.perf_counter() - started)
            return Snapshot(module.graph)

    def _apply(self, pass_: Pass, rewriter: Rewriter, run: PassRun) -> Snapshot:
        module, before = self.view.module, run.before
        outputs = [type_of(meta.value_of(n)) for n in self.view.output.all_input_nodes]
        with _scope(self.view, rewriter):
            pass_.run(self.view, rewriter, self.context)
            rewriter.finish()
        run.matches, run.rejects = rewriter.matches, rewriter.rejects
        if before.is_same(module.graph):
            run.status = "unchanged"
            run.matches = ()
            return before
        if pass_.foreign:
            self.view.forget()
            sort_in_place(module.graph)
            meta.update(module, before.changed_nodes(module.graph))
        elif not rewriter.matches:
            raise ContractBroken(
                "it edited the graph behind the rewriter's back: use rewrite.insert, replace, update, erase"
            )
        self._check(outputs, before)
        run.status = "unchanged" if is_equal(before.graph(), module.graph) else "changed"
        return Snapshot(module.graph)

    def _check(self, outputs: list[str], before: Snapshot) -> None:
        """A pass leaves a sound graph with the same interface; in debug mode, one that is legal for its stage."""
        if is_sorted(self.view.graph) or is_sorted(before.graph()):
            self.view.graph.lint()
        now = [type_of(meta.value_of(n)) for n in self.view.output.all_input_nodes]
        if now != outputs:
            raise ContractBroken(f"the outputs were ({', '.join(outputs)}) and are now ({', '.join(now)})")
        if self.context.options.debug:
            for broken in violations(self.view.graph, self.context.stage)[:1]:
                raise ContractBroken(f"{broken.node.name} breaks the law {broken.law!r} of the stage: {broken.text}")

    def _undo(self, run: PassRun, rewriter: Rewriter, error: Exception, seconds: float) -> None:
        module = self.view.module
        place = rewriter.place.name if rewriter.place is not None else None
        surroundings = around(module.graph, place)
        run.before.restore(module)
        self.view.forget()
        run.status, run.matches, run.rejects = "failed", (), rewriter.rejects
        run.reason = f"{type(error).__name__}: {error}" if not isinstance(error, ContractBroken) else str(error)
        run.reproducer = write_reproducer(run, self.context.options.repro_dir)
        for instrument in self.instruments:
            instrument.failed_pass(run, error)
        message = (
            f"the pass {run.address} failed: {run.reason}\n{surroundings}\nThe graph before it: python {run.reproducer}"
        )
        if self.context.options.strict:
            raise PassFailed(message) from error
        warnings.warn(f"{message}\nThe compile goes on without it.", EductorWarning, stacklevel=2)


@dataclass
class _Matches:
    """Hands the matches of a pass on to the instruments."""

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


def _why_skipped(pass_: Pass, context: Context, view: GraphView) -> str:
    """Why a pass does not apply to this compile; empty if it does."""
    contract = pass_.contract
    if context.options.profile == "exact" and contract.numerics != "exact":
        return f"the profile exact allows only exact passes; this one is {contract.numerics}"
    if contract.inference_only and not context.is_inference:
        return "only for inference"
    if contract.devices:
        found = {v.device.type for n in view.nodes if isinstance(v := meta.value_of(n), torch.Tensor)}
        if found.isdisjoint(contract.devices):
            return f"only on {', '.join(contract.devices)}; the graph is on {', '.join(sorted(found)) or 'no device'}"
    if pass_.when is not None:
        wanted = pass_.when(context)
        if wanted is not True:
            return wanted if isinstance(wanted, str) and wanted else "its condition `when` does not hold"
    return ""
