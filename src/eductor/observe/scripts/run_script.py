"""Runs a user's script, and passes every function that it compiles with Eductor to a wrapper."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from eductor.errors import BadScript, NotVerified
from eductor.observe.scripts.interception import Interception, Wrap
from eductor.options import Options
from eductor.pipeline.base import TensorSpec


def run_script(where: str, wrap: Wrap, arguments: Sequence[str] = (), *, takes_stock: bool = False) -> int:
    """Runs `script.py` as a program, or calls `script.py:function`; returns how many functions Eductor compiled.

    With `takes_stock`, functions compiled with stock Inductor count as well.
    """
    path, function = _parse(where)
    seen = Interception(wrap, takes_stock)
    with _started(path, arguments), seen.active():
        if function:
            _call(path, function, seen)
        else:
            with _blamed(path):
                runpy.run_path(str(path), run_name="__main__")
    if not seen.functions:
        others = f" (but with {', '.join(sorted(seen.other_backends))})" if seen.other_backends else ""
        raise BadScript(
            f"{where} compiled nothing with Eductor{others}: it must call "
            'torch.compile(..., backend="eductor") or eductor.compile(...).'
        )
    return seen.functions


def _parse(where: str) -> tuple[Path, str]:
    head, _, tail = where.rpartition(":")
    path, function = (Path(head), tail) if head.endswith(".py") else (Path(where), "")
    if path.suffix != ".py" or (head.endswith(".py") and not tail):
        raise BadScript(f"{where!r} is not a Python script: give path/to/script.py or path/to/script.py:function.")
    if not path.is_file():
        near = _near(path.name, (p.name for p in path.parent.glob("*.py")))
        raise BadScript(f"no such file: {str(path)!r}. {near or 'Give the path of a script.'}")
    return path.absolute(), function


def _call(path: Path, name: str, seen: Interception) -> None:
    """Calls a function of the script; if that compiles nothing, compiles the function itself."""
    with _imported(path) as module:
        function = _find(path, module, name)
        args, kwargs = _arguments(name, function)
        with _blamed(path):
            function(*args, **kwargs)
            if not seen.functions:
                seen.take(function, Options())(*args, **kwargs)


def _find(path: Path, module: ModuleType, name: str) -> Callable[..., Any]:
    found = getattr(module, name, None)
    if not callable(found):
        known = [k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module.__name__]
        what = f"is not a function, but of type {type(found).__name__}," if hasattr(module, name) else "does not exist"
        near = _near(name, known) or f"Its functions: {', '.join(known) or 'none'}."
        raise BadScript(f"{name!r} {what} in {path.name}. {near}")
    return found  # type: ignore[no-any-return]


def _arguments(name: str, function: Callable[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """The default arguments of a function, with tensors made from `TensorSpec`s."""
    callee = function.forward if isinstance(function, nn.Module) else function
    parameters = [
        p for p in inspect.signature(callee).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    missing = [p.name for p in parameters if p.default is p.empty]
    if missing:
        raise BadScript(
            f"{name!r} needs the arguments {', '.join(missing)}: give them defaults, such as eductor.pipeline.f32(2, 3), "
            "or wrap it in a function without parameters."
        )
    made = [
        p.default.make(seed) if isinstance(p.default, TensorSpec) else p.default for seed, p in enumerate(parameters)
    ]
    named = [p.kind is p.KEYWORD_ONLY for p in parameters]
    kwargs = {p.name: value for p, value, by_name in zip(parameters, made, named, strict=True) if by_name}
    return [value for value, by_name in zip(made, named, strict=True) if not by_name], kwargs


@contextmanager
def _started(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Emulates a fresh start of Python with the script; restores argv and path, and unloads its modules on exit."""
    argv, search, modules = sys.argv, sys.path, set(sys.modules)
    sys.argv, sys.path = [str(path), *arguments], [str(path.parent), *search]
    try:
        yield
    finally:
        sys.argv, sys.path = argv, search
        for name in set(sys.modules) - modules:
            if name.partition(".")[0] not in modules and _is_below(path.parent, sys.modules[name]):
                del sys.modules[name]


def _is_below(folder: Path, module: ModuleType) -> bool:
    file = Path(getattr(module, "__file__", None) or "/")
    return folder in file.parents and "site-packages" not in file.parts


@contextmanager
def _imported(path: Path) -> Iterator[ModuleType]:
    """Imports the script as a module, registered in sys.modules meanwhile, as Dynamo looks it up."""
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_to_explain"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _blamed(path):
            spec.loader.exec_module(module)
        yield module
    finally:
        sys.modules.pop(name, None)


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Turns what the script raises into a one-line BadScript with its place."""
    try:
        yield
    except (BadScript, NotVerified):
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            status = f"status {error.code}" if isinstance(error.code, int) else f"the message {error.code!r}"
            raise BadScript(
                f"{path.name} exited with {status}: it must succeed to be inspected; pass its arguments after `--`."
            ) from error
    except Exception as error:
        shown = getattr(error, "inner_exception", error)  # Dynamo wraps errors of a backend
        text = next((line.strip() for line in str(shown).splitlines() if line.strip()), "")
        what = f"{type(shown).__name__}: {text}" if text else type(shown).__name__
        raise BadScript(
            f"{path.name}{_line(path, error)} raised {what.rstrip('.')}. Run it with python to see the full traceback."
        ) from error


def _line(path: Path, error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f":{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}?" if near else ""
