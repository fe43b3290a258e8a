"""`eductor passes`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys

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
    assert main(["passes", step.name]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"# {step.name}")
    assert step.reason in page
    if not step.is_slot:
        pass_ = step.load()
        assert pass_.purpose in page
        assert page.count("Before:") == page.count("After:") == len(pass_.examples)
        assert page.count("## Left alone") == len(pass_.refusals)


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
