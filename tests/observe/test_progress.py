"""Progress: one line that is rewritten on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import io

import pytest
import torch

import eductor
from eductor.errors import EductorWarning
from eductor.observe.explain.progress import Progress
from eductor.progress.line import BACK, BELOW, CLEAR


class Terminal(io.StringIO):
    def isatty(self):
        return True


def compiled(stream, **options):
    eductor.compile(lambda x: x.clone() + 1, engine="aten", instruments=[Progress(stream)], **options)(torch.ones(3))
    return stream.getvalue()


def test_elsewhere_each_stage_is_a_line():
    lines = compiled(io.StringIO()).splitlines()
    assert lines == [
        "graph 1, pre_grad",
        "graph 1, autograd",
        "graph 1, joint",
        "graph 1, partition",
        "graph 1, post_grad (forward)",
        "graph 1, engine (forward)",
        "graph 1, link",
    ]


def test_a_terminal_has_one_line_which_is_wiped(monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    text = compiled(Terminal())
    assert "\n" not in text
    assert text.endswith(CLEAR)
    shown = [written.removesuffix(BACK) for written in text.split(BELOW)]
    assert "graph 1, joint: remove_noop_op" not in shown, "the last column stays free"
    assert "graph 1, joint: remove_noop_o" in shown
    assert "" in shown[1:-1], "it is wiped between the stages, for the script may print"


def test_a_failing_stage_is_wiped_too():
    def fails(job):
        raise RuntimeError("out of cheese")

    stream = Terminal()
    with pytest.warns(EductorWarning, match="out of cheese"):
        eductor.compile(lambda x: x + 1, engine=fails, instruments=[Progress(stream)])(torch.ones(3))
    assert stream.getvalue().endswith(CLEAR)
