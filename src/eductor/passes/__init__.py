"""The passes, one file each; a stage's `__init__.py` is its order, with a reason a row."""

from eductor.passes import joint, lower, partition, post_grad, pre_grad
from eductor.pipeline.base import Stage
from eductor.pipeline.registry import Row

ORDERS: dict[Stage, tuple[Row, ...]] = {
    "pre_grad": pre_grad.ORDER,
    "joint": joint.ORDER,
    "partition": partition.ORDER,
    "post_grad": post_grad.ORDER,
    "lower": lower.ORDER,
}
