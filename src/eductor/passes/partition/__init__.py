"""The order of the partition stage: on the joint graph, between the choice of what is saved and the split."""

from eductor.pipeline.registry import Row

ORDER: tuple[Row, ...] = (
    Row(
        "compress_saved_values",
        "the split saves the small values that it adds",
        "eductor.passes.partition.compress_saved_values",
    ),
)
