"""The report on replayed launches: dictionaries for programs, a table for people."""

from __future__ import annotations

import gc
import json

import torch
from fake_device import installed

import eductor


def test_the_report_says_how_calls_ran(monkeypatch):
    gc.collect()
    earlier = len(eductor.launches_report())
    installed(monkeypatch)
    fn = eductor.compile(lambda x: (x @ x).sin(), engine="aten", launches="always", dynamic=True)
    for n in (3, 3, 3, 4):
        fn(torch.randn(n, n))
    report = eductor.launches_report()[earlier:]
    assert json.loads(json.dumps(report)) == report
    (program,) = report
    first, second = program["shapes"]
    assert (first["sizes"], first["state"], first["captures"]) == ([3], "replayed", 1)
    assert first["calls"] == {"forward": {"ordinary": 1, "replayed": 2}}
    assert (second["sizes"], second["state"], second["reason"]) == ([4], "measured", None)
    lines = str(eductor.launches_report()).splitlines()
    assert lines[0].split() == ["graph", "sizes", "state", "replayed", "ordinary", "blocked", "captures", "reason"]
    assert lines[-2].split()[-7:] == ["forward", "3", "replayed", "2", "1", "0", "1"]
    del fn
    torch._dynamo.reset()
    gc.collect()
    assert len(eductor.launches_report()) == earlier
