"""Nothing but the pipeline makes a rewriter in a compile, so that every rewrite has an address and can be seen."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from torch._higher_order_ops.scan import scan

import eductor
from eductor.graph.rewriter import Rewriter

SOURCES = Path(eductor.__file__).parent
MAKERS = {
    "graph/rewriter.py": "for bodies of higher-order operators, on behalf of the rewriter of the graph",
    "pipeline/runner.py": "for each pass",
    "patterns/torch_names/registration.py": "for a set of patterns that its owner applies to a graph of his own",
}
"""The files that make rewriters, and what for."""


def test_rewriters_are_made_where_it_is_known():
    found = {str(p.relative_to(SOURCES)) for p in SOURCES.rglob("*.py") if re.search(r"\bRewriter\(", p.read_text())}
    assert found == MAKERS.keys()


@pytest.fixture
def makers(monkeypatch):
    """The functions that make rewriters while a test runs."""
    found, init = set(), Rewriter.__init__

    def noted(self, *args, **kwargs):
        caller = sys._getframe(1)
        found.add((Path(caller.f_code.co_filename).relative_to(SOURCES).as_posix(), caller.f_code.co_name))
        init(self, *args, **kwargs)

    monkeypatch.setattr(Rewriter, "__init__", noted)
    yield found
    assert found <= {("pipeline/runner.py", "run"), ("graph/rewriter.py", "inside")}
    assert found


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_training_with_a_mask_that_is_saved_as_bits(makers, engine):
    def fn(x, w):
        return (torch.nn.functional.dropout(x @ w, 0.5) @ w.t()).sum()

    given = torch.randn(1 << 14, 8), torch.randn(8, 8, requires_grad=True)
    eductor.compile(fn, engine=engine, strict=True, cache=False)(*given).backward()


def test_loops_constants_and_draws_in_inference(makers):
    constant = torch.tensor(2.0)

    def fn(x):
        last, rows = scan(lambda c, y: (c + y, c * y), x[0] * 0, x)
        return last * constant, rows + torch.rand(3) * torch.rand(3)

    eductor.compile(fn, engine="inductor", strict=True, cache=False)(torch.randn(4, 3))


def test_numbers_and_dynamic_sizes(makers):
    compiled = eductor.compile(lambda x, n: torch.clamp(x * n, n), engine="inductor", strict=True, dynamic=True)
    for size, number in ((4, 1.5), (5, 2.5)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, number), torch.clamp(x * number, number))
