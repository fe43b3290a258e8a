"""Every error that Eductor raises on purpose: what was given, what is allowed, what to do."""

from __future__ import annotations

import difflib
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path

from eductor.progress import erase


class EductorError(Exception):
    """The base of all errors that Eductor raises on purpose."""


class UnknownName(EductorError):
    """An unknown name; the message suggests the nearest one."""

    def __init__(self, kind: str, given: object, known: Iterable[str]) -> None:
        super().__init__(kind, given, sorted(set(known)))

    def __str__(self) -> str:
        kind, given, known = self.args
        near = difflib.get_close_matches(str(given).rpartition("/")[2], known, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        return f"unknown {kind} {given!r}. {hint}Known: {', '.join(known) or 'none'}."


class BadOption(EductorError):
    """An option with a value of the wrong type or out of its range."""


class BadPass(EductorError):
    """A pass, an example or a slot that was declared wrongly."""


class BadPattern(EductorError):
    """A pattern or a replacement that contradicts itself or can never match."""


class OrderConflict(EductorError):
    """Constraints on the order of passes that cannot all hold."""


class BadGraph(EductorError):
    """A graph that cannot be read, sorted or brought to the dialect of a stage."""


class PassFailed(EductorError):
    """A pass that raised, left a broken graph or broke its contract, by its address."""


class RequiredPassFailed(PassFailed):
    """A pass failed that the engine cannot do without; the compile takes a simpler way and says so."""


class NotVerified(EductorError):
    """Verification found a pass that broke its contract, or a difference from eager."""


class NothingWrong(EductorError):
    """A bisection of a program that passes its check."""


class Unsupported(EductorError):
    """A construct that a stage cannot handle; the compile falls back to a simpler path and warns."""


class BadScript(EductorError):
    """A script that cannot be run, or compiles nothing."""


class NotInstalled(EductorError):
    """A missing package that an extra of Eductor installs."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"to {purpose}, {package} must be installed: pip install 'eductor[{extra}]'."


class EductorWarning(UserWarning):
    """Something is not supported or went wrong, and a simpler path with eager's result was taken."""


_warnings: ContextVar[int] = ContextVar("warnings", default=0)


def warn(message: str) -> None:
    """Warns the user of something in a compile; `warnings_until_now` counts it."""
    _warnings.set(_warnings.get() + 1)
    warn_uncounted(message)


def warn_uncounted(message: str) -> None:
    """Warns of something beside a compile, at the line of the user's program that is running."""
    erase()
    for frame, line in traceback.walk_stack(None):
        if _is_users(frame.f_globals.get("__name__", "")):
            registry = frame.f_globals.setdefault("__warningregistry__", {})
            file, module = frame.f_code.co_filename, frame.f_globals["__name__"]
            warnings.warn_explicit(message, EductorWarning, file, line, module, registry)
            return
    warnings.warn(message, EductorWarning, stacklevel=3)  # a thread of torch's own


def _is_users(module: str) -> bool:
    root = module.partition(".")[0]
    return root == "__main__" or (root not in ("", "eductor", "torch") and root not in sys.stdlib_module_names)


def warnings_until_now() -> int:
    """How many warnings this thread raised; a filter may have silenced them."""
    return _warnings.get()


def see_more() -> str:
    """The one command that shows what a compile of the running program does, stage by stage."""
    script = Path(sys.argv[0])
    is_program = script.suffix == ".py" and script.is_file() and "site-packages" not in script.parts
    command = ["eductor", "explain", str(script), *(["--", *sys.argv[1:]] if sys.argv[1:] else [])]
    return f"`{shlex.join(command)}`" if is_program else "`print(eductor.explain(fn, *args))`"
