"""Batching: calls of the same form that stand side by side become one call with a batch dimension.

`buckets` finds the calls that are alike and independent, `plan` decides which of them become batches and what these are
made from, `emit` puts them into the graph. The rules, one file a family, say what of a call is stacked and how a batch
of it is computed.
"""

from eductor.passes.pre_grad.batching.layer_norm import BATCH_LAYERNORM
from eductor.passes.pre_grad.batching.linear import BATCH_LINEAR
from eductor.passes.pre_grad.batching.pointwise import POINTWISE
from eductor.passes.pre_grad.batching.rule import Rule

RULES: tuple[Rule, ...] = (BATCH_LINEAR, BATCH_LAYERNORM, *POINTWISE)
