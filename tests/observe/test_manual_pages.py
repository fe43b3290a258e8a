"""The pages of the passes in docs/passes: as the code would write them now, and all that a page should have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from eductor.observe.manual.manual_page import PAYS, page_of
from eductor.observe.manual.manual_pages import write
from eductor.pipeline import STAGES, Registry, graph_pass

FOLDER = Path(__file__).parents[2] / "docs" / "passes"
PASSES = list(dict.fromkeys(step.load() for step in Registry.built_in().steps() if not step.is_slot))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """In a process of its own: what other tests load changes how torch takes some operators apart."""
    folder = tmp_path_factory.mktemp("pages")
    subprocess.run(
        [sys.executable, "-m", "eductor.observe.manual.manual_pages", str(folder)], check=True, capture_output=True
    )
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.md")}


def test_pages_are_those_of_the_code(made):
    kept = {str(path.relative_to(FOLDER)): path.read_text() for path in FOLDER.rglob("*.md")}
    stale = sorted(place for place in made.keys() | kept.keys() if made.get(place) != kept.get(place))
    assert not stale, f"docs/passes is old at {stale}: `make manual` writes it anew; read what it changed."


def test_pages_are_the_same_on_every_machine(made):
    told = "".join(made.values())
    assert not re.findall(r"0x[0-9a-f]{6,}|/tmp/|/home/|cuda:\d", told)


def test_lists_have_the_order(made):
    registry = Registry.built_in()
    for stage in STAGES:
        listed = re.findall(r"^\d+\. \[(\w+)\]", made[f"{stage}/index.md"], flags=re.MULTILINE)
        assert listed == [step.name for step in registry.order(stage)]


@pytest.mark.parametrize("pass_", PASSES, ids=lambda p: p.name)
def test_docstrings_have_what_a_page_tells(pass_):
    told = [" ".join(text.split()) for text in (pass_.fn.__doc__ or "").split("\n\n")]
    assert any(text.startswith(PAYS) for text in told), f"say when it pays, in a paragraph that begins with {PAYS!r}"
    unsaid = [name for name in pass_.parameters if f"`{name}`" not in " ".join(told)]
    assert not unsaid, f"say what the options {unsaid} mean"


def test_a_pass_of_ones_own_has_a_page_between_its_neighbours():
    @graph_pass(stage="joint", numerics="exact", after="pad_mm")
    def own(graph, rewrite, *, depth=3):
        """Does nothing.

        It goes `depth` steps. It rests.
        """

    page = page_of(Registry.built_in().with_passes([own]), "joint", "own")
    assert "| `depth` | `3` | It goes `depth` steps. |" in page
    places = page.partition("## Its place in the order")[2]
    assert re.findall(r"^\| \W+(\w+)", places, flags=re.MULTILINE) == ["pad_mm", "own", "replace_random_passes"]
    assert "When it pays" not in page


def test_writing_removes_pages_of_passes_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setattr("eductor.observe.manual.manual_pages.pages", lambda *_: {"joint/new.md": "new"})
    (tmp_path / "joint").mkdir()
    (tmp_path / "joint" / "old.md").write_text("old")
    write(Registry.built_in(), tmp_path)
    assert [p.name for p in tmp_path.rglob("*.md")] == ["new.md"]
