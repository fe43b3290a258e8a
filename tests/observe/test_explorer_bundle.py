"""The explorer that ships in the package: built from the sources that stand in `explorer/`, and in need of nothing else."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXPLORER = ROOT / "explorer"
BUNDLE = ROOT / "src/eductor/observe/report/explorer.html"
FILES = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"]
FOLDERS = ["build", "src"]


def stamp_of_sources() -> str:
    """As `explorer/build/sources.ts` computes it."""
    under = [p.relative_to(EXPLORER).as_posix() for f in FOLDERS for p in (EXPLORER / f).rglob("*") if p.is_file()]
    digest = hashlib.sha256()
    for path in sorted([*FILES, *under]):
        digest.update(path.encode() + b"\0" + (EXPLORER / path).read_bytes() + b"\0")
    return digest.hexdigest()


def test_the_bundle_is_built_from_its_sources():
    stamp = re.search(r'name="explorer-sources" content="(\w+)"', BUNDLE.read_text())
    assert stamp is not None
    assert stamp.group(1) == stamp_of_sources(), "explorer.html is stale: `make explorer` builds it anew"


def test_the_bundle_has_one_place_for_the_report():
    place = '<script id="report" type="application/octet-stream;base64"></script>'
    assert BUNDLE.read_text().count(place) == 1


def test_the_bundle_loads_nothing():
    page = BUNDLE.read_text()
    head = page[: page.index("<script")] + page[page.rindex("</style>") if "</style>" in page else 0 :]
    assert not re.search(r'<(?:script|link|img)[^>]*\b(?:src|href)\s*=\s*"', head)
    assert not re.search(r"@import|url\((?!data:)", page[page.index("<style") : page.index("</style>")])


def test_the_lock_names_no_registry():
    assert '"resolved"' not in (EXPLORER / "package-lock.json").read_text()
