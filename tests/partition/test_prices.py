"""What it costs to make a value again in kernels that fuse: what they read, and what they write for a matrix product."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from eductor.cost import bytes_of, cuda_device
from eductor.options import Options
from eductor.partition import explain_saved
from eductor.partition.node_info import classify
from eductor.partition.prices import WORTH, Reads, price_of_a_byte

sys.path.insert(0, str(Path(__file__).parent.parent / "autograd"))
from tracing import joint_of

FUSING = Options(engine="inductor")


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def residual(x, *weights):
    for w in weights:
        x = x + torch.sin(x) @ w
    return x.square().sum()


def test_sums_are_saved_and_not_what_they_are_sums_of():
    """Each sum made again would be read from all products before it."""
    joint = joint_of(residual, leaf(256, 64), *(leaf(64, 64) for _ in range(4)))
    plan = explain_saved(joint, options=FUSING)
    saved = [e.name for e in plan.saved if e.bytes]
    assert sum(name.startswith("add") for name in saved) == 4
    assert not any(name.startswith("mm") for name in saved)


def gated(x, w, v, u):
    h = F.rms_norm(x, [x.shape[-1]])
    return ((F.silu(h @ w) * (h @ v)) @ u).square().sum()


def test_what_a_matrix_product_reads_is_made_again_if_few_bytes_are_moved_for_it():
    """The norm is made from one value, the gated product from two: the memory of the first is worth it, that of the second not."""
    joint = joint_of(gated, leaf(512, 64), leaf(64, 128), leaf(64, 128), leaf(128, 64))
    plan = explain_saved(joint, options=FUSING)
    nodes = {node.name: node for node in joint.module.graph.nodes}
    products = {operand.name for node in nodes.values() if "mm" in node.name for operand in node.all_input_nodes}
    again, saved = (
        {e.name: e for e in entries if e.bytes and e.name in products} for entries in (plan.again, plan.saved)
    )
    assert {e.bytes for e in again.values()} >= {512 * 64 * 4}
    assert 512 * 128 * 4 in {e.bytes for name, e in saved.items() if not name.startswith("mm")}


def several(x, *weights):
    return torch.tanh(x @ torch.cat(weights, 1)).square().sum()


def test_weights_that_are_read_as_one_are_put_together_again():
    module = torch.nn.ParameterList([leaf(32, 16) for _ in range(3)])
    joint = joint_of(lambda x: several(x, *module), leaf(64, 32))
    plan = explain_saved(joint, options=FUSING)
    assert "cat" not in {e.name for e in plan.saved}
    assert sum(e.bytes for e in plan.saved) == 64 * 48 * 4


def test_reads_of_a_value_are_counted_once_and_up_to_a_limit():
    def program(x, *others):
        h = torch.sin(x) * torch.cos(x)
        for other in others:
            h = h * other
        return h.sum()

    joint = joint_of(program, *(leaf(8) for _ in range(6)))
    info = classify(joint)
    reads = Reads(info)
    more = [reads.more(n) for n in info.nodes if n.op == "call_function" and "mul" in n.name and n not in info.late]
    one = bytes_of(info.primals[0])
    # After four values, the product lies in memory itself.
    assert more[:6] == [0, one, one, one, one, one]


@pytest.mark.parametrize("fuses", [True, False])
def test_memory_is_worth_time_where_kernels_fuse(fuses):
    device = cuda_device("H200", 132, 1 << 37, fuses=fuses)
    passes = price_of_a_byte(device) / Fraction(1e12 / device.bandwidth)
    assert float(passes) == pytest.approx(float(WORTH) if fuses else 0, abs=1e-2)
