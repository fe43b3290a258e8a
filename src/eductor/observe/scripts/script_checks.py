"""What `eductor verify` and `eductor bisect` do with a script: look at each function that it compiles, as it calls it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eductor.errors import BadScript, NothingWrong, NotVerified
from eductor.observe.bisect.bisect import bisect_calls
from eductor.observe.bisect.search import Culprit, search
from eductor.observe.explain.progress import Progress
from eductor.observe.isolated_compile import captured_apart
from eductor.observe.scripts.interception import CompiledFunction
from eductor.observe.scripts.run_script import run_script
from eductor.observe.verify.call_outcome import Arguments
from eductor.observe.verify.verify import Report, Verification
from eductor.options import Options
from eductor.pipeline.instruments import Instrument
from eductor.verification.run_tensors import own_copies

KINDS_OF_CALLS = 8
"""So many calls of a function are looked at, each with other arguments in the eyes of Dynamo."""


def verify_script(
    where: str, arguments: Sequence[str], progress: Instrument, reports: list[Report], *, strict: bool = False
) -> None:
    """Runs a script, and verifies the calls of what it compiles; the reports are there even if it fails afterwards."""

    def wrap(found: CompiledFunction) -> Callable[..., Any]:
        options = found.with_options(instruments=(*found.options.instruments, progress), strict=False)
        verification = Verification(found.fn, options, found.name, **found.keywords)

        def look(call: Arguments) -> None:
            reports.append(verification.call(call))
            if strict and not reports[-1].ok:
                raise NotVerified(str(reports[-1]))

        def leave() -> None:
            note = f"more than {KINDS_OF_CALLS} kinds of calls were made; the others were not looked at"
            reports[-1].limits += [note] if note not in reports[-1].limits else []

        return _looking(found, verification.compiled, look, leave)

    run_script(where, wrap, arguments)
    if not reports:
        raise BadScript(_NOTHING_CALLED.format(where=where))


_NOTHING_CALLED = "{where} calls nothing that it compiles: call what is to be looked at."


def bisect_script(where: str, arguments: Sequence[str], progress: Progress, repeats: int = 1) -> Culprit:
    """The rewrite that makes a script fail, or, where it does not fail, one that makes a call in it wrong."""
    calls: list[tuple[CompiledFunction, list[Arguments]]] = []

    def wrap(found: CompiledFunction) -> Callable[..., Any]:
        calls.append((found, []))
        return _looking(found, found.compile(), lambda call, kept=calls[-1][1]: kept.append(_kept(call)))  # type: ignore[misc]

    try:
        run_script(where, wrap, arguments)
    except BadScript as failure:
        if failure.__cause__ is None or _fails_uncompiled(where, arguments):
            raise
        return search(_attempt(where, arguments, repeats), Options(), progress.say)
    if not any(kept for _, kept in calls):
        raise BadScript(_NOTHING_CALLED.format(where=where))
    for found, kept in calls:
        try:
            return bisect_calls(found.fn, kept, found.options, repeats, progress.say, **found.keywords)
        except NothingWrong:
            continue
    raise NothingWrong(f"{where} ends well, and what it compiles does what eager does: there is nothing to look for.")


def _kept(call: Arguments) -> Arguments:
    """The arguments of a call as they are now; the script may write them afterwards."""
    flat, spec = call.flat()
    pairs = zip(own_copies(flat), flat, strict=True)
    leaves = [c.requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else c for c, x in pairs]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return Arguments(args, kwargs)


def _fails_uncompiled(where: str, arguments: Sequence[str]) -> bool:
    try:
        run_script(where, lambda found: found.fn, arguments)
    except BadScript:
        return True
    return False


def _looking(
    found: CompiledFunction,
    compiled: Callable[..., Any],
    look: Callable[[Arguments], None],
    leave: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """What a script calls instead of a compiled function: it looks at the first call of each kind, then makes it."""
    seen: set[str] = set()

    @functools.wraps(found.fn, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        kind = _kind_of_call(found.fn, Arguments(args, kwargs))
        if kind not in seen:
            seen.add(kind)
            look(Arguments(args, kwargs)) if len(seen) <= KINDS_OF_CALLS else leave()
        return compiled(*args, **kwargs)

    return called


def _kind_of_call(fn: Callable[..., Any], call: Arguments) -> str:
    """What Dynamo tells calls apart by: tensors by their types and sizes, other things by their values."""
    leaves, structure = call.flat()
    mode = (getattr(fn, "training", None), torch.is_grad_enabled())
    return f"{structure} {mode} {[_kind_of(x) for x in leaves]}"


def _kind_of(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        strides = tuple(x.stride()) if x.layout is torch.strided else x.layout
        return (x.dtype, x.device, tuple(x.shape), strides, x.requires_grad)
    return (type(x), x) if isinstance(x, (int, float, str, type(None))) else type(x)


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
