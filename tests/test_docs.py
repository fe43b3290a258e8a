"""The documents are true: their programs run and print the shown output, their tables are those of the code.

A fenced block says after its language what it is:

    complete        a program of its own: it runs
    continued       continues the program before it
    output          what the block before it prints
    output=FILE     a part of what that script prints
    file=FILE part=NAME   a piece of that file; all pieces of a document together are the file

`python tests/test_docs.py` updates all of this: outputs, pieces of files, and tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from eductor.observe.table import as_markdown
from eductor.options import Options
from eductor.partition.bans import BANS

ROOT = Path(__file__).parent.parent
README, CONTRIBUTING, CHANGELOG = (ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))
DESIGN, OPTIONS_PAGE = ROOT / "docs/design.md", ROOT / "docs/options.md"
DOCUMENTS = [README, CONTRIBUTING, CHANGELOG, *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCUMENTS, *sorted((ROOT / "docs/passes").rglob("*.md"))]
"""With the pages of the passes, which tests/observe/test_manual_pages.py compares with the code."""


# ------------------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what it says of itself, its text, and where it begins and ends in the document."""

    language: str
    roles: dict[str, str]
    text: str
    start: int
    end: int


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a document."""
    found = []
    for fence in re.finditer(r"^```(\S+)([^\n]*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        roles = {key: value for key, _, value in (word.partition("=") for word in fence[2].split())}
        found.append(Block(fence[1], roles, fence[3], fence.start(3), fence.end(3)))
    return found


def programs_of(text: str) -> list[list[tuple[Block, Block | None]]]:
    """The programs of a document: each is a list of blocks, with the blocks of their outputs."""
    programs: list[list[tuple[Block, Block | None]]] = []
    blocks = blocks_of(text)
    for block, after in zip(blocks, [*blocks, None][1:], strict=True):
        output = after if after is not None and after.roles.get("output") == "" else None
        if "complete" in block.roles:
            programs.append([(block, output)])
        elif "continued" in block.roles:
            programs[-1].append((block, output))
    return programs


def run_program(parts: list[str]) -> list[str]:
    """Runs the parts of a program one after the other; returns what each of them prints."""
    mark, threads = "\x1e", torch.get_num_threads()
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        path = Path(folder) / "program.py"
        path.write_text(f"\nprint({mark!r}, end='')\n".join(parts))
        with patch.object(sys, "argv", [str(path)]):  # warnings name the script with its arguments
            runpy.run_path(str(path), run_name="__main__")
    torch.set_num_threads(threads)  # a program may ask for one
    return printed.getvalue().split(mark)


@functools.cache
def output_of(script: str) -> str:
    """What a script of this repository prints; it must succeed."""
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def stable(printed: str) -> str:
    """A text without what differs from run to run: times, losses, paths, numbers of graphs, widths of columns."""
    text = re.sub(r"\d+\.\d+", "N", printed)
    text = re.sub(r"/\S+\.py", "FILE", text)
    text = re.sub(r"graph \d+ \(\d+/\d+\)|\[\d+/\d+\]", "GRAPH", text)  # counted over the whole process
    text = re.sub(r"slowest pass: \S+", "slowest pass: PASS", text)
    return re.sub(r"[ -]{2,}", " ", text).strip()


# ------------------------------------------------------------------------------------------------------------- tables


def options_table() -> str:
    rows = [(f"`{f.name}`", f"`{f.default!r}`", f.metadata["why"]) for f in dataclasses.fields(Options)]
    return as_markdown(("option", "default", "why"), rows)


def measured_table(name: str) -> str:
    """The figures of a bench, as `eductor bench --json` wrote them into bench/results."""
    found = json.loads((ROOT / "bench/results" / f"{name}.json").read_text())
    header = ("model", "eager", "Inductor", "Eductor", "speed", "memory", "cold start", "warm start", "error")
    cells = []
    for model, ways in found["rows"].items():
        eager, stock, ours = (ways[way] for way in ("eager", "inductor", "eductor"))

        def part(figure: str, of: dict[str, float] = stock, ours: dict[str, float] = ours) -> str:
            return f"{ours[figure] / of[figure]:.2f}" if ours.get(figure) is not None and of.get(figure) else ""

        times = (f"{way['milliseconds']:.2f} ms" for way in (eager, stock, ours))
        speed = f"{stock['milliseconds'] / ours['milliseconds']:.2f}"
        cells.append((model, *times, speed, part("memory"), part("cold"), part("warm"), part("error", eager)))
    means = found["means"]
    parts = (f"**{means[figure]:.2f}**" for figure in ("memory", "cold", "warm"))
    cells.append(("**geometric mean**", "", "", "", f"**{1 / means['milliseconds']:.2f}**", *parts, ""))
    title = f"{found['machine']}, torch {found['torch']}, {found['date']}:"
    failed = "".join(f"\n\nNot measured: {row}: {reason}." for row, reason in found.get("failures", {}).items())
    return f"{title}\n\n{as_markdown(header, cells)}{failed}"


def means_table() -> str:
    """The geometric means of each bench, and the range of its speeds."""
    header = ("machine", "torch", "date", "speed", "range", "memory", "cold start", "warm start")
    rows = []
    for name in ("h200", "cpu"):
        found = json.loads((ROOT / "bench/results" / f"{name}.json").read_text())
        speeds = [ways["inductor"]["milliseconds"] / ways["eductor"]["milliseconds"] for ways in found["rows"].values()]
        means = [1 / found["means"]["milliseconds"], *(found["means"][figure] for figure in ("memory", "cold", "warm"))]
        speed, *others = (f"{mean:.2f}" for mean in means)
        spread = f"{min(speeds):.2f} to {max(speeds):.2f}"
        rows.append((found["machine"], found["torch"], found["date"], speed, spread, *others))
    return as_markdown(header, rows)


def bans_table() -> str:
    return as_markdown(("ban", "why it must not be recomputed"), [(f"`{ban.name}`", ban.reason) for ban in BANS])


TABLES = {
    "options": options_table,
    "bans": bans_table,
    "measured_h200": functools.partial(measured_table, "h200"),
    "measured_cpu": functools.partial(measured_table, "cpu"),
    "measured_means": means_table,
}


def tables_of(text: str) -> Iterator[re.Match[str]]:
    """The places of tables that are made from the code: `<!-- name -->` up to `<!-- end -->`."""
    return re.finditer(r"<!-- (\w+) -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)


# -------------------------------------------------------------------------------------------------- pieces of a file


def pieces_of(path: str) -> dict[str, str]:
    """The pieces into which a document cuts a file: at the first line that begins so, up to the next piece."""
    text = (ROOT / path).read_text()
    starts = [(name, text.index(beginning)) for name, beginning in PIECES[path].items()]
    ends = [start for _, start in starts[1:]] + [len(text)]
    return {name: text[start:end].strip() + "\n" for (name, start), end in zip(starts, ends, strict=True)}


PIECES = {
    "examples/custom_pass.py": {
        "head": '"""',
        "examples": "@drop_repeats.example",
        "rules": "@eductor.rule_pass",
        "main": "def main()",
    },
    "examples/custom_pattern.py": {
        "head": '"""',
        "examples": "@fuse_norms.example",
        "expression": '@pattern_pass(stage=("joint"',
        "model": "class Block",
    },
    "examples/own_engine.py": {"head": '"""', "decompositions": "def decompositions("},
}


