"""`eductor.explain`: compiles a function, and shows what each stage and each pass did to each graph."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from eductor.autograd.gradient_uses import autograd_nodes
from eductor.compat import original_of
from eductor.errors import BadOption, EductorWarning, warn_uncounted
from eductor.graph.snapshot import Snapshot
from eductor.observe.explain.memory_curve import MemoryCurve
from eductor.observe.explain.origins import Origin, Origins
from eductor.observe.scripts.interception import CompiledFunction, name_of
from eductor.options import Options
from eductor.partition.plan import Plan
from eductor.pipeline import STAGES, Instrument, PassRecord, Recorder, StageRecord
from eductor.verification.verifier import Verifier

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def explain(
    fn: Callable[..., Any],
    *args: Any,
    options: Mapping[str, Any] | Options | None = None,
    memory_curve: bool = False,
    verify: bool = False,
    **kwargs: Any,
) -> Explanation:
    """Compiles a function for these arguments, forward and backward, and returns a printable explanation.

    The function runs once, with its side effects; `.grad` of arguments and parameters is not changed. `memory_curve` adds
    the memory-time curve of each graph, and `verify` a verdict on each pass; both take more time.
    """
    explanation = Explanation(
        Recorder(keep_graphs=True, wants_curve=memory_curve), verifier=Verifier() if verify else None
    )
    original = original_of(fn)
    found = CompiledFunction(original, Options.of(options), {}, name_of(original))
    with explanation.watching():
        _run_backward(explanation.compile(found)(*args, **kwargs))
    return explanation


@dataclass(frozen=True, slots=True)
class StageView:
    """One stage and the passes that ran or were skipped in it."""

    stage: StageRecord
    passes: Sequence[PassRecord]

    @property
    def result(self) -> Snapshot | None:
        """The graph after its passes; None for a stage without passes, or if graphs are not recorded."""
        if self.stage.name not in STAGES:
            return None
        return next((r.after for r in reversed(self.passes) if r.after is not None), self.stage.start)


@dataclass
class Explanation:
    """What a compile did: as text, as diffs of graphs, as data."""

    recorder: Recorder = field(default_factory=lambda: Recorder(keep_graphs=True))
    seconds: float = 0.0
    noted: list[tuple[int | None, str]] = field(default_factory=list)
    """Each warning, with the number of the graph being compiled."""
    verifier: Verifier | None = None
    """Checks each pass, if requested."""

    def __post_init__(self) -> None:
        self._origins = Origins(self.recorder)

    @property
    def warnings(self) -> list[str]:
        """The texts of Eductor's warnings."""
        return [text for _, text in self.noted]

    @property
    def graphs(self) -> dict[int, Origin]:
        """The captured graphs by number, in order of compilation."""
        return self._origins.by_graph

    def compile(self, found: CompiledFunction, *others: Instrument) -> Callable[..., Any]:
        """Compiles a function while this and other instruments observe."""
        checks = (self.verifier,) if self.verifier is not None else ()
        instruments = (self.recorder, self._origins.of_function(found.name), *checks, *others)
        return found.compile(instruments=(*found.options.instruments, *instruments))

    def compile_with_stock(self, found: CompiledFunction, *others: Instrument) -> Callable[..., Any]:
        """Like `compile`, but with stock Inductor, whose passes are observed from outside."""
        from eductor.observe.explain.stock_inductor import compile_with_stock

        return compile_with_stock(found, (self.recorder, self._origins.of_function(found.name), *others))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Records time and warnings, which are still shown."""
        started = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("always", EductorWarning)
            show = warnings.showwarning

            def note(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
                if issubclass(category, EductorWarning):
                    self.noted.append((self.recorder.stages[-1].graph if self.recorder.stages else None, str(message)))
                show(message, category, *rest, **more)

            warnings.showwarning = note
            try:
                yield
            finally:
                self.seconds += time.perf_counter() - started

    def stages(self, graph: int) -> list[StageView]:
        """The stages of a graph in order, each with its passes; skipped stages come last."""
        passes = [r for r in self.recorder.records if r.graph == graph]
        shown = [
            StageView(s, [r for r in passes if r.stage_at == at])
            for at, s in enumerate(self.recorder.stages)
            if s.graph == graph
        ]
        for stage in STAGES:
            if all(t.stage.name != stage for t in shown) and (skipped := [r for r in passes if r.stage == stage]):
                shown.append(StageView(_left_out(self.graphs[graph], skipped), skipped))
        return shown

    def verdict(self, record: PassRecord) -> dict[str, Any] | None:
        """Whether a pass kept its contract; None if that was not checked, or there was nothing to check."""
        if self.verifier is None or record.status not in ("changed", "failed"):
            return None
        place = (record.address, record.graph, record.role, record.variant)
        findings = self.verifier.findings
        found = [f for f in findings if (f.address, f.graph.number, f.graph.role, f.graph.variant) == place]
        notes = [note.partition(": ")[2] for note in self.verifier.notes if note.startswith(f"{record.address}: ")]
        text = "; ".join([f"{f.check}: {f.text}" for f in found] or notes) or "every check holds"
        return {"ok": not found, "text": text}

    def diff(self, name: str) -> str:
        """What a pass, by its name or address, changed in each graph; or why it changed nothing."""
        from eductor.observe.diff.pass_diff import diff_of_pass

        return diff_of_pass(self, name)

    def explain_saved(self) -> dict[int, Plan]:
        """For each graph with a backward: what is saved and what is recomputed, with bytes, cost and reason."""
        plans = {stage.graph: stage.facts["plan"] for stage in self.recorder.stages if "plan" in stage.facts}
        return {graph: Plan.from_json(plan) for graph, plan in plans.items()}

    def memory_curve(self) -> dict[int, MemoryCurve]:
        """For each graph with a backward: saved bytes, peak and time at each budget, and at the chosen one."""
        if not self.recorder.wants_curve:
            raise BadOption(
                "the curve was not requested, as it takes time: use `eductor.explain(..., memory_curve=True)`."
            )
        curves = {stage.graph: stage.facts["curve"] for stage in self.recorder.stages if "curve" in stage.facts}
        return {graph: MemoryCurve.from_json(curve) for graph, curve in curves.items()}

    def draw_memory_curve(self) -> Figure:
        """The curves as a matplotlib figure with a panel for each graph; `savefig` writes it to a file."""
        from eductor.observe.explain.memory_curve import draw

        return draw({f"graph {n}: {self.graphs[n].part}": curve for n, curve in self.memory_curve().items()})

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data, documented in `docs/explain_json.md`."""
        from eductor.observe.explain.explain_json import as_data

        return as_data(self)

    def to_report(self) -> dict[str, Any]:
        """The data of the report: nodes with a stable identity, and what each pass did to them."""
        from eductor.observe.report import as_report

        return as_report(self)

    def to_html(self) -> str:
        """The report as one interactive HTML file, which needs neither server nor network."""
        from eductor.observe.report import as_html

        return as_html(self.to_report())

    def to_chrome_trace(self) -> dict[str, Any]:
        """The times of stages and passes, for Perfetto and chrome://tracing."""
        from eductor.observe.explain.explain_json import as_chrome_trace

        return as_chrome_trace(self)

    def __str__(self) -> str:
        from eductor.observe.explain.explain_text import as_text

        return as_text(self)


def _left_out(origin: Origin, skipped: Sequence[PassRecord]) -> StageRecord:
    first = skipped[0]
    place = (first.graph, first.role, first.variant, origin.compile_id)
    return StageRecord(first.stage, *place, first.nodes_before, {"left_out": True}, 0.0)


def _run_backward(result: Any) -> None:
    """Runs the backward of all differentiable results, so that it is compiled; changes no `.grad`."""
    tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    ends = (getattr(step, "variable", None) for step in autograd_nodes(x.grad_fn for x in tensors))
    leaves = [leaf for leaf in ends if leaf is not None]
    if not leaves:
        return
    ones = [torch.ones_like(x) for x in tensors]
    try:
        # Retain the graph: it may start before the function, in a graph that the user still differentiates.
        torch.autograd.grad(tensors, leaves, ones, retain_graph=True, allow_unused=True)
    except Exception as error:
        message = f"the backward cannot be shown: it raised {type(error).__name__}: {error}"
        warn_uncounted(message)
