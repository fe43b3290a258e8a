"""The curve of memory against time: worked out when asked for, as data, as a table, and drawn."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F

import eductor
from eductor.errors import BadOption, NotInstalled
from eductor.observe.explain.memory_curve import PANELS, CurvePoint, MemoryCurve, check_can_draw, draw

needs_matplotlib = pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")


def layers(x, w):
    for _ in range(8):
        x = torch.layer_norm(x + F.gelu(x @ w) @ w.t(), [16])
    return x.sum()


def explained(**options):
    inputs = (torch.randn(32, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True))
    return eductor.explain(layers, *inputs, options={"engine": "aten", **options}, memory_curve=True)


def point(budget, bytes=None, microseconds=None):
    """A point of a curve on which a byte costs a microsecond."""
    bytes = int(4096 * budget) if bytes is None else bytes
    return CurvePoint(budget, bytes, 1e-6 * (5000 - bytes if microseconds is None else microseconds), 2 * bytes)


def curve(*budgets, chosen=None):
    points = tuple(point(budget) for budget in budgets)
    return MemoryCurve(points, chosen or points[0])


def test_each_budget_has_its_bytes_its_time_and_its_peak_and_the_plan_is_the_chosen_one():
    told = explained(memory_budget=0.5)
    (found,), (plan,) = told.memory_curve().values(), told.explain_saved().values()
    sizes, times = [p.bytes for p in found.points], [p.seconds for p in found.points]
    assert (found.points[0].budget, found.points[-1].budget) == (1, 0)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1] == 0
    assert times == sorted(times)
    assert found.chosen == CurvePoint(0.5, plan.bytes, plan.seconds, plan.peak)
    assert found.chosen.place in {p.place for p in found.points}


def test_the_curve_is_in_the_json_and_comes_back():
    told = explained()
    data = json.loads(json.dumps(told.to_json()))
    (facts,) = (s["facts"] for s in data["graphs"][0]["stages"] if s["name"] == "partition")
    assert MemoryCurve.from_json(facts["curve"]) == told.memory_curve()[1]


def test_nothing_is_worked_out_that_nobody_asked_for(monkeypatch):
    monkeypatch.setattr(eductor.compiler, "memory_curve", None)
    told = eductor.explain(torch.sin, torch.ones(3, requires_grad=True), options={"engine": "aten"})
    assert "curve" not in json.dumps(told.to_json())
    with pytest.raises(BadOption, match="memory_curve=True"):
        told.memory_curve()


def test_the_table_has_a_row_for_each_place_and_marks_the_chosen_one():
    same = (point(1), point(0.5, 1024), point(0.25, 1024), point(0))
    lines = str(MemoryCurve(same, point(0.3, 1024))).splitlines()
    assert lines[0].split() == ["budget", "saved,", "KiB", "peak,", "KiB", "time,", "us"]
    assert [line.split("  ")[0] for line in lines[2:]] == ["1", "0.5 to 0.25", "0"]
    assert [line.endswith("<- chosen: 0.3") for line in lines[2:]] == [False, True, False]


def test_what_was_chosen_beside_the_curve_has_a_row_of_its_own():
    lines = str(curve(1, 0.5, 0, chosen=point(0.7, 3000, 4000))).splitlines()
    assert [line.endswith("<- chosen: 0.7") for line in lines[2:]] == [False, False, True, False]


@pytest.mark.parametrize(
    ("budget", "text"), [({"Linear": 0.5}, "by modules"), (123456, "123,456 bytes"), (0.333333, "0.333")]
)
def test_every_kind_of_budget_is_told(budget, text):
    lines = str(curve(1, 0, chosen=CurvePoint(budget, 4096, 0.9e-3, 8192))).splitlines()
    assert sum(line.endswith(f"<- chosen: {text}") for line in lines) == 1


def test_what_is_computed_twice_is_counted_twice():
    told = explained(memory_budget=0)
    (found,), (plan,) = told.memory_curve().values(), told.explain_saved().values()
    assert any(entry.ahead for entry in plan.again)
    assert found.chosen.place == found.points[-1].place
    assert found.chosen.seconds > plan.seconds


@needs_matplotlib
def test_each_graph_has_a_panel_with_both_lines_and_the_chosen_point():
    found = curve(1, 0.5, 0, chosen=point(0.5))
    figure = draw({"graph 1: f": found, "graph 2: g": curve(1, 0)})
    assert [axes.get_title() for axes in figure.axes] == ["graph 1: f", "graph 2: g"]
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert lines["saved"].get_ydata() == pytest.approx([4, 2, 0])
    assert lines["peak"].get_ydata() == pytest.approx([8, 4, 0])
    assert lines["saved"].get_xdata() == pytest.approx([1e6 * p.seconds for p in found.points])
    assert lines["chosen: budget 0.5"].get_ydata() == pytest.approx([4, 2])
    assert figure.axes[0].get_ylabel() == "memory, KiB"
    assert [text.get_text() for text in figure.axes[0].texts] == ["1", "0.5", "0"]


@needs_matplotlib
def test_of_many_graphs_those_are_drawn_that_save_most():
    many = {f"graph {n}": MemoryCurve((point(1, 1000 + n),), point(1, 1000 + n)) for n in range(PANELS + 3)}
    figure = draw(many)
    assert [axes.get_title() for axes in figure.axes] == list(many)[3:]
    assert "3 smaller graphs left out" in figure.get_suptitle()


@needs_matplotlib
def test_a_figure_goes_to_a_file_object_in_any_format():
    drawn = io.BytesIO()
    explained().draw_memory_curve().savefig(drawn, format="svg")
    assert b"<svg" in drawn.getvalue()
    with pytest.raises(BadOption, match="no graph has a backward"):
        draw({})


def test_without_matplotlib_the_error_says_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr("eductor.observe.explain.memory_curve.find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=r"matplotlib must be installed: pip install 'eductor\[plot\]'"):
        draw({"graph 1": curve(1, 0)})
    with pytest.raises(NotInstalled):
        check_can_draw(tmp_path / "curve.png")


def test_a_file_that_cannot_be_drawn_is_refused_before_the_script_runs(tmp_path):
    with pytest.raises(BadOption, match=r"'train.py' is not the name of a picture: it must end in .png, .svg, .pdf"):
        check_can_draw("train.py")
    with pytest.raises(BadOption, match=r"there is no folder .*nowhere' to draw 'curve.png' in"):
        check_can_draw(tmp_path / "nowhere" / "curve.png")
