"""What an operator costs: bytes, flops, launches and times, from fake values alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from eductor.cost import (
    Gemm,
    bytes_of,
    copy_time,
    cuda_device,
    device_of,
    flops_of,
    gemm_of,
    gemm_time,
    is_bound_by_memory,
    is_pointwise,
    launches_of,
    pays,
    time_of,
)
from eductor.cost.operators import UNALIGNED_FACTOR, UNALIGNED_RESULT
from eductor.graph import capture
from eductor.graph.no import No
from eductor.graph.values.meta import tensor_of
from eductor.options import Options

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def node_of(program, *inputs, dialect="torch", dynamic=False):
    """The last call of a captured program."""
    module = capture(program, list(inputs), dialect, dynamic=dynamic)
    return module.graph.output_node().all_input_nodes[0]


def test_bytes_of_tensors_sequences_and_numbers():
    assert bytes_of(torch.empty(3, 4, dtype=torch.bfloat16)) == 24
    assert bytes_of([torch.empty(2), torch.empty(2, dtype=torch.float64)]) == 24
    assert bytes_of(3) == bytes_of(None) == 0


@pytest.mark.parametrize(
    ("program", "shapes", "gemm"),
    [
        (lambda x, w: F.linear(x, w), [(5, 3), (7, 3)], (5, 7, 3, 1)),
        (lambda x, w: F.linear(x, w), [(2, 5, 3), (7, 3)], (10, 7, 3, 1)),
        (lambda x, w: x @ w, [(2, 5, 3), (3, 7)], (10, 7, 3, 1)),
        (lambda x, w: torch.mm(x, w), [(5, 3), (3, 7)], (5, 7, 3, 1)),
        (lambda x, w: torch.bmm(x, w), [(4, 5, 3), (4, 3, 7)], (5, 7, 3, 4)),
        (lambda x, w: x @ w, [(5, 3), (3,)], (5, 1, 3, 1)),
    ],
)
def test_gemms_are_read_in_all_spellings(program, shapes, gemm):
    found = gemm_of(node_of(program, *map(torch.randn, shapes)))
    assert (found.rows, found.columns, found.inner, found.batch) == gemm
    rows, columns, inner, batch = gemm
    assert found.flops == 2 * rows * columns * inner * batch


def test_a_linear_costs_its_product():
    node = node_of(lambda x, w: F.linear(x, w), torch.randn(4, 8), torch.randn(16, 8))
    assert time_of(node, device_of(CPU)) == gemm_time(Gemm(4, 16, 8, torch.float32), device_of(CPU))


def test_other_operators_have_bytes_alone():
    node = node_of(lambda x: x.sin(), torch.randn(1000))
    device = device_of(CPU)
    assert gemm_of(node) is None
    assert flops_of(node) == 0
    assert is_pointwise(node)
    assert time_of(node, device) == pytest.approx(8000 / device.bandwidth + device.launch)


def test_views_and_inputs_are_no_launches():
    node = node_of(lambda x: x.view(2, 3).t(), torch.randn(6))
    assert launches_of(node) == 0
    assert time_of(node, device_of(CPU)) == 0.0
    assert launches_of(next(iter(node.graph.nodes))) == 0


def test_convolutions_and_attention_have_flops():
    conv = node_of(lambda x, w: F.conv2d(x, w), torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))
    assert flops_of(conv) == 2 * 4 * 6 * 6 * 27
    q = torch.randn(1, 2, 8, 4)
    assert flops_of(node_of(lambda x: F.scaled_dot_product_attention(x, x, x), q)) == 4 * 2 * 8 * 8 * 4


def test_symbolic_sizes_count_as_they_were_without_guards():
    node = node_of(lambda x, w: F.linear(x, w), torch.randn(6, 3), torch.randn(7, 3), dialect="aten", dynamic=True)
    env = tensor_of(node).fake_mode.shape_env
    guards = len(env.guards)
    assert bytes_of(node) == 6 * 7 * 4
    assert flops_of(node) == 2 * 6 * 7 * 3
    assert time_of(node, device_of(CPU)) > 0
    assert len(env.guards) == guards


def test_a_batch_is_cheaper_than_its_members_and_small_tiles_fill_units():
    device = device_of(CUDA)
    small = Gemm(32, 32, 32, torch.bfloat16)
    batch = Gemm(32, 32, 32, torch.bfloat16, batch=64)
    assert gemm_time(batch, device) < 4 * gemm_time(small, device)
    full = Gemm(128 * device.units, 256, 4096, torch.bfloat16)
    one_more = Gemm(128 * device.units + 1, 256, 4096, torch.bfloat16)
    assert gemm_time(one_more, device) > 1.3 * gemm_time(full, device)


def test_graphs_make_launches_cheap_and_engines_decide_about_fusion():
    assert device_of(CUDA, Options(mode="reduce-overhead")).launch < device_of(CUDA).launch / 2
    assert device_of(CPU).fuses
    assert not device_of(CPU, Options(engine="aten")).fuses
    assert copy_time(0, device_of(CPU)) == device_of(CPU).launch


def test_a_device_knows_its_dtypes():
    device = device_of(CUDA)
    assert device.rate(torch.bfloat16) > device.rate(torch.float32) > device.rate(torch.float64)
    assert device.rate(torch.int8) == device.rate(torch.float32)


def test_what_does_not_pay_is_said_with_its_figures():
    assert pays("it", 50e-6, 12e-6) is True
    assert pays("it", 12e-6, 40e-6) == No("it saves 12 us and costs 40 us")
    assert not pays("it", 1.1e-6, 1e-6)


def test_products_that_are_not_aligned_run_at_a_part_of_the_rate():
    device = cuda_device("NVIDIA H200", 132, 141 << 30)
    aligned = Gemm(4096, 4096, 4096, torch.bfloat16)
    result, factors = replace(aligned, aligned_result=False), replace(aligned, aligned_factors=False)
    times = [gemm_time(gemm, device) - device.launch for gemm in (aligned, result, factors)]
    assert times == pytest.approx([times[0], times[0] / UNALIGNED_RESULT, times[0] / UNALIGNED_FACTOR])
    assert times == sorted(times)


def test_alignment_counts_where_matrix_units_are_used():
    device = cuda_device("NVIDIA H200", 132, 141 << 30)
    assert device.alignment(torch.bfloat16) == device.alignment(torch.float16) == 8
    assert device.alignment(torch.float32) == device.alignment(torch.float64) == 1
    assert cuda_device("NVIDIA H200", 132, 141 << 30, tf32=True).alignment(torch.float32) == 4
    assert cuda_device("Tesla T4", 40, 16 << 30, tf32=True).alignment(torch.float32) == 1, "it has no TF32"
    single = Gemm(4096, 4096, 4096, torch.float32, aligned_factors=False)
    assert gemm_time(single, device) == gemm_time(replace(single, aligned_factors=True), device)
    assert device_of(CPU).alignment(torch.bfloat16) == 1


def test_slim_products_are_bound_by_memory():
    device = cuda_device("NVIDIA H200", 132, 141 << 30)
    assert is_bound_by_memory(Gemm(8, 4096, 4096, torch.bfloat16), device)
    assert not is_bound_by_memory(Gemm(4096, 4096, 4096, torch.bfloat16), device)
