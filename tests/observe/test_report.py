"""The data of the report: its schema, the identity of nodes, deltas that lead from graph to graph, provenance, kernels."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
import time
from pathlib import Path
from types import UnionType

import pytest
import torch
from torch import nn

import eductor
from eductor import cli
from eductor.engines import has_code_generator
from eductor.errors import EductorError, EductorWarning
from eductor.graph.text.printer import statement
from eductor.observe.explain.explain import Explanation
from eductor.observe.report import report as html
from eductor.observe.report.state import State, whole_delta
from eductor.observe.scripts.interception import CompiledFunction
from eductor.options import Options
from eductor.patterns import op, pattern_pass, var
from eductor.pipeline import STAGES, graph_pass
from models import zoo
from models.zoo.own import OWN

PAGE = f"<!doctype html><title>t</title>{html.TAG}</script>"
ATEN = {"engine": "aten"}
TEXT = str | None
DELTA = {"removed": [int], "changed": ["node"], "added": [{"after": int | None, "node": "node"}]}
DELTA["moved"] = [{"id": int, "after": int | None}]
VALUE = {"name": str, "node": int | None, "bytes": int, "seconds": float, "instead": float | None, "reason": str}
VALUE["ahead"] = bool
POINT = {"budget": float | int, "bytes": int, "seconds": float, "peak": int}
SCHEMA = {
    "node": {
        "id": int,
        "name": str,
        "op": str,
        "target": str,
        "code": str,
        "inputs": [int],
        "value": TEXT,
        "shape": [str],
        "dtype": TEXT,
        "stride": [str],
        "device": TEXT,
        "bytes": int | None,
        "source": int | None,
        "module": int | None,
        "made": {"pass": str, "match": TEXT},
        "from": [int],
    },
    "match": {
        "address": str,
        "rule": TEXT,
        "source": int | None,
        "node": str,
        "note": TEXT,
        "events": [{"kind": str, "node": str, "detail": str}],
        "delta": DELTA,
    },
    "pass": {
        "address": str,
        "name": str,
        "purpose": str,
        "place": str,
        "status": str,
        "reason": TEXT,
        "seconds": float,
        "nodes_before": int,
        "nodes_after": int,
        "verified": {"ok": bool, "text": str},
        "rule": int | None,
        "matches": ["match"],
        "rejects": [{"rule": TEXT, "nodes": [str], "reason": str}],
        "delta": DELTA,
    },
    "stage": {
        "key": str,
        "name": str,
        "role": str,
        "seconds": float,
        "failure": TEXT,
        "facts": dict,
        "start": ["node"],
        "result": int | None,
        "passes": ["pass"],
    },
    "partition": {
        "budget": float | int | dict,
        "peak": int | None,
        "saved": [VALUE],
        "again": [VALUE],
        "others": [VALUE],
        "curve": {"points": [POINT], "chosen": POINT},
        "timeline": [{"phase": str, "node": int | None, "name": str, "live": int}],
    },
    "graph": {
        "number": int,
        "function": str,
        "kind": str,
        "description": str,
        "source": TEXT,
        "compile_id": str,
        "stages": ["stage"],
        "partition": "partition",
        "kernels": [{"name": str, "role": str, "language": str, "code": TEXT, "nodes": [int]}],
    },
    "report": {
        "schema": str,
        "eductor": str,
        "torch": str,
        "title": str,
        "created": str,
        "seconds": float,
        "warnings": [{"graph": int | None, "text": str}],
        "sources": [{"file": str, "line": int, "code": str}],
        "modules": [{"path": str, "kind": str}],
        "rules": [{"name": str, "file": str, "line": int, "code": str}],
        "graphs": ["graph"],
    },
}
NULLABLE = {"shape", "stride", "made", "verified", "delta", "partition", "curve"}


def fits(data, shape, where="report"):
    """Fails where data have other fields, or values of other types, than the schema says."""
    shape = SCHEMA[shape] if isinstance(shape, str) else shape
    if isinstance(shape, dict):
        assert set(data) == set(shape), where
        for key, inner in shape.items():
            if data[key] is not None or key not in NULLABLE:
                fits(data[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        assert isinstance(data, list), where
        for i, item in enumerate(data):
            fits(item, shape[0], f"{where}[{i}]")
    else:
        assert isinstance(data, shape if isinstance(shape, (type, UnionType)) else object), f"{where}: {data!r}"


def walked(report):
    """Each stage that has a graph, and that graph at its end, by the deltas alone; what must hold on the way is checked."""
    seen: set[int] = set()
    keys = [stage["key"] for graph in report["graphs"] for stage in graph["stages"]]
    assert len(keys) == len(set(keys)), "a key is used twice"
    for graph in report["graphs"]:
        for stage in graph["stages"]:
            state = State(stage["start"])
            assert not seen & state.nodes.keys(), "an id is used in two stages"
            seen |= state.nodes.keys()
            for run in stage["passes"]:
                if run["delta"] is not None:
                    seen |= step(run, state)
                assert (run["delta"] is None) == (run["status"] != "changed"), run["address"]
            if stage["start"]:
                assert stage["result"] == len(list(state))
                yield stage, state


def step(run, state):
    """Takes a pass's delta, and those of its matches on a copy, which must come to the same."""
    before = set(state.nodes)
    other = State(state.nodes[id] for id in state)
    assert len(before) == run["nodes_before"]
    state.apply(run["delta"])
    assert len(state.nodes) == run["nodes_after"]
    added = {a["node"]["id"] for a in run["delta"]["added"]}
    assert not added & before
    for id in state:
        assert set(state.nodes[id]["inputs"]) <= state.nodes.keys(), f"{run['address']} leaves a node that is not there"
    known = [match["delta"] for match in run["matches"]]
    if known and None not in known:
        for delta in known:
            other.apply(delta)
        assert list(other) == list(state), run["address"]
        assert other.nodes == state.nodes, run["address"]
    return added


