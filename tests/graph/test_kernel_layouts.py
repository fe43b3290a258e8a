"""Results of operators are laid out as eager's kernels lay them out, whatever torch's fake mode says."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import eductor

INDEX = torch.arange(12).view(3, 4)


def unpooled(x, index):
    return F.max_unpool2d(x, index, 2) * 2


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("engine", ["aten", "inductor"])
def test_max_unpool2d_keeps_the_memory_format_of_its_input(engine, dynamic, gradient):
    compiled = eductor.compile(unpooled, engine=engine, dynamic=dynamic, strict=True)
    for memory_format in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(2, 5, 3, 4).contiguous(memory_format=memory_format)
        index = INDEX.expand(2, 5, 3, 4).contiguous()
        first, second = (x.clone().requires_grad_(gradient) for _ in range(2))
        expected, got = unpooled(first, index), compiled(second, index)
        assert got.stride() == expected.stride()
        assert torch.equal(got, expected)
        if gradient:
            for result, source in ((expected, first), (got, second)):
                result.square().sum().backward()
                assert source.grad.stride() == source.stride()
            torch.testing.assert_close(second.grad, first.grad)


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


INDEX_OF_CHANNELS = torch.tensor([1, 0, 1])
SHARES = torch.rand(2, 4, 4, 6, generator=torch.Generator().manual_seed(0))
FUNCTIONS = {
    "roll": lambda x: x.roll(1, 0),
    "roll of two dimensions": lambda x: x.roll((1, 2), (1, 3)),
    "batch norm in evaluation": lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)),
    "batch norm in training": lambda x: F.batch_norm(x, None, None, training=True),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "reflection_pad": lambda x: F.pad(x, (1, 1, 1, 1), "reflect"),
    "replication_pad": lambda x: F.pad(x, (1, 1, 1, 1), "replicate"),
    "glu": lambda x: F.glu(x, 1),
    "logsigmoid": F.logsigmoid,
    "mse_loss": lambda x: F.mse_loss(x, torch.zeros(2, 4, 4, 6)),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, torch.zeros(2, 4, 4, 6)),
    "huber_loss": lambda x: F.huber_loss(x, torch.zeros(2, 4, 4, 6)),
    "one_hot": lambda x: F.one_hot((x > 0).long(), 2) * x[..., None],
    "angle": lambda x: torch.complex(x, x).angle(),
    "isin": lambda x: torch.isin(x.detach(), torch.arange(4.0)) * x,
    "pow": lambda x: 2.0**x,
    "rrelu in evaluation": F.rrelu,
    "cross_entropy": lambda x: F.cross_entropy(x, SHARES, reduction="none"),
    "prod": lambda x: x.prod(1),
    "prod of all": torch.prod,
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate linearly": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "interpolate by cubes": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "index_select": lambda x: x.index_select(1, INDEX_OF_CHANNELS),
}


def all_functions(xs):
    return [function(x) for function, x in zip(FUNCTIONS.values(), xs, strict=True)]


CASES = [("aten", laid_out, gradient) for laid_out in (channels_last, transposed) for gradient in (False, True)]


@pytest.mark.parametrize(
    ("engine", "laid_out", "gradient"),
    [*CASES, ("inductor", channels_last, True), ("inductor", transposed, False)],
)
def test_strides_of_results_and_gradients(engine, laid_out, gradient):
    seen = []
    for call in (all_functions, eductor.compile(all_functions, engine=engine, strict=True)):
        torch.manual_seed(0)
        xs = [laid_out(torch.randn(2, 4, 4, 6)).requires_grad_(gradient) for _ in FUNCTIONS]
        results = call(xs)
        losses = [result.square().sum() for result in results]
        seen.append([*results, *(torch.autograd.grad(sum(losses), xs) if gradient else ())])
    for name, expected, got in zip([*FUNCTIONS] * 2, *seen, strict=False):
        assert got.stride() == expected.stride(), name
        torch.testing.assert_close(got, expected, msg=name)


PAIRS = {
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
    "copysign": torch.copysign,
    "copysign of one sign": lambda x, y: torch.copysign(x, y[0, 0, 0, 0]),
    "floor_divide": lambda x, y: (x.detach() // y.detach()) * x,
    "heaviside": lambda x, y: torch.heaviside(x.detach(), y.detach()) * x,
    "ldexp": torch.ldexp,
    "logaddexp": torch.logaddexp,
    "logical_and": lambda x, y: torch.logical_and(x.detach(), y[0].detach()) * x,
    "xlog1py": torch.special.xlog1py,
    "xlogy": torch.xlogy,
}


def all_pairs(pairs):
    return [function(x, y) for function, (x, y) in zip(PAIRS.values(), pairs, strict=True)]


def plain(x):
    return x.contiguous()


LAYOUTS = [(transposed, plain), (plain, channels_last), (channels_last, transposed)]


@pytest.mark.parametrize(("engine", "layouts"), [*(("aten", layouts) for layouts in LAYOUTS), ("inductor", LAYOUTS[0])])
def test_operands_in_different_layouts(engine, layouts):
    seen = []
    for call in (all_pairs, eductor.compile(all_pairs, engine=engine, strict=True)):
        torch.manual_seed(0)
        pairs = [[f(torch.rand(2, 4, 4, 6)).requires_grad_() for f in layouts] for _ in PAIRS]
        results = call(pairs)
        operands = [x for pair in pairs for x in pair]
        ones = [torch.ones_like(result) for result in results]
        gradients = torch.autograd.grad(results, operands, ones, allow_unused=True)
        seen.append(
            [(r, *gradients[2 * i : 2 * i + 2]) for i, r in enumerate(results)],
        )
    for name, expected, got in zip(PAIRS, *seen, strict=True):
        for a, b in zip(expected, got, strict=True):
            assert (a is None) == (b is None), name
            assert a is None or a.stride() == b.stride(), name
        torch.testing.assert_close(got, expected, msg=name)


def test_an_attention_gets_the_kernel_for_its_strides():
    def attention(x):
        y = torch.cat([x, x, x], 2).roll(1, -4)  # channels last: no fused kernel takes it
        return F.scaled_dot_product_attention(y, y, y)

    x = channels_last(torch.randn(2, 3, 4, 4))
    for profile in ("fast", "exact"):
        got = eductor.compile(attention, engine="aten", profile=profile)(x)
        assert got.stride() == attention(x).stride()
        assert torch.equal(got, attention(x))
