"""`eductor diff`: two records side by side; and records of torch's own Inductor."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
import torch

import eductor
from eductor import cli
from eductor.engines import has_code_generator
from eductor.errors import BadOption
from eductor.observe.diff.record_diff import as_terminal, compare_records, read_record
from eductor.observe.diff.record_diff_html import as_page
from eductor.observe.diff.text_diff import diff_of_texts

ATEN = {"engine": "aten"}


def program(x):
    return (x.clone() @ x).sin().sum() + x.view(x.shape).cos().sum()


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The same program with and without one pass."""
    folder = tmp_path_factory.mktemp("records")
    for name, options in (("with", ATEN), ("without", {**ATEN, "disable": "remove_noop_pass"})):
        torch._dynamo.reset()
        data = eductor.explain(program, torch.ones(4, 4, requires_grad=True), options=options).to_json()
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def text_of(records):
    a, b = (read_record(str(records / f"{name}.json")) for name in ("with", "without"))
    return as_terminal(compare_records(a, b, ("with", "without")))


def test_stages_passes_memory_and_kernels_stand_side_by_side(records):
    lines = text_of(records).splitlines()
    row = next(line.split() for line in lines if "pre_grad/remove_noop_pass" in line)
    assert row[1:3] == ["changed", "(1)"]
    assert row[3] == "-", "it did not run in the other record"
    assert any(line.split()[:2] == ["post_grad,", "forward"] for line in lines)
    saved = next(line.split() for line in lines if line.split()[:2] == ["saved", "bytes"])
    assert saved[2].isdigit()
    assert saved[3].isdigit()
    assert any(line.strip().startswith("kernels, forward   aten: ") for line in lines)


def test_a_record_differs_in_nothing_from_itself(records):
    record = read_record(str(records / "with.json"))
    text = as_terminal(compare_records(record, record))
    assert "the final graph, forward: the same" in text
    assert "the final graph, backward: the same" in text


def test_graphs_are_aligned_by_what_they_compute():
    left = "def forward(x):\n    sin = torch.sin(x)  # f32[3]\n    add = torch.add(sin, x)  # f32[3]\n    return (add,)"
    right = left.replace("sin =", "first =").replace("(sin,", "(first,").replace("add =", "second =")
    right = right.replace("return (add,)", "return (second,)")
    assert all(row.is_same for row in diff_of_texts(left, right)), "a name is no difference"
    other = right.replace("torch.add(first, x)", "torch.mul(first, x)")
    assert [(r.left or "", r.right or "") for r in diff_of_texts(left, other) if not r.is_same] == [
        ("    add = torch.add(sin, x)  # f32[3]", ""),
        ("    return (add,)", ""),
        ("", "    second = torch.mul(first, x)  # f32[3]"),
        ("", "    return (second,)"),
    ]


def test_the_same_call_of_other_values_is_a_difference():
    left = "    a = f(x)\n    b = f(x)\n    c = g(a)\n    return (b, c)"
    right = left.replace("g(a)", "g(b)")
    assert [(r.left, r.right) for r in diff_of_texts(left, right) if not r.is_same] == [
        ("    c = g(a)", None),
        (None, "    c = g(b)"),
    ]


def test_a_name_that_means_something_else_is_a_difference():
    left = "    a = f(x)\n    c = g(a)\n    return (c,)"
    right = "    a = h(x)\n    c = g(a)\n    return (c,)"
    assert [row.is_same for row in diff_of_texts(left, right)] == [False] * 4 + [True]


def test_a_graph_that_only_one_record_has_is_named(records):
    record = read_record(str(records / "with.json"))
    text = as_terminal(compare_records(record, {**record, "graphs": []}))
    assert "graph 1: program, only in A" in text


