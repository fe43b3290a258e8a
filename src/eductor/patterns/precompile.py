"""Writes the precompiled patterns of the package (`make patterns`); with `--check`, tests whether they are current.

`python -m eductor.patterns.precompile my_package.my_passes` does it for the passes of a module of one's own.
"""

from __future__ import annotations

import importlib
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eductor.patterns.pattern_pass import PatternPass
from eductor.patterns.rules import Rule
from eductor.patterns.trace.search_function import Traced
from eductor.patterns.trace.store import dumps
from eductor.pipeline.registry import Registry


def texts(rules: Iterable[Rule]) -> dict[Path, str]:
    """What the files of the rules with stored patterns should hold, traced anew."""
    by_file: dict[Path, dict[str, Rule]] = defaultdict(dict)
    for rule in rules:
        source = rule.source
        if isinstance(source, Traced) and source.stored is not None:
            by_file[source.path][source.key] = rule
    found: dict[Path, str] = {}
    for path, named in by_file.items():
        patterns = {key: rule.source.fresh() for key, rule in named.items() if isinstance(rule.source, Traced)}
        found[path] = dumps(patterns, {key: rule.tolerated for key, rule in named.items()})
    return found


def shipped() -> list[Rule]:
    """The rules of all passes of the package."""
    return _rules(step.load() for step in Registry.default().steps() if step.source == "eductor" and step.module)


def declared_in(module: str) -> list[Rule]:
    """The rules of the passes that a module has."""
    return _rules(vars(importlib.import_module(module)).values())


def _rules(passes: Iterable[Any]) -> list[Rule]:
    found = {id(p): p for p in passes if isinstance(p, PatternPass)}
    return list(dict.fromkeys(rule for p in found.values() for rule in p.rules.rules))


def main(argv: Sequence[str] = ()) -> int:
    """Writes the files, or compares them."""
    stale = []
    modules = [name for name in argv if name != "--check"]
    rules = [rule for name in modules for rule in declared_in(name)] if modules else shipped()
    for path, text in texts(rules).items():
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if "--check" not in argv:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
    for path in stale:
        print(f"{path} {'is stale: run `make patterns`' if '--check' in argv else 'written'}")
    return 1 if stale and "--check" in argv else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
