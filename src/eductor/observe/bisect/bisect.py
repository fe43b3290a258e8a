"""`eductor.bisect`: finds the single rewrite that makes a program wrong: graph, stage, pass, match.

All rewrites of a compile stand in one row. A compile that makes only the first k of them is either right or wrong, and
halving finds the first wrong one. Everything happens in this process, without files or environment variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from eductor.errors import BadOption, NothingWrong
from eductor.observe.bisect.search import Attempt, Culprit, search
from eductor.observe.isolated_compile import captured_apart, compile_apart
from eductor.observe.verify.call_outcome import Arguments, observe_call, unlike_calls, world_of
from eductor.observe.verify.verify import draws_anew
from eductor.options import Options

Check = Callable[[Callable[..., Any]], Any]
"""Takes the compiled function and calls it. What is right is returned as true or as nothing; anything raised is wrong."""


def bisect(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    check: Check | None = None,
    repeats: int = 1,
    options: Mapping[str, Any] | Options | None = None,
) -> Culprit:
    """The first rewrite with which the compiled function is wrong: unlike eager on these arguments, or by your `check`.

    `check` takes the compiled function and says whether it is right. `repeats` asks it so often, for one that does not
    always fail: one failure counts. A pass, a stage or an engine that fails counts as wrong, too.
    """
    if type(repeats) is not int or repeats < 1:
        raise BadOption(f"repeats={repeats!r}: how often the check is asked, at least once.")
    arguments, chosen = Arguments(args, kwargs or {}), Options.of(options)
    if check is not None:
        return search(_attempt(fn, check, repeats), chosen)
    return bisect_calls(fn, [arguments], chosen, repeats)


def bisect_calls(
    fn: Callable[..., Any],
    calls: Sequence[Arguments],
    options: Options,
    repeats: int = 1,
    tell: Callable[[str], None] | None = None,
    **keywords: Any,
) -> Culprit:
    """The first rewrite with which one of some calls is unlike eager; `keywords` are those of `torch.compile`."""
    expected = Expected(fn, calls, options)
    try:
        return search(_attempt(fn, expected.check, repeats, **keywords), expected.options, tell)
    except NothingWrong:
        if expected.options is options:
            raise
        # With eager's random numbers it is right. With its own it cannot be compared, but its passes can be checked.
        return search(_attempt(fn, expected.call, repeats, **keywords), replace(options, verify="each"), tell)


class Wrong(Exception):
    """What a check found."""


class Expected:
    """What eager does in some calls, and a check that a compiled function does the same in them."""

    def __init__(self, fn: Callable[..., Any], calls: Sequence[Arguments], options: Options) -> None:
        self._calls = [(arguments, world_of(fn, arguments)) for arguments in calls]
        self._seen = [observe_call(fn, *call) for call in self._calls]
        self._truths = [observe_call(fn, *call, wide=True) for call in self._calls]
        redraws = any(call.drew for call in self._seen) and draws_anew(options)
        self.options = replace(options, fallback_random=True) if redraws else options

    def check(self, compiled: Callable[..., Any]) -> None:
        """Raises what tells the first call that differs from eager's."""
        for call, seen, truth in zip(self._calls, self._seen, self._truths, strict=True):
            got = observe_call(compiled, *call)
            unlike = unlike_calls(seen, got, truth, exact=self.options.profile == "exact")
            if unlike:
                raise Wrong(unlike[0])

    def call(self, compiled: Callable[..., Any]) -> None:
        """Makes the calls, and their backwards."""
        for call in self._calls:
            observe_call(compiled, *call)


def _attempt(fn: Callable[..., Any], check: Check, repeats: int, **keywords: Any) -> Attempt:
    def attempt(options: Options | None) -> str:
        compiled = captured_apart(fn, **keywords) if options is None else compile_apart(fn, options, **keywords)
        return next((wrong for _ in range(repeats) if (wrong := _asked(check, compiled))), "")

    return attempt


def _asked(check: Check, compiled: Callable[..., Any]) -> str:
    try:
        verdict = check(compiled)
    except Wrong as wrong:
        return str(wrong)
    except Exception as error:
        return f"it raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "" if verdict is None or verdict else "the check says so"
