"""C++ kernels that share translation units: fewer compilations, the same kernels."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.utils import fresh_cache, run_and_get_code

import eductor
from eductor.engines.inductor import cpp_units
from eductor.engines.inductor.engine import can_compile

pytestmark = pytest.mark.skipif(not can_compile(), reason="needs a C++ compiler")

HALVE = """#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0, const int64_t ks0)
{
    if (ks0 < 0) throw std::runtime_error("a negative size");
    for (int64_t i = 0; i < ks0; i++) out_ptr0[i] = in_ptr0[i] / 2;
}
"""
FILL = """#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(double* out_ptr0, const double value, const int64_t ks0)
{
    for (int64_t i = 0; i < ks0; i++) out_ptr0[i] = value;
}
"""


def steps(x):
    """Products with different computations between them: several kernels."""
    for between in (torch.exp, torch.sin, torch.tanh):
        x = between(x @ x).softmax(-1)
    return x


def compiled_files():
    return len(list(Path(torch._inductor.codecache.cache_dir()).rglob("*.main.so")))


def test_the_kernels_of_a_graph_share_units():
    x = torch.randn(8, 8)
    with fresh_cache(), patch.object(cpp_units, "building") as building:
        result, (code,) = run_and_get_code(eductor.compile(steps, cache=False), x)
        kernels, files = len(re.findall("cpp_pybinding", code)), compiled_files()
    torch._dynamo.reset()
    with fresh_cache(), patch.object(cpp_units, "shares_a_unit", lambda *_: False):
        alone = eductor.compile(steps, cache=False)(x)
        assert compiled_files() == kernels
    assert torch.equal(result, alone)
    assert kernels >= 3
    assert files == 1
    assert sum(call.args[1] for call in building.call_args_list) == kernels


def test_a_process_without_workers_compiles_units_itself():
    x = torch.randn(8, 8)
    with fresh_cache(), inductor_config.patch(compile_threads=1):
        compiled = eductor.compile(steps, cache=False, strict=True)
        assert torch.allclose(compiled(x), steps(x))
        assert compiled_files() == 1


@pytest.fixture(scope="module")
def unit():
    """The functions of two kernels of one unit."""
    with fresh_cache():
        compiler, bind = AsyncCompile(), pytest.fail
        types = (["const float*", "float*", "const int64_t"], ["double*", "const double", "const int64_t"])
        futures = [cpp_units.bind_in_batch(bind, compiler, *given) for given in zip(types, (HALVE, FILL), strict=True)]
        yield [future.result() for future in futures]
        assert compiled_files() == 1


def test_each_kernel_gets_its_own_function_and_arguments(unit):
    halve, fill = unit
    x, y, z = torch.arange(4.0), torch.zeros(4), torch.zeros(4, dtype=torch.float64)
    halve(x, y, 3)
    fill(z, 0.1, 2)
    assert y.tolist() == [0, 0.5, 1, 0]
    assert z.tolist() == [0.1, 0.1, 0, 0]


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((1,), TypeError, "takes 3 arguments, not 1"),
        ((torch.ones(1), torch.ones(1), 2**70), OverflowError, "too big|too large"),
        ((torch.ones(1), torch.ones(1), "1"), TypeError, "integer|str"),
        ((torch.ones(1), torch.ones(1), -1), RuntimeError, "a negative size"),
    ],
)
def test_an_error_of_a_kernel_is_raised(unit, args, error, message):
    with pytest.raises(error, match=message):
        unit[0](*args)


@pytest.mark.parametrize(
    ("types", "code"),
    [
        (["const float*", "std::array<float, 2>", "const int64_t"], HALVE),
        (["float*"], '#define N 3\nextern "C" void kernel(float* x) {}'),
        (["float*"], '#ifdef _OPENMP\n#endif\nextern "C" void kernel(float* x) {}'),
        (["float*"], 'extern "C" void helper() {}\nextern "C" void kernel(float* x) {}'),
        (["float*"], 'extern "C" __declspec(dllexport) void kernel(float* x) {}'),
    ],
)
def test_torch_compiles_a_kernel_that_cannot_share_a_file(types, code):
    assert not cpp_units.shares_a_unit(types, code)
    assert cpp_units.bind_in_batch(lambda *given: given, None, types, code) == (None, types, code)


def test_generated_kernels_can_share_a_file():
    assert cpp_units.shares_a_unit(["const float*", "float*", "const int64_t"], HALVE)
    pragma = HALVE.replace("    for", "    #pragma omp parallel\n    for")
    assert cpp_units.shares_a_unit(["const bfloat16*", "unsigned char*", "uintptr_t"], pragma)


@pytest.mark.parametrize(("workers", "units"), [(1, 3), (2, 3), (8, 8), (64, 15)])
def test_each_worker_gets_a_unit(workers, units):
    """Of 150,000 characters: at most 60,000 in a unit, and at least 10,000."""
    kernels = [cpp_units._Kernel([], "x" * 2_000) for _ in range(75)]
    divided = cpp_units._divided(kernels, workers)
    assert len(divided) == units
    assert list(chain.from_iterable(divided)) == kernels