# -------------------------------------------------------------------------------------------------------------- tests


def each(documents: list[Path] = DOCUMENTS) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("document", documents, ids=lambda d: str(d.relative_to(ROOT)))


def _numbered_programs() -> list[object]:
    return [
        pytest.param(document, number, id=f"{document.name}-{number}")
        for document in DOCUMENTS
        for number in range(len(programs_of(document.read_text())))
    ]


@pytest.mark.parametrize(("document", "number"), _numbered_programs())
def test_programs_run_and_print_what_stands_there(document: Path, number: int) -> None:
    program = programs_of(document.read_text())[number]
    printed = run_program([block.text for block, _ in program])
    for (block, output), text in zip(program, printed, strict=True):
        shown = output.text if output is not None else ""
        assert stable(text) == stable(shown), f"{document.name} shows another output than that of\n{block.text}{HINT}"


@each()
def test_outputs_of_scripts_are_real(document: Path) -> None:
    for block in blocks_of(document.read_text()):
        if script := block.roles.get("output"):
            assert stable(block.text) in stable(output_of(script)), f"{script} prints something else{HINT}"


@each()
def test_tables_are_those_of_the_code(document: Path) -> None:
    for table in tables_of(document.read_text()):
        assert table[2].strip() == TABLES[table[1]](), f"the table {table[1]!r} of {document.name} is old{HINT}"


def test_the_options_page_lists_exactly_the_options() -> None:
    table = next(t for t in tables_of(OPTIONS_PAGE.read_text()) if t[1] == "options")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2].strip().splitlines()[2:]]
    assert {row[0].strip("`"): row[2] for row in rows} == {
        f.name: f.metadata["why"] for f in dataclasses.fields(Options)
    }


