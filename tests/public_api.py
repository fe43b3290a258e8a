"""The public names: what the public modules import or define, with the first line of what is said about each."""

from __future__ import annotations

import ast
import functools
import inspect
from importlib import import_module
from types import ModuleType

MODULES = ("eductor", "eductor.graph", "eductor.pipeline", "eductor.patterns", "eductor.testing")
"""The modules whose names are promised; docs/api.md lists them."""


def public_names(module: str) -> dict[str, str]:
    """The public names of a module in alphabetical order, each with the first line of its documentation."""
    tree = ast.parse(inspect.getsource(import_module(module)))
    exported = [a.asname for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names if a.asname == a.name]
    defined = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    found = import_module(module)
    names = [n for n in (*exported, *defined) if n[0] != "_" and not isinstance(getattr(found, n), ModuleType)]
    return {name: _first_line(_documentation(module, name)) for name in sorted(names, key=str.casefold)}


@functools.cache
def _documentation(module: str, name: str) -> str:
    """What stands under a class, a function or a constant, in the module that defines it."""
    body = ast.parse(inspect.getsource(import_module(module))).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            return _documentation(str(node.module), name)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return ast.get_docstring(node) or ""
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(n, ast.Name) and n.id == name for t in targets if t is not None for n in ast.walk(t)):
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                return inspect.cleandoc(str(following.value.value))
    return ""


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
