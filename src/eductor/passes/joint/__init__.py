"""The order of the joint stage: on forward and backward together, as one functional ATen graph."""

from eductor.pipeline.registry import Row

_HERE = "eductor.passes.joint"
_FUNCTIONAL = "eductor.passes.functional"


def _row(name: str, reason: str, home: str = _HERE, *, required: bool = False, on: bool = True) -> Row:
    return Row(name, reason, f"{home}.{name}", required=required, on=on)


ORDER: tuple[Row, ...] = (
    _row("without_numbers", "no pass after it meets a number that is read at run time", required=True),
    _row("canonicalize_aten_ir_passes", "before all others, so that they see one spelling"),
    Row("joint_custom_pre_pass", "your passes see the graph as autograd left it"),
    _row("remove_noop_ops", "no-ops hide the operators on both sides of them", _FUNCTIONAL),
    _row("constant_fold_uniform_value", "constants that autograd created hide more no-ops"),
    Row("joint_custom_pre_pass", "your passes once more, on the cleaned graph"),
    _row("fuse_attention", "before views are merged: it recognizes a backward by autograd's spelling"),
    _row("lay_out_gradients", "after attention, which recognizes products and transpositions as autograd spelled them"),
    _row("pass_patterns", "patterns are written for cleaned graphs"),
    _row("bmm_to_mm", "batched products that attention did not fuse can be padded as plain ones"),
    _row("stabilize_scaled_softmax", "after attention, whose softmax it would hide", on=False),
    _row("pad_mm", "after every pass that matches products, which it would hide"),
    _row("replace_random_passes", "late, so that the passes before it see plain random operators"),
    Row("joint_custom_post_pass", "your passes see the stage's result"),
    _row("stable_topological_sort", "the passes before it may insert out of order", _FUNCTIONAL),
    _row("drop_transposed_gradient_copies", "last: the passes before it make such copies, to keep strides"),
)
