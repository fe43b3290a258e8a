"""Two custom passes: declared, checked against their contracts, run on a model. `docs/write_a_pass.md` explains them."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

import eductor
from eductor.graph import Bound, GraphView, Rewriter, capture, difference, value_of
from eductor.pipeline import f32, i64
from eductor.testing import check_contract

aten = torch.ops.aten

ROUNDING = (aten.ceil, aten.floor, aten.trunc)


@eductor.graph_pass(stage="pre_grad", numerics="exact", after="normalize_node_kwargs_pass")
def drop_repeats(graph: GraphView, rewrite: Rewriter, *, rounding: bool = False) -> None:
    """Drops a call that repeats the one before it: the relu of a relu."""
    for outer in graph.find(aten.relu, *(ROUNDING if rounding else ())):
        bound = graph.bind(outer)
        if not isinstance(bound, Bound):
            rewrite.reject(bound, outer)
            continue
        inner = bound["self"]
        if not isinstance(inner, Node) or not graph.is_call(inner, bound.op):
            continue
        if len(inner.users) > 1:
            rewrite.reject(f"{inner.name} is used elsewhere", outer, inner)
        elif not (verdict := graph.effects.may_move(outer, before=inner.next)):
            rewrite.reject(verdict, outer, inner)
        else:
            rewrite.replace(outer, inner)


@drop_repeats.example
def relu_of_relu(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return torch.relu(x + 1).relu() * 2


@drop_repeats.example
def three_in_a_row(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return F.relu(F.relu(F.relu(x)))


@drop_repeats.refuses("used elsewhere")
def both_are_returned(x: torch.Tensor = f32(2, 3)) -> tuple[torch.Tensor, ...]:
    once = torch.relu(x)
    return once, torch.relu(once)


@drop_repeats.refuses("used elsewhere")
def written_between(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    once = torch.relu(x)
    once.sub_(1)
    return torch.relu(once)


@drop_repeats.refuses("a switch of grad mode")
def only_the_first_has_a_gradient(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    once = torch.relu(x)
    with torch.no_grad():
        return torch.relu(once)


@eductor.rule_pass(stage=("joint", "post_grad"), numerics="exact", after="remove_noop_ops")
def cancel_pairs() -> None:
    """Removes two calls in a row that undo each other: the negative of a negative."""


@cancel_pairs.rule(aten.neg)
def negation(graph: GraphView, rewrite: Rewriter, outer: Node) -> None:
    _cancel(graph, rewrite, outer)


@cancel_pairs.rule(aten.bitwise_not)
def inversion(graph: GraphView, rewrite: Rewriter, outer: Node) -> None:
    _cancel(graph, rewrite, outer)


def _cancel(graph: GraphView, rewrite: Rewriter, outer: Node) -> None:
    bound = graph.bind(outer)
    inner = bound["self"] if isinstance(bound, Bound) else None
    if not isinstance(inner, Node) or not graph.is_call(inner, bound.op):
        return
    source = graph.bind(inner)["self"]
    if unlike := difference(value_of(outer), value_of(source)):
        rewrite.reject(f"the result differs from {source.name}: {unlike}", outer)
    elif not (verdict := graph.effects.may_alias(outer, source)):
        rewrite.reject(verdict, outer)
    else:
        rewrite.replace(outer, source)


@cancel_pairs.example
def negative_of_a_negative(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.neg().neg() + 1


@cancel_pairs.example
def inverted_twice(x: torch.Tensor = i64(4)) -> torch.Tensor:
    return ~~x + 1


@cancel_pairs.refuses("a separate output")
def returned(x: torch.Tensor = f32(2, 3)) -> torch.Tensor:
    return x.neg().neg()


@cancel_pairs.refuses("strides")
def another_layout(x: torch.Tensor = f32(2, 6)) -> torch.Tensor:
    return x[:, ::2].neg().neg() + 1


def main() -> int:
    check_contract(drop_repeats, "pre_grad")
    for stage in cancel_pairs.stages:
        check_contract(cancel_pairs, stage)
    print("Both passes keep their contracts.\n")

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(4, 8)
    recorder = eductor.Recorder()
    compiled = eductor.compile(model, profile="exact", passes=[drop_repeats], instruments=[recorder])
    same = torch.equal(compiled(x), model(x))
    print(eductor.pass_table(recorder.records))
    print(f"\nbitwise equal to eager: {same}\n")

    recorder = eductor.Recorder()
    module = capture(lambda x: x.sin().neg().neg() + x, [x], "aten")
    eductor.joint_graph_passes(module, options={"passes": [cancel_pairs], "instruments": [recorder]})
    print(eductor.pass_table(recorder.records))
    print(f"\n{eductor.graph.to_python(module.graph)}")
    fired = recorder.changed() == ["joint/cancel_pairs"]
    return 0 if same and fired else 1


if __name__ == "__main__":
    sys.exit(main())
