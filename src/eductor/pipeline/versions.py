"""Versions of passes: a hash of the source, equal in all processes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Iterable
from typing import Any


def source_hash(fn: Any) -> str:
    """Hashes a function's file, so that an edited helper counts, and its code and closure, so that two functions that are
    defined by the same source differ."""
    try:
        source = inspect.getsource(inspect.getmodule(fn) or fn)
    except (OSError, TypeError):  # from a console, or exec
        source = ""
    return digest(source, spelled(fn))


def is_ours(fn: Any) -> bool:
    """Whether a function belongs to this package, whose version covers all of its source."""
    return package_of(fn) == package_of(is_ours)


def package_of(fn: Any) -> str:
    """The package of a function; the versions that its author states cover all code in it."""
    return str(getattr(unwrapped(fn), "__module__", "")).partition(".")[0]


def packages_of(*fns: Any) -> frozenset[str]:
    """The packages of functions; some may be None."""
    return frozenset(package_of(fn) for fn in fns if fn is not None)


def added_by_others(fn: Any, rules: Iterable[tuple[str, frozenset[str]]]) -> str:
    """Why the version of a pass does not cover its rules, given as names and packages of their functions; else empty."""
    added = next((name for name, packages in rules if not packages <= packages_of(fn)), None)
    return "" if added is None else f"whose rule {added} has a function of another package"


def unwrapped(fn: Any) -> Any:
    """The function inside of `functools.partial`s."""
    return unwrapped(fn.func) if isinstance(fn, functools.partial) else fn


def spelled(value: Any, depth: int = 8) -> str:
    """A value as text, equal in all processes; objects are spelled with their state, down to the depth."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, types.CodeType):
        return f"({value.co_code.hex()} {value.co_names} {' '.join(spelled(c, depth) for c in value.co_consts)})"
    if depth == 0:
        return type(value).__qualname__

    def spell(*parts: Any) -> str:
        return f"({' '.join(spelled(part, depth - 1) for part in parts)})"

    if isinstance(value, types.FunctionType):
        cells = [_contents(cell) for cell in value.__closure__ or ()]
        return spell(value.__qualname__, value.__code__, value.__defaults__, value.__kwdefaults__, cells)
    if isinstance(value, types.MethodType):
        return spell(value.__self__, value.__func__)
    if isinstance(value, functools.partial):
        return spell(value.func, value.args, value.keywords)
    if isinstance(value, (list, tuple)):
        return spell(*value)
    if isinstance(value, (set, frozenset)):
        return str(sorted(spelled(v, depth - 1) for v in value))
    if isinstance(value, dict):
        return spell(*value.items())
    if isinstance(value, (type, types.ModuleType)):
        return value.__name__
    if dataclasses.is_dataclass(value):
        return (
            f"{type(value).__qualname__}{spell(*(getattr(value, field.name) for field in dataclasses.fields(value)))}"
        )
    if isinstance(value, types.BuiltinFunctionType):
        return value.__qualname__
    text = repr(value)
    return text if " at 0x" not in text else f"{type(value).__qualname__}{spell(getattr(value, '__dict__', {}))}"


def _contents(cell: types.CellType) -> Any:
    """The contents of a closure cell; None if empty, as in a recursive function that is not yet defined."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(errors="backslashreplace"), digest_size=8).hexdigest()
