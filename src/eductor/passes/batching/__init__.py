"""Batching: independent calls of the same form become one call with a batch dimension.

`buckets` finds the calls that are alike and independent, `plan` decides which of them become batches and from which
operands, `emit` puts them into the graph, `rounds` runs all of it. The rules, one file per family, say which operands of
a call are stacked and how a batch is computed.
"""

from dataclasses import replace

from eductor.passes.batching.layer_norm import BATCH_LAYERNORM
from eductor.passes.batching.pointwise import POINTWISE
from eductor.passes.batching.products import BATCH_LINEAR, BATCH_PRODUCT
from eductor.passes.batching.rule import BatchRule

RULES: tuple[BatchRule, ...] = (BATCH_LINEAR, BATCH_LAYERNORM, *POINTWISE)
"""Before autograd, by operators as users call them."""

_BY_NAME = {rule.name: rule for rule in POINTWISE}
_ALSO_LATER = ("tanh", "sigmoid", "relu", "add", "sub", "mul", "div")

POST_GRAD_RULES: tuple[BatchRule, ...] = (
    BATCH_PRODUCT,
    *(replace(_BY_NAME[f"batch_{name}"], name=f"batch_aten_{name}") for name in _ALSO_LATER),
)
"""After the partition, by operators of functional graphs."""
