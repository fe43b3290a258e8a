"""The reasons, for users, why a value is saved or recomputed."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import Node

from eductor import compat
from eductor.cost import Device, fuses, gemm_of
from eductor.graph import effect_of
from eductor.partition.bans import Ban
from eductor.partition.node_info import NodeInfo, computed_by, is_size, may_be_repeated
from eductor.partition.prices import is_input_of_a_region


def why_saved(node: Node, info: NodeInfo, bans: Mapping[Node, Ban], *, must_be: bool) -> str:
    """Why the forward saves a value for the backward: what forbids recomputing it, a ban, or its price."""
    if node in info.overwritten:
        return "a copy of an input that the forward writes to"
    if node in info.copied:
        what = "input" if node.op == "placeholder" else "output"
        return f"a copy of an {what} that may be written before the backward"
    if node.op == "placeholder":
        return "an input"
    if is_size(node):
        return "a size"
    if compat.must_be_saved(node) or compat.prefers_saving(node):
        return "requested by its checkpointing"
    if node in info.checkpointed and is_input_of_a_region(node):
        return "an input of a checkpointed region"
    if not may_be_repeated(node):
        effect = effect_of(computed_by(node))
        return f"must not be recomputed: {effect.ordered or effect.barrier or 'it writes'}"
    if any(info.base(operand) in info.buffers for operand in node.all_input_nodes):
        return "must not be recomputed: a buffer that it reads may be written before the backward"
    if must_be:
        return "saved by eager as well, which raises an error if it is written"
    if node in bans:
        return f"the ban {bans[node].name}: {bans[node].reason}"
    return "a matrix product" if gemm_of(node) is not None else "cheaper to save"


def why_again(node: Node, info: NodeInfo, device: Device) -> str:
    """Why the backward recomputes a value."""
    if node.op == "get_attr":
        return "a constant"
    if node in info.views:
        return "a view"
    if node in info.checkpointed:
        return "requested by its checkpointing"
    return "fuses into its reader" if device.fuses and fuses(node) else "to save memory"
