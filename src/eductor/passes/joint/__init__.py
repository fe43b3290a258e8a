"""The order of the joint stage: on forward and backward together, as one functional ATen graph."""

from eductor.pipeline.registry import Row

_HERE = "eductor.passes.joint"
_FUNCTIONAL = "eductor.passes.functional"

ORDER: tuple[Row, ...] = (
    Row("joint_custom_pre_pass", "your passes see the graph as autograd left it"),
    Row("remove_noop_ops", "what does nothing hides what stands on both sides of it", f"{_FUNCTIONAL}.remove_noop_ops"),
    Row("joint_custom_pre_pass", "your passes once more, on the cleaned graph"),
    Row("pass_patterns", "patterns are written for cleaned graphs", f"{_HERE}.pass_patterns"),
    Row(
        "replace_random_passes",
        "late, so that the passes before it see plain random operators",
        f"{_HERE}.replace_random_passes",
    ),
    Row("joint_custom_post_pass", "your passes see the stage's result"),
    Row(
        "stable_topological_sort",
        "the passes before it may insert out of order",
        f"{_FUNCTIONAL}.stable_topological_sort",
    ),
)
