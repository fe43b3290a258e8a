"""The provenance of nodes: the match that created a node, its source nodes, the line of the user's program."""

from __future__ import annotations

import functools
from typing import NamedTuple

from torch.fx import Node

PROVENANCE = "eductor"


class Provenance(NamedTuple):
    """The match that created a node, its source nodes, and their line in the user's program."""

    address: str
    sources: tuple[str, ...]
    line: str
    origins: tuple[Provenance, ...] = ()


def provenance_of(node: Node) -> Provenance | None:
    """The provenance of a node; None if no match created it."""
    found = node.meta.get(PROVENANCE)
    return found if isinstance(found, Provenance) else None


def source_line(node: Node) -> str:
    """The last line of the user's program in a node's stack trace, as `file:line: code`."""
    return _last_line(node.stack_trace or "")


@functools.lru_cache(maxsize=1 << 12)
def _last_line(trace: str) -> str:
    lines = [line.strip() for line in trace.strip().splitlines()]
    files = [i for i, line in enumerate(lines) if line.startswith("File ")]
    if not files:
        return ""
    at = lines[files[-1]]
    code = lines[files[-1] + 1] if files[-1] + 1 < len(lines) else ""
    parts = at.removeprefix("File ").split(",")
    number = parts[1].strip().removeprefix("line ") if len(parts) > 1 else "?"
    return f"{parts[0].strip(chr(34))}:{number}: {code}"
