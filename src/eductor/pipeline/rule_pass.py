"""Passes that consist of rules: `stage/pass:rule@match`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from eductor.errors import BadPass
from eductor.graph.no import No
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView, key_of
from eductor.pipeline.base import Context, Contract, Numerics, Pass, Stage, is_name, name_of, takes_context, words
from eductor.pipeline.versions import added_by_others, digest, packages_of, source_hash, spelled


@dataclass(frozen=True)
class CallRule:
    """One rule of a rule pass, tried on each call of its operators."""

    name: str
    operators: tuple[Any, ...]
    fn: Callable[..., Any]
    version: str

    def __call__(self, view: GraphView, rewriter: Rewriter, node: Node, context: Context) -> None:
        """Tries the rule on a call, with the graph and the rewriter, and with the context if the rule takes one.

        A rule that declines returns a `No`, or rejects the call itself.
        """
        answer = self.fn(view, rewriter, node, **({"context": context} if takes_context(self.fn) else {}))
        if isinstance(answer, No):
            rewriter.reject(answer, node)

    @functools.cached_property
    def keys(self) -> frozenset[Any]:
        """The index keys of the calls of its operators."""
        return frozenset(map(key_of, self.operators))


class RulePass(Pass):
    """A pass that tries each of its rules on the calls of that rule's operators: `stage/pass:rule@match`."""

    def __init__(self, fn: Callable[..., Any], **declared: Any) -> None:
        super().__init__(fn, **declared)
        self.rules: list[CallRule] = []

    def _check_function(self) -> None:
        if inspect.signature(self.fn).parameters:
            raise BadPass(f"pass {self.name!r}: its rules do the work, so its own function takes no parameters.")

    @property
    def version(self) -> str:
        return digest(self._version or self._source, *(f"{r.name} {r.version}" for r in self.rules))

    @property
    def unversioned(self) -> str:
        return super().unversioned or added_by_others(
            self.fn, ((rule.name, packages_of(rule.fn)) for rule in self.rules)
        )

    def rule(self, *operators: Any, name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares a rule for calls of the operators: a function of the graph, the rewriter, the node, and optionally `context`."""

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            rule = CallRule(
                name_of(fn) if name is None else name, operators, fn, digest(spelled(operators), source_hash(fn))
            )
            if not is_name(rule.name):
                raise BadPass(f"pass {self.name!r}: a rule needs a name that is an identifier, not {rule.name!r}.")
            if any(r.name == rule.name for r in self.rules):
                raise BadPass(
                    f"pass {self.name!r} has two rules called {rule.name!r}: give one of them another `name=`."
                )
            if not operators:
                raise BadPass(
                    f"pass {self.name!r}: the rule {rule.name!r} needs the operators whose calls it rewrites."
                )
            self.rules.append(rule)
            return fn

        return declare

    def run(self, view: GraphView, rewriter: Rewriter, context: Context) -> None:
        by_keys: dict[tuple[Any, ...], list[tuple[CallRule, bool]]] = {}
        left: dict[Node, int] = {}
        for node in view.find(*(op for rule in self.rules for op in rule.operators)):
            refusals = len(rewriter.rejects)
            keys = view.keys(node)
            rules = by_keys.get(keys)
            if rules is None:
                # A node may have several index keys; each rule is tried once, in the order of declaration. A rule that
                # names a key itself takes all nodes of that key; for other rules, each call is checked.
                rules = by_keys[keys] = [
                    (rule, any(key in rule.operators for key in keys))
                    for rule in self.rules
                    if not rule.keys.isdisjoint(keys)
                ]
            for rule, takes_all in rules:
                if not takes_all and not view.is_call(node, *rule.operators):
                    continue
                edits = len(rewriter.matches)
                with rewriter.rule(rule.name):
                    rule(view, rewriter, node, context)
                if len(rewriter.matches) > edits:
                    break
            if len(rewriter.rejects) > refusals:
                left[node] = len(rewriter.matches)
        # A node may be refused for a user that is dead by now.
        if left and (rewriter.erase_dead() or any(made < len(rewriter.matches) for made in left.values())):
            self._retry(view, rewriter, context, left)

    def _retry(self, view: GraphView, rewriter: Rewriter, context: Context, left: Mapping[Node, int]) -> None:
        """Retries refused nodes after later matches; drops the earlier refusals of a node that is then rewritten."""
        edits = -1
        while edits < len(rewriter.matches):
            rewriter.erase_dead()
            edits = len(rewriter.matches)
            for node in view.candidates(list(left)):
                refusals, before = len(rewriter.rejects), len(rewriter.matches)
                name = node.name
                for rule in self.rules:
                    if len(rewriter.matches) == before and view.is_call(node, *rule.operators):
                        with rewriter.rule(rule.name):
                            rule(view, rewriter, node, context)
                del rewriter.rejects[refusals:]
                if len(rewriter.matches) > before:
                    rewriter.rejects[:] = [r for r in rewriter.rejects if r.nodes[:1] != (name,)]


def rule_pass(
    *,
    stage: Stage | Iterable[Stage],
    numerics: Numerics,
    devices: str | Iterable[str] = (),
    inference_only: bool = False,
    **declared: Any,
) -> Callable[[Callable[..., Any]], RulePass]:
    """Creates a pass of rules; the decorated function only names and documents it."""
    contract = Contract(numerics, words(devices), inference_only)
    return lambda fn: RulePass(fn, stages=words(stage), contract=contract, **declared)
