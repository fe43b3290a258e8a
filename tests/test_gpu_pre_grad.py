"""On a CUDA device: the Triton kernels beside the ATen form of their operators, and the passes that use them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.ops.launching import float32_precision, has_triton

pytestmark = pytest.mark.gpu

lce, dot_compress = torch.ops.eductor.lce, torch.ops.eductor.dot_compress
DTYPES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
LAYOUTS = ("contiguous", "transposed", "part")


def made(*shape, dtype, layout="contiguous"):
    """A random tensor on the device, scaled so that sums over its rows stay near 1."""
    *lead, rows, columns = shape
    scale = max(rows, 1) ** -0.5
    if layout == "transposed":
        tensor = torch.randn(*lead, columns, rows, device="cuda").mul(scale).to(dtype).mT
    elif layout == "part":
        tensor = torch.randn(*lead, rows + 2, 2 * columns, device="cuda").mul(scale).to(dtype)[..., 1:-1, ::2]
    else:
        tensor = torch.randn(*shape, device="cuda").mul(scale).to(dtype)
    return tensor


def assert_like(got, wide, close):
    """Near a result in float64."""
    assert got.is_contiguous()
    torch.testing.assert_close(
        got.double(), wide, rtol=close, atol=close * (1 + wide.abs().max().item() if wide.numel() else 1)
    )


@pytest.fixture(autouse=True)
def _needs_triton():
    assert has_triton(), "a CUDA build of torch comes with Triton"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [
        *[(5, 3, 7, 6), (64, 16, 64, 64), (33, 70, 130, 200), (1, 1, 1, 1), (4096, 8, 100, 16), (3, 128, 256, 32)],
        *[(0, 3, 7, 6), (5, 0, 7, 6), (5, 3, 0, 6), (5, 3, 7, 0)],
    ],
)
def test_lce(shape, layout, dtype):
    b, m, n, d = shape
    weight, x = made(m, n, dtype=dtype, layout=layout), made(b, n, d, dtype=dtype, layout=layout)
    for bias in (None, torch.randn(2 * m, device="cuda").to(dtype)[::2]):
        for activation in ("none", "relu"):
            wide = weight.double() @ x.double()
            wide = wide if bias is None else wide + bias.double()[:, None]
            wide = wide.relu() if activation == "relu" else wide
            assert_like(lce(weight, x, bias, activation), wide, DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_lce_with_other_ranks_and_not_a_number(dtype):
    weight = made(3, 7, dtype=dtype)
    for shape in ((7, 6), (2, 5, 7, 6), (2, 3, 4, 7, 6)):
        x = made(*shape, dtype=dtype)
        assert_like(lce(weight, x, None, "none"), weight.double() @ x.double(), DTYPES[dtype])
    x = made(2, 5, 7, 6, dtype=dtype).transpose(0, 1)
    assert_like(lce(weight, x, None, "none"), weight.double() @ x.double(), DTYPES[dtype])
    expanded = made(7, 6, dtype=dtype).expand(4, 7, 6)
    assert_like(lce(weight, expanded, None, "none"), weight.double() @ expanded.double(), DTYPES[dtype])
    x[0, 0] = torch.nan
    assert lce(weight, x, None, "relu")[0, 0].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape",
    [
        *[(5, 7, 6, 3), (64, 64, 64, 16), (33, 130, 200, 70), (1, 1, 1, 1), (4096, 32, 16, 8), (3, 256, 64, 32)],
        *[(3, 300, 64, 32), (0, 7, 6, 3), (5, 0, 6, 3), (5, 7, 0, 3), (5, 7, 6, 0)],
    ],
)
def test_dot_compress(shape, layout, dtype):
    b, n, d, k = shape
    x, weight = made(b, n, d, dtype=dtype, layout=layout), made(k, n, dtype=dtype, layout=layout)
    wide = x.double() @ (weight.double() @ x.double()).mT
    assert_like(dot_compress(x, weight), wide, 2 * DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_gradients(activation, dtype):
    weight, x, bias = (
        t.detach().requires_grad_()
        for t in (made(16, 40, dtype=dtype), made(32, 40, 24, dtype=dtype), made(1, 16, dtype=dtype)[0])
    )

    def grads(*given):
        weight, x, bias = given
        compressed = lce(weight, x, bias, activation)
        # Squares have no slope at 0, where roundings decide what relu does.
        return torch.autograd.grad(compressed.square().sum() + dot_compress(x, weight).sin().sum(), given)

    wide = grads(*(t.detach().double().requires_grad_() for t in (weight, x, bias)))
    for got, expected in zip(grads(weight, x, bias), wide, strict=True):
        assert got.dtype is dtype
        close = 20 * DTYPES[dtype]
        worst = (got.double() - expected).abs().max() / expected.abs().max()
        assert worst < close, f"{worst:.1e}"


def test_double_precision_takes_the_way_of_aten():
    weight, x = made(3, 7, dtype=torch.float64), made(5, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(lce(weight, x, None, "none"), weight @ x)
    torch.testing.assert_close(dot_compress(x, weight), x @ (weight @ x).mT)


def test_tf32_only_where_torch_allows_it():
    weight, x = made(64, 512, dtype=torch.float32), made(8, 512, 64, dtype=torch.float32)
    wide = weight.double() @ x.double()
    before = torch.get_float32_matmul_precision()
    errors = {}
    try:
        for precision in ("highest", "high"):
            torch.set_float32_matmul_precision(precision)
            assert float32_precision() == ("ieee" if precision == "highest" else "tf32")
            errors[precision] = (lce(weight, x, None, "none").double() - wide).abs().max().item()
    finally:
        torch.set_float32_matmul_precision(before)
    print(f"largest errors: {errors}")
    assert errors["highest"] < 1e-5
    assert errors["high"] < 1e-2


def test_a_batch_of_more_than_two_billion_elements():
    """Offsets are of 64 bits."""
    weight = made(4, 16, dtype=torch.bfloat16)
    x = torch.randn(70_000, 16, 2048, device="cuda", dtype=torch.bfloat16)
    got = lce(weight, x, None, "none")
    torch.testing.assert_close(got[-3:], torch.matmul(weight, x[-3:]), rtol=2e-2, atol=5e-2)
    torch.testing.assert_close(dot_compress(x[-2:], weight), x[-2:] @ (weight @ x[-2:]).mT, rtol=5e-2, atol=1)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_the_operators_are_good_citizens(engine):
    weight, x, bias = (torch.randn(s, device="cuda", requires_grad=True) for s in ((3, 7), (5, 7, 6), (3,)))
    torch.library.opcheck(lce.default, (weight, x, bias, "relu"))
    torch.library.opcheck(dot_compress.default, (x, weight))

    def program(weight, x, bias):
        return lce(weight, x * 2, bias, "relu").flatten(1).sin(), dot_compress(x + 1, weight).cos()

    compiled = eductor.compile(program, engine=engine)
    for a, b in zip(program(weight, x, bias), compiled(weight, x, bias), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)


class Ranking(nn.Module):
    """Embeddings, two compresses of them, and a compressed dot interaction."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 16), nn.Linear(64, 8, bias=False)
        self.dots = nn.Parameter(torch.randn(8, 64) / 8)

    def forward(self, *embeddings):
        x = torch.stack(embeddings, 1)
        first = F.relu(self.first(x.permute(0, 2, 1)).permute(0, 2, 1))
        second = self.second(x.permute(0, 2, 1)).permute(0, 2, 1)
        interactions = torch.bmm(x, F.linear(x.permute(0, 2, 1), self.dots))
        return torch.cat([first.flatten(1), second.flatten(1), interactions.flatten(1)], 1)


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "names",
    [
        ["use_triton_dot_compress", "use_triton_lce_replace_normal_LCE", "use_triton_lce_replace_simple_LCE"],
        ["use_matmul_lce_replace_normal_LCE"],
        ["use_matmul_fuse_lce_replace_first_LCE"],
        ["permute_linear_fusion", "linear_permute_fusion", "permute_matmul_fusion"],
    ],
    ids=lambda names: names[0],
)
def test_a_model_trains(names, dtype, engine):
    torch.manual_seed(0)
    model = Ranking().to("cuda", dtype)
    embeddings = [torch.randn(32, 16, device="cuda", dtype=dtype) for _ in range(64)]
    recorder = eductor.Recorder()
    compiled = eductor.compile(model, enable=names, engine=engine, instruments=[recorder], strict=True)
    results = [fn(*embeddings) for fn in (model, compiled)]
    assert any(f"pre_grad/{name}" in recorder.changed() for name in names)
    assert results[0].stride() == results[1].stride()
    close = 5 * DTYPES[dtype]
    scale = results[0].abs().max().item()
    torch.testing.assert_close(results[1], results[0], rtol=close, atol=close * scale)
    for a, b in zip(*(torch.autograd.grad(r.float().sin().mean(), model.parameters()) for r in results), strict=True):
        torch.testing.assert_close(b, a, rtol=10 * close, atol=10 * close * a.abs().max().item())
