"""A failing pass as a file that runs alone: the graph before it, and the pipeline of that one pass."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

import torch

from eductor.graph.printer import to_python
from eductor.pipeline.base import Pass
from eductor.pipeline.instruments import PassRun

_TEMPLATE = '''"""{title}

The graph as it was before that pass. Run `python {name}` to see the pass fail on it.
"""

import torch

from eductor.pipeline import replay

GRAPH = {quotes}
{graph}{quotes}

if __name__ == "__main__":
    replay(GRAPH, stage={stage!r}, pass_={where!r}, options={options}, is_inference={inference}, tensors={tensors})
'''


def write_reproducer(run: PassRun, folder: str | None) -> str:
    """Writes the reproducer of a failed pass, and the tensors of its graph beside it; returns its path."""
    home = Path(folder or os.path.join(tempfile.gettempdir(), f"eductor-{os.getuid()}"))
    home.mkdir(parents=True, exist_ok=True)
    graph = run.before.graph()
    text = to_python(graph)
    key = hashlib.blake2b(f"{run.address} {text}".encode(), digest_size=4).hexdigest()
    path = home / f"{run.address.replace('/', '-').replace('#', '-')}-{key}.py"
    tensors = {str(n.target): _attribute(run.module, str(n.target)) for n in graph.find_nodes(op="get_attr")}
    tensors = {name: value for name, value in tensors.items() if isinstance(value, torch.Tensor)}
    if tensors:
        torch.save(tensors, path.with_suffix(".pt"))
    path.write_text(
        _TEMPLATE.format(
            title=f"{run.address} failed: {run.reason}".replace('"""', "'''"),
            name=path.name,
            quotes='"""' if '"""' not in text else "'''",
            graph=text,
            stage=run.step.stage,
            where=where_is(run.step.load(), run.step.name),
            options=run.step.load().options,
            inference=run.context.is_inference,
            tensors=repr(str(path.with_suffix(".pt"))) if tensors else None,
        )
    )
    return str(path)


def where_is(pass_: Pass, name: str) -> str:
    """Where a pass can be imported from, as `file.py:name` or `module:name`."""
    module = getattr(pass_.fn, "__module__", "") or ""
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if module == "__main__" and file:
        return f"{os.path.abspath(file)}:{name}"
    return f"{module}:{name}"


def _attribute(module: torch.nn.Module, path: str) -> object:
    value: object = module
    for atom in path.split("."):
        value = getattr(value, atom, None)
    return value
