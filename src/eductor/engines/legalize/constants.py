"""Tensors of one element that the graph holds: Inductor takes them for numbers, which some operators cannot."""

from __future__ import annotations

import torch
from torch.fx import Node

from eductor.graph.rewriter import Rewriter
from eductor.graph.snapshot import attribute_or_none


def fill_constants(rewrite: Rewriter) -> None:
    """Makes such a constant a tensor of its own."""
    for node in rewrite.view.graph.find_nodes(op="get_attr"):
        constant = attribute_or_none(rewrite.view.module, str(node.target))
        if not isinstance(constant, torch.Tensor) or constant.dim() or _is_filled(node):
            continue
        users = list(node.users)
        copy = rewrite.insert(torch.ops.aten.clone.default, node, before=node.next, like=node)
        for user in users:
            user.replace_input_with(node, copy)


def _is_filled(node: Node) -> bool:
    return all(user.target is torch.ops.aten.clone.default for user in node.users)
