"""Tables that nodes and matches refer to: lines of the user's program, modules, source of passes and rules."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import torch

from eductor.graph.provenance import module_path
from eductor.patterns.pattern_pass import PatternPass
from eductor.patterns.rules import Handled, Replaced
from eductor.pipeline import Pass, RulePass

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)[^\n]*(?:\n[ \t]+(?!File)(?P<code>[^\n]*))?', re.M)
_TORCH = str(Path(torch.__file__).parent)


class Table:
    """Distinct rows, referred to by number."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._places: dict[Hashable, int] = {}

    def place(self, key: Hashable, row: Mapping[str, Any]) -> int:
        """The number of a row, which is added if new."""
        if key not in self._places:
            self._places[key] = len(self.rows)
            self.rows.append(dict(row))
        return self._places[key]


class Sources(Table):
    """Lines of the user's program."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, int | None] = {}

    def of(self, meta: Mapping[str, Any]) -> int | None:
        """The source line of a node: the last line of its stack trace that is not torch's own.

        Dynamo leaves the trace empty if a module of torch was compiled alone: then it is the module's forward.
        """
        trace = meta.get("stack_trace")
        if not trace:
            stack = list((meta.get("nn_module_stack") or {}).values())
            return self._forward(stack[-1][1]) if stack and isinstance(stack[-1][1], type) else None
        if trace not in self._known:
            self._known[trace] = self._find(trace)
        return self._known[trace]

    def _forward(self, kind: Any) -> int | None:
        key = f"{kind.__module__}.{kind.__qualname__}"
        if key not in self._known:
            row = _source_of(kind.forward)
            if row is not None:
                row["code"] = row["code"].partition("\n")[0].strip()
            self._known[key] = self.place(tuple(row.values()), row) if row is not None else None
        return self._known[key]

    def _find(self, trace: str) -> int | None:
        frames = [(f["file"], int(f["line"]), (f["code"] or "").strip()) for f in _FRAME.finditer(trace)]
        own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
        return self.place(own[-1], dict(zip(("file", "line", "code"), own[-1], strict=True))) if own else None


class Modules(Table):
    """Modules of the user's model."""

    def of(self, meta: Mapping[str, Any]) -> int | None:
        """The innermost module in which a node was computed."""
        stack = meta.get("nn_module_stack") or {}
        if not stack:
            return None
        found = list(stack.values())[-1]
        path, kind = found[0], found[1] if len(found) > 1 else ""
        row = {"path": module_path(str(path)), "kind": kind if isinstance(kind, str) else kind.__name__}
        row["kind"] = row["kind"].rpartition(".")[2]
        return self.place((row["path"], row["kind"]), row)


class RuleSources(Table):
    """The source of passes and of their rules."""

    def of(self, pass_: Pass, rule: str = "") -> int | None:
        """The source of a rule, or of the pass itself without one."""
        fn = rules_of(pass_).get(rule) or pass_.fn
        row = _source_of(fn)
        if row is None:
            return None
        name = f"{pass_.name}:{rule}" if rule and fn is not pass_.fn else pass_.name
        return self.place((name, row["file"], row["line"]), {"name": name, **row})


def _source_of(fn: Any) -> dict[str, Any] | None:
    """The file, the line and the code of a function; None for one from a console, or exec."""
    try:
        lines, first = inspect.getsourcelines(fn)
        return {"file": inspect.getsourcefile(fn) or "", "line": first, "code": textwrap.dedent("".join(lines))}
    except (OSError, TypeError):
        return None


def rules_of(pass_: Pass) -> dict[str, Any]:
    """The rules that a pass declares, by name, each with its function; None for a pattern with a pattern as replacement."""
    calls = pass_.calls if isinstance(pass_, PatternPass) else pass_
    patterns = pass_.rules.rules if isinstance(pass_, PatternPass) else ()
    found = {
        r.name: inspect.unwrap(r.action.fn) if isinstance(r.action, (Handled, Replaced)) else None for r in patterns
    }
    return found | ({r.name: r.fn for r in calls.rules} if isinstance(calls, RulePass) else {})
