"""Bisects a program with a planted fault, through a whole compile or over a graph that no program is compiled to."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults import Fault
from hosts import Host
from planting import Planted
from verifying import run_by_hand

import eductor
from eductor.errors import EductorWarning
from eductor.graph.effects.order import sort_in_place
from eductor.graph.values.value_comparison import unlike_bits
from eductor.observe.bisect.search import Culprit, search
from eductor.options import Options
from eductor.verification.execution import Observation, observe
from eductor.verification.verifier import Verifier


@dataclass(frozen=True)
class Found:
    """Where a fault was planted, and what a bisection says."""

    planted_at: str
    culprit: Culprit


def bisected(host: Host, fault: Fault, folder: Path, planted: Planted | None = None) -> Found:
    """Looks for a fault; for one that no result shows, verification says whether a compile is wrong."""
    planted = planted or Planted(host.pass_, host.stage, fault)
    # A graph is run with draws by the names of nodes, so that its results say nothing about draws.
    shows = fault.shows_in_results and (host.is_compiled or "draws" not in fault.about)
    verify = {} if shows else {"verify": "each"}
    find = _bisect_compile if host.is_compiled else _bisect_graph
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EductorWarning)
        culprit = find(host, planted, {**verify, "repro_dir": folder})
    # The first run in which it can be committed is the one with all rewrites.
    return Found(planted.fired[0], culprit)


def _bisect_compile(host: Host, planted: Planted, options: dict[str, Any]) -> Culprit:
    options = {**host.options, **options, "pipeline": host.pipeline(planted)}
    return eductor.bisect(host.program, host.inputs, options=options)


def _bisect_graph(host: Host, planted: Planted, options: dict[str, Any]) -> Culprit:
    module = host.graph()
    sort_in_place(module.graph)
    expected = observe(module, host.inputs)

    def attempt(options: Options | None) -> str:
        assert options is not None, "a graph is right without rewrites"
        checking = [Verifier(host.inputs)] if options.verify else []
        made = run_by_hand(host, planted, replace(options, instruments=(*options.instruments, *checking)))
        return _unlike(expected, observe(made, host.inputs))

    return search(attempt, Options(**options))


def _unlike(expected: Observation, got: Observation) -> str:
    old, new = dict(expected.facts()), dict(got.facts())
    return next((f"{name} differs: {u}" for name in old if (u := unlike_bits(old[name], new.get(name)))), "")
