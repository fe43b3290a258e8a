"""The passes, in one file each or a few of one idea; the `__init__.py` of a stage declares its order, with reasons.

Importing this package declares the orders to the registry; `eductor/__init__.py` does so.
"""

from eductor.passes import joint, lower, partition, post_grad, pre_grad
from eductor.pipeline.base import Stage
from eductor.pipeline.registry import Row, set_built_in

ORDERS: dict[Stage, tuple[Row, ...]] = {
    "pre_grad": pre_grad.ORDER,
    "joint": joint.ORDER,
    "partition": partition.ORDER,
    "post_grad": post_grad.ORDER,
    "lower": lower.ORDER,
}

set_built_in(ORDERS)
