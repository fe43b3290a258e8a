"""What `eductor verify` and `eductor bisect` do with a script: look at each function that it compiles, as it calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eductor.errors import BadScript, NothingWrong
from eductor.observe.apart import captured_apart
from eductor.observe.bisect import Expected, Wrong, bisect_call
from eductor.observe.calls import Arguments
from eductor.observe.prefix import Prefix
from eductor.observe.progress import Progress
from eductor.observe.scripts import CompiledFunction, run_script
from eductor.observe.search import Culprit, search
from eductor.observe.verify import Report, verify_call
from eductor.options import Options
from eductor.pipeline.instruments import Instrument

KINDS_OF_CALLS = 8
"""So many calls of a function are looked at, each with arguments of other types and shapes."""


def verify_script(
    where: str, arguments: Sequence[str], progress: Instrument, reports: list[Report], *, strict: bool = False
) -> None:
    """Runs a script, and verifies the calls of what it compiles; the reports are there even if it fails afterwards."""

    def look(found: CompiledFunction, call: Arguments) -> None:
        options = found.with_options(instruments=(*found.options.instruments, progress), strict=strict)
        reports.append(verify_call(found.fn, call, options, found.name, **found.keywords))

    run_script(where, functools.partial(_looking, look), arguments)
    if not reports:
        raise BadScript(_NOTHING_CALLED.format(where=where))


_NOTHING_CALLED = "{where} calls nothing that it compiles: call what is to be looked at."


def bisect_script(where: str, arguments: Sequence[str], progress: Progress, repeats: int = 1) -> Culprit:
    """The rewrite that makes a script fail, or, where it does not fail, one that makes a call in it wrong."""
    culprits: list[Culprit] = []
    calls = 0

    def look(found: CompiledFunction, call: Arguments) -> None:
        nonlocal calls
        calls += 1
        if not culprits and _is_wrong(found, call):
            culprits.append(bisect_call(found.fn, call, found.options, repeats, progress.say, **found.keywords))

    try:
        run_script(where, functools.partial(_looking, look), arguments)
    except BadScript as failure:
        if failure.__cause__ is None or _fails_uncompiled(where, arguments):
            raise
        return search(_attempt(where, arguments, repeats), Options(), progress.say)
    if not calls:
        raise BadScript(_NOTHING_CALLED.format(where=where))
    if not culprits:
        raise NothingWrong(
            f"{where} ends well, and what it compiles does what eager does: there is nothing to look for."
        )
    return culprits[0]


def _is_wrong(found: CompiledFunction, call: Arguments) -> bool:
    """Whether a call is unlike eager, or something failed in its compile."""
    expected, prefix = Expected(found.fn, call, found.options), Prefix()
    instruments = (*found.options.instruments, prefix)
    try:
        expected.check(found.compile(instruments=instruments, fallback_random=expected.options.fallback_random))
    except Wrong:
        return True
    return bool(prefix.failures)


def _fails_uncompiled(where: str, arguments: Sequence[str]) -> bool:
    try:
        run_script(where, lambda found: found.fn, arguments)
    except BadScript:
        return True
    return False


def _looking(look: Callable[[CompiledFunction, Arguments], None], found: CompiledFunction) -> Callable[..., Any]:
    """What a script calls instead of a compiled function: it looks at the first call of each kind, then makes it."""
    compiled = found.compile()
    seen: set[str] = set()

    @functools.wraps(found.fn, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        kind = _kind(args, kwargs)
        if kind not in seen and len(seen) < KINDS_OF_CALLS:
            seen.add(kind)
            look(found, Arguments(args, kwargs))
        return compiled(*args, **kwargs)

    return called


def _kind(args: Any, kwargs: Any) -> str:
    """Arguments by type, tensors also by shape: what Dynamo would compile anew for."""
    leaves, structure = pytree.tree_flatten((args, kwargs))
    kinds = [(x.dtype, tuple(x.shape), x.requires_grad) if isinstance(x, torch.Tensor) else type(x) for x in leaves]
    return f"{structure} {kinds}"


def _attempt(where: str, arguments: Sequence[str], repeats: int) -> Callable[[Options | None], str]:
    """Runs the whole script with what it compiles compiled so."""

    def attempt(options: Options | None) -> str:
        def compiled(found: CompiledFunction) -> Callable[..., Any]:
            if options is None:
                return captured_apart(found.fn, **found.keywords)
            engine = found.options.engine if options.engine is None else options.engine
            return found.compile(instruments=(*found.options.instruments, *options.instruments), engine=engine)

        for _ in range(repeats):
            try:
                run_script(where, compiled, arguments)
            except BadScript as failure:
                return str(failure)
        return ""

    return attempt
