"""Searches the rewrites of a compile for the one that makes it wrong, and writes a reproducer of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import GraphModule

from eductor.engines import ATEN, choose_engine
from eductor.errors import EductorWarning, NothingWrong
from eductor.graph.text.printer import to_function
from eductor.observe.bisect.reduce_graph import Reduction
from eductor.observe.bisect.rewrite_prefix import Prefix, Rewrite, Scene
from eductor.observe.bisect.rewrite_repro import write_rewrite_repro
from eductor.options import Options

Attempt = Callable[[Options | None], str]
"""Compiles with these options, or for None only captures, and runs; returns what is wrong, or ""."""


@dataclass
class Culprit:
    """The rewrite that makes a program wrong, or the stage if no rewrite does."""

    address: str
    """`stage/pass:rule@match`; a stage alone (`engine`, `autograd`, `capture`) if it is wrong without any rewrite."""
    reason: str
    runs: int
    rewrites: int
    rewrite: Rewrite | None = None
    module: GraphModule | None = None
    """The smallest graph found on which the rewrite is wrong."""
    reproducer: str = ""
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        where = f" on the {self.rewrite.graph}" if self.rewrite is not None else ""
        lines = [f"{self.address}{where}: {self.reason}"]
        lines.append(f"  found in {self.runs} runs among {self.rewrites} rewrites")
        if self.module is not None:
            lines.append(f"  the smallest graph found on which it is wrong has {len(self.module.graph.nodes)} nodes:")
            lines += [f"    {line}" for line in to_function(self.module.graph).splitlines()]
        lines += [f"  {note}" for note in self.notes]
        lines += [f"  reproduce it: python {self.reproducer}"] if self.reproducer else []
        return "\n".join(lines)


def search(attempt: Attempt, options: Options, say: Callable[[str], None] | None = None) -> Culprit:
    """Finds the first rewrite that makes an attempt wrong; `say` receives a line for each attempt."""
    return _Search(attempt, options, say or (lambda text: None)).run()


class _Search:
    """A binary search over the number of rewrites."""

    def __init__(self, attempt: Attempt, options: Options, say: Callable[[str], None]) -> None:
        self._attempt = attempt
        self._say = say
        self._options = options
        self._known: dict[tuple[Any, ...], str] = {}
        self._wrong: dict[int, tuple[str, Prefix]] = {}
        self._runs = 0

    def run(self) -> Culprit:
        without, none = self._try(0)
        self._known = none.failures
        reason, full = self._try(None)
        if without:
            return self._without_rewrites(without, none)
        if not reason and none.failures:
            return self._without_rewrites(next(iter(none.failures.values())), none)
        if not reason:
            raise NothingWrong("the compiled program passes its check: there is nothing to bisect.")
        low, high = 0, len(full.made)
        while high - low > 1:
            middle = (low + high) // 2
            wrong, prefix = self._try(middle)
            if wrong:
                high = middle
                self._wrong[middle] = wrong, prefix
            else:
                low = middle
        reason, prefix = self._wrong.get(high) or self._try(high)
        if not reason or len(prefix.made) < high:
            raise NothingWrong(
                "the program is wrong in one run and right in another with the same rewrites: run its check more often, "
                "with repeats=."
            )
        return self._culprit(reason, prefix, len(full.made) + len(full.required))

    def _try(self, limit: int | None, **changes: Any) -> tuple[str, Prefix]:
        """Attempts with only the first rewrites: what is wrong, or "", and the rewrites that were made."""
        self._runs += 1
        self._say(f"run {self._runs}: {'all' if limit is None else f'the first {limit}'} rewrites")
        prefix = Prefix(limit)
        options = replace(self._options, instruments=(*self._options.instruments, prefix), **changes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EductorWarning)
            wrong = self._attempt(options)
        new = next((text for key, text in prefix.failures.items() if key not in self._known), "")
        return wrong or (new if limit != 0 else ""), prefix

    def _without_rewrites(self, reason: str, none: Prefix) -> Culprit:
        """Wrong without any rewrite: the engine, if another one is right; autograd, if the captured graph alone is."""
        notes = []
        wrong, prefix = ("", None) if choose_engine(self._options) is ATEN else self._try(0, engine="aten")
        if prefix is not None and not wrong and not prefix.failures:
            address = "engine"
            if none.required:
                suspects = ", ".join(dict.fromkeys(rewrite.address for rewrite in none.required))
                notes.append(f"it may be a rewrite that the engine cannot do without: {suspects}")
        else:
            self._runs += 1
            address = "capture" if self._attempt(None) else "autograd"
        return Culprit(address, f"{reason} (wrong without any rewrite)", self._runs, len(none.required), notes=notes)

    def _culprit(self, reason: str, prefix: Prefix, rewrites: int) -> Culprit:
        rewrite = prefix.made[-1]
        culprit = Culprit(rewrite.address, reason, self._runs, rewrites, rewrite)
        if prefix.scene is not None:
            _reproduce(culprit, prefix.scene, rewrite.number + 1, self._options)
        return culprit


def _reproduce(culprit: Culprit, scene: Scene, matches: int, options: Options) -> None:
    """Reduces the graph before the rewrite, if verification finds the fault on it, and writes a reproducer."""
    trial, module, inputs = scene.trial, scene.module, scene.inputs
    failure = trial.failure(module, inputs, matches)
    if failure is None:
        culprit.notes.append("on its graph alone, verification finds nothing wrong, so the graph was not reduced")
    else:
        kind = failure[0]

        def fails(smaller: GraphModule, given: Sequence[Any], matches: int = matches) -> bool:
            found = trial.failure(smaller, given, matches)
            return found is not None and found[0] == kind

        reduction = Reduction(module, inputs, fails)
        reduction.run(scene.touched)
        culprit.module, module, inputs = reduction.module, reduction.module, reduction.inputs
        matches = next((k for k in range(1, matches + 1) if fails(module, inputs, k)), matches)
    title = f"{culprit.address} is wrong: {culprit.reason.splitlines()[0]}"
    try:
        culprit.reproducer = write_rewrite_repro(trial, module, inputs, matches, title, options.repro_dir)
    except Exception as problem:
        culprit.notes.append(f"the reproducer could not be written: {problem!r}")
