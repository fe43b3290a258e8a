"""Every operator that torch tests does compiled what it does in eager."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

from eductor.engines import Job
from eductor.engines.__init__ import aten
from eductor.engines.inductor import engine as inductor
from eductor.errors import Unsupported

from .database import OPERATORS
from .exclusions import EXCLUDED, NOT_GENERATED, ROUNDED
from .sweep import sweep

PROFILES = ("fast", "exact")
# Drawn once: the whole takes a quarter of an hour, and is for the slow tests.
SAMPLE = sorted(random.Random(0).sample(sorted(OPERATORS), 60))
FEW = [name for name in SAMPLE[::6] if name not in ROUNDED]
"""Those that go through the C++ compiler, too."""

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def runs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Operators with the profiles in which they do what they do in eager."""
    return [(name, p) for name in names for p in PROFILES if name not in EXCLUDED or p not in EXCLUDED[name].profiles]


@pytest.mark.parametrize(("name", "profile"), runs(SAMPLE))
def test_sampled_operator_does_what_it_does_in_eager(name: str, profile: str) -> None:
    assert sweep(name, profile).differences == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "profile"), runs(sorted(OPERATORS.keys() - SAMPLE)))
def test_operator_does_what_it_does_in_eager(name: str, profile: str) -> None:
    assert sweep(name, profile).differences == []


@pytest.mark.parametrize("name", FEW)
def test_sampled_operator_on_the_code_generator(name: str) -> None:
    assert sweep(name, "fast", "inductor").differences == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - set(FEW) - ROUNDED.keys()))
def test_operator_on_the_code_generator(name: str) -> None:
    assert sweep(name, "fast", "inductor").differences == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_operator_differs_in_values_alone(name: str) -> None:
    found = sweep(name, "fast", "inductor").differences
    assert found, f"{name}: take it off the table of roundings"
    assert all("values differ" in difference for difference in found)


@pytest.mark.parametrize("name", EXCLUDED)
def test_excluded_operator_still_differs(name: str) -> None:
    for profile in EXCLUDED[name].profiles:
        assert sweep(name, profile).differences, f"{name}, {profile}: take it off the table of exclusions"


def test_few_operators_are_excluded() -> None:
    for table in (EXCLUDED, ROUNDED, NOT_GENERATED):
        assert table.keys() <= OPERATORS.keys()
        assert len(table) <= 0.02 * len(OPERATORS)


def spoiled(spoil: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Job], Any]:
    """An engine that spoils the first result of each graph."""

    def engine(job: Job) -> Callable[[list[Any]], Sequence[Any]]:
        run = aten(job.module)

        def call(inputs: list[Any]) -> Sequence[Any]:
            first, *others = run(inputs)
            return [spoil(first) if isinstance(first, torch.Tensor) else first, *others]

        return call

    return engine


@pytest.mark.parametrize(
    ("fault", "spoil"),
    [
        ("values differ", lambda x: x * 1.01),
        ("stride", lambda x: x.mT.contiguous().mT if x.dim() > 1 else x),
        ("dtype", lambda x: x.double()),
        ("shape", lambda x: x[None]),
    ],
)
def test_faults_are_found(fault: str, spoil: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = sweep("add", "fast", spoiled(spoil)).differences
    assert any(fault in difference for difference in found)


def test_who_does_not_generate_code_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: Any) -> None:
        raise Unsupported("everything")

    monkeypatch.setattr(inductor, "_refuse_unseen_writes", refuse)
    assert any(
        "the engine 'inductor' failed" in difference for difference in sweep("sin", "fast", "inductor").differences
    )


def test_each_operator_is_called_on_the_code_generator() -> None:
    """Those that have no form among others are called as they are."""
    for name in ("signal.windows.blackman", "logspace", "randint"):
        report = sweep(name, "fast", "inductor")
        assert report.forward
        assert not report.differences


def test_a_lost_write_is_found() -> None:
    def forgetful(job: Job) -> Any:
        graph = job.module.graph
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
        return aten(job.module)

    found = sweep("add", "fast", forgetful).differences
    assert any("in place: input 0 after the call: values differ" in difference for difference in found)
