"""The order of the post-grad stage, which runs on the forward graph and on the backward graph separately."""

from eductor.pipeline.registry import Row

_HERE = "eductor.passes.post_grad"
_FUNCTIONAL = "eductor.passes.functional"
_ANY = "eductor.passes"


def _row(name: str, reason: str, home: str = _HERE, *, on: bool = True) -> Row:
    return Row(name, reason, f"{home}.{name}", on=on)


def _concat(name: str, reason: str, *, on: bool = True) -> Row:
    return Row(name, reason, "eductor.passes.concats.claims", on=on)


POST_GRAD_FUSIONS: tuple[Row, ...] = (
    Row(
        "normalization_aten_pass",
        "the fusions after it match normalized splits and cats",
        "eductor.passes.normalization",
        on=False,
    ),
    _concat("split_cat_aten_pass", "concats of unchanged pieces", on=False),
    _concat("select_cat_aten_pass", "concats of selected rows and columns", on=False),
    _concat("unbind_stack_aten_pass", "stacks of selected rows and columns", on=False),
    _concat("move_view_after_cat_aten_pass", "concats of reshaped pieces, which the fusions before it leave", on=False),
    _row("decompose_mem_bound_mm", "memory-bound products that the passes before it left", on=False),
)
"""Fusions that are off by default; `enable` names those to run."""

ORDER: tuple[Row, ...] = (
    Row(
        "remove_fsdp2_unsharded_param_graph_input_usage",
        "slot for distributed training: its rewrites leave dead nodes",
    ),
    _row("eliminate_dead_code", "dead users block rewrites of values with a single user"),
    _row("reorder_for_locality", "before all rewrites, so that the order they choose stays"),
    Row("post_grad_custom_pre_pass", "your passes see the graph as the partitioner left it"),
    _row("grouped_gemm_pass", "before batching, which would stack the input that all products share", on=False),
    _row(
        "concat_linear_woq_int4",
        "for weights held by the graph; weights of the model are packed before autograd",
        _ANY,
    ),
    _row("group_batch_fusion_passes", "before the patterns, which match single calls"),
    _row("remove_noop_ops", "partitioning creates new no-ops where it splits the graph", _FUNCTIONAL),
    _row("remove_assert_ops", "a check is one more user, which blocks the patterns"),
    _row("pass_patterns", "after no-ops are removed, which separate the calls of its patterns"),
    _row("partial_reduction_reuse", "first of the patterns that may round differently, since it saves reads"),
    _row("prepare_softmax", "opt-in: no later pass matches the parts of a softmax", on=False),
    _row("cut_padded_mm", "products as `pad_mm` left them, before biases are split off"),
    _row("addmm_activation", "before biases are split off their products"),
    _row("unfuse_bias_add", "before sums are fused: none of the sums that it creates is a candidate there"),
    _row("addmm_fusion", "sums that do not fuse into their readers"),
    *POST_GRAD_FUSIONS,
    Row(
        "B2B_GEMM_PASS",
        "opt-in: last of the passes that match products, after the others placed the biases",
        f"{_HERE}.b2b_gemm_pass",
        on=False,
    ),
    Row("micro_pipeline_tp_pass", "slot for distributed training: products have their final form"),
    Row("fuse_ddp_communication", "slot for distributed training: after all passes that move what is sent"),
    Row("post_grad_custom_post_pass", "your passes see the stage's result, and may insert out of order"),
    _row("stable_topological_sort", "engines read the graph from top to bottom", _FUNCTIONAL),
    _row("move_constructors_to_gpu", "late, so that constants created by other passes are moved, too"),
    _row("common_subexpression_elimination", "after the passes that create duplicates"),
    Row("custom_backend_passes", "passes of other backends, by device, see the last functional graph"),
    Row("bucketing", "slot for distributed training: last of the passes that see all that is sent"),
    _row("reinplace_inplaceable_ops", "every other pass assumes a functional graph"),
)
