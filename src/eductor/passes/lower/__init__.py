"""The order of the lower stage for the engine `inductor`: what its lowering cannot take, or takes wrongly.

Most of these rewrites Inductor does in its own passes, which the engine switches off. They change no value and no order
of random draws.
"""

from eductor.pipeline.registry import Row


def _row(name: str, reason: str, *, required: bool = False) -> Row:
    return Row(name, reason, f"eductor.passes.lower.{name}", required=required)


ORDER: tuple[Row, ...] = (
    Row("lower_custom_pass", "your passes see each final graph; what they insert is prepared for the engine as well"),
    _row(
        "unwrap_functional_calls", "Inductor has no lowering for wrapped calls of operators that write", required=True
    ),
    _row(
        "scan_to_while_loop",
        "Inductor lowers no other loop; its bodies are prepared by the passes after it",
        required=True,
    ),
    _row(
        "fill_constants",
        "Inductor takes a constant of one element for a number, which some operators cannot",
        required=True,
    ),
    _row("call_wide_cats", "a kernel that reads many inputs takes longer to compile and to launch than a call"),
    _row("compute_empty_means", "Inductor's variance of no elements gives a mean of zero", required=True),
    _row("make_empty_results", "Inductor gives results without elements other strides", required=True),
    _row("clamp_as_eager", "Inductor gives a zero the sign of the limit", required=True),
    _row("divide_as_eager", "Inductor rounds the quotient of floats before it takes its floor", required=True),
    _row(
        "keep_strided_convolutions_contiguous",
        "Inductor computes convolutions in channels-last, where a kernel of oneDNN writes out of bounds",
        required=True,
    ),
    _row(
        "store_written_operands",
        "Inductor's loop of a scatter would read elements that it has written",
        required=True,
    ),
    _row("store_small_masks", "a mask that is expanded for a kernel would be computed in its expanded form"),
    _row(
        "keep_draws_in_order",
        "Inductor orders draws by their data alone; after it, no pass adds one",
        required=True,
    ),
    _row("outline_repeated_regions", "last: a body is generated as it is, once for all its calls"),
)
