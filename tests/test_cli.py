"""`eductor passes`, `eductor explain` and `eductor why-not`, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from eductor.cli import main
from eductor.pipeline import Registry


def test_the_table_is_the_order(capsys):
    assert main(["passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["stage", "name", "on", "numerics", "purpose"]
    assert [tuple(line.split()[:2]) for line in lines[2:]] == [(s.stage, s.name) for s in Registry.default().steps()]


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_json(capsys, stage):
    assert main(["passes", "--json", "--stage", stage]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in rows] == [s.name for s in Registry.default().order(stage)]
    assert all({"stage", "name", "purpose", "numerics", "on"} <= set(r) for r in rows)
    assert all(r["stage"] == stage and r["purpose"] and isinstance(r["on"], bool) for r in rows)


def test_markdown(capsys):
    assert main(["passes", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| stage | name | on | numerics | purpose |"
    assert len(lines) == 2 + len(Registry.default().steps())


@pytest.mark.parametrize("step", Registry.default().steps(), ids=lambda s: s.address)
def test_every_pass_and_slot_has_a_page(capsys, step):
    assert main(["passes", f"{step.stage}/{step.name}"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"# {step.name}")
    assert step.reason in page
    if not step.is_slot:
        pass_ = step.load()
        assert pass_.purpose in page
        assert page.count("Before:") == page.count("After:") == len(pass_.examples)
        assert page.count("Its reason") >= len(pass_.refusals)


def test_a_name_that_two_stages_have_is_two_pages(capsys):
    assert main(["passes", "pass_patterns"]) == 0
    page = capsys.readouterr().out
    assert page.count("# pass_patterns") == 2
    assert "`joint/pass_patterns`" in page
    assert "`post_grad/pass_patterns`" in page


def test_a_page_shows_what_running_the_pass_does(capsys):
    main(["passes", "joint/remove_noop_ops"])
    before, after = capsys.readouterr().out.split("Before:")[1].split("After:")[:2]
    assert "clone" in before
    assert "clone" not in after.split("##")[0]


def test_mistakes_are_one_line_and_exit_code_2(capsys):
    assert main(["passes", "remove_nop"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("eductor: unknown pass 'remove_nop'. Did you mean 'remove_noop_ops'?")
    assert error.count("\n") == 1
    assert main(["passes", "remove_noop_ops", "--stage", "pre_grad"]) == 2
    for argv in ([], ["frobnicate"], ["passes", "--stage", "nowhere"]):
        with pytest.raises(SystemExit) as exit:
            main(argv)
        assert exit.value.code == 2


def test_as_a_module_and_into_a_closed_pipe():
    done = subprocess.run(
        [sys.executable, "-m", "eductor", "passes", "--json"], capture_output=True, text=True, check=True
    )
    assert len(json.loads(done.stdout)) == len(Registry.default().steps())
    done = subprocess.run(f"{sys.executable} -m eductor passes | head -1", shell=True, capture_output=True, text=True)
    assert done.stdout.startswith("stage")
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------------------- explain

SCRIPT = """
import sys, torch

@torch.compile(backend="eductor", options={"engine": "aten", "disable": "remove_noop_pass"})
def step(x):
    return (x * 2).clone().sin()

