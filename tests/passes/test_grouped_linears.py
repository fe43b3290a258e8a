"""grouped_gemm_pass and concat_linear_woq_int4: linears of one input as one, compared attribute by attribute."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import eductor
from eductor import Recorder
from eductor.graph import capture
from eductor.observe.manual.manual import run_pass
from eductor.passes.concat_linear_woq_int4 import concat_linear_woq_int4
from eductor.passes.post_grad.grouped_gemm_pass import grouped_gemm_pass
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
int4 = aten._weight_int4pack_mm_for_cpu


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


# ----------------------------------------------------------------------------------------------------- plain products


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_of_one_input_are_one(dtype, has_bias):
    def program(x, v, w, b):
        results = [
            torch.addmm(b[:n], x, m) if has_bias else x @ m for m, n in ((v, 8), (w, 12), (v + 1, 8), (w + 1, 12))
        ]
        return torch.cat([r.tanh() for r in results], 1)

    given = [torch.randn(s).to(dtype) for s in ((16, 8), (8, 8), (8, 12), (12,))]
    module = capture(program, given, "aten")
    verifier = Verifier([x.clone() for x in given])
    run = run_pass(grouped_gemm_pass, "post_grad", module, verifier)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    assert not verifier.notes
    assert not run_pass(grouped_gemm_pass, "post_grad", module).record.changed
    products = [t for t in targets(module) if t in (aten.mm.default, aten.addmm.default)]
    assert len(products) == 1


def test_it_is_off_and_for_the_cpu():
    assert not grouped_gemm_pass.on
    assert grouped_gemm_pass.contract.devices == ("cpu",)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_compiled(engine):
    def program(x, v, w, u):
        return (x @ v).tanh() * (x @ w).sigmoid() + (x @ u).relu()

    torch._dynamo.reset()
    recorder = Recorder()
    off = ["fuse_parallel_linear_pass", "pre_grad/group_batch_fusion_passes"]
    fast = eductor.compile(
        program, engine=engine, enable=["grouped_gemm_pass"], disable=off, instruments=[recorder], strict=True
    )
    given = [torch.randn(s) for s in ((16, 8), (8, 8), (8, 8), (8, 8))]
    torch.testing.assert_close(fast(*given), program(*given))
    assert any(r.changed for r in recorder.records if r.name == "grouped_gemm_pass")


# ----------------------------------------------------------------------------------------------------------- four bits


def packed(outputs, inputs=64):
    return aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 16, (outputs, inputs), dtype=torch.int32), 1)


class Int4(nn.Module):
    def __init__(self, outputs, group=32, dtype=torch.bfloat16):
        super().__init__()
        self.group = group
        self.register_buffer("weight", packed(outputs))
        self.register_buffer("scales", torch.rand(64 // group, outputs, 2).to(dtype))

    def forward(self, x):
        return int4(x, self.weight, self.group, self.scales)


class Model(nn.Module):
    def __init__(self, *linears):
        super().__init__()
        self.linears = nn.ModuleList(linears)

    def forward(self, x):
        return torch.cat([linear(x).tanh() for linear in self.linears], -1)


def compiled(model, x, engine="aten"):
    torch._dynamo.reset()
    recorder = Recorder()
    with torch.no_grad():
        fast = eductor.compile(model, engine=engine, instruments=[recorder], strict=True)
        result = fast(x)
        torch.testing.assert_close(result, model(x))
        model.linears[0].scales.mul_(2)
        torch.testing.assert_close(fast(x), model(x))  # what was put side by side once is put so anew
    records = [r for r in recorder.records if r.name == "concat_linear_woq_int4"]
    return any(r.changed for r in records), [reject.reason for r in records for reject in r.rejects]


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("rows", [1, 3])
def test_linears_with_packed_weights_are_one(engine, rows):
    model = Model(Int4(64), Int4(128), Int4(16))
    changed, _ = compiled(model, torch.randn(rows, 64, dtype=torch.bfloat16), engine)
    assert changed


@pytest.mark.parametrize(
    ("model", "because"),
    [
        (lambda: Model(Int4(64, 32), Int4(64, 64)), "group size"),
        (lambda: Model(Int4(16), Int4(64)), "whole blocks"),
        (lambda: Model(Int4(64)), "no other linear"),
    ],
)
def test_others_stay(model, because):
    changed, reasons = compiled(model(), torch.randn(2, 64, dtype=torch.bfloat16))
    assert not changed
    assert any(because in reason for reason in reasons), reasons


def test_many_rows_stay():
    changed, reasons = compiled(Model(Int4(64), Int4(64)), torch.randn(16, 64, dtype=torch.bfloat16))
    assert not changed
    assert any("not known to have at most 4 rows" in reason for reason in reasons), reasons


def test_weights_that_the_graph_holds():
    model = Model(Int4(64), Int4(64)).requires_grad_(False)
    x = torch.randn(3, 64, dtype=torch.bfloat16)
    module = capture(model.forward, [x], "aten")
    held = [n for n in module.graph.nodes if n.op == "get_attr"]
    if len(held) < 4:
        pytest.skip("this capture gives buffers as inputs")
    eager = module(x)
    run = run_pass(concat_linear_woq_int4, "post_grad", module)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    assert targets(module).count(int4.default) == 1
    torch.testing.assert_close(module(x), eager)


def test_it_is_not_for_training():
    assert concat_linear_woq_int4.contract.inference_only
