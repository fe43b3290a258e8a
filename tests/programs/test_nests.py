"""Random nests of split, cat and their kin do after the pre-grad stage what they do in eager."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable

import pytest
import torch
from torch.fx import Graph

from eductor.options import Options
from eductor.pipeline import Pipeline, Registry

from .judging import Judgement, judge, runs, shrink
from .nests import nest
from .straight import Program

CHUNK = 125
FAST, SLOW = 500, 20_000
FAMILY = ("split", "cat", "chunk", "stack", "unbind", "reshape", "squeeze")
"""What the names of passes have in them that are about these programs."""
FIRED = 0.3
"""In how many of the programs a pass must have more to do than to spell calls otherwise."""


def way_of(number: int) -> str:
    """Most are run as a graph, node by node; a few through Dynamo and all stages, a few from their ATen graph."""
    return {0: "compiled", 5: "aten"}.get(number % 10, "passes")


def options_of(number: int) -> dict:
    """A third with the passes that are off by default, too; a fourth with all checks."""
    return {"enable": OPTIONAL if number % 3 == 0 else (), "debug": number % 4 == 0}


def optional() -> tuple[str, ...]:
    """Passes that keep the mathematics, and are off by default."""
    known = {step.name: step.load() for step in Registry.default().order("pre_grad") if not step.is_slot}
    return tuple(n for n, p in known.items() if not p.on and p.contract.numerics in ("exact", "reassociates"))


OPTIONAL = optional()


def judged(numbers: Iterable[int]) -> Counter:
    """Judges programs; gives how often each pass changed one."""
    fired: Counter = Counter()
    for number in numbers:
        program, way, options = nest(number, runs), way_of(number), options_of(number)
        judgement = judge(program, way, **options)
        if judgement.differences:
            pytest.fail(told(number, program, way, options, judgement))
        fired.update(judgement.names)
        fired["any"] += any(not name.startswith("normalize") for name in judgement.names)
    return fired


def told(number: int, program: Program, way: str, options: dict, judgement: Judgement) -> str:
    small = shrink(program, lambda p: bool(judge(p, way, **options).differences))
    again = judge(small, way, **options)
    lines = [f"program {number} ({way}) differs from eager: {judgement.differences[0]}", f"smaller:\n{small}"]
    return "\n".join([*lines, *again.differences, f"passes that changed it: {', '.join(again.changed)}"])


@pytest.mark.parametrize("start", range(0, FAST, CHUNK))
def test_nests_do_what_they_do_in_eager(start: int) -> None:
    fired = judged(range(start, start + CHUNK))
    assert fired["any"] > FIRED * CHUNK, fired


@pytest.mark.slow
@pytest.mark.parametrize("half", [0, 1])
def test_many_nests_do_what_they_do_in_eager(half: int, capsys: pytest.CaptureFixture[str]) -> None:
    fired = judged(range(half, SLOW, 2))
    with capsys.disabled():
        print(f"\nprograms that each pass changed, of {SLOW // 2}:")
        print("\n".join(f"{count:8} {name}" for name, count in fired.most_common()))
    assert fired["any"] > FIRED * SLOW / 2
    names = [s.name for s in Pipeline.of(Options(enable=OPTIONAL)).stage("pre_grad") if not s.is_slot]
    idle = [n for n in names if any(word in n for word in FAMILY) and not fired[n]]
    assert not idle, f"no program gave work to {', '.join(idle)}"


# ------------------------------------------------------------------------------------- the test itself sees mistakes


def alias_a_fresh_cat(graph: Graph) -> None:
    """Wrong: what was a copy is the value itself."""
    for node in graph.find_nodes(op="call_function", target=torch.cat):
        operands = node.args[0] if node.args else node.kwargs["tensors"]
        if len(operands) == 1:
            node.replace_all_uses_with(operands[0])
            graph.erase_node(node)


def read_before_a_write(graph: Graph) -> None:
    """Wrong: a value is computed as early as its operands are there."""
    for node in [*graph.nodes]:
        if node.op == "call_function" and node.target in (torch.cat, torch.stack, torch.tanh, operator.add):
            max(node.all_input_nodes).append(node)


def forget_no_grad(graph: Graph) -> None:
    """Wrong: what was not differentiated is."""
    for node in graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled):
        graph.erase_node(node)


@pytest.mark.parametrize("wrong", [alias_a_fresh_cat, read_before_a_write, forget_no_grad])
def test_a_wrong_pass_is_found(wrong: object) -> None:
    others = {step.name for step in Registry.default().order("pre_grad") if not step.is_slot}
    options = {"pre_grad_custom_pass": (wrong,), "disable": tuple(others - set(OPTIONAL))}

    def fails(program: Program) -> bool:
        return any("raises" not in text for text in judge(program, **options).differences)

    found = next((p for number in range(400) if fails(p := nest(number, runs))), None)
    assert found is not None, "no program shows it"
    small = shrink(found, fails)
    assert len(small.steps) <= 6, small
    assert "def forward" in str(small)
