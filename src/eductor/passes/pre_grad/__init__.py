"""The order of the pre-grad stage: on the captured Torch-level graph, before autograd."""

from eductor.pipeline.registry import Row

_HERE = "eductor.passes.pre_grad"

ORDER: tuple[Row, ...] = (
    Row("normalize_node_kwargs_pass", "one call form for all that follows", f"{_HERE}.normalize_node_kwargs_pass"),
    Row("pre_grad_custom_pass", "your passes see the stage's result, still before autograd"),
)
