"""The order of the post-grad stage: on the forward graph and on the backward graph, each alone."""

from eductor.pipeline.registry import Row

_HERE = "eductor.passes.post_grad"
_FUNCTIONAL = "eductor.passes.functional"

ORDER: tuple[Row, ...] = (
    Row(
        "eliminate_dead_code",
        "dead users block what may only touch values with one user",
        f"{_HERE}.eliminate_dead_code",
    ),
    Row("post_grad_custom_pre_pass", "your passes see the graph as the partitioner left it"),
    Row("remove_noop_ops", "the partition makes new ones, at its seams", f"{_FUNCTIONAL}.remove_noop_ops"),
    Row("post_grad_custom_post_pass", "your passes see the stage's result, and may insert out of order"),
    Row(
        "stable_topological_sort", "engines read the graph from top to bottom", f"{_FUNCTIONAL}.stable_topological_sort"
    ),
    Row(
        "common_subexpression_elimination",
        "what earlier passes made alike is seen as the same now",
        f"{_HERE}.common_subexpression_elimination",
    ),
    Row(
        "reinplace_inplaceable_ops",
        "every other pass takes the graph for functional",
        f"{_HERE}.reinplace_inplaceable_ops",
    ),
)
