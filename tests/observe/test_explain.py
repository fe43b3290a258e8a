"""`eductor.explain`: what it tells, and that looking changes nothing."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import eductor
from eductor.errors import EductorWarning, UnknownName
from eductor.graph import capture
from eductor.observe.diff.pass_diff import diff_of_graphs
from eductor.pipeline import graph_pass

ATEN = {"engine": "aten", "disable": "remove_noop_pass"}
SMALL = {**ATEN, "memory_budget": 0}
SCHEMA_PAGE = Path(__file__).parents[2] / "docs" / "explain_json.md"


def scaled(x, w):
    """The clone is needless, the product has a backward."""
    return (x * w).clone().sin()


def summed(x):
    """What the backward reads can be computed again."""
    return (x @ x).sin().sum()


def explained(fn=scaled, *args, **options):
    args = args or (torch.randn(4), torch.randn(4, requires_grad=True))
    return eductor.explain(fn, *args, options={**ATEN, **options})


def stages_of(explanation, graph=1):
    return [(t.stage.name, t.stage.role) for t in explanation.stages(graph)]


def test_stages_stand_in_order_with_forward_and_backward():
    assert stages_of(explained()) == [
        ("pre_grad", "captured"),
        ("autograd", "captured"),
        ("joint", "joint"),
        ("partition", "joint"),
        ("post_grad", "forward"),
        ("post_grad", "backward"),
        ("engine", "forward"),
        ("link", "captured"),
        ("engine", "backward"),
    ]


def test_inference_has_no_backward():
    explanation = explained(scaled, torch.ones(3), torch.ones(3))
    assert all(role != "backward" for _, role in stages_of(explanation))
    assert "no gradients" in str(explanation)


def test_the_text_says_what_each_pass_did():
    text = str(explained())
    assert re.search(r"^Graph 1 \[\d+/\d+\]: scaled$", text, flags=re.MULTILINE)
    assert "test_explain.py:" in text
    assert "return (x * w).clone().sin()" in text
    assert re.search(r"remove_noop_ops +changed +1 +\d+ -> \d+", text)
    assert re.search(r"replace_random_passes +skipped .*fallback_random", text)
    assert re.search(
        r"partition: \d+ nodes split into \d+ forward and \d+ backward; saved: 1 input, 1 value of 16 bytes", text
    )
    assert re.search(r"engine, backward: aten", text)
    assert re.search(r"^Total: 1 graph in .*slowest pass: \w+/\w+ .*failed: nothing\.$", text, flags=re.MULTILINE)


def test_a_graph_break_is_told_apart():
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    explanation = explained(broken, torch.ones(3))
    line = broken.__code__.co_firstlineno + 2
    assert [o.kind for o in explanation.graphs.values()] == ["first", "after_graph_break"]
    assert re.search(rf"Graph 2 .*broken after the graph break in line {line}", str(explanation))


def test_a_function_called_between_graphs_is_told_apart():
    def inner(x):
        y = x.cos()
        torch._dynamo.graph_break()
        return y.tan()

    def outer(x):
        return inner(x.sin()).exp()

    explanation = explained(outer, torch.ones(3))
    assert [(o.kind, o.part.split()[0].rpartition(".")[2]) for o in explanation.graphs.values()] == [
        ("first", "outer"),
        ("called", "inner,"),
        ("after_graph_break", "inner"),
        ("after_graph_break", "outer"),
    ]


def test_a_recompile_is_told_apart():
    def twice(x):
        return x * 2

    def caller(call):
        call(torch.ones(3))
        return call(torch.ones(3, 3))

    explanation = eductor.observe.explain.explain.Explanation()
    found = eductor.observe.scripts.interception.CompiledFunction(twice, eductor.Options(**ATEN), {}, "twice")
    caller(explanation.compile(found))
    first, second = explanation.graphs.values()
    assert (first.kind, second.kind, second.recompile_of) == ("first", "recompile", 1)
    assert "twice, recompiled, as no earlier graph fits (tensor 'x' rank mismatch. expected 1, actual 2)" in str(
        explanation
    )


def test_what_computes_nothing_is_said_to():
    assert str(explained(lambda x: x, 3)).startswith("No graph was captured")


def test_a_first_look_is_no_recompile_however_often_one_looks():
    def often(x):
        return x.sin()

    compiled = torch.compile(often, backend="eductor", options=ATEN)
    compiled(torch.ones(3))
    for _ in range(10):  # more than Dynamo keeps of one code
        explanation = explained(often, torch.ones(3))
        assert [o.kind for o in explanation.graphs.values()] == ["first"]
    recorder = eductor.Recorder()
    eductor.compile(often, instruments=[recorder], **ATEN)(torch.ones(3))
    assert recorder.graphs == 1, "the looks used up what Dynamo compiles for the user"


def test_what_is_compiled_already_is_compiled_anew():
    compiled = torch.compile(scaled, backend="eductor", options=ATEN)
    args = torch.randn(4), torch.randn(4)
    compiled(*args)
    explanation = explained(compiled, *args)
    assert [o.function for o in explanation.graphs.values()] == ["scaled"]
    module = nn.Linear(3, 3)
    explanation = explained(torch.compile(module, backend="eductor", options=ATEN), torch.ones(3))
    assert [o.function for o in explanation.graphs.values()] == ["Linear"]


def test_looking_leaves_gradients_alone():
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    first = torch.ones(3, 3)
    module[0].weight.grad = first
    x = torch.ones(2, 3, requires_grad=True)
    y = x.exp()  # saved for a backward of the user's own
    explanation = explained(lambda y: {"a": [module(y)], "b": 3}, y)
    assert ("engine", "backward") in stages_of(explanation)
    assert module[0].weight.grad is first
    assert torch.equal(first, torch.ones(3, 3))
    assert module[0].bias.grad is None
    assert x.grad is None
    y.sum().backward()


def test_a_backward_that_raises_is_a_warning():
    class Stubborn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("no way back")

    stubborn = torch._dynamo.disable(Stubborn.apply)
    with pytest.warns(EductorWarning, match="no way back"):
        explanation = explained(lambda x: stubborn(x.sin()).cos(), torch.ones(3, requires_grad=True))
    assert "no way back" in explanation.warnings[0]


@graph_pass(stage="joint", numerics="exact")
def stumbles(graph, rewrite):
    """Fails."""
    raise ValueError("over its own feet")


def test_a_failing_pass_is_shown_and_warned_of(tmp_path):
    with pytest.warns(EductorWarning, match="over its own feet"):
        explanation = explained(passes=[stumbles], repro_dir=tmp_path)
    text = str(explanation)
    assert re.search(r"stumbles +failed .*ValueError: over its own feet", text)
    assert "  warning: the pass joint/stumbles failed" in text
    assert "failed: joint/stumbles in graph 1 (joint)." in text
    assert explanation.to_json()["warnings"][0]["graph"] == 1


def test_warnings_reach_who_waits_for_them_and_filters_stay():
    def fails(job):
        raise RuntimeError("out of cheese")

    before = list(warnings.filters), warnings.showwarning
    with pytest.warns(EductorWarning, match="out of cheese"):
        explanation = explained(engine=fails)
    assert (list(warnings.filters), warnings.showwarning) == before
    assert re.search(r"engine, forward.*\n +FAILED: RuntimeError: out of cheese", str(explanation))
    assert "out of cheese" in explanation.warnings[0]


def test_stages_that_were_left_out_are_shown():
    with pytest.warns(EductorWarning, match="runs uncompiled"):
        explanation = explained(
            lambda x: x.sin(), torch.ones(3), decompositions={torch.ops.aten.sin.default: "nonsense"}
        )
    text = str(explanation)
    assert "FAILED" in text
    assert "joint: left out" in text
    left_out = [s for s in explanation.to_json()["graphs"][0]["stages"] if s["facts"].get("left_out")]
    assert [s["name"] for s in left_out] == ["joint", "partition", "post_grad"]
    assert all(p["status"] == "skipped" for s in left_out for p in s["passes"])


# ---------------------------------------------------------------------------------------------------------------- diff


def test_a_diff_shows_matches_and_lines():
    diff = explained().diff("joint/remove_noop_ops")
    assert "joint/remove_noop_ops in graph 1 (joint): 1 match\n  joint/remove_noop_ops:copy@0: at clone\n" in diff
    assert "    replaced clone by mul\n" in diff
    assert re.search(r"^- clone = torch.ops.aten.clone.default\(mul\)  # f32\[4\]", diff, flags=re.MULTILINE)
    assert re.search(r"^\+ sin = torch.ops.aten.sin.default\(mul\)", diff, flags=re.MULTILINE)
    assert re.search(r"^  mul = ", diff, flags=re.MULTILINE)


def test_a_name_stands_for_the_pass_in_all_stages_and_a_match_for_its_pass():
    explanation = explained()
    assert explanation.diff("remove_noop_ops") == explanation.diff("joint/remove_noop_ops:copy@0")


def test_a_diff_of_nothing_says_why():
    explanation = explained()
    assert "stable_topological_sort in graph 1 (joint): unchanged" in explanation.diff("stable_topological_sort")
    assert "each node is already after its operands" in explanation.diff("stable_topological_sort")
    assert "skipped, the option fallback_random" in explanation.diff("replace_random_passes")
    with pytest.raises(UnknownName, match="Did you mean 'remove_noop_ops'"):
        explanation.diff("remove_noops")


def test_long_stretches_are_cut_and_moves_are_marked():
    def chain(x):
        y = x.cos()
        for _ in range(20):
            x = x.sin()
        return x + y

    before, after = (capture(chain, [torch.ones(3)], "aten").graph for _ in range(2))
    node = next(n for n in after.nodes if n.name == "cos")
    next(n for n in after.nodes if n.name == "add").prepend(node)
    rows = diff_of_graphs(before, after)
    assert [row for row in rows if not row.startswith("  ")] == [
        "@@ 18 unchanged @@",
        "> cos = torch.ops.aten.cos.default(arg0_1)  # f32[3]  (moved)",
    ]


# ---------------------------------------------------------------------------------------------------------------- JSON


def documented() -> dict[str, set[str]]:
    """The fields that the page names, by the list or object they stand in."""
    found = {}
    for section in SCHEMA_PAGE.read_text().split("\n## ")[1:]:
        title = section.splitlines()[0]
        fields = set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))
        found |= dict.fromkeys(re.findall(r"`(\w+)`", title) or [""], fields)
    return found


def occurring(data, where="", found=None) -> dict[str, set[str]]:
    found = {} if found is None else found
    if isinstance(data, list):
        for item in data:
            occurring(item, where, found)
    if isinstance(data, dict):
        found.setdefault(where, set()).update(data)
        for key, value in data.items():
            occurring(value, key, found)
    return found


@graph_pass(stage="joint", numerics="exact")
def looks(graph, rewrite):
    """Leaves everything."""
    rewrite.reject("it only looks", *list(graph.nodes)[:1])


def test_json_has_exactly_the_documented_fields(tmp_path):
    with pytest.warns(EductorWarning, match="over its own feet"):
        rich = explained(passes=[stumbles, looks], repro_dir=tmp_path)
    with pytest.warns(EductorWarning, match="runs uncompiled"):
        broken = explained(lambda x: x.sin(), torch.ones(3), decompositions={torch.ops.aten.sin.default: "nonsense"})
    small = eductor.explain(summed, torch.ones(4, 4, requires_grad=True), options=SMALL, memory_curve=True)
    checked = eductor.explain(lambda x: x.clone() + 1, torch.ones(3), options=ATEN, verify=True)
    data = [rich.to_json(), broken.to_json(), small.to_json(), checked.to_json()]
    assert occurring(data) == documented()


def test_json_survives_a_round_trip():
    data = explained().to_json()
    assert json.loads(json.dumps(data)) == data
    assert data["schema"] == "eductor.explain/1"
    assert f"`{data['schema']}`" in SCHEMA_PAGE.read_text()
    assert data["torch"] == torch.__version__
    (graph,) = data["graphs"]
    joint = next(s for s in graph["stages"] if s["name"] == "joint")
    noop = next(p for p in joint["passes"] if p["name"] == "remove_noop_ops")
    assert (noop["status"], noop["nodes_before"] - noop["nodes_after"]) == ("changed", 1)
    assert noop["matches"][0]["address"] == "joint/remove_noop_ops:copy@0"
    assert noop["matches"][0]["events"][0] == {"kind": "replaced", "node": "clone", "detail": "by mul"}
    assert "clone" in noop["before"]
    assert "clone" not in noop["after"]
    skipped = next(p for p in joint["passes"] if p["status"] == "skipped")
    assert skipped["reason"]
    assert skipped["before"] is None
