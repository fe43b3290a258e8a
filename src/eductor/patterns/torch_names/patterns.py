"""The pattern classes of torch's matcher under their names; they build expressions of our language.

    CallFunction(aten.permute, CallFunction(aten.permute, KeywordArg("x"), Ignored()), Arg(), _users=MULTIPLE)

There is one matcher, so a few things are stricter or wider than upstream. An argument that the pattern does not mention
must have its default. A constant is compared with its type. A call is found in every spelling: `x.relu()` and
`F.relu(x)` are `aten.relu`, a `transpose` is a `permute`; what is captured are the arguments of the schema. `_users=1`
says that all users are inside of the pattern, which is what it is written for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eductor.errors import BadPattern
from eductor.patterns.language.pattern import (
    ANY,
    Const,
    Op,
    Outputs,
    Pattern,
    Repeated,
    Users,
    Var,
    list_of,
    op,
    var,
    walk,
)
from eductor.patterns.torch_names.targets import call_of, read_as

MULTIPLE = ANY
"""`_users=MULTIPLE`: anybody may use the node, too."""


class PatternExpr:
    """A pattern as torch's matcher spells it."""


class Arg(PatternExpr):
    """Anything; the handler gets it as a positional argument, in the order in which the pattern is written."""


class Ignored(PatternExpr):
    """Matches anything and binds nothing. Unlike an argument that is not mentioned, it need not have its default."""


@dataclass(frozen=True, eq=False)
class KeywordArg(PatternExpr):
    """Anything; the handler gets it as a keyword argument. The same name twice is the same value twice."""

    name: str


class ExclusiveKeywordArg(KeywordArg):
    """The same, but another node than all other exclusive ones."""


class _Call(PatternExpr):
    """A call of one of the targets; `said` is it without its arguments."""

    def __init__(self, fns: Any, users: Users) -> None:
        self.said = op(fns, users=None if users == 1 else users)

    @property
    def fns(self) -> tuple[Any, ...]:
        return self.said.targets


class CallFunction(_Call):
    """A call with these arguments; the target is an operator, an overload, a function, or a list of them."""

    def __init__(self, fns: Any, *args: Any, _users: Users = 1, **kwargs: Any) -> None:
        super().__init__(fns, _users)
        self.args = args
        self.kwargs = kwargs


class CallMethod(CallFunction):
    """A call of a method, by its name; the first argument is the tensor whose method it is."""


class CallModule(CallFunction):
    """A call of a module of one of these classes."""


class CallFunctionVarArgs(_Call):
    """A call with any arguments; the handler gets them all, as they stand in the graph."""

    def __init__(self, fns: Any, users: Users = 1) -> None:
        super().__init__(fns, users)


class CallMethodVarArgs(CallFunctionVarArgs):
    """A call of a method, by its name, with any arguments."""


class CallModuleVarArgs(CallFunctionVarArgs):
    """A call of a module of one of these classes, with any arguments."""


class ListOf(PatternExpr):
    """A list of any length, each element of which matches; with `partial`, at least one of them.

    The handler gets a tuple with a tuple of positional captures for each element; a keyword is one value for all.
    """

    def __init__(self, pattern: PatternExpr, partial: bool = False) -> None:
        self.pattern = pattern
        self.partial = partial


class MultiOutputPattern(PatternExpr):
    """Several results; None where there is none. The first is a call."""

    def __init__(self, outputs: Sequence[PatternExpr | None]) -> None:
        if not outputs or not isinstance(outputs[0], _Call):
            raise BadPattern("MultiOutputPattern(...): its first result must be a call, such as CallFunction(...).")
        self.outputs = list(outputs)


class RepeatedExpr(PatternExpr):
    """All calls of this form on what they share, which has `_users=MULTIPLE`; other users of it are a mismatch.

    The positional captures of one repetition follow those of the other, in the order of the graph; a keyword is one
    value for all.
    """

    def __init__(self, inner_pattern: PatternExpr) -> None:
        if not isinstance(inner_pattern, CallFunction):
            raise BadPattern("RepeatedExpr(...): it repeats a call with arguments; give CallFunction(...).")
        self.inner_pattern = inner_pattern


# ------------------------------------------------------------------------------------------------ what a handler gets


