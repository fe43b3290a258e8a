"""Plants every fault into a pass, each into a copy of the graph that the pass gets, and asks verification."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass, replace

import torch
from faults import FAULTS, Fault
from hosts import Host
from planting import Planted
from torch.fx import GraphModule

import eductor
from eductor.errors import EductorWarning
from eductor.graph.effects.order import sort_in_place
from eductor.pipeline.base import Context, Pass
from eductor.pipeline.checks import ContractBroken
from eductor.pipeline.instruments import Instrument, PassRun, StageRun
from eductor.pipeline.runner import run_steps
from eductor.verification.verifier import Verifier

NO_FAULT = Fault("no fault", lambda view, rewriter, near: False)


@dataclass(frozen=True)
class Outcome:
    """A fault that was planted in a match, and the check that saw it; empty where verification saw nothing."""

    host: Host
    fault: Fault
    match: str
    check: str
    text: str

    @property
    def is_caught(self) -> bool:
        return bool(self.check)

    def __str__(self) -> str:
        said = f"{self.check}: {self.text}" if self.is_caught else "MISSED"
        return f"{self.host} {self.fault.name} at {self.match}: {said}"


def may_have(host: Host, fault: Fault) -> bool:
    """Whether it would be a fault of this pass."""
    is_allowed = {"redraws": fault.about == "order of draws", "reassociates": fault.is_rounding}
    return not is_allowed.get(host.numerics, False)


def outcomes(host: Host) -> list[Outcome]:
    """What becomes of each fault for which there is a victim."""
    bench = Bench(host)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EductorWarning)
        if host.is_compiled:
            options = {**host.options, "pipeline": host.pipeline(), "instruments": [bench]}
            torch._dynamo.reset()
            eductor.compile(host.program, **options)(*host.inputs)
        else:
            run_by_hand(host, host.pass_, eductor.Options(instruments=[bench]))
    return list(bench.outcomes.values())


def run_by_hand(host: Host, pass_: Pass, options: eductor.Options) -> GraphModule:
    """Runs the pass alone over the graph of a host; what it leaves is sorted, so that it can be run."""
    module = host.graph()
    context = Context(host.stage, options, is_inference=True)
    run_steps([replace(host.step, pass_=pass_)], host.stage, module, context, options.instruments)
    sort_in_place(module.graph)
    return module


class Bench(Instrument):
    """Where a compile comes to the pass, tries each fault there, with a verifier that knows all that a real one knows."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.outcomes: dict[str, Outcome] = {}
        self._verifier = Verifier(() if host.is_compiled else host.inputs)

    def before_stage(self, run: StageRun) -> None:
        self._verifier.before_stage(run)

    def after_stage(self, run: StageRun) -> None:
        self._verifier.after_stage(run)

    def before_pass(self, run: PassRun) -> None:
        if run.address != self.host.step.address:
            return
        self._try(run, NO_FAULT)
        for fault in FAULTS.values():
            if fault.name not in self.outcomes and may_have(self.host, fault):
                self._try(run, fault)

    def _try(self, run: PassRun, fault: Fault) -> None:
        contract = replace(self.host.pass_.contract, numerics=self.host.numerics)
        planted = Planted(self.host.pass_, self.host.stage, fault, contract=contract)
        module = GraphModule(run.module, run.before.graph())
        self._verifier.findings.clear()
        failures = Failures()
        with tempfile.TemporaryDirectory() as folder:
            options = replace(run.context.options, instruments=(), repro_dir=folder)
            # The failure of a required pass would end the compile: here it is undone as that of any other pass.
            step = replace(run.step, pass_=planted, source="planted", required=False)
            run_steps([step], run.step.stage, module, replace(run.context, options=options), [self._verifier, failures])
        check, text = failures.seen_by(self._verifier)
        if fault is NO_FAULT:
            assert not check, f"{self.host} is wrong without any fault: {check}: {text}"
        elif planted.fired:
            self.outcomes[fault.name] = Outcome(self.host, fault, planted.fired[0], check, text)


class Failures(Instrument):
    """How the pass failed."""

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    def failed_pass(self, run: PassRun, error: Exception) -> None:
        self._errors.append(error)

    def seen_by(self, verifier: Verifier) -> tuple[str, str]:
        """The check that saw it, of verification or of the pipeline itself, and what it saw; empty where none did."""
        for error in self._errors:
            # A fault that crashes its pass would be a mistake of this harness.
            assert isinstance(error, ContractBroken), f"the fault made the pass raise {error!r}"
            found = verifier.findings
            return (found[0].check, found[0].text) if found else ("pipeline", str(error))
        return "", ""
