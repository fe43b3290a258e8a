"""eductor::b2b_gemm: two products with a function between them, its text, its fake, and its kernel."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import eductor
from eductor.graph import capture
from eductor.ops.middle import NAMES, MiddleStep, computed, dtypes, read, spelled
from ops.interpreting import needs_triton, run_interpreted

b2b_gemm = torch.ops.eductor.b2b_gemm

FUNCTIONS = {
    "": lambda x: x,
    "relu(%0)": torch.relu,
    "gelu(%0)": F.gelu,
    "gelu_tanh(%0)": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid(%0); mul(%0, %1)": lambda x: x * x.sigmoid(),
    "sub(1.0, %0); div(%1, 2.0); neg(%2)": lambda x: -((1 - x) / 2),
}


def operands(dtype=torch.float32, sizes=(9, 5, 7, 3)):
    m, k, n, p = sizes
    made = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=made).to(dtype) for shape in ((m, k), (k, n), (n, p), (n,), (p,))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(9, 5, 7, 3), (1, 1, 1, 1), (0, 5, 7, 3), (9, 0, 7, 3), (9, 5, 0, 3), (9, 5, 7, 0)])
@pytest.mark.parametrize("middle", FUNCTIONS)
def test_it_is_two_products(middle, sizes, dtype):
    a, b, c, inner, outer = operands(dtype, sizes)
    f = FUNCTIONS[middle]
    plain = b2b_gemm(a, b, c, None, None, middle)
    torch.testing.assert_close(plain, f(a @ b) @ c)
    assert plain.is_contiguous()
    torch.testing.assert_close(
        b2b_gemm(a, b, c, inner, outer, middle), torch.addmm(outer, f(torch.addmm(inner, a, b)), c)
    )


def test_casts():
    a, b, c, *_ = operands(torch.bfloat16)
    got = b2b_gemm(a, b, c, None, None, "float32(%0); exp(%1); bfloat16(%2)")
    assert torch.equal(got, (a @ b).float().exp().bfloat16() @ c)


def test_texts_are_read_as_they_are_spelled():
    steps = (
        MiddleStep("mul", (0, 1e-300)),
        MiddleStep("sub", (-1.5, 1)),
        MiddleStep("float32", (2,)),
        MiddleStep("add", (3, 0)),
    )
    assert read(spelled(steps)) == steps
    assert read("") == ()
    assert spelled(()) == ""
    kinds = dtypes(steps, torch.bfloat16)
    assert kinds == [torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    x = torch.randn(5).bfloat16()
    assert computed(steps[:3], x).dtype is torch.float32
    assert computed(steps[:3], x.double()).dtype is torch.float64


@pytest.mark.parametrize(
    "middle", ["sin(%0)", "relu", "relu(%1)", "relu(%0, %0)", "mul(%0)", "mul(1.0, 2.0)", "relu(0.0)"]
)
def test_wrong_texts_are_named(middle):
    with pytest.raises(ValueError, match="middle '"):
        b2b_gemm(*operands()[:3], None, None, middle)


def test_wrong_operands_are_named():
    a, b, c, inner, outer = operands()
    for given, message in (
        ((a[0], b, c, None, None, ""), r"takes a\[M, K\]"),
        ((a, c, b, None, None, ""), r"their shapes are \[9, 5\], \[7, 3\], \[5, 7\]"),
        ((a, b, c, outer, None, ""), r"inner_bias\[N\]"),
        ((a, b, c, inner, inner, ""), r"outer_bias\[P\]"),
        ((a, b, c.double(), None, None, ""), "one floating-point dtype"),
        ((a.int(), b.int(), c.int(), None, None, ""), "one floating-point dtype"),
        ((a, b, c, None, None, "bfloat16(%0)"), r"ends in torch.bfloat16, but its operands are torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            b2b_gemm(*given)


def test_it_is_a_good_citizen():
    a, b, c, inner, outer = operands()
    for given in (a, a.t().contiguous().t(), a[:0]):
        torch.library.opcheck(b2b_gemm.default, (given, b, c, None, None, "relu(%0)"))
        torch.library.opcheck(b2b_gemm.default, (given, b, c, inner, outer, "silu(%0)"))


def test_the_fake_keeps_symbolic_sizes():
    a, b, c, *_ = operands()
    module = capture(lambda a, b, c: b2b_gemm(a, b, c, None, None, "relu(%0)") * 2, [a, b, c], "aten", dynamic=True)
    (node,) = [n for n in module.graph.nodes if n.target is b2b_gemm.default]
    assert str(node.meta["val"].shape[0]) == str(node.args[0].meta["val"].shape[0])
    a, b, c, *_ = operands(sizes=(4, 6, 2, 8))
    torch.testing.assert_close(module(a, b, c), (a @ b).relu() @ c * 2)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_engines_run_it(engine):
    def program(a, b, c, inner, outer):
        return b2b_gemm(a * 2, b, c, inner, outer, "mul(%0, 0.5); tanh(%1)").sin()

    given = operands()
    with torch.no_grad():
        torch.testing.assert_close(eductor.compile(program, engine=engine)(*given), program(*given))


@needs_triton
def test_the_kernel_in_the_interpreter():
    run_interpreted("b2b_gemm")


@needs_triton
@pytest.mark.parametrize(("kind", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernel_is_compiled_for_devices_that_are_not_here(capability, kind, dtype):
    """All steps at once; what it keeps on the chip fits any device."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from eductor.ops.b2b_gemm_kernel import _b2b_gemm, constants

    both = {"add", "div", "mul", "sub"}
    texts = [f"{name}(%{i}, 1.5)" if name in both else f"{name}(%{i})" for i, name in enumerate(NAMES)]
    middle = "; ".join([*texts, f"{str(dtype).removeprefix('torch.')}(%{len(NAMES)})"])
    fixed = {"HAS_INNER_BIAS": True, "HAS_OUTER_BIAS": True, **constants(middle, dtype)}
    depth = 64 if dtype.itemsize == 2 else 32
    fixed |= {"PRECISION": "ieee", "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": depth, "BLOCK_P": 64}
    names = _b2b_gemm.arg_names
    pointers = {"a", "b", "c", "inner_bias", "outer_bias", "out"}
    signature = {n: "constexpr" if n in fixed else f"*{kind}" if n in pointers else "i32" for n in names}
    source = ASTSource(_b2b_gemm, signature, {(names.index(n),): value for n, value in fixed.items()})
    made = triton.compile(
        source, target=GPUTarget("cuda", capability, 32), options={"num_stages": 1 if dtype.itemsize == 2 else 2}
    )
    assert made.metadata.shared <= 48 * 1024