def recorded(explanation):
    """The graph after the last change of each stage, as the recorder kept it: names and lines in order."""
    for number in explanation.graphs:
        for told in explanation.stages(number):
            if told.stage.start is not None and told.stage.name in STAGES:
                kept = [r.after for r in told.passes if r.after is not None]
                yield (kept[-1] if kept else told.stage.start).graph()


def check(explanation):
    report = json.loads(json.dumps(explanation.to_report(), allow_nan=False))
    fits(report, "report")
    stages = list(walked(report))
    for (stage, state), graph in zip(stages, recorded(explanation), strict=True):
        told = [state.nodes[id] for id in state]
        lines = [f"# {n.name}: an input" if n.op == "placeholder" else statement(n) for n in graph.nodes]
        assert [node["code"] for node in told] == lines, stage["key"]
        by_id = {node["name"]: node["id"] for node in told}
        for node, n in zip(told, graph.nodes, strict=True):
            assert set(node["inputs"]) == {by_id[operand.name] for operand in n.all_input_nodes}
    return report, stages


def unexplained(stages):
    """Nodes of final graphs without a line of the program and without a pass that made them; a graph may be empty."""
    return [
        node["code"]
        for stage, state in stages
        for node in state.nodes.values()
        if node["source"] is None and node["made"] is None and node["code"] != "return ()"
    ]


def lost(state):
    """Nodes that do not say what they came from."""
    return [node["code"] for node in state.nodes.values() if not node["from"] and node["op"] != "output"]


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 3))


@pytest.fixture(scope="module")
def small():
    torch.manual_seed(0)
    torch._dynamo.reset()
    return eductor.explain(model(), torch.randn(4, 8), options=ATEN, memory_curve=True)


def test_the_data_have_the_schema_and_deltas_lead_to_the_recorded_graphs(small):
    report, stages = check(small)
    assert unexplained(stages) == []
    assert report["schema"] == "eductor.report/1"
    assert [stage["key"] for stage, _ in stages] == [
        "1/pre_grad/captured",
        "1/joint/joint",
        "1/partition/joint",
        "1/post_grad/forward",
        "1/post_grad/backward",
    ]
    changed = [p for stage, _ in stages for p in stage["passes"] if p["delta"]]
    assert changed
    assert all(match["delta"] for p in changed for match in p["matches"])


def test_nodes_point_to_lines_modules_and_what_they_came_from(small):
    report, stages = check(small)
    by_key = {stage["key"]: state for stage, state in stages}
    everything = {
        **{n["id"]: n for stage, _ in stages for n in stage["start"]},
        **{
            a["node"]["id"]: a["node"]
            for s, _ in stages
            for p in s["passes"]
            if p["delta"]
            for a in p["delta"]["added"]
        },
    }

    def roots(node):
        return {r for id in node["from"] for r in roots(everything[id])} if node["from"] else {node["name"]}

    product = next(n for n in by_key["1/post_grad/backward"].nodes.values() if "aten.mm" in n["target"])
    assert report["modules"][product["module"]] == {"path": "3", "kind": "Linear"}
    (root,) = roots(product)
    captured = next(n for n in by_key["1/pre_grad/captured"].nodes.values() if n["name"] == root)
    assert "linear" in captured["target"]
    gradient = next(n for n in by_key["1/post_grad/backward"].nodes.values() if n["name"] == "tangents_1")
    assert roots(gradient) == {root}


