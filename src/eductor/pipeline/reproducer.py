"""Writes a failing pass as a standalone file: the graph before it, and the pass alone."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph

from eductor.graph.snapshot import attribute_or_none
from eductor.graph.text.printer import to_python
from eductor.pipeline.base import Context, Pass
from eductor.pipeline.instruments import PassRun

_TEMPLATE = """# {title}
#
# The graph before that pass. Run `python {name}` to see the pass fail on it.

from pathlib import Path

from eductor.pipeline import replay

GRAPH = {graph}

if __name__ == "__main__":
    replay(
        GRAPH,
        stage={stage!r},
        pass_={where!r},
        home={home!r},
        options={options!r},
        context={context!r},
        attributes={attributes},
    )
"""


def write_reproducer(run: PassRun, folder: str | os.PathLike[str] | None) -> str:
    """Writes the reproducer of a failed pass, and the attributes of its graph beside it; returns its path."""
    graph = run.before.graph()
    text = to_python(graph)
    path = place_for(folder, run.address, text)
    attributes = attributes_of(run.module, graph)
    if attributes:
        torch.save(attributes, path.with_suffix(".pt"))
    first_line = run.reason.split("\n")[0]
    saved = 'Path(__file__).with_suffix(".pt")' if attributes else None
    return fill(
        path,
        _TEMPLATE,
        text,
        run.step.load(),
        run.context,
        title=f"{run.address} failed: {first_line}",
        attributes=saved,
    )


def fill(path: Path, template: str, graph: str, pass_: Pass, context: Context, **more: Any) -> str:
    """Writes a reproducer of a pass on a printed graph, from a template; returns its path."""
    where, home = where_is(pass_)
    known = {"stage": context.stage, "options": pass_.options, "context": spelled_context(context)}
    filled = template.format(name=path.name, graph=quoted(graph), where=where, home=home, **known, **more)
    path.write_text(filled, encoding="utf-8", errors="backslashreplace")
    return str(path)


def place_for(folder: str | os.PathLike[str] | None, address: str, text: str) -> Path:
    """The path of a reproducer, named after its address and a hash of its text; creates its folder."""
    place = Path(folder or os.path.join(tempfile.gettempdir(), f"eductor-{os.getuid()}"))
    place.mkdir(parents=True, exist_ok=True)
    key = hashlib.blake2b(f"{address} {text}".encode(), digest_size=4).hexdigest()
    return place / f"{re.sub(r'[^0-9A-Za-z_]+', '-', address)}-{key}.py"


def spelled_context(context: Context) -> dict[str, Any]:
    """The context of a pass as literals."""
    options = context.options
    return {
        "profile": options.profile,
        "fallback_random": options.fallback_random,
        "debug": options.debug,
        "role": context.graph.role,
        **context.facts(),
    }


def where_is(pass_: Pass) -> tuple[str, str]:
    """The import path of a pass, as `module:name` or `file.py:name`, and the folder that makes it importable."""
    module = sys.modules.get(getattr(pass_.fn, "__module__", ""))
    if module is None:
        return f":{pass_.name}", ""
    found = [n for n, v in vars(module).items() if v is pass_.fn or (isinstance(v, Pass) and v.fn is pass_.fn)]
    name = found[0] if found else pass_.name
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    path = Path(os.path.abspath(file)) if file else None
    imported = spec.name if spec is not None else module.__name__
    if imported == "__main__":
        return f"{path or ''}:{name}", str(path.parent) if path else ""
    depth = imported.count(".") + (path is not None and path.name == "__init__.py")
    return f"{imported}:{name}", str(path.parents[depth]) if path else ""


def quoted(text: str) -> str:
    """Text as a string literal: raw and readable if possible."""
    return repr(text) if '"""' in text else f'r"""\n{text}"""'


def attributes_of(module: torch.nn.Module, graph: Graph) -> dict[str, Any]:
    """The attributes of its module that a graph uses, by name."""
    nodes = [n for op in ("get_attr", "call_module") for n in graph.find_nodes(op=op)]
    found = {str(n.target): attribute_or_none(module, str(n.target)) for n in nodes}
    return {path: value for path, value in found.items() if value is not None}
