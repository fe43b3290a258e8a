"""Cats of many inputs: nothing fuses into them, so they need no kernel of their own."""

from __future__ import annotations

import torch

from eductor.graph.reading.bind import Bound
from eductor.graph.rewriter import Rewriter
from eductor.ops.wide_cat import wide_cat

WIDE = 32
"""From so many operands on, a generated kernel takes longer to make and to launch than a call."""


def call_wide_cats(rewrite: Rewriter) -> None:
    """Leaves cats of many inputs of the graph to ATen: the stacked weights of a batch, above all."""
    for node in rewrite.view.find(torch.ops.aten.cat):
        bound = rewrite.view.bind(node)
        if not isinstance(bound, Bound) or len(bound["tensors"]) < WIDE:
            continue
        if all(operand.op == "placeholder" for operand in bound["tensors"]):
            rewrite.replace(node, wide_cat.default, bound["tensors"], bound["dim"])