def test_the_partition_has_ids_of_the_joint_graph_and_memory_over_time(small):
    report, stages = check(small)
    joint = next(state for stage, state in stages if stage["name"] == "joint")
    partition = report["graphs"][0]["partition"]
    assert partition["saved"]
    for entry in (*partition["saved"], *partition["again"], *partition["timeline"]):
        assert joint.nodes[entry["node"]]["name"] == entry["name"]
    assert max(step["live"] for step in partition["timeline"]) == partition["peak"]
    phases = [step["phase"] for step in partition["timeline"]]
    assert phases == sorted(phases, reverse=True)
    assert len(partition["curve"]["points"]) > 1


def test_rules_have_their_source(small):
    report, _ = check(small)
    matches = [m for s in report["graphs"][0]["stages"] for p in s["passes"] for m in p["matches"]]
    assert matches
    for match in matches:
        rule = report["rules"][match["source"]]
        assert "def " in rule["code"]
        assert rule["code"].splitlines()[0].strip() in Path(rule["file"]).read_text()


@pytest.mark.parametrize("engine", ["aten", pytest.param("inductor", marks=pytest.mark.slow)])
def test_kernels_are_tied_to_nodes_of_the_final_graphs(engine):
    if engine == "inductor" and not has_code_generator():
        pytest.skip("needs a C++ compiler")
    report, stages = check(eductor.explain(model(), torch.randn(4, 8), options={"engine": engine}))
    final = {stage["role"]: state for stage, state in stages if stage["name"] == "post_grad"}
    kernels = report["graphs"][0]["kernels"]
    assert {k["role"] for k in kernels} == {"forward", "backward"}
    assert all(id in final[k["role"]].nodes for k in kernels for id in k["nodes"])
    assert any(k["nodes"] for k in kernels)
    if engine == "aten":
        assert {k["language"] for k in kernels} == {"aten"}
    else:
        fused = [k for k in kernels if k["language"] in ("cpp", "triton")]
        assert fused
        assert all(k["code"] and len(k["nodes"]) > 0 for k in fused)
        assert any(k["language"] == "extern" and k["name"].endswith("mm") for k in kernels)


# ---------------------------------------------------------------------------------------------------------- provenance


