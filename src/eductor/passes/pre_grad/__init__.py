"""The order of the pre-grad stage: on the captured Torch-level graph, before autograd."""

from eductor.pipeline.registry import Row

_INT4 = "eductor.passes.concat_linear_woq_int4"
_NORMALIZATION = "eductor.passes.normalization"


def _row(name: str, reason: str, module: str = "", *, on: bool = True) -> Row:
    return Row(name, reason, f"eductor.passes.pre_grad.{module or name}", on=on)


def _concat(name: str, reason: str, *, on: bool = True) -> Row:
    return Row(name, reason, "eductor.passes.concats.claims", on=on)


ORDER: tuple[Row, ...] = (
    # One spelling for all that follows.
    _row(
        "numpy_compat_normalization",
        "first: a keyword that torch does not define hides its call from other passes",
        "call_spellings",
    ),
    Row("normalization_pass_aten", "one operator for each kind of split, cat and reshape", _NORMALIZATION),
    _row("normalize_node_kwargs_pass", "one call form for all that follows", "call_spellings"),
    _row("remove_noop_pass", "a no-op hides the calls before and after it from each other"),
    _row("relu_nan_to_num", "before relus are batched or moved", on=False),
    # Fewer splits, so that batching sees of which tensor each piece is.
    _row("remove_split_with_size_one_pass", "the piece is the tensor itself", "splits"),
    _row("merge_splits_pass", "pieces of pieces are pieces of one tensor", "splits"),
    _concat("fuse_chunk_reshape_concat_pass", "before batching, which would see many small reshapes"),
    # Many small operators become few.
    _row("group_batch_fusion_passes", "before the view passes, which merge the stacks and unbinds it leaves"),
    _row("normalize_node_kwargs_pass", "batching inserts new calls", "call_spellings"),
    # Cats and stacks of what was split, unbound and sliced.
    _concat("fuse_chunk_squeeze_cat_pass", "the most special form first"),
    _row("merge_concats_pass", "one cat has all the pieces that a nest of cats has"),
    _concat("split_cat_pass", "all pieces of a tensor are the tensor"),
    _concat("merge_getitem_cat_pass", "neighbouring pieces are one slice, and the pieces go"),
    _concat("mutate_cat_pass", "neighbouring pieces are one slice, though the pieces stay"),
    _concat("split_cat_to_slices_pass", "runs of pieces among other operands, once whole cats are done"),
    _concat("unbind_stack_pass", "what was unbound and stacked is a permutation"),
    _concat("unbind_cat_to_view_pass", "what was unbound and concatenated is a permutation and a reshape"),
    _concat("unbind_stack_to_slices_pass", "runs among other operands, once whole stacks are done"),
    _concat("split_stack_to_cats_pass", "a stack of equal pieces is a reshape"),
    _row("merge_stack_tahn_unbind_pass", "stacks that remain, made only to compute a function of them"),
    # Linears, and the calls around them.
    _row("fuse_split_linear_add_pass", "after the splits are final, which it looks for"),
    _row("remove_reshape_pass", "before parallel linears, which must share an input"),
    _row("fuse_parallel_linear_pass", "after batching, which does better where shapes are equal"),
    Row("concat_linear_woq_int4", "the same for packed weights, while these can be packed", _INT4),
    _row("remove_split_ops_pass", "splits that the steps before made needless"),
    _row("stack_to_unsqueeze_pass", "only where the next step merges the result"),
    _concat("fuse_chunk_reshape_unsqueeze_concat_pass", "stacks of reshaped chunks, as the step before spells them"),
    _concat("move_reshape_out_of_split_stack_pass", "runs of them among other operands"),
    # By request.
    _concat("fuse_split_getitem_squeeze_cat", "runs that the steps before leave", on=False),
    _row("use_triton_dot_compress", "before the compressions in it are rewritten alone", on=False),
    _row("use_triton_lce_replace_simple_LCE", "the plainest form first", "linear_compressions", on=False),
    _row("use_triton_lce_replace_normal_LCE", "with bias, reshapes and relu", "linear_compressions", on=False),
    _row(
        "use_matmul_fuse_lce_replace_first_LCE",
        "compressions that share an input, before each is rewritten alone",
        on=False,
    ),
    _row("use_matmul_lce_replace_normal_LCE", "the remaining compressions", "linear_compressions", on=False),
    _row(
        "linear_permute_fusion",
        "after the compressions, which contain such permutations",
        "transposed_products",
        on=False,
    ),
    _row("permute_linear_fusion", "the same on the other side", "transposed_products", on=False),
    _row("permute_matmul_fusion", "the same for matrix products", "transposed_products", on=False),
    _row("einsum_to_pointwise_pass", "the remaining products", on=False),
    # Mathematics.
    _row("sink_cat_after_pointwise", "the remaining cats are final"),
    _row("fuse_conv_bn", "in inference: the weights are folded once", "batch_norms"),
    _row("efficient_conv_bn_eval_pass", "in training: the remaining batch norms", "batch_norms"),
    _row("apply_gumbel_max_trick_pass", "no step before it creates or hides a sampling"),
    _row("quant_lift_up", "after the reshapes are merged"),
    _row("remove_noop_pass", "passes leave no-ops behind"),
    Row("pre_grad_custom_pass", "your passes see the stage's result, still before autograd"),
)
