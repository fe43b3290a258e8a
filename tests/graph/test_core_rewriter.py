"""What code for both dialects inserts, in the operators that functional graphs consist of."""

from __future__ import annotations

import pytest
import torch

from eductor.graph import GraphView, Rewriter, capture
from eductor.graph.core_rewriter import in_core_operators

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (aten.narrow, (1, 1, 2)),
        (aten.transpose, (0, 2)),
        (aten.transpose, (-1, 0)),
        (aten.movedim, (0, 2)),
        (aten.movedim, (2, 0)),
        (aten.flatten, (0, 1)),
        (aten.flatten, ()),
        (aten.unflatten, (2, [2, 2])),
        (aten.unflatten, (0, [2, -1])),
        (aten.reshape, ([4, 6],)),
        (aten.reshape, ([-1, 2],)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_each_is_spelled_in_core_operators(op, args, turned, dynamic):
    x = torch.randn(2, 3, 4)
    if turned:
        x = torch.randn(4, 3, 2).permute(2, 1, 0)
    wanted = op(x, *args)
    module = capture(lambda x: x.sin(), [x], "aten", dynamic=dynamic)
    view = GraphView(module)
    rewrite = in_core_operators(Rewriter(view))
    sine = next(n for n in module.graph.nodes if n.target is aten.sin.default)
    rewrite.replace(sine, rewrite.insert(op, sine.args[0], *args, before=sine))
    module.recompile()
    made = {n.target for n in module.graph.nodes if n.op == "call_function"}
    core = {aten.slice.Tensor, aten.permute.default, aten.view.default, aten.clone.default, aten.sym_size.int}
    assert made <= core
    assert torch.equal(module(x), wanted)


def test_a_stack_is_a_cat():
    module = capture(lambda x, y: x + y, [torch.randn(2, 3), torch.randn(2, 3)], "aten")
    rewrite = Rewriter(GraphView(module))
    total = next(n for n in module.graph.nodes if n.target is aten.add.Tensor)
    core = in_core_operators(rewrite)
    core.replace(total, core.insert(aten.stack, list(total.args), 1, before=total))
    assert rewrite.matches, "both are one rewriter"
    module.recompile()
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    assert torch.equal(module(x, y), torch.stack([x, y], 1))
    assert aten.stack.default not in {n.target for n in module.graph.nodes}
