"""fuse_attention: spellings fuse and equal eager, look-alikes are left or computed exactly, whatever masks hide."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from attention_spellings import LOOK_ALIKES, SPELLINGS, Spelling
from attention_table import BEGIN, PAGE, written

import eductor
from eductor import Recorder
from eductor.engines import find_engine
from eductor.options import Options
from eductor.passes.joint.fuse_attention import fuse_attention
from eductor.testing import check_contract

NAMED = {s.name: s for s in (*SPELLINGS, *LOOK_ALIKES)}
DECOMPOSED = find_engine("inductor").decompositions(Options())
BEHIND_THE_GRAPH = {
    "softmax_taken_apart": "the gradient of a softmax by hand is not the operator's",
}
"""Fused in inference alone, and why."""


def results(fn, inputs, training):
    """What a program returns, and the gradients of its first three inputs."""
    given = [
        x.clone().requires_grad_() if training and x.is_floating_point() and i < 3 else x for i, x in enumerate(inputs)
    ]
    out = fn(*given)
    outputs = out if isinstance(out, tuple) else (out,)
    if training:
        torch.manual_seed(1)
        (outputs[0] * torch.randn(outputs[0].shape).to(outputs[0].dtype)).sum().backward()
    return [o.detach() for o in outputs] + [x.grad for x in given if x.requires_grad]


def fused(spelling: Spelling, *, dtype=torch.float32, training=False, seed=0, **options: Any):
    """Compiles a program, compares it with eager by a run in float64; whether it was fused, and the reasons if not."""
    torch._dynamo.reset()
    recorder = Recorder()
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in spelling.make(seed)]
    compiled = eductor.compile(
        spelling.fn,
        joint_custom_pre_pass=[fuse_attention],
        engine="aten",
        instruments=[recorder],
        strict=True,
        **options,
    )
    got, wanted = results(compiled, inputs, training), results(spelling.fn, inputs, training)
    truth = results(spelling.fn, [x.double() if x.is_floating_point() else x for x in inputs], training)
    for g, w, t in zip(got, wanted, truth, strict=True):
        assert (g.dtype, g.shape, g.stride()) == (w.dtype, w.shape, w.stride())
        assert torch.equal(g.isnan(), w.isnan())
        new, old = (float((x.double() - t).nan_to_num().abs().max()) for x in (g, w))
        assert new <= 4 * old + 8 * torch.finfo(dtype).eps * max(1.0, float(t.nan_to_num().abs().max()))
    records = [r for r in recorder.records if r.name == "fuse_attention"]
    return any(r.changed for r in records), [reject.reason for r in records for reject in r.rejects]


def test_contract():
    check_contract(fuse_attention, "joint")


def test_the_lists_are_long_enough():
    assert len(SPELLINGS) >= 40
    assert len(LOOK_ALIKES) >= 20
    families = {n for s in SPELLINGS for n in re.findall(r"\d+", s.family)}
    assert families == {str(n) for n in range(1, 31)}


def test_the_page_names_all_spellings():
    table = PAGE.read_text().partition(BEGIN)[2]
    rows = {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")}
    assert {s.name.replace("_", " ") for s in SPELLINGS} == rows - {"spelling", "---"}


@pytest.mark.slow
def test_the_table_of_the_page_is_true():
    """`python tests/passes/attention_table.py` writes it."""
    assert PAGE.read_text() == written()


TRAINED = [s for s in SPELLINGS if s.differentiable]
INFERRED = [s for s in SPELLINGS if not s.differentiable or s.name in BEHIND_THE_GRAPH] + TRAINED[::6]


@pytest.mark.parametrize("spelling", TRAINED, ids=lambda s: s.name)
def test_a_spelling_is_fused_with_its_backward(spelling):
    changed, reasons = fused(spelling, decompositions=DECOMPOSED, training=True)
    assert changed == (spelling.name not in BEHIND_THE_GRAPH), reasons


@pytest.mark.parametrize("spelling", INFERRED, ids=lambda s: s.name)
def test_a_spelling_is_fused_in_inference(spelling):
    changed, reasons = fused(spelling, decompositions=DECOMPOSED)
    assert changed, reasons


@pytest.mark.parametrize("spelling", [s for s in LOOK_ALIKES if s.name != "dropout"], ids=lambda s: s.name)
def test_a_look_alike_is_left_or_computed_exactly(spelling):
    changed, reasons = fused(spelling, decompositions=DECOMPOSED)
    if spelling.because:
        assert not changed
        assert any(re.search(spelling.because, reason) for reason in reasons), reasons


HALF = ("added_mask", "causal_by_positions", "llama", "softmax_in_float32")
INFERENCE: dict[str, Any] = {"decompositions": DECOMPOSED}
TRAINING: dict[str, Any] = {**INFERENCE, "training": True}
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "undecomposed_graphs": (
        ("added_mask", "distilbert", "causal_by_tril", "heads_inside", "llama", "t5", "grouped_queries"),
        {"training": True},
    ),
    "bfloat16": (HALF, {**INFERENCE, "dtype": torch.bfloat16}),
    "float16": (HALF, {**INFERENCE, "dtype": torch.float16}),
    "bfloat16_in_training": (("llama",), {**TRAINING, "dtype": torch.bfloat16}),
    "dynamic_sizes": (("bert", "causal_by_positions", "llama"), {**TRAINING, "dynamic": True}),
    "float64": (("added_mask",), {**TRAINING, "dtype": torch.float64}),
}
"""Other ways in which some of the spellings are compiled."""


@pytest.mark.parametrize(
    ("variant", "name"), [(variant, name) for variant, (names, _) in VARIANTS.items() for name in names]
)
def test_a_spelling_is_fused_in_other_ways_too(variant, name):
    changed, reasons = fused(NAMED[name], **VARIANTS[variant][1])
    assert changed, reasons


@pytest.mark.parametrize(
    ("name", "is_causal"),
    [
        *((f"causal_by_{what}", True) for what in ("tril", "triu", "positions", "a_float_mask")),
        ("a_window", False),
        ("causal_and_padded", False),
    ],
)
def test_a_triangle_is_passed_as_such(name, is_causal):
    torch._dynamo.reset()
    seen = []

    @eductor.graph_pass(stage="joint", numerics="exact")
    def look(graph, rewrite):
        """Looks at the kernels."""
        kernels = graph.find(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu)
        seen.extend(dict(graph.bind(n).arguments) for n in kernels)

    eductor.compile(
        NAMED[name].fn,
        joint_custom_pre_pass=[fuse_attention],
        joint_custom_post_pass=[look],
        engine="aten",
        decompositions=DECOMPOSED,
    )(*NAMED[name].make())
    assert [call["is_causal"] for call in seen] == [is_causal]
    assert seen[0]["attn_mask"] is None or not is_causal


@pytest.mark.parametrize("first", [lambda: torch.arange(1), lambda: torch.arange(16)[:1]])
def test_one_position_for_all_keys_is_no_triangle(first):
    def program(q, k, v):
        past = first().expand(16) <= torch.arange(16)[:, None]
        return (q @ k.transpose(-2, -1)).masked_fill(~past, -math.inf).softmax(-1) @ v

    torch._dynamo.reset()
    inputs = torch.randn(3, 2, 4, 16, 8).unbind()
    options = {"joint_custom_pre_pass": [fuse_attention], "engine": "aten", "decompositions": DECOMPOSED}
    torch.testing.assert_close(eductor.compile(program, **options)(*inputs), program(*inputs))


def test_dropout_is_left_where_the_kernel_has_none():
    changed, reasons = False, []
    torch._dynamo.reset()
    recorder = Recorder()
    inputs = NAMED["dropout"].make()
    eductor.compile(NAMED["dropout"].fn, joint_custom_pre_pass=[fuse_attention], engine="aten", instruments=[recorder])(
        *inputs
    )
    for record in recorder.records:
        if record.name == "fuse_attention":
            changed |= record.changed
            reasons += [reject.reason for reject in record.rejects]
    assert not changed
    assert any("no dropout" in reason for reason in reasons), reasons


def test_a_row_of_not_a_number_stays():
    torch._dynamo.reset()
    q, k, v = NAMED["divided"].make()
    q[0, 0, 2, 3] = math.nan
    compiled = eductor.compile(NAMED["divided"].fn, joint_custom_pre_pass=[fuse_attention], engine="aten")
    assert torch.equal(compiled(q, k, v).isnan(), NAMED["divided"].fn(q, k, v).isnan())


@pytest.mark.parametrize("where", [0, 1], ids=["query", "key"])
@pytest.mark.parametrize("groups", [1, 2])
def test_what_is_no_number_is_seen_among_a_few_keys_of_an_unknown_number(where, groups):
    def attention(q, k, v):
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        return torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v

    def inputs(length):
        torch.manual_seed(0)
        return [torch.randn(2, heads, length, 8) for heads in (4, 4 // groups, 4 // groups)]

    recorder = Recorder()
    compiled = eductor.compile(attention, engine="aten", instruments=[recorder], strict=True)
    for length in (18, 20, 5, 1):
        given = inputs(length)
        if length > 1:
            torch._dynamo.mark_dynamic(given[0], 2)
        given[where][0, 1, 0, 3] = math.nan
        torch.testing.assert_close(compiled(*given), attention(*given), equal_nan=True)
    assert recorder.changed().count("joint/fuse_attention") >= 1