QUICK = ("gpt2", "bert", "t5", "resnet", "vit", "recommender")
AS_CAPTURED = ("mixtral",)
"""What runs as captured has no stages behind the first to explain."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in zoo.MODELS if n not in AS_CAPTURED],
)
def test_every_node_of_a_real_model_is_explained(name):
    subject = zoo.MODELS[name]
    network = subject.make()
    report, stages = check(
        eductor.explain(lambda *batch: subject.step(network, *batch)[0], *subject.batch(2), options=ATEN)
    )
    assert len(stages) >= 4
    assert unexplained(stages) == []
    home = "zoo" if name in OWN else "transformers"
    assert any(home in source["file"] for source in report["sources"])
    for stage, state in stages:
        if stage["role"] != "captured":
            assert lost(state) == [], "it does not say which node of the graph before it came from"


def test_every_node_of_the_demo_is_explained(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    demo = __import__("demo")
    for profile in ("fast", "exact"):
        options = {"engine": "aten", "profile": profile}
        _, stages = check(eductor.explain(demo.Model(), torch.randint(0, 100, (4, 32)), options=options))
        assert unexplained(stages) == []
    sys.modules.pop("demo")


def test_writes_random_draws_and_several_graphs_are_explained():
    def program(x):
        y = x.sin()
        y.mul_(2)
        x.add_(torch.rand_like(x))
        torch._dynamo.graph_break()
        return (y * x).relu()

    report, stages = check(eductor.explain(program, torch.randn(4, 4), options=ATEN))
    assert [graph["number"] for graph in report["graphs"]] == [1, 2]
    assert unexplained(stages) == []
    assert [code for stage, state in stages if stage["role"] != "captured" for code in lost(state)] == []


def test_a_recorder_that_keeps_no_graphs_keeps_no_nodes():
    recorder = eductor.Recorder()
    eductor.compile(odd, engine="aten", instruments=[recorder])(torch.randn(3))
    assert recorder.changed()
    assert all(r.edits == () and r.before is None for r in recorder.records)
    assert all(match.touched == () for r in recorder.records for match in r.matches)
    assert all(stage.start is None and "kernels" not in stage.facts for stage in recorder.stages)


@pytest.mark.slow
def test_a_large_model_makes_a_small_file_in_seconds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    demo = __import__("demo")
    large = demo.Model()
    large.blocks = nn.Sequential(*(demo.Block(64, 4) for _ in range(42)))
    explanation = eductor.explain(large, torch.randint(0, 100, (4, 32)), options=ATEN)
    started = time.perf_counter()
    report = explanation.to_report()
    text = html.packed(report)
    seconds = time.perf_counter() - started
    assert max(len(stage["start"]) for stage in report["graphs"][0]["stages"]) > 5000
    assert sum(len(stage["passes"]) for stage in report["graphs"][0]["stages"]) > 60
    assert len(text) < 10e6
    assert seconds < 30
    sys.modules.pop("demo")


def test_a_backward_that_is_compiled_twice_has_two_stages_of_its_own():
    def program(x):
        return x.sin(), x.cos()

    explanation = Explanation()
    x = torch.randn(3, requires_grad=True)
    with explanation.watching():
        compiled = explanation.compile(CompiledFunction(program, Options.of(ATEN), {}, "program"))
        for which in (slice(None), slice(1)):
            torch.autograd.grad([y.sum() for y in compiled(x)[which]], x)
    report, _ = check(explanation)
    keys = [stage["key"] for stage in report["graphs"][0]["stages"]]
    assert keys[-3:] == ["1/engine/backward", "1/post_grad/backward#2", "1/engine/backward#2"]


@pytest.mark.skipif(not has_code_generator(), reason="needs a C++ compiler")
def test_a_graph_without_kernels_is_no_failure():
    explanation = eductor.explain(lambda x: (x, x.view(-1)), torch.randn(3, 3), options={"engine": "inductor"})
    check(explanation)
    assert explanation.warnings == []


# --------------------------------------------------------------------------------------------------- odd ways of passes


@graph_pass(stage="joint", numerics="exact")
def stumbles(graph, rewrite):
    """Fails after an edit."""
    rewrite.move(graph.find(torch.ops.aten.sin).__next__(), before=graph.output)
    raise ValueError("over its own feet")


def by_hand(graph: torch.fx.Graph) -> None:
    """Edits the graph by itself."""
    node = next(n for n in graph.nodes if "sin" in str(n.target))
    with graph.inserting_after(node):
        copy = graph.call_function(torch.ops.aten.abs.default, (node,))
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def odd(x):
    return (x.sin() + x.clone().cos()) * x.view(x.shape)


def test_nodes_keep_their_ids_where_a_failed_pass_was_undone(tmp_path):
    pass_ = stumbles.placed(before="remove_noop_ops")
    with pytest.warns(EductorWarning, match="over its own feet"):
        _, stages = check(
            eductor.explain(
                odd,
                torch.randn(3),
                options={**ATEN, "passes": [pass_], "repro_dir": tmp_path, "disable": "remove_noop_pass"},
            )
        )
    joint = next(stage for stage, _ in stages if stage["name"] == "joint")
    statuses = {p["name"]: p["status"] for p in joint["passes"]}
    assert (statuses["stumbles"], statuses["remove_noop_ops"]) == ("failed", "changed")
    removed = next(p for p in joint["passes"] if p["name"] == "remove_noop_ops")["delta"]
    assert removed["added"] == []
    assert set(removed["removed"]) <= {n["id"] for n in joint["start"]}


def test_what_a_plain_function_made_is_said_to_be_its(tmp_path):
    options = {**ATEN, "post_grad_custom_pre_pass": by_hand}
    _, stages = check(eductor.explain(odd, torch.randn(3), options=options))
    state = next(state for stage, state in stages if stage["role"] == "forward")
    made = [n["made"] for n in state.nodes.values() if "abs" in n["target"]]
    assert made == [{"pass": "post_grad/by_hand", "match": None}]
    assert unexplained(stages) == []


@graph_pass(stage="joint", numerics="exact")
def lies(graph, rewrite):
    """Says that it is exact."""
    for node in graph.find(torch.ops.aten.sin):
        rewrite.replace(node, torch.ops.aten.tanh, *node.args)


def test_a_verdict_stands_with_each_pass_that_changed_something(tmp_path):
    options = {**ATEN, "passes": [lies], "repro_dir": tmp_path}
    with pytest.warns(EductorWarning, match="lies failed"):
        _, stages = check(eductor.explain(odd, torch.randn(3), options=options, verify=True))
    verdicts = {p["name"]: p["verified"] for stage, _ in stages for p in stage["passes"] if p["verified"]}
    assert not verdicts["lies"]["ok"]
    assert verdicts["lies"]["text"].startswith("numbers: ")
    assert verdicts.pop("remove_noop_pass") == {"ok": True, "text": "every check holds"}
    _, stages = check(eductor.explain(odd, torch.randn(3), options=ATEN))
    assert all(p["verified"] is None for stage, _ in stages for p in stage["passes"])


@pattern_pass(stage="joint", numerics="exact")
def doubled():
    """Looks for a sine of a sine."""


doubled.replace(op(torch.ops.aten.sin, op(torch.ops.aten.sin, var("x"))), lambda x: x, name="twice")


def test_a_pattern_that_found_nothing_tells_its_nearest_miss():
    _, stages = check(eductor.explain(odd, torch.randn(3), options={**ATEN, "passes": [doubled]}))
    joint = next(stage for stage, _ in stages if stage["name"] == "joint")
    (left,) = next(p for p in joint["passes"] if p["name"] == "doubled")["rejects"]
    assert left["rule"] == "twice"
    assert left["reason"].startswith("the nearest miss has 1 of 2 calls; ")


def test_a_delta_leads_from_any_order_to_any_other():
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        sizes = torch.randint(0, 9, (2,), generator=generator).tolist()
        left, right = (torch.randperm(12, generator=generator)[:size].tolist() for size in sizes)
        state = State({"id": id, "code": "old"} for id in left)
        copy = State({"id": id, "code": "old"} for id in left)
        target = {id: {"id": id, "code": "new" if id % 3 == 0 else "old"} for id in right}
        delta = whole_delta(state, target)
        copy.apply(delta)
        assert list(copy) == list(state) == right
        assert copy.nodes == state.nodes == target
        stays = [id for id in left if id in target]
        if stays == [id for id in right if id in left]:
            assert delta["moved"] == [], "nothing moved against the others"


# ---------------------------------------------------------------------------------------------------------------- HTML

SCRIPT = """
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))

    def forward(self, x):
        return self.layers(x)


