"""The provenance of nodes: the match that created a node, its source nodes, the line of the user's program."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable
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


def module_path(spelled: str) -> str:
    """The path of a module in the model: `L['self']._modules['h']._modules['0'].attn` is `h.0.attn`."""
    text = re.sub(r"^[LG]\[(['\"])\w+\1\]", "", spelled)
    text = re.sub(r"(?:\._modules|\._parameters)?\[(['\"]?)([^\]'\"]*)\1\]", r".\2", text)
    return re.sub(r"\.(?:_modules|_parameters)\b", "", text).strip(".")


def common_module(nodes: Iterable[Node]) -> str:
    """The path of the innermost module in which most of these nodes were computed; empty if there is none."""
    stacks = [node.meta["nn_module_stack"].values() for node in nodes if node.meta.get("nn_module_stack")]
    counts = Counter(str(path) for stack in stacks for path, *_ in stack)
    most = [path for path, count in counts.items() if 2 * count > len(stacks)]
    return module_path(max(most, key=len, default=""))
