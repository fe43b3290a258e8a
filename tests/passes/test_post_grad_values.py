"""A rewrite in the middle of a large graph computes the fake values of what it made, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from eductor.engines import INDUCTOR
from eductor.graph import capture, rewriter
from eductor.graph.values import evaluate
from eductor.options import Options
from eductor.pipeline.base import Context
from eductor.pipeline.pipeline import Pipeline

LONG = 1000


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(LONG):
        x = x.sin()
    return x


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the nodes whose fake values were given anew since, whether by a kernel or from memory."""
    names: list[str] = []
    original = rewriter.meta.set_value

    def noted(node: torch.fx.Node, value: object) -> None:
        names.append(node.name)
        original(node, value)

    def counted(module: torch.fx.GraphModule, node: torch.fx.Node, mode: object) -> object:
        names.append(node.name)
        return compute(module, node, mode)

    compute = evaluate.evaluate
    monkeypatch.setattr(rewriter.meta, "set_value", noted)
    monkeypatch.setattr(evaluate, "evaluate", counted)
    return names


@contextmanager
def kept(module: torch.fx.GraphModule) -> Iterator[None]:
    """Asserts that nodes that stay have the very values that they had."""
    before = {node: node.meta["val"] for node in module.graph.nodes if "val" in node.meta}
    yield
    left = [node for node in module.graph.nodes if node in before]
    assert len(left) > 2 * LONG
    assert all(node.meta["val"] is before[node] for node in left)


def post_grad(module: torch.fx.GraphModule) -> None:
    options = Options(engine=INDUCTOR, strict=True)
    Pipeline.of(options).run("post_grad", module, Context("post_grad", options, fuses=True), [])


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_a_rewrite_made_is_computed_and_nothing_else(computed: list[str], dynamic: bool) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return chain(torch.addmm(b, chain(x), w).relu())

    module = capture(program, [torch.randn(4, 8), torch.randn(8, 8), torch.randn(8)], "aten", dynamic=dynamic)
    with kept(module):
        post_grad(module)
    made = [
        node for node in module.graph.nodes if node.target in (torch.ops.aten.mm.default, torch.ops.aten.add.Tensor)
    ]
    assert len(made) == 2, "unfuse_bias_add"
    assert set(computed) == {node.name for node in made}


def test_what_reads_another_value_is_computed_and_nothing_after_it(computed: list[str]) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return chain(torch.cat(torch.cat([chain(x), y], 1).split([8, 2], 1), 1) * 2)

    module = capture(program, [torch.randn(4, 8), torch.randn(4, 2)], "aten")
    with kept(module):
        post_grad(module)
    cats = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert computed == [cat.name for cat in cats], "one, of what the other was made of"