@dataclass(eq=False)
class Captures:
    """What a handler gets of a match, in the order in which the pattern is written."""

    suffix: str = ""
    """What names within a list end with, so that they are lists of their own."""
    positional: list[str | Whole | Captures] = field(default_factory=list)
    keywords: dict[str, str] = field(default_factory=dict)
    """The name that the author gave, and the one in the expression."""
    names: list[str] = field(default_factory=list)
    """All names of the expression here and further in, those of ignored things too."""
    is_repeated: bool = False
    ordered: list[tuple[Op, str]] = field(default_factory=list)
    """Calls that only name their operands, and the name of the first: of a sum, too, it is the first that is meant."""

    def named(self, name: str) -> str:
        self.names.append(f"{name}{self.suffix}")
        return self.names[-1]


@dataclass(frozen=True, eq=False)
class Whole:
    """A call whose arguments are all captured."""

    call: Op
    fns: tuple[Any, ...]


def translated(pattern: Any) -> tuple[Pattern, Captures]:
    """A pattern as an expression of the language, and what its handler gets. An expression stays what it is."""
    captures = Captures(is_repeated=isinstance(pattern, RepeatedExpr))
    translator = _Translator()
    if isinstance(pattern, MultiOutputPattern):
        return Outputs(tuple(translator.value(p, captures) for p in pattern.outputs)), captures
    if isinstance(pattern, RepeatedExpr):
        return Repeated(translator.value(pattern.inner_pattern, captures)), captures
    if not isinstance(pattern, (_Call, Pattern)):
        raise BadPattern(f"{pattern!r} is no pattern to look for: give CallFunction(...) or another call.")
    found: Pattern = translator.value(pattern, captures)
    captures.ordered = _ordered(found) if isinstance(pattern, _Call) else []
    return found, captures


def _ordered(pattern: Pattern) -> list[tuple[Op, str]]:
    calls = [p for p in walk(pattern, into_lists=False) if isinstance(p, Op)]
    named = Counter(a.name for c in calls for a in (*c.args, *c.kwargs.values()) if isinstance(a, Var))
    pairs = [(c, c.args[:2]) for c in calls if len(c.args) >= 2]
    return [(c, ab[0].name) for c, ab in pairs if all(isinstance(v, Var) and named[v.name] == 1 for v in ab)]


class _Translator:
    """Makes an expression of a pattern; the same object stays one and the same node."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], Any] = {}

    def value(self, given: Any, scope: Captures) -> Any:
        if isinstance(given, (list, tuple)):
            return [self.value(v, scope) for v in given]
        if isinstance(given, Pattern):
            scope.keywords.update({p.name: p.name for p in walk(given) if isinstance(p, (Var, Const))})
        if not isinstance(given, PatternExpr):
            return given
        key = id(scope), id(given)
        if key not in self._made:
            self._made[key] = self._expression(given, scope)
        return self._made[key]

    def _expression(self, given: PatternExpr, scope: Captures) -> Any:
        if isinstance(given, KeywordArg):
            scope.keywords[given.name] = scope.named(given.name)
            return var(scope.names[-1], anything=True, exclusive=isinstance(given, ExclusiveKeywordArg))
        if isinstance(given, (Arg, Ignored)):
            name = scope.named(f"_{len(self._made)}")
            scope.positional.extend([name] if isinstance(given, Arg) else [])
            return var(name, anything=True)
        if isinstance(given, ListOf):
            inner = Captures(f"{scope.suffix}_in_{len(self._made)}")
            element = self.value(given.pattern, inner)
            scope.positional.append(inner)
            scope.names += inner.names
            return list_of(element, partial=given.partial)
        if isinstance(given, CallFunctionVarArgs):
            return self._whole(given, scope)
        if not isinstance(given, CallFunction):
            raise BadPattern(f"{type(given).__name__}(...) must be the outermost expression of a pattern.")
        args = tuple(self.value(given.args, scope))
        kwargs = {k: self.value(v, scope) for k, v in given.kwargs.items()}
        return call_of(given.said, args, kwargs)

    def _whole(self, given: CallFunctionVarArgs, scope: Captures) -> Op:
        if scope.suffix or scope.is_repeated:
            raise BadPattern(f"{type(given).__name__}(...) cannot be repeated: say its arguments.")
        keys = dict.fromkeys(key for fn in given.fns for key in read_as(fn))
        made = Op(tuple(keys), (), {}, given.said.users, open=True)
        scope.positional.append(Whole(made, given.fns))
        return made
