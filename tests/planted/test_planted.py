"""Faults planted into passes of every stage: verification sees them, a bisection names the match, what is left of the graph is small."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import planted_passes
import pytest
from bisecting import bisected
from choices import QUICK, choices
from faults import FAULTS
from hosts import PLANTED, all_hosts, steps
from planting import Planted
from verifying import outcomes

import eductor
from eductor.verification.verifier import Verifier

ADDRESSES = [step.address for step in steps()]
LARGEST, AROUND = 10, 8
"""So many nodes a minimized graph has at most: in all, or around the calls of an example that has many."""


def test_verification_catches_what_is_planted():
    found = [outcome for host in all_hosts() for outcome in outcomes(host)]
    missed = [outcome for outcome in found if not outcome.is_caught]
    print(f"{len(found)} faults planted, {len(missed)} missed", *missed, sep="\n")
    assert len(found) >= 60
    assert {o.host.step.address for o in found} == set(ADDRESSES)
    assert {o.fault.name for o in found} == set(FAULTS)
    assert len(missed) <= 0.05 * len(found), "\n".join(map(str, missed))


@pytest.mark.parametrize("stage", PLANTED)
def test_verification_catches_what_is_planted_in_a_pass_that_may_round(stage):
    missed = [o for o in outcomes(replace(planted_passes.host_of(stage), numerics="reassociates")) if not o.is_caught]
    assert not missed, "\n".join(map(str, missed))


FIRST_HOSTS = {h.step.address: h for h in reversed(all_hosts()) if h.is_compiled and h.can_be_cut}


@pytest.mark.parametrize("host", FIRST_HOSTS.values(), ids=str)
def test_verify_names_the_planted_pass(host):
    planted = Planted(host.pass_, host.stage, FAULTS["operands_swapped"])
    options = {**host.options, "pipeline": host.pipeline(planted)}
    report = eductor.verify(host.program, *host.inputs, options=options)
    assert planted.fired
    assert {finding.address for finding in report.findings} == {host.step.address}, str(report)
    right = eductor.verify(host.program, *host.inputs, options={**host.options, "pipeline": host.pipeline()})
    assert right.ok, str(right)


@pytest.mark.parametrize(("host", "fault"), choices())
def test_a_bisection_names_the_planted_match(host, fault, tmp_path):
    found = bisected(host, fault, tmp_path)
    culprit = found.culprit
    assert culprit.address == found.planted_at, str(culprit)
    assert culprit.runs <= math.log2(max(culprit.rewrites, 1)) + 5
    size = len(culprit.module.graph.nodes) if culprit.module is not None else math.inf
    assert size <= max(LARGEST, AROUND + host.calls), str(culprit)


def test_the_quick_choice_covers_every_pass_and_every_kind():
    assert {host.step.address for host, _ in QUICK.values()} == {h.step.address for h in all_hosts() if h.can_be_cut}
    assert {fault.name for _, fault in QUICK.values()} == set(FAULTS)


@pytest.mark.parametrize("stage", PLANTED)
def test_the_reproducer_runs_alone(stage, tmp_path):
    planted = getattr(planted_passes, planted_passes.NAMES[stage])
    culprit = bisected(planted_passes.host_of(stage), planted.fault, tmp_path, planted).culprit
    ran = subprocess.run(
        [sys.executable, culprit.reproducer], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert ran.returncode == 1, ran.stderr
    address = f"{stage}/{planted.name}"
    right, wrong = [line for line in ran.stderr.splitlines() if f"matches of {address}: " in line]
    assert right.endswith("nothing is wrong")
    assert "differs" in wrong


def test_the_harness_sees_what_is_missed(monkeypatch):
    monkeypatch.setattr(Verifier, "_check_numbers", lambda *_: None)
    missed = {o.fault.name for o in outcomes(planted_passes.host_of("joint")) if not o.is_caught}
    assert {"wrong_constant", "wrong_dim", "dropped_cast", "dropped_alpha", "wrong_gradient"} <= missed
    assert "stale_metadata" not in missed


def test_a_fault_that_is_not_reached_is_not_committed():
    host = planted_passes.host_of("joint")
    planted = Planted(host.pass_, host.stage, FAULTS["wrong_constant"])
    for matches, committed in ((1, False), (2, True)):
        planted.fired.clear()
        pipeline = host.pipeline(planted).limited(host.step.address, matches)
        eductor.compile(host.program, **{**host.options, "pipeline": pipeline})(*host.inputs)
        assert bool(planted.fired) == committed
