"""A small sample of random programs, always the same; what `make fuzz` found before; and that the judge sees faults."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest
import torch

from eductor.graph import GraphView, Rewriter
from eductor.pipeline import graph_pass
from programs.comparing import Case, observe
from programs.comparing import Program as Compared

from .__main__ import groups, log
from .judging import in_eager, in_float64, judge, judged
from .program import Line, Random
from .shrinking import shrunk
from .writing import MOTIFS, written

aten = torch.ops.aten
SAMPLE = range(24)
FINDINGS = sorted(Path(__file__).with_name("findings").glob("*.py"))


@pytest.mark.parametrize("chunk", range(4))
def test_a_sample_of_programs_is_eagers(chunk):
    programs = (written(f"sample/{number}") for number in SAMPLE[chunk::4])
    found = {p.seed: judge(p, "aten", expected).differences for p in programs if (expected := in_eager(p))}
    assert len(found) > 2
    assert not {seed: d for seed, d in found.items() if d}


@pytest.mark.parametrize("file", FINDINGS, ids=lambda file: file.stem)
def test_a_finding_is_eagers(file, request):
    places = runpy.run_path(str(file))
    if "OPEN" in places:  # not repaired yet, and why
        request.applymarker(pytest.mark.xfail(reason=places["OPEN"], strict=True, raises=AssertionError))
    case = Compared(file.stem, (), lambda: Case(places["model"](), places["inputs"]()))
    expected = observe(lambda fn: fn, case)
    program = Random(file.stem, (), (), (), ())
    assert not judged(case, [program], expected, places.get("ENGINE", "aten"), places["OPTIONS"]).differences


def test_a_seed_is_one_program():
    assert written("7/3") == written("7/3")
    assert written("7/3") != written("7/4")


def test_programs_have_much_in_them():
    programs = [written(f"variety/{number}") for number in range(80)]
    text = "\n".join(p.source() for p in programs)
    assert len(MOTIFS) > 20
    for part in (
        "nn.Linear",
        "nn.Conv2d",
        "Norm",
        "softmax",
        "torch.cat",
        "torch.stack",
        "einsum",
        "checkpoint",
        "add_(",
    ):
        assert part in text, part
    ways = Counter(dict(p.options).get("profile") for p in programs)
    assert ways["exact"] > 10 < ways["fast"]
    assert len({p.training for p in programs}) == len({p.gradients for p in programs}) == 2


@graph_pass(stage="joint", numerics="exact")
def spoil_relu(graph: GraphView, rewrite: Rewriter) -> None:
    """Computes an absolute value where a relu is asked for."""
    for node in graph.find(aten.relu):
        rewrite.replace(node, aten.abs, *node.args)


def test_a_planted_fault_is_found_and_shrunk():
    options = (("passes", [spoil_relu]), ("profile", "exact"))
    found = None
    for number in range(40):
        program = written(f"planted/{number}")
        program = Random(**{**vars(program), "options": options, "autocast": False})
        if "relu" in program.source() and in_eager(program) and judge(program, "aten").differences:
            found = program
            break
    assert found is not None
    small = shrunk(found, lambda p: "relu" in p.source() and bool(judge(p, "aten").differences), most=40)
    assert len(small.lines) <= len(found.lines)
    assert "relu" in small.source()
    assert "def forward" in small.script()


def one_line(expression):
    return Random("", (Line("x0", "tensor(0, 4, dtype=torch.float32)"),), (), (Line("v0", expression),), ("v0",))


def test_a_program_that_float64_refuses_leaves_the_others_of_its_batch_there():
    refused, other = one_line("x0 + x0.view(torch.int32)"), one_line("x0 / 3")
    assert in_eager(refused, widely=True) is None
    truth = in_float64([refused, other])
    assert [truth.facts[f"output {i}"].value.dtype for i in range(2)] == [torch.float32, torch.float64]


def test_the_log_counts_programs(tmp_path):
    for _ in range(2):
        log(tmp_path / "fuzz.log", "seed=1", Counter(programs=5), 1.0)
    lines = (tmp_path / "fuzz.log").read_text().splitlines()
    assert len(lines) == 2
    assert all("programs=5" in line for line in lines)


def test_programs_of_a_batch_have_equal_options():
    import time

    group = next(groups(1, 3, time.monotonic() + 60))
    assert len(group) == 3
    assert len({program.options for program, _ in group}) == 1
