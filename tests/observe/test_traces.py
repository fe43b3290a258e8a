"""What goes out to other tools: torch's structured trace, which tlparse reads, and the trace format of Chrome."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys

import pytest
import torch

import eductor
from eductor import cli
from eductor.graph.text.parser import from_python

SCRIPT = """
import torch

def program(x):
    y = x.cos()
    return (y.view(y.shape) @ y).sin().sum()

x = torch.ones(4, 4, requires_grad=True)
torch.compile(program, backend="eductor", options={"engine": "aten"})(x).backward()
"""


def artifacts(folder):
    """The artifacts of a structured trace by name: encoding, text, and the frame that Dynamo compiled."""
    found = {}
    (log,) = folder.glob("*.log")
    record = None
    for line in log.read_text().splitlines():
        if line.startswith("V") and "{" in line:
            record = json.loads(line[line.index("{") :])
            told = record.get("artifact") or {}
            name = told.get("name", "")
            if name.startswith("eductor"):
                assert name not in found, f"{name} is there twice"
                found[name] = {"encoding": told["encoding"], "lines": [], "frame": record.get("frame_id")}
            record = found.get(name)
        elif record is not None and line.startswith("\t"):
            record["lines"].append(line[1:])
    return {name: (told["encoding"], "\n".join(told["lines"]), told["frame"]) for name, told in found.items()}


def test_each_stage_and_pass_is_an_artifact_of_torchs_trace(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    traces = tmp_path / "traces"
    environment = {**os.environ, "TORCH_TRACE": str(traces)}
    subprocess.run([sys.executable, str(tmp_path / "script.py")], env=environment, check=True, capture_output=True)
    found = artifacts(traces)
    assert {
        "eductor_pre_grad_captured_graph",
        "eductor_autograd_captured",
        "eductor_joint_joint",
        "eductor_partition_joint",
        "eductor_post_grad_forward",
        "eductor_post_grad_backward",
        "eductor_engine_forward",
        "eductor_engine_backward",
    } <= set(found)
    (changed,) = [name for name in found if name.endswith("_remove_noop_pass")]
    encoding, text, frame = found[changed]
    assert (encoding, frame) == ("string", 0)
    assert "view" in found["eductor_pre_grad_captured_graph"][1]
    assert "view" not in text
    from_python(found["eductor_joint_joint_graph"][1])
    told = json.loads(found["eductor_pre_grad_captured"][1])
    row = next(p for p in told["passes"] if p["address"] == "pre_grad/remove_noop_pass")
    assert (row["status"], row["matches"], row["nodes_before"] - row["nodes_after"]) == ("changed", 1, 1)
    assert json.loads(found["eductor_partition_joint"][1])["facts"]["saved_bytes"] is not None


def test_nothing_is_traced_where_nobody_asks(monkeypatch):
    monkeypatch.delenv("TORCH_TRACE", raising=False)
    monkeypatch.setattr("eductor.compiler.Artifacts", lambda: pytest.fail("nobody asked for a trace"))
    eductor.compile(lambda x: x.sin(), engine="aten")(torch.ones(3))


def test_times_are_a_trace_of_chromes(tmp_path, capsys):
    (tmp_path / "script.py").write_text(SCRIPT)
    target = tmp_path / "trace.json"
    assert cli.main(["explain", str(tmp_path / "script.py"), "--chrome-trace", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    events = json.loads(target.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["eductor", "graph 1: program"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) + len(names) == len(events)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["tid"] == 1 for e in spans)
    stages = {e["name"]: e for e in spans if e["cat"] == "stage"}
    passes = [e for e in spans if e["cat"] == "pass"]
    assert "remove_noop_pass" in [e["name"].partition("/")[2] for e in passes if e["args"]["status"] == "changed"]

    def holds(outer, inner):
        return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1

    row = sorted(stages.values(), key=lambda e: e["ts"])
    assert [e["name"] for e in row][:3] == ["pre_grad (captured)", "autograd (captured)", "joint (joint)"]
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in itertools.pairwise(row))  # no stage runs inside another
    for e in passes:
        assert any(holds(s, e) for name, s in stages.items() if name.startswith(e["name"].partition("/")[0]))
