"""`eductor verify` and `eductor bisect` of a script: check each function that it compiles, on its calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from eductor.compat import isolated_compile
from eductor.errors import BadScript, NothingWrong, NotVerified
from eductor.observe.bisect.bisect import bisect_calls
from eductor.observe.bisect.search import Culprit, search
from eductor.observe.explain.progress import Progress
from eductor.observe.scripts.interception import CompiledFunction
from eductor.observe.scripts.run_script import run_script
from eductor.observe.verify.call_outcome import Arguments
from eductor.observe.verify.verify import Report, Verification
from eductor.options import Options
from eductor.pipeline.instruments import Instrument
from eductor.verification.run_tensors import own_copies

KINDS_OF_CALLS = 8
"""The most calls of a function that are checked, each with arguments that Dynamo distinguishes."""


def verify_script(
    where: str, arguments: Sequence[str], progress: Instrument, reports: list[Report], *, strict: bool = False
) -> None:
    """Runs a script, and verifies its calls to compiled functions; adds to `reports` even if the script fails later."""

    def wrap(found: CompiledFunction) -> Callable[..., Any]:
        options = found.with_options(instruments=(*found.options.instruments, progress), strict=False)
        verification = Verification(found.fn, options, found.name, **found.keywords)

        def check(call: Arguments) -> None:
            reports.append(verification.call(call))
            if strict and not reports[-1].ok:
                raise NotVerified(str(reports[-1]))

        def skip() -> None:
            note = f"more than {KINDS_OF_CALLS} kinds of calls were made; the others were not checked"
            reports[-1].limits += [note] if note not in reports[-1].limits else []

        return _with_checks(found, verification.compiled, check, skip)

    run_script(where, wrap, arguments)
    if not reports:
        raise BadScript(_NOTHING_CALLED.format(where=where))


_NOTHING_CALLED = "{where} calls nothing that it compiles: call what you want to inspect."


def bisect_script(where: str, arguments: Sequence[str], progress: Progress, repeats: int = 1) -> Culprit:
    """The rewrite that makes a script fail, or if it succeeds, one that makes a call in it wrong."""
    calls: list[tuple[CompiledFunction, list[Arguments]]] = []

    def wrap(found: CompiledFunction) -> Callable[..., Any]:
        calls.append((found, []))
        return _with_checks(found, found.compile(), lambda call, kept=calls[-1][1]: kept.append(_snapshot(call)))  # type: ignore[misc]

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
    raise NothingWrong(f"{where} succeeds, and what it compiles does what eager does: there is nothing to bisect.")


def _snapshot(call: Arguments) -> Arguments:
    """A copy of a call's arguments, as the script may write them afterwards."""
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


def _with_checks(
    found: CompiledFunction,
    compiled: Callable[..., Any],
    check: Callable[[Arguments], None],
    skip: Callable[[], None] = lambda: None,
) -> Callable[..., Any]:
    """Wraps a compiled function: checks the first call of each kind before making it."""
    seen: set[str] = set()

    @functools.wraps(found.fn, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        kind = _kind_of_call(found.fn, Arguments(args, kwargs))
        if kind not in seen:
            seen.add(kind)
            check(Arguments(args, kwargs)) if len(seen) <= KINDS_OF_CALLS else skip()
        return compiled(*args, **kwargs)

    return called


def _kind_of_call(fn: Callable[..., Any], call: Arguments) -> str:
    """A key of what Dynamo distinguishes in calls: types and sizes of tensors, values of other arguments."""
    leaves, structure = call.flat()
    mode = (getattr(fn, "training", None), torch.is_grad_enabled())
    return f"{structure} {mode} {[_kind_of(x) for x in leaves]}"


def _kind_of(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        strides = tuple(x.stride()) if x.layout is torch.strided else x.layout
        return (x.dtype, x.device, tuple(x.shape), strides, x.requires_grad)
    return (type(x), x) if isinstance(x, (int, float, str, type(None))) else type(x)


def _attempt(where: str, arguments: Sequence[str], repeats: int) -> Callable[[Options | None], str]:
    """An attempt that runs the whole script, with its functions compiled with these options."""

    def attempt(options: Options | None) -> str:
        def compiled(found: CompiledFunction) -> Callable[..., Any]:
            if options is None:
                return isolated_compile(found.fn, backend="eager", **found.keywords)
            engine = found.options.engine if options.engine is None else options.engine
            return found.compile(instruments=(*found.options.instruments, *options.instruments), engine=engine)

        for _ in range(repeats):
            try:
                run_script(where, compiled, arguments)
            except BadScript as failure:
                return str(failure)
        return ""

    return attempt
