"""The version of a pass: a hash of the source it is written in, the same in every process."""

from __future__ import annotations

import functools
import hashlib
import inspect
import types
from collections.abc import Iterable
from typing import Any


def source_hash(fn: Any) -> str:
    """Of the file the function is written in, so that an edited helper counts; of its code and of what that closes over,
    so that two functions made in one place differ."""
    try:
        source = inspect.getsource(inspect.getmodule(fn) or fn)
    except (OSError, TypeError):  # typed into a console, or made by exec
        source = ""
    return digest(source, spelled(fn))


def is_ours(fn: Any) -> bool:
    """Whether a function is one of this package's, whose whole source tells what it does."""
    return package_of(fn) == package_of(is_ours)


def package_of(fn: Any) -> str:
    """The package that a function comes with: its author states the versions of passes for what stands there."""
    return str(getattr(unwrapped(fn), "__module__", "")).partition(".")[0]


def packages_of(*fns: Any) -> frozenset[str]:
    """The packages that functions come with; some may be None."""
    return frozenset(package_of(fn) for fn in fns if fn is not None)


def added_by_others(fn: Any, rules: Iterable[tuple[str, frozenset[str]]]) -> str:
    """Why the version of a pass does not tell of its rules, given as names and the packages of their functions; or nothing."""
    added = next((name for name, packages in rules if not packages <= packages_of(fn)), None)
    return "" if added is None else f"whose rule {added} has a function of another package"


def unwrapped(fn: Any) -> Any:
    """The function of which some arguments are given."""
    return unwrapped(fn.func) if isinstance(fn, functools.partial) else fn


def spelled(value: Any, depth: int = 8) -> str:
    """A value as text that is the same in every process; the state of objects is spelled as far as the depth goes."""
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
    if isinstance(value, types.BuiltinFunctionType):
        return value.__qualname__
    text = repr(value)
    return text if " at 0x" not in text else f"{type(value).__qualname__}{spell(getattr(value, '__dict__', {}))}"


def _contents(cell: types.CellType) -> Any:
    """A function that calls itself closes over a cell that is filled only once it is made."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(errors="backslashreplace"), digest_size=8).hexdigest()
