"""Runs work on a graph and on the bodies of its higher-order operators, for passes and for sets of patterns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch.fx import GraphModule

from eductor.graph.rewriter import Rewriter
from eductor.graph.snapshot import subgraphs
from eductor.graph.view import GraphView

T = TypeVar("T")


def inner_first(rewrite: Rewriter, work: Callable[[GraphView, Rewriter], T]) -> list[T]:
    """Runs work on the bodies of higher-order operators, inner ones first, then on the graph itself.

    Each body is a graph of its own: its inputs may share memory with anything, and what it returns keeps its form. A body
    that the work adds to the graph is left to the next run.
    """
    return _inner_first(rewrite, work, set())


def _inner_first(rewrite: Rewriter, work: Callable[[GraphView, Rewriter], T], done: set[GraphModule]) -> list[T]:
    results: list[T] = []
    for path, body in subgraphs(rewrite.view.graph).items():
        if body not in done:
            done.add(body)
            with rewrite.inside(path, body) as inner:
                results += _inner_first(inner, work, done)
    return [*results, work(rewrite.view, rewrite)]
