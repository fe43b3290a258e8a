"""The stages have the steps of the documents, under their names and in their order."""

import pytest

from eductor.pipeline import Registry

DOCUMENTED = {
    "joint": [
        "canonicalize_aten_ir_passes",
        "joint_custom_pre_pass",
        "remove_noop_ops",
        "constant_fold_uniform_value",
        "joint_custom_pre_pass",
        "pass_patterns",
        "replace_random_passes",
        "joint_custom_post_pass",
        "stable_topological_sort",
    ],
    "post_grad": [
        "remove_fsdp2_unsharded_param_graph_input_usage",
        "eliminate_dead_code",
        "reorder_for_locality",
        "post_grad_custom_pre_pass",
        "grouped_gemm_pass",
        "concat_linear_woq_int4",
        "group_batch_fusion_passes",
        "remove_noop_ops",
        "remove_assert_ops",
        "pass_patterns",
        "normalization_aten_pass",
        "split_cat_aten_pass",
        "select_cat_aten_pass",
        "unbind_stack_aten_pass",
        "move_view_after_cat_aten_pass",
        "decompose_mem_bound_mm",
        "B2B_GEMM_PASS",
        "micro_pipeline_tp_pass",
        "fuse_ddp_communication",
        "post_grad_custom_post_pass",
        "stable_topological_sort",
        "move_constructors_to_gpu",
        "custom_backend_passes",
        "bucketing",
        "reinplace_inplaceable_ops",
    ],
}


@pytest.mark.parametrize("stage", DOCUMENTED)
def test_the_documented_steps_stand_in_their_order(stage):
    names = iter([step.name for step in Registry.default().order(stage)])
    missing = [name for name in DOCUMENTED[stage] if name not in names]
    assert not missing
