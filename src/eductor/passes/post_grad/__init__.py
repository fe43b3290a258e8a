"""The order of the post-grad stage: on the forward graph and on the backward graph, each alone."""

from eductor.pipeline.registry import Row

_HERE = "eductor.passes.post_grad"
_FUNCTIONAL = "eductor.passes.functional"
_ANY = "eductor.passes"


def _row(name: str, reason: str, home: str = _HERE) -> Row:
    return Row(name, reason, f"{home}.{name}")


def _concat(name: str, reason: str) -> Row:
    return Row(name, reason, "eductor.passes.concats.claims")


POST_GRAD_FUSIONS: tuple[Row, ...] = (
    _row("normalization_aten_pass", "one form for all that the fusions after it look for"),
    _concat("split_cat_aten_pass", "pieces as they are"),
    _concat("select_cat_aten_pass", "rows and columns"),
    _concat("unbind_stack_aten_pass", "rows and columns that become a dimension again"),
    _concat("move_view_after_cat_aten_pass", "pieces that were reshaped, as the fusions before it leave them"),
    _row("decompose_mem_bound_mm", "products that wait for memory, once no other pass looks for them"),
)
"""The fusions that are made by request: `enable` names them."""

ORDER: tuple[Row, ...] = (
    Row(
        "remove_fsdp2_unsharded_param_graph_input_usage",
        "a place for distributed training: what no longer reads whole parameters is dead then",
    ),
    _row("eliminate_dead_code", "dead users block what may only touch values with one user"),
    _row("reorder_for_locality", "first of all that looks at the graph, so that the order of later passes stays"),
    Row("post_grad_custom_pre_pass", "your passes see the graph as the partitioner left it"),
    _row("grouped_gemm_pass", "before batching, which would stack an input that all products share"),
    _row(
        "concat_linear_woq_int4",
        "with weights that the graph holds; those of the model are packed before autograd",
        _ANY,
    ),
    _row("group_batch_fusion_passes", "before the patterns, which look at single calls"),
    _row("remove_noop_ops", "the partition makes new ones, at its seams", _FUNCTIONAL),
    _row("remove_assert_ops", "a check is a user, at which the patterns would stop"),
    _row("pass_patterns", "what did nothing stood between what its patterns look for"),
    _row("partial_reduction_reuse", "patterns that round otherwise, each by itself: first those that read less"),
    _row("prepare_softmax", "by request: no pass after it looks for the parts of a softmax"),
    _row("cut_padded_mm", "products as `pad_mm` left them: before biases are taken out of those"),
    _row("addmm_activation", "before biases are taken out of their products"),
    _row("unfuse_bias_add", "before sums are fused: of those that it makes, none is a candidate there"),
    _row("addmm_fusion", "the sums that do not fuse into what reads them"),
    *POST_GRAD_FUSIONS,
    Row(
        "B2B_GEMM_PASS",
        "by request: last of those that look for products, with biases where the others left them",
        f"{_HERE}.b2b_gemm_pass",
    ),
    Row("micro_pipeline_tp_pass", "a place for distributed training: products are as they will be computed"),
    Row("fuse_ddp_communication", "a place for distributed training: behind all that moves what is sent"),
    Row("post_grad_custom_post_pass", "your passes see the stage's result, and may insert out of order"),
    _row("stable_topological_sort", "engines read the graph from top to bottom", _FUNCTIONAL),
    _row("move_constructors_to_gpu", "so late that constants that passes made are moved as well"),
    _row("common_subexpression_elimination", "what earlier passes made alike is seen as the same now"),
    Row("custom_backend_passes", "passes of other backends, by device, see the last functional graph"),
    Row("bucketing", "a place for distributed training: last of those that see all that is sent"),
    _row("reinplace_inplaceable_ops", "every other pass takes the graph for functional"),
)
