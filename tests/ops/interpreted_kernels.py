"""Run with TRITON_INTERPRET=1: kernels in Triton's interpreter, on the CPU, beside the ATen form of their operators."""

from __future__ import annotations

import itertools
import sys

import torch

import eductor.ops  # noqa: F401 - registers the operators

# The interpreter has no bfloat16; the tests on a device have.
DTYPES = {torch.float32: 1e-5, torch.float16: 1e-2}


def layouts(*shape: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """A tensor of a shape, contiguous, transposed, and as a part of a larger one."""
    *lead, rows, columns = shape
    return [
        torch.randn(shape).to(dtype),
        torch.randn(*lead, columns, rows).to(dtype).mT,
        torch.randn(*lead, rows + 2, 2 * columns).to(dtype)[..., 1:-1, ::2],
    ]


def check_lce() -> None:
    from eductor.ops.lce_kernel import launch

    shapes = [(2, 3, 5, 7), (1, 16, 16, 16), (3, 1, 1, 1), (2, 70, 33, 130), (0, 3, 5, 7), (2, 3, 0, 7), (2, 0, 5, 7)]
    for (b, m, n, d), (dtype, close) in itertools.product(shapes, DTYPES.items()):
        for weight, x in zip(layouts(m, n, dtype=dtype), layouts(b, n, d, dtype=dtype), strict=True):
            for bias, activation in itertools.product((None, torch.randn(2 * m).to(dtype)[::2]), ("none", "relu")):
                expected = torch.ops.eductor.lce(weight, x, bias, activation)
                got = launch(weight, x, bias, activation)
                assert got.is_contiguous()
                torch.testing.assert_close(got, expected, rtol=close, atol=close * max(n, 1))
    weight, x = torch.randn(3, 5), torch.randn(2, 4, 5, 7)
    for given in (x, x[0, 0], x.transpose(0, 1)):
        torch.testing.assert_close(launch(weight, given, None, "none"), weight @ given)
    assert launch(weight, x.fill_(torch.nan), None, "relu").isnan().all()


def check_dot_compress() -> None:
    from eductor.ops.dot_compress_kernel import launch

    shapes = [(2, 5, 7, 3), (1, 16, 16, 16), (3, 1, 1, 1), (2, 130, 33, 70), (0, 5, 7, 3), (2, 5, 0, 3), (2, 5, 7, 0)]
    for (b, n, d, k), (dtype, close) in itertools.product(shapes, DTYPES.items()):
        for x, weight in zip(layouts(b, n, d, dtype=dtype), layouts(k, n, dtype=dtype), strict=True):
            expected = torch.ops.eductor.dot_compress(x, weight)
            got = launch(x, weight)
            assert got.is_contiguous()
            torch.testing.assert_close(got, expected, rtol=close, atol=close * max(n * d, 1))


if __name__ == "__main__":
    torch.manual_seed(0)
    {"lce": check_lce, "dot_compress": check_dot_compress}[sys.argv[1]]()
