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
    from eductor.ops.embedding_kernels import launch_lce as launch

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
    from eductor.ops.embedding_kernels import launch_dot_compress as launch

    shapes = [(2, 5, 7, 3), (1, 16, 16, 16), (3, 1, 1, 1), (2, 130, 33, 70), (0, 5, 7, 3), (2, 5, 0, 3), (2, 5, 7, 0)]
    for (b, n, d, k), (dtype, close) in itertools.product(shapes, DTYPES.items()):
        for x, weight in zip(layouts(b, n, d, dtype=dtype), layouts(k, n, dtype=dtype), strict=True):
            expected = torch.ops.eductor.dot_compress(x, weight)
            got = launch(x, weight)
            assert got.is_contiguous()
            torch.testing.assert_close(got, expected, rtol=close, atol=close * max(n * d, 1))


MIDDLES = (
    *("", "relu(%0)", "gelu(%0)", "gelu_tanh(%0)", "silu(%0)", "tanh(%0)", "sigmoid(%0)", "exp(%0)", "erf(%0)"),
    *("abs(%0); sqrt(%1); neg(%2)", "abs(%0); rsqrt(%1)", "mul(%0, 2.0); add(%1, -0.5)", "sub(1.0, %0); div(%1, 3.0)"),
    "sigmoid(%0); mul(%0, %1); sub(%2, %1); div(%3, 1.5)",
    "float32(%0); mul(%1, 0.1); exp(%2); float16(%3); float32(%4); add(%5, %5)",
)


def check_b2b_gemm() -> None:
    from eductor.ops.b2b_gemm_kernel import launch

    def check(
        operands: list[torch.Tensor], inner: torch.Tensor | None, outer: torch.Tensor | None, middle: str
    ) -> None:
        expected = torch.ops.eductor.b2b_gemm(*operands, inner, outer, middle)
        got = launch(*operands, inner, outer, middle)
        assert got.is_contiguous()
        close = 1e-5 if got.dtype is torch.float32 and "float16" not in middle else 1e-2
        torch.testing.assert_close(got, expected, rtol=close, atol=close * operands[2].shape[0], equal_nan=True)

    def scaled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * max(tensor.shape[0], 1) ** -0.5

    sizes = [(5, 7, 3, 2), (64, 32, 64, 64), (1, 1, 1, 1), (70, 33, 130, 70), (130, 40, 65, 9)]
    empty = [(0, 7, 3, 2), (5, 0, 3, 2), (5, 7, 0, 2), (5, 7, 3, 0)]
    for (m, k, n, p), dtype in itertools.product([*sizes, *empty], DTYPES):
        factors = (layouts(*shape, dtype=dtype) for shape in ((m, k), (k, n), (n, p)))
        for operands in zip(*factors, strict=True):
            check([*operands], None, torch.randn(p).to(dtype), "sigmoid(%0)")
            check([*operands], torch.randn(2 * n).to(dtype)[::2], None, "silu(%0)")
    for middle, dtype in itertools.product(MIDDLES, DTYPES):
        if "float16" not in middle or dtype is torch.float32:
            check(
                [scaled(torch.randn(shape)).to(dtype) for shape in ((40, 20), (20, 33), (33, 17))], None, None, middle
            )
    a, b, c = torch.randn(6, 5), torch.randn(5, 4), torch.rand(4, 3)
    a[0, 0], a[1, 0], a[2, 0] = torch.nan, torch.inf, -torch.inf
    for middle in MIDDLES:
        check([a, b, c], None, None, middle.replace("float16", "float32"))
    small = torch.tensor([[1e-4, -2e-3, 0.29, -0.31]])
    torch.testing.assert_close(launch(small, torch.eye(4), torch.eye(4), None, None, "tanh(%0)"), small.tanh())


if __name__ == "__main__":
    torch.manual_seed(0)
    {"lce": check_lce, "dot_compress": check_dot_compress, "b2b_gemm": check_b2b_gemm}[sys.argv[1]]()
