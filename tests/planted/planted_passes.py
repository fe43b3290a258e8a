"""Planted passes at the top level of a module, one for each stage, so that a reproducer can import them."""

from __future__ import annotations

from faults import FAULTS
from hosts import PLANTED, Host, all_hosts
from planting import Planted

from eductor.pipeline.base import Stage


def host_of(stage: Stage) -> Host:
    """The first program of a stage that can be compiled, and bisected."""
    return next(host for host in all_hosts() if host.stage == stage and host.is_compiled and host.can_be_cut)


FAULT = FAULTS["wrong_constant"]
NAMES: dict[Stage, str] = {stage: f"planted_in_{stage}" for stage in PLANTED}

for stage, name in NAMES.items():
    globals()[name] = Planted(host_of(stage).pass_, stage, FAULT, home=__name__)
