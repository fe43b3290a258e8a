"""Which faults are bisected in which programs: few that cover every pass and every kind, and all of them for `slow`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from faults import FAULTS, Fault
from hosts import Host, all_hosts
from verifying import may_have


def _applies(host: Host, fault: Fault) -> bool:
    """Whether it is a fault, and has a victim: writes are gone after the first stage, a graph made by hand has no gradients."""
    there = {
        "": True,
        "draws": True,
        "order of draws": True,
        "writes": host.stage == "pre_grad",
        "gradients": host.has_gradients and host.stage not in ("post_grad", "lower"),
    }
    return there[fault.about] and may_have(host, fault)


def _quick() -> Iterator[tuple[Host, Fault]]:
    """Every kind before autograd, where all of them have victims; gradients once behind it; another kind in each pass."""
    hosts = [host for host in all_hosts() if host.can_be_cut]
    first = [host for host in hosts if host.stage == "pre_grad"]
    behind = list({host.step.address: host for host in reversed(hosts) if host.stage != "pre_grad"}.values())
    for i, fault in enumerate(FAULTS.values()):
        yield next((host, fault) for host in first[i % len(first) :] + first if _applies(host, fault))
    yield next((host, FAULTS["wrong_gradient"]) for host in behind if _applies(host, FAULTS["wrong_gradient"]))
    everywhere = [fault for fault in FAULTS.values() if fault.about in ("", "draws")]
    for i, host in enumerate(behind):
        turned = [*everywhere[2 * i % len(everywhere) :], *everywhere]
        yield next((host, fault) for fault in turned if _applies(host, fault))


QUICK = {(str(host), fault.name): (host, fault) for host, fault in _quick()}


def choices() -> list[object]:
    """All pairs of a program and a fault, as parameters of a test."""
    pairs = [
        (host, fault) for host in all_hosts() if host.can_be_cut for fault in FAULTS.values() if _applies(host, fault)
    ]
    return [pytest.param(host, fault, id=f"{host}-{fault.name}", marks=_marks(host, fault)) for host, fault in pairs]


def _marks(host: Host, fault: Fault) -> list[pytest.MarkDecorator]:
    return [] if (str(host), fault.name) in QUICK else [pytest.mark.slow]
