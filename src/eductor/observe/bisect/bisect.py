"""`eductor.bisect`: finds the single rewrite that makes a program wrong: graph, stage, pass, match.

The rewrites of a compile form one sequence. A compile that makes only the first k of them is either right or wrong, and
a binary search finds the first wrong one. It runs in this process, without files or environment variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eductor.compat import isolated_compile
from eductor.compiler import checked_backend
from eductor.errors import BadOption, NothingWrong
from eductor.observe.bisect.search import Attempt, Culprit, search
from eductor.observe.verify.call_outcome import Arguments, observe_call, reachable_state, unlike_calls
from eductor.observe.verify.verify import draws_differently
from eductor.options import Options

Check = Callable[[Callable[..., Any]], Any]
"""Calls the compiled function; returns true or None if it is right. Returning false or raising means wrong."""


def bisect(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Check | None = None,
    repeats: int = 1,
    options: Mapping[str, Any] | Options | None = None,
) -> Culprit:
    """Finds the first rewrite that makes the compiled function wrong: unlike eager on these arguments, or by your `check`.

    `check` takes the compiled function and returns whether it is right. `repeats` is how often it runs, for one that does
    not always fail: a single failure counts. A failing pass, stage or engine counts as wrong as well.
    """
    if type(repeats) is not int or repeats < 1:
        raise BadOption(f"repeats={repeats!r}: it must be 1 or more, the number of times that the check runs.")
    arguments, chosen = Arguments(args, kwargs or {}), Options.of(options)
    if check is not None:
        return search(_attempt(fn, check, repeats), chosen)
    return bisect_calls(fn, [arguments], chosen, repeats)


def bisect_calls(
    fn: Callable[..., Any],
    calls: Sequence[Arguments],
    options: Options,
    repeats: int = 1,
    say: Callable[[str], None] | None = None,
    **keywords: Any,
) -> Culprit:
    """The first rewrite that makes one of some calls unlike eager; `keywords` are those of `torch.compile`."""
    expected = Expected(fn, calls, options)
    try:
        return search(_attempt(fn, expected.check, repeats, **keywords), expected.options, say)
    except NothingWrong:
        if expected.options is options:
            raise
        # It is right with eager's random numbers. With its own it cannot be compared, but its passes can be verified.
        return search(_attempt(fn, expected.call, repeats, **keywords), replace(options, verify="each"), say)


class Wrong(Exception):
    """A failed check, with what is wrong."""


class Expected:
    """The outcomes of some calls in eager, and a check that a compiled function has the same."""

    def __init__(self, fn: Callable[..., Any], calls: Sequence[Arguments], options: Options) -> None:
        self._calls = [(arguments, reachable_state(fn, arguments)) for arguments in calls]
        self._seen = [observe_call(fn, *call) for call in self._calls]
        self._truths = [observe_call(fn, *call, wide=True) for call in self._calls]
        redraws = any(call.drew for call in self._seen) and draws_differently(options)
        self.options = replace(options, fallback_random=True) if redraws else options

    def check(self, compiled: Callable[..., Any]) -> None:
        """Raises `Wrong` for the first call that differs from eager's."""
        for call, seen, truth in zip(self._calls, self._seen, self._truths, strict=True):
            got = observe_call(compiled, *call)
            unlike = unlike_calls(seen, got, truth, exact=self.options.profile == "exact")
            if unlike:
                raise Wrong(unlike[0])

    def call(self, compiled: Callable[..., Any]) -> None:
        """Runs the calls and their backwards."""
        for call in self._calls:
            observe_call(compiled, *call)


def _attempt(fn: Callable[..., Any], check: Check, repeats: int, **keywords: Any) -> Attempt:
    def attempt(options: Options | None) -> str:
        backend = "eager" if options is None else checked_backend(options)
        compiled = isolated_compile(fn, backend=backend, **keywords)
        return next((wrong for _ in range(repeats) if (wrong := _failure_of(check, compiled))), "")

    return attempt


def _failure_of(check: Check, compiled: Callable[..., Any]) -> str:
    try:
        verdict = check(compiled)
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:
        return f"the call raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "" if verdict is None or verdict else "the check returned false"