step(torch.ones(3, requires_grad=True)).sum().backward()
print("the script's own words", sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_explain_tells_what_passes_did(capsys, script):
    assert main(["explain", script, "--", "--lr", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("the script's own words ['--lr', '3']\nGraph 1 [")
    assert "remove_noop_ops          changed" in captured.out
    assert "train.py:6: return (x * 2).clone().sin()" in captured.out
    assert captured.err.splitlines()[:3] == ["graph 1, pre_grad", "graph 1, autograd", "graph 1, joint"]
    assert captured.err.splitlines()[-1] == "graph 1, engine (backward)"


def test_explain_a_function(capsys, tmp_path):
    path = tmp_path / "library.py"
    path.write_text("from eductor.pipeline import f32\ndef tiny(x=f32(2, 3)):\n    return x.clone() + 1")
    assert main(["explain", f"{path}:tiny"]) == 0
    assert "]: tiny\n" in capsys.readouterr().out


def test_explain_shows_the_difference(capsys, script):
    assert main(["explain", script, "--diff", "remove_noop_ops"]) == 0
    assert "\n- clone = torch.ops.aten.clone.default(mul)" in capsys.readouterr().out
    assert main(["explain", script, "--diff", "remove_nop"]) == 2
    assert "eductor: unknown pass 'remove_nop'. Did you mean 'remove_noop_ops'?" in capsys.readouterr().err


def test_explain_tells_what_is_saved(capsys, script, tmp_path):
    assert main(["explain", script, "--saved"]) == 0
    told = capsys.readouterr().out
    assert "graph 1\n\nsaved" in told
    assert "bytes are saved" in told
    assert main(["explain", f"{_inference(tmp_path)}", "--saved"]) == 0
    assert "No graph has a backward" in capsys.readouterr().out


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_explain_draws_the_memory_curve(capsys, script, tmp_path):
    picture = tmp_path / "curve.png"
    assert main(["explain", script, "--memory-curve", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<- chosen: 1" in capsys.readouterr().out
    assert main(["explain", f"{_inference(tmp_path)}", "--memory-curve", str(tmp_path / "none.png")]) == 0
    assert "No graph has a backward" in capsys.readouterr().out
    assert not (tmp_path / "none.png").exists()


def test_explain_tells_the_memory_curve_as_a_table_and_in_the_json(capsys, script):
    assert main(["explain", script, "--saved", "--memory-curve"]) == 0
    saved, curve = capsys.readouterr().out.split("budget")
    assert "bytes are saved" in saved
    assert "<- chosen: 1" in curve
    assert main(["explain", script, "--json", "--memory-curve"]) == 0
    assert '"curve": {' in capsys.readouterr().out
    assert main(["explain", script, "--memory-curve", "curve.txt"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""  # the script did not run
    assert "eductor: 'curve.txt' is not the name of a picture" in captured.err


def _inference(tmp_path):
    path = tmp_path / "infer.py"
    path.write_text("import torch, eductor\neductor.compile(torch.sin, engine='aten')(torch.ones(2))")
    return path


def test_explain_as_json_prints_nothing_else(script):
    done = subprocess.run(
        [sys.executable, "-m", "eductor", "explain", script, "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["graphs"][0]["function"] == "step"
    assert "the script's own words" in done.stderr


def test_explain_shows_what_was_compiled_before_the_script_failed(capsys, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT + "raise ValueError('too late')")
    assert main(["explain", str(path)]) == 2
    captured = capsys.readouterr()
    assert "Graph 1 [" in captured.out
    assert captured.err.splitlines()[-1].startswith("eductor: train.py:10 raised ValueError: too late.")


BAD_SCRIPTS = {
    "missing": (None, "", "no such file"),
    "raises": ("1 / 0", "", "train.py:1 raised ZeroDivisionError: division by zero."),
    "compiles nothing": ("x = 1", "", "compiled nothing with Eductor: "),
    "calls nothing": ("import eductor\neductor.compile(abs)", "", "compiles abs, but calls none of them"),
    "exits": ("raise SystemExit(4)", "", "exited with status 4"),
    "needs arguments": ("def f(x): return x", ":f", "'f' needs the arguments x: "),
    "no such function": ("def f(x): return x", ":g", "'g' does not exist in train.py."),
}


@pytest.mark.parametrize("case", BAD_SCRIPTS)
def test_explain_tells_mistakes_in_one_line(capsys, tmp_path, case):
    text, function, message = BAD_SCRIPTS[case]
    path = tmp_path / "train.py"
    if text is not None:
        path.write_text(text)
    assert main(["explain", f"{path}{function}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("eductor: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_mistake_ends_the_process_with_2(tmp_path):
    done = subprocess.run([sys.executable, "-m", "eductor", "explain", "no.py"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("eductor: no such file: 'no.py'.")


# ------------------------------------------------------------------------------------------------------------- why-not

SCALES = """
import torch
from eductor.patterns import const, op, pattern_pass, var
from eductor.pipeline import graph_pass

aten = torch.ops.aten

@pattern_pass(stage="joint", numerics="exact", when=lambda context: WHEN)
def fold_scales():
    "Folds two scales into one."

def is_large(match):
    return match["a"] > 1 or f"the factor {match['a']} is too small"

@fold_scales.rule(op(aten.mul, op(aten.mul, var("x"), const("a")), const("b")), check=is_large)
def pair(match, graph, rewrite):
    rewrite.replace(match.output, aten.mul, match["x"], match["a"] * match["b"])

@fold_scales.rule(op(aten.sin, op(aten.mul, var("x"), 2.0)))
def doubled(match, graph, rewrite):
    pass

@graph_pass(stage="joint", numerics="exact")
def look_at_sines(graph, rewrite):
    "Looks at sines, and leaves them."
    for node in graph.find(aten.sin):
        rewrite.reject("a sine is a sine", node)

options = {"engine": "aten", "passes": [fold_scales, look_at_sines], "disable": DISABLE}

@torch.compile(backend="eductor", options=options)
def step(x):
    return (x * 0.5 * 3.0).sin()

step(torch.ones(3))
"""


def scales(tmp_path, when=True, disable=()):
    path = tmp_path / "scales.py"
    path.write_text(SCALES.replace("WHEN", repr(when)).replace("DISABLE", repr(disable)))
    return str(path)


LINE = "scales.py:33: return (x * 0.5 * 3.0).sin()"


def test_why_not_tells_of_each_rule(capsys, tmp_path):
    assert main(["why-not", scales(tmp_path), "fold_scales"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("joint/fold_scales in graph 1 (joint): unchanged\n")
    pair, doubled = out.split("  doubled does not match: ")
    assert "  pair did not match\n    left alone: mul, mul_1: the factor 0.5 is too small\n" in pair
    assert LINE in pair
    assert "the nearest miss has 2 of its 2 calls\n    mul_1: other is 3.0, the pattern wants 2.0\n" in doubled
    assert LINE in doubled
    assert "->    mul_1 = torch.ops.aten.mul.Tensor(mul, 3.0)" in doubled


def test_why_not_of_one_rule_as_json(capsys, tmp_path):
    assert main(["why-not", scales(tmp_path), "joint/fold_scales:doubled", "--json"]) == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    (rule,) = graph["rules"]
    assert (graph["address"], rule["rule"], rule["matches"]) == ("joint/fold_scales", "doubled", 0)
    assert (rule["nearest"]["node"], rule["nearest"]["found"]) == ("mul_1", 2)
    assert rule["nearest"]["source"].endswith(LINE)


def test_why_not_of_other_passes_shows_their_reasons(capsys, tmp_path):
    assert main(["why-not", scales(tmp_path), "look_at_sines"]) == 0
    out = capsys.readouterr().out
    assert "left alone: sin: a sine is a sine\n" in out
    assert LINE in out
    assert main(["why-not", scales(tmp_path), "remove_noop_ops"]) == 0
    assert "  found no candidates: full_slice, " in capsys.readouterr().out


def test_why_not_of_what_matched(capsys, script):
    assert main(["why-not", script, "joint/remove_noop_ops:copy"]) == 0
    assert capsys.readouterr().out.endswith("joint/remove_noop_ops in graph 1 (joint): changed\n  copy matched once\n")


def test_why_not_of_a_pass_that_did_not_run(capsys, tmp_path):
    assert main(["why-not", scales(tmp_path, when="not today"), "fold_scales"]) == 0
    assert capsys.readouterr().out == "joint/fold_scales in graph 1 (joint): skipped, not today\n"
    assert main(["why-not", scales(tmp_path, disable="fold_scales"), "fold_scales"]) == 0
    assert capsys.readouterr().out == "joint/fold_scales did not run: the option `disable` disables it\n"


def test_why_not_of_what_does_not_exist(capsys, tmp_path):
    assert main(["why-not", scales(tmp_path), "fold_scale"]) == 2
    assert "eductor: unknown pass 'fold_scale'. Did you mean 'fold_scales'?" in capsys.readouterr().err
    assert main(["why-not", scales(tmp_path), "fold_scales:pairs"]) == 2
    assert "eductor: unknown rule of fold_scales 'pairs'. Did you mean 'pair'?" in capsys.readouterr().err
    path = tmp_path / "idle.py"
    path.write_text("import eductor\neductor.compile(abs)")
    assert main(["why-not", str(path), "fold_scales"]) == 2
    assert "calls nothing that it compiles" in capsys.readouterr().err
