"""The public API is what docs/api.md lists, and no document and no example uses more. `python tests/test_api.py` writes the lists."""

from __future__ import annotations

import ast
import importlib.metadata
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

import eductor
from eductor.observe.table import as_markdown
from public_api import MODULES, public_names

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/api.md"
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]


def list_of(module: str) -> str:
    """The names of a module as a table."""
    return as_markdown(("name", "what it is"), [(f"`{name}`", text) for name, text in public_names(module).items()])


def section_of(page: str, module: str) -> re.Match[str]:
    """The table under the heading of a module."""
    found = re.search(rf"^## `{module}`\n.*?^((?:\|[^\n]*\n)+)", page, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/api.md has no list of {module}"
    return found


def programs_of(document: Path) -> Iterator[str]:
    """The program that a file is, or those in the blocks of a page that run."""
    text = document.read_text()
    if document.suffix == ".py":
        yield text
    else:
        yield from re.findall(r"^```python (?:complete|continued)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def names_used(program: str) -> Iterator[tuple[str, str]]:
    """The names of this package that a program imports or reads from `eductor`, with the module that has them."""
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.partition(".")[0] == "eductor")
        elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "eductor":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in MODULES:
            yield ast.unparse(node.value), node.attr


@pytest.mark.parametrize("module", MODULES)
def test_the_page_lists_the_public_names(module):
    listed = section_of(PAGE.read_text(), module)[1].strip()
    assert listed == list_of(module), "`python tests/test_api.py` writes the lists of docs/api.md"


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_says_what_it_is(module):
    assert not [name for name, text in public_names(module).items() if not text]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_documents_and_examples_use_public_names_alone(document):
    used = {found for program in programs_of(document) for found in names_used(program)}
    known = {(module, name) for module in MODULES for name in ("", *public_names(module))}
    known |= {("eductor", module.rpartition(".")[2]) for module in MODULES}
    assert not used - known


def test_its_types_are_for_users_too():
    assert (files("eductor") / "py.typed").is_file()


def test_the_version_stands_in_one_place():
    assert importlib.metadata.version("eductor") == eductor.__version__
    assert "\nversion = " not in (ROOT / "pyproject.toml").read_text()


def main() -> None:
    page = PAGE.read_text()
    for module in MODULES:
        found = section_of(page, module)
        page = f"{page[: found.start(1)]}{list_of(module)}\n{page[found.end(1) :]}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
