"""Rooms import only rooms above them in docs/design.md, no modules import each other in a circle, each room has a fast test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from eductor.pipeline import STAGES
from fast import FAST

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src/eductor"

# ------------------------------------------------------------------------------------------------------------ reading


@dataclass(frozen=True)
class Import:
    """Where one module imports another, and whether this happens when the module is loaded."""

    module: str
    target: str
    line: int
    at_load: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def modules_of(folder: Path) -> dict[str, Path]:
    """The modules of a package by their dotted names."""
    paths = {path.relative_to(folder.parent).with_suffix(""): path for path in sorted(folder.rglob("*.py"))}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in paths.items()}


def imports_of(module: str, path: Path, known: Mapping[str, Path]) -> Iterator[Import]:
    """All imports of modules of the package, wherever they stand in a file."""
    package = module.partition(".")[0]

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for target in _targets(child, module, path, known):
                if target.partition(".")[0] == package:
                    yield Import(module, target, child.lineno, at_load)
            delays = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or _is_for_types(child)
            yield from walk(child, at_load and not delays)

    yield from walk(ast.parse(path.read_text()), True)


def _targets(node: ast.AST, module: str, path: Path, known: Mapping[str, Path]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        home = node.module or ""
        if node.level:
            parts = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            home = ".".join([*parts[: len(parts) - node.level + 1], *([home] if home else [])])
        inner = [f"{home}.{alias.name}" for alias in node.names]
        return [name if name in known else home for name in inner]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return []


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def order_of_rooms() -> list[str]:
    """The rooms as docs/design.md lists them: what imports least comes first."""
    block = re.search(r"^```text rooms\n(.*?)^```$", (ROOT / "docs/design.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None, "docs/design.md lacks the block of rooms"
    return [line.split()[0] for line in block[1].splitlines()]


def room_of(module: str, rooms: list[str]) -> str | None:
    """The room of a module: the longest name in the list that its name begins with."""
    inside = module.partition(".")[2] or "__init__"
    return max((room for room in rooms if f"{inside}.".startswith(f"{room}.")), key=len, default=None)


def breaches(folder: Path, rooms: list[str]) -> list[Import]:
    """Imports of a room that stands below."""
    known = modules_of(folder)

    def place(module: str) -> int:
        room = room_of(module, rooms)
        assert room is not None, f"{module} is in no room that docs/design.md lists"
        return rooms.index(room)

    found = (i for module, path in known.items() for i in imports_of(module, path, known))
    return [i for i in found if place(i.target) > place(i.module)]


def cycle(folder: Path) -> list[str]:
    """Modules that import each other in a circle when they are loaded; empty where there are none."""
    known = modules_of(folder)
    edges = {m: {i.target for i in imports_of(m, p, known) if i.at_load} for m, p in known.items()}
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            for target in sorted(edges.get(module, ())):
                if found := visit(target, [*path, module]):
                    return found
            done.add(module)
        return []

    return next(filter(None, (visit(module, []) for module in known)), [])


# -------------------------------------------------------------------------------------------------------------- tests


def test_rooms_import_only_rooms_above_them():
    found = [str(i) for i in breaches(SOURCES, order_of_rooms())]
    assert not found, "\n".join(["against the order of docs/design.md:", *found])


def test_every_room_of_the_list_exists_once():
    rooms = order_of_rooms()
    assert len(set(rooms)) == len(rooms)
    here = {room_of(module, rooms) for module in modules_of(SOURCES)}
    assert here == set(rooms)


def test_the_passes_of_a_stage_import_no_other_stage():
    known = modules_of(SOURCES)
    stages = [f"eductor.passes.{stage}" for stage in STAGES]
    for module, path in known.items():
        own = next((stage for stage in stages if f"{module}.".startswith(f"{stage}.")), None)
        others = tuple(f"{stage}." for stage in stages if own is not None and stage != own)
        assert not [str(i) for i in imports_of(module, path, known) if f"{i.target}.".startswith(others or ("/",))]


def test_no_modules_import_each_other_in_a_circle():
    assert not cycle(SOURCES)


def test_every_room_has_a_fast_test():
    assert set(FAST) == {room.partition(".")[0] for room in order_of_rooms()}
    for file in {file for files in FAST.values() for file in files}:
        assert "\ndef test_" in (ROOT / "tests" / file).read_text()


# ----------------------------------------------------------------------------------------------- what the walk can see

PLANTED = {
    "at the top": "from package.high import thing",
    "of a module": "import package.high",
    "of a name in a package": "from package import high",
    "relative": "from .high import thing",
    "in a function": "def f():\n    from package.high import thing",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.high import thing",
    "by name": "import importlib\nimportlib.import_module('package.high')",
    "of the package itself": "import package",
}


def _package(folder: Path, **texts: str) -> Path:
    package = folder / "package"
    package.mkdir()
    for name, text in {"__init__": "", **texts}.items():
        (package / f"{name}.py").write_text(text)
    return package


@pytest.mark.parametrize("text", PLANTED.values(), ids=PLANTED)
def test_an_import_against_the_order_is_found(tmp_path, text):
    package = _package(tmp_path, low=text, high="thing = 1")
    (found,) = breaches(package, ["low", "high", "__init__"])
    assert found.module == "package.low"
    assert not breaches(package, ["high", "__init__", "low"])


def test_a_circle_is_found(tmp_path):
    package = _package(tmp_path, a="import package.b", b="from package.c import x", c="from package import a")
    assert set(cycle(package)) == {"package.a", "package.b", "package.c"}


def test_an_import_that_waits_makes_no_circle(tmp_path):
    package = _package(tmp_path, a="import package.b", b="def f():\n    import package.a")
    assert not cycle(package)


def test_a_line_for_a_part_of_a_room_takes_it_out_of_the_line_for_the_whole():
    assert room_of("eductor.graph.text.parser", ["graph.text", "graph.text.parser", "graph"]) == "graph.text.parser"
    assert room_of("eductor.graphs", ["graph"]) is None
    assert room_of("eductor", ["graph", "__init__"]) == "__init__"
