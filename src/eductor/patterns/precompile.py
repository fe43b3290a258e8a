"""Writes the precompiled patterns of the package: `make patterns`. With `--check`, says whether they are up to date."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from eductor.patterns.pattern_pass import PatternPass
from eductor.patterns.rules import Rule
from eductor.patterns.sources import Traced
from eductor.patterns.store import dumps
from eductor.pipeline.registry import Registry


def texts(rules: Iterable[Rule]) -> dict[Path, str]:
    """What the files of the rules with stored patterns should hold, traced anew."""
    by_file: dict[Path, dict[str, Rule]] = defaultdict(dict)
    for rule in rules:
        if isinstance(rule.source, Traced) and rule.source.stored is not None:
            by_file[rule.source.path][rule.source.key] = rule
    found: dict[Path, str] = {}
    for path, named in by_file.items():
        patterns = {key: rule.source.fresh() for key, rule in named.items() if isinstance(rule.source, Traced)}
        found[path] = dumps(patterns, {key: rule.tolerated for key, rule in named.items()})
    return found


def shipped() -> list[Rule]:
    """The rules of all passes of the package."""
    passes = [step.load() for step in Registry.default().steps() if step.source == "eductor" and step.module]
    return [rule for p in dict.fromkeys(passes) if isinstance(p, PatternPass) for rule in p.rules.rules]


def main(argv: Sequence[str] = ()) -> int:
    """Writes the files, or compares them."""
    stale = []
    for path, text in texts(shipped()).items():
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
