"""Unwraps Triton kernels that functionalization wrapped: calls the kernel itself, on writable operands."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from eductor.graph.rewriter import Rewriter
from eductor.graph.wrappers.copies import Writable, hand_out, writable


def functional_kernel(rewrite: Rewriter, node: Node, writable: Writable = writable) -> None:
    """Unwrap a kernel; the wrapper names the tensors to copy, and returns a dictionary of the copies."""
    call: dict[str, Any] = dict(node.kwargs)
    written: list[str] = call.pop("tensors_to_clone")
    given = call["kwargs"]
    copies = {name: writable(rewrite, given[name], node) for name in given if name in written}
    call["kwargs"] = {**given, **copies}
    rewrite.insert(torch.ops.higher_order.triton_kernel_wrapper_mutation, before=node, **call)
    hand_out(rewrite, node, copies)