compiled = torch.compile(Model(), backend="eductor", options={"engine": "aten"})
compiled(torch.randn(4, 8)).sum().backward()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def page(monkeypatch):
    monkeypatch.setattr(html, "explorer", lambda: PAGE)
    monkeypatch.setattr(cli, "explorer", lambda: PAGE)


def unpacked(text):
    (data,) = re.findall(re.escape(html.TAG) + r"([\w+/=]*)</script>", text)
    return json.loads(gzip.decompress(base64.b64decode(data)))


def test_a_script_is_explained_in_one_file(script, page, tmp_path, capsys):
    target = tmp_path / "report.html"
    assert cli.main(["explain", str(script), "--verify", "--html", str(target)]) == 0
    text = target.read_text()
    assert text.startswith("<!doctype html>")
    report = unpacked(text)
    fits(report, "report")
    assert report["title"] == "Model"
    assert report["graphs"][0]["partition"]["curve"]
    verdicts = [p["verified"] for s in report["graphs"][0]["stages"] for p in s["passes"] if p["status"] == "changed"]
    assert verdicts
    assert all(v["ok"] for v in verdicts)
    assert (str(script), "return self.layers(x)") in {(s["file"], s["code"]) for s in report["sources"]}
    captured = capsys.readouterr()
    assert captured.out.strip() == f"{target} (0.0 MB): open it in a browser."
    assert f"writing {target}" in captured.err


def test_what_cannot_be_written_is_said_before_the_script_runs(script, page, tmp_path, capsys):
    for file, reason in ((tmp_path / "no" / "r.html", "there is no folder"), (tmp_path, "is a folder")):
        assert cli.main(["explain", str(script), "--html", str(file)]) == 2
        captured = capsys.readouterr()
        assert reason in captured.err
        assert "graph 1" not in captured.err


def test_a_missing_page_is_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setattr(html, "files", lambda package: tmp_path)
    with pytest.raises(EductorError, match="make explorer"):
        html.as_html({})