def test_options_that_readme_and_the_options_page_name_exist() -> None:
    known = {f.name for f in dataclasses.fields(Options)}
    in_readme = README.read_text().partition("| option | values |")[2].partition("\n\n")[0]
    in_page = OPTIONS_PAGE.read_text().partition("| options | page |")[2]
    rows = [line.split("|")[1] for line in (in_readme + in_page).splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert "profile" in named
    assert not [name for name in named if name not in known]


def test_readme_is_short() -> None:
    assert len(README.read_text().split()) < 1200, "what is no first need of a reader goes to a page of docs/"


@each()
def test_pieces_are_the_file(document: Path) -> None:
    blocks = [b for b in blocks_of(document.read_text()) if "part" in b.roles]
    for path in {b.roles["file"] for b in blocks}:
        shown = "".join(b.text for b in blocks if b.roles["file"] == path)
        assert _lines(shown) == _lines((ROOT / path).read_text()), f"{document.name} and {path} differ{HINT}"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@each(PAGES)
def test_relative_links_resolve(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[\w-]*)?\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}, which does not exist"


@each(PAGES)
def test_links_to_headings_resolve(document: Path) -> None:
    for target, heading in re.findall(r"\]\(([^)#\s]*)#([\w-]+)\)", document.read_text()):
        there = document.parent / target if target else document
        headings = re.findall(r"^#+ (.+)$", there.read_text(), flags=re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
        assert heading in anchors, f"{document.name} links to #{heading}; {there.name} has {anchors}"


@each()
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"`make ([\w-]+)", document.read_text()))
    named |= set(re.findall(r"^make ([\w-]+)", document.read_text(), flags=re.MULTILINE))
    assert named <= targets, f"{document.name} names {named - targets}, which the Makefile lacks"


def test_contributing_names_every_target_and_the_design_every_room() -> None:
    text = CONTRIBUTING.read_text()
    phony = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert phony is not None
    assert not [t for t in phony[1].split() if f"| `make {t}` |" not in text]
    rooms = [p.parent.relative_to(ROOT) for p in (ROOT / "src/eductor").glob("*/__init__.py")]
    assert not [r for r in rooms if f"| `{r}/` |" not in DESIGN.read_text()], (
        "docs/design.md lacks a room of src/eductor"
    )


def test_the_manual_lists_every_page() -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    navigation = runpy.run_path(str(ROOT / "docs/conf.py"))["NAVIGATION"]
    assert pages == {page for part in navigation.values() for page in part} - {"passes/index"}, "see docs/conf.py"
    linked = set(re.findall(r"\]\((\w+)\.md\)", (ROOT / "docs/index.md").read_text()))
    assert pages == linked, "docs/index.md lists every page, too"


@each([CONTRIBUTING, DESIGN])
def test_places_that_documents_name_exist(document: Path) -> None:
    places = re.findall(r"`((?:src|tests|bench|examples|docs|explorer)/[\w./]*)`", document.read_text())
    assert "src/eductor/compiler.py" in places
    assert not [place for place in places if not (ROOT / place).exists()]


def test_files_to_open_for_a_symptom_exist() -> None:
    table = DESIGN.read_text().partition("| symptom |")[2].partition("\n\n")[0]
    opened = [line.split("|")[3] for line in table.splitlines()[2:]]
    named = [name for cell in opened for name in re.findall(r"`([\w./]+(?:\.py|/))`", cell)]
    assert "patterns/explain/why_not.py" in named
    homes = (ROOT, ROOT / "src/eductor")
    assert not [name for name in named if not any((home / name).exists() for home in homes)]


# ------------------------------------------------------------------------------------------------------------ writing

HINT = "\n`python tests/test_docs.py` updates the outputs and tables; read what it changed."


def rewritten(text: str) -> str:
    """A document with its outputs, pieces and tables as they are now; what differs only from run to run stays."""
    edits: list[tuple[int, int, str]] = []
    for program in programs_of(text):
        printed = run_program([block.text for block, _ in program])
        for (_, output), new in zip(program, printed, strict=True):
            if output is not None and stable(output.text) != stable(new):
                edits.append((output.start, output.end, new.strip("\n") + "\n"))
    for block in blocks_of(text):
        script = block.roles.get("output")
        if script and (not block.text or stable(block.text) not in stable(output_of(script))):
            edits.append((block.start, block.end, _same_part(output_of(script), block.text)))
        if "part" in block.roles:
            edits.append((block.start, block.end, pieces_of(block.roles["file"])[block.roles["part"]]))
    for table in tables_of(text):
        edits.append((table.start(2), table.end(2), f"\n{TABLES[table[1]]()}\n\n"))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _same_part(printed: str, shown: str) -> str:
    """What a script prints from the first to the last line that the document shows; all of it, where these are gone."""
    lines = printed.strip("\n").split("\n")
    wanted = [stable(line) for line in shown.strip("\n").split("\n")]
    found = [i for i, line in enumerate(lines) if stable(line) in (wanted[0], wanted[-1])]
    whole = len(found) < 2
    return "\n".join(lines if whole else lines[found[0] : found[-1] + 1]) + "\n"


def main() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        new = rewritten(text)
        print(f"{document.relative_to(ROOT)}: {'updated' if new != text else 'unchanged'}")
        document.write_text(new)


if __name__ == "__main__":
    main()
