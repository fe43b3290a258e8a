"""Faults planted into the flow around the passes, which verification of a whole call must see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from flow_faults import FLOW_FAULTS, FlowFault

import eductor

ENGINES = ("aten", pytest.param("inductor", marks=pytest.mark.slow))


def verified(fault: FlowFault, engine: str) -> Any:
    torch.compiler.reset()
    return eductor.verify(fault.program, *fault.inputs, options={"engine": engine, **fault.options})


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fault", FLOW_FAULTS, ids=str)
def test_verification_sees_a_fault_of_the_flow(fault, engine):
    right = verified(fault, engine)
    assert right.ok, str(right)
    with fault.plant():
        wrong = verified(fault, engine)
    seen = [*wrong.differences, *(finding.address for finding in wrong.findings)]
    assert any(fault.shows in text for text in seen), str(wrong)


def test_faults_cover_the_stages_around_the_passes():
    assert {fault.stage for fault in FLOW_FAULTS} == {"trace", "partition", "link"}