class _Checked(HTMLParser):
    """Fails where tags do not close in order."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        assert not any(name in ("src", "href") for name, _ in attributes), "it needs nothing from elsewhere"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_self_contained(records, tmp_path, capsys):
    target = tmp_path / "diff.html"
    a, b = str(records / "with.json"), str(records / "without.json")
    assert cli.main(["diff", a, b, "--html", str(target)]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    page = target.read_text()
    checked = _Checked()
    checked.feed(page)
    assert checked.open == []
    assert "pre_grad/remove_noop_pass" in page
    assert "<script" not in page


def test_what_a_program_is_called_cannot_break_the_page(records):
    record = read_record(str(records / "with.json"))
    assert "<script>" not in as_page(compare_records(record, record, ("<script>", "b")))


def test_records_of_the_same_name_are_told_apart(records, capsys):
    path = str(records / "with.json")
    assert cli.main(["diff", path, path]) == 0
    assert "A" in capsys.readouterr().out.splitlines()[1]


def test_what_is_no_record_is_said_to_be_none(tmp_path):
    (tmp_path / "text.json").write_text("{")
    (tmp_path / "other.json").write_text('{"schema": "other/1"}')
    for name, reason in (("none", "No such file"), ("text", "is not JSON"), ("other", "the schema 'other/1'")):
        with pytest.raises(BadOption, match=reason):
            read_record(str(tmp_path / f"{name}.json"))


# -------------------------------------------------------------------------------------------------- torch's own Inductor

SCRIPT = """
import torch

def program(x):
    return (x.clone() @ x).sin().sum() + x.view(x.shape).cos().sum()

x = torch.ones(4, 4, requires_grad=True)
torch.compile(program, backend="{backend}")(x).backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "eductor"])
def test_stock_is_recorded_as_we_are(backend, tmp_path, capsys):
    if not has_code_generator():
        pytest.skip("needs a C++ compiler")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(backend=backend))
    assert cli.main(["explain", str(script), "--backend", "inductor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (graph,) = record["graphs"]
    stages = {(s["name"], s["role"]): s for s in graph["stages"]}
    assert {("pre_grad", "captured"), ("joint", "joint"), ("post_grad", "forward"), ("post_grad", "backward")} <= set(
        stages
    )
    assert "remove_noop_ops" in [p["name"] for p in stages["joint", "joint"]["passes"]]
    changed = [p for s in graph["stages"] for p in s["passes"] if p["status"] == "changed"]
    assert all(p["before"] != p["after"] for p in changed)
    joint = stages["joint", "joint"]["passes"]
    assert any(p["status"] == "changed" for p in joint)
    assert "aten.mm" in stages["post_grad", "forward"]["result"]
    for role in ("forward", "backward"):
        kernels = stages["engine", role]["facts"]["kernels"]
        assert {k["language"] for k in kernels} == {"cpp", "extern"}
        assert all(k["nodes"] for k in kernels)
    facts = stages["partition", "joint"]["facts"]
    assert sum(entry["bytes"] for entry in facts["plan"]["saved"]) == facts["saved_bytes"] > 0
    assert 0 < stages["partition", "joint"]["nodes"] <= joint[-1]["nodes_after"]
    torch._dynamo.reset()
    ours = eductor.explain(program, torch.ones(4, 4, requires_grad=True), options=ATEN).to_json()
    text = as_terminal(compare_records(ours, record, ("ours", "stock")))
    assert "joint/remove_noop_ops" in text or "joint/between_passes" in text
    assert "the final graph, forward" in text


def test_what_stock_cannot_tell_is_refused(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(backend="inductor"))
    for option in ("--verify", "--memory-curve"):
        assert cli.main(["explain", str(script), "--backend", "inductor", option]) == 2
        assert "leave out --backend inductor" in capsys.readouterr().err


def test_without_the_option_a_script_of_inductors_is_no_script_of_ours(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text('import torch\ntorch.compile(lambda x: x, backend="inductor")\n')
    assert cli.main(["explain", str(script)]) == 2
    assert "compiled nothing with Eductor (but with inductor)" in capsys.readouterr().err
