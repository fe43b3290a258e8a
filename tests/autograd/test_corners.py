"""Corners in which a dispatcher is easily wrong without anybody noticing. Found by a review, kept by these tests."""

from __future__ import annotations

import functools
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops.while_loop import while_loop
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import eductor
from eductor import compat
from eductor.graph.values.meta import value_of
from eductor.pipeline.base import graph_pass

aten = functools.partial(eductor.compile, engine="aten", strict=True)
inductor = functools.partial(eductor.compile, engine="inductor", strict=True)


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(
    "program",
    [lambda x: x.exp().chunk(2)[0], lambda x: x.exp().unbind(0)[1], lambda x: x.exp().split(32)[0].t()],
    ids=["chunk", "unbind", "split"],
)
def test_a_part_of_a_saved_value_that_is_returned_is_not_overwritten_by_the_backward(program):
    y = inductor(program)(leaf(64, 64))
    before = y.detach().clone()
    (y.sum() * 2).backward()
    assert torch.equal(before, y)


def test_a_second_derivative_through_numbers_drawn_anew_is_refused():
    x = torch.ones(64, requires_grad=True)
    y = inductor(lambda x: F.dropout(x * 1.0, 0.5))(x)
    with pytest.raises(RuntimeError, match="fallback_random=True"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    y = inductor(lambda x: F.dropout(x * 1.0, 0.5), fallback_random=True)(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.equal(g, y)


def test_a_backward_under_autocast_uses_the_mask_of_the_forward():
    x = torch.ones(64, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = inductor(lambda x: F.dropout(x * 1.0, 0.5))(x)
        y.sum().backward()
    assert torch.equal(x.grad, y)


@pytest.mark.parametrize("options", [{"profile": "exact"}, {"double_backward": False}], ids=["exact", "no second"])
def test_a_backward_under_autocast_needs_no_second_derivative(options):
    def program(x, buf):
        y = x * buf.clone()
        buf.mul_(0.5)
        return y

    x = leaf(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        aten(program, **options)(x, torch.ones(3)).sum().backward()
    assert torch.equal(x.grad, torch.ones(3))


def written(a, b):
    a.add_(1)
    return a * b


@pytest.mark.parametrize("compile", [aten, inductor], ids=["aten", "inductor"])
def test_the_same_memory_by_other_tensors(compile):
    compiled, expected, got = compile(written), torch.arange(12.0), torch.arange(12.0)
    for _ in range(2):
        assert torch.equal(written(expected[2:5], expected[3:6]), compiled(got[2:5], got[3:6]))
    a, b, c, d = got[2:5], got[3:6], expected[2:5], expected[3:6]
    for take in (lambda t: t, lambda t: t.data, lambda t: t.detach()):
        assert torch.equal(written(take(c), take(d)), compiled(take(a), take(b)))
        assert torch.equal(expected, got)


def test_a_write_through_one_of_two_aliases_is_counted_for_both():
    def program(c, d):
        d.add_(c.sum())
        return d * 1

    w, c = leaf(3), torch.ones(3)
    y = c * w
    aten(program)(c, c.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_view_of_one_of_two_aliases_counts_writes_to_it():
    def program(a, b):
        a.add_(1)
        return b[1:], a * 2

    a, w = torch.ones(4), leaf(2)
    b = a.detach()[1:]
    with pytest.warns(eductor.EductorWarning, match="without a common base"):
        view, _ = eductor.compile(program, engine="aten")(a, b)
    loss = (view * w).sum()
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_overlap_that_cannot_be_compiled_comes_up_later():
    compiled = eductor.compile(written, engine="aten")
    compiled(torch.ones(3), torch.ones(3).requires_grad_())
    x, y = torch.arange(12.0), torch.arange(12.0)
    with pytest.warns(eductor.EductorWarning, match="several histories"):
        got = compiled(x[0:3], x.detach()[1:4].requires_grad_())
    assert torch.equal(got, written(y[0:3], y.detach()[1:4].requires_grad_()))
    assert torch.equal(x, y)


class Pair(Function):
    @staticmethod
    def forward(ctx, a, b):
        return a * 2, b * 3

    @staticmethod
    def backward(ctx, g1, g2):
        return g1 * 2, g2 * 3 + 1


def test_a_function_gets_zeros_for_the_output_that_nobody_uses():
    def gradients(fn):
        a, b = leaf(2), leaf(2)
        fn(a, b)[0].sum().backward()
        return a.grad, b.grad

    expected, got = gradients(Pair.apply), gradients(aten(lambda a, b: Pair.apply(a, b)))
    assert all(map(torch.equal, expected, got))


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


def test_a_function_inside_of_a_checkpoint_is_differentiated_twice():
    def program(x):
        return checkpoint(lambda z: Sine.apply(z), x, use_reentrant=False)

    def second(fn):
        x = torch.ones((), requires_grad=True)
        (g,) = torch.autograd.grad(fn(x), x, create_graph=True)
        g.pow(2).backward()
        return x.grad

    assert torch.allclose(second(program), second(aten(program)))


@pytest.mark.parametrize("compile", [aten, inductor], ids=["aten", "inductor"])
def test_gradients_in_batches(compile):
    def program(x):
        return (x.sin() * x).t()

    x = torch.randn(2, 3)
    expected = torch.autograd.functional.jacobian(program, x, vectorize=True)
    assert torch.allclose(expected, torch.autograd.functional.jacobian(compile(program), x, vectorize=True))


def loop(x):
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * y), (torch.tensor(0), x))[1]


def test_a_loop_with_gradients():
    x = torch.full((2,), 1.5, requires_grad=True)
    aten(loop)(x).sum().backward()
    assert torch.allclose(x.grad, 8 * torch.full((2,), 1.5) ** 7)


def test_a_view_made_without_gradients_still_asks_for_some():
    def program(a):
        with torch.no_grad():
            v = a.t()
        return v + 1

    a = leaf(2, 3)
    assert program(a).requires_grad
    got = aten(program)(a)
    assert got.requires_grad
    got.sum().backward()
    assert a.grad is None


def copy_of_a_saved_value(x):
    return x.relu().clone()


def saved_copy_of_an_output(x):
    y = x + 1
    c = y.clone()
    return c * c, y


def saved_copy_of_the_input(x):
    c = x.clone()
    return c * c


@pytest.mark.parametrize("compile", [aten, inductor], ids=["aten", "inductor"])
@pytest.mark.parametrize(
    ("program", "write"),
    [
        (copy_of_a_saved_value, lambda outputs, x: outputs[0].add_(1)),
        (saved_copy_of_an_output, lambda outputs, x: outputs[1].add_(1)),
        (saved_copy_of_the_input, lambda outputs, x: x.detach().add_(1)),
    ],
)
def test_a_copy_protects_the_backward_from_writes_after_the_forward(compile, program, write):
    def gradient(fn):
        leaf = torch.ones(3, requires_grad=True)
        x = leaf * 2
        result = fn(x)
        outputs = result if isinstance(result, tuple) else (result,)
        write(outputs, x)
        outputs[0].sum().backward()
        return leaf.grad

    assert torch.equal(gradient(program), gradient(compile(program)))


def cast_twice(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return ((x @ w) @ w).float().sum(0)


@pytest.mark.parametrize("made", [lambda x: x, lambda x: x * 1], ids=["a leaf", "no leaf"])
def test_autocast_casts_a_leaf_once_and_anything_else_each_time(made):
    """What is cast once has its gradients summed in the lower precision."""

    def gradients(fn):
        torch.manual_seed(0)
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        fn(x, made(w)).backward(torch.randn(4))
        return x.grad, w.grad

    expected, got = gradients(cast_twice), gradients(aten(cast_twice))
    assert all(map(torch.equal, expected, got))


def test_passes_after_autograd_run_without_the_autocast_whose_casts_are_in_the_graph():
    seen = []

    @graph_pass(stage="joint", numerics="exact")
    def insert_a_product(graph, rewrite):
        """Inserts a product that nobody uses."""
        (sine,) = graph.find(torch.ops.aten.sin)
        node = rewrite.insert(torch.ops.aten.mm.default, *sine.all_input_nodes * 2, before=sine)
        seen.append(value_of(node).dtype)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        aten(torch.sin, passes=[insert_a_product])(torch.randn(3, 3))
    assert seen == [torch.float32]


TAKEN_APART = {
    "interpolate": lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x.flatten(1), torch.zeros(x.shape[0], dtype=torch.long)),
}


@pytest.mark.parametrize("name", TAKEN_APART)
def test_what_torch_takes_apart_in_python_is_computed_by_eagers_kernels(name):
    x, program = leaf(2, 3, 5, 7), TAKEN_APART[name]
    result = program(x)
    (expected,) = torch.autograd.grad(result.square().sum(), x)
    got = aten(program, profile="exact")(x)
    assert torch.equal(got, result)
    assert torch.equal(torch.autograd.grad(got.square().sum(), x)[0], expected)


@pytest.mark.parametrize("name", TAKEN_APART)
def test_what_torch_takes_apart_for_sizes_that_change_is_refused_where_bits_count(name):
    x, program = leaf(2, 3, 5, 7), TAKEN_APART[name]
    with pytest.warns(eductor.EductorWarning, match=f"{name} with sizes that may change"):
        got = eductor.compile(program, profile="exact", dynamic=True)(x)
    assert torch.equal(got, program(x))


@pytest.mark.parametrize(
    "fill",
    [lambda x, mask, v: x.masked_fill(mask, v), lambda x, mask, v: (x * 2).masked_fill_(mask, v)],
    ids=["masked_fill", "masked_fill_"],
)
def test_a_gradient_that_is_traced_otherwise_than_eager_computes_it_is_refused_where_bits_count(fill):
    x, value, mask = leaf(64, 65), torch.tensor(2.0, requires_grad=True), torch.rand(64, 65) > 0.5
    weights = torch.randn(64, 65)
    (expected,) = torch.autograd.grad((fill(x, mask, value) * weights).sum(), value)
    with pytest.warns(eductor.EductorWarning, match="the gradient of a masked_fill's value"):
        got = eductor.compile(fill, profile="exact")(x, mask, value)
    assert torch.equal(torch.autograd.grad((got * weights).sum(), value)[0], expected)
    with torch.no_grad():
        aten(fill, profile="exact")(x, mask, value)


@pytest.mark.parametrize(
    ("product", "sizes"),
    [
        (lambda x: x.cumprod(0), (9, 7)),
        (lambda x: (x * 2).cumprod_(0), (9, 7)),
        (lambda x: torch.linalg.vander(x, N=6), (9,)),
    ],
    ids=["cumprod", "cumprod_", "linalg_vander"],
)
@pytest.mark.parametrize("sums", [None, False], ids=["this torch", "torch 2.11"])
def test_a_running_product_whose_gradient_is_traced_otherwise_is_refused_where_bits_count(
    product, sizes, sums, monkeypatch
):
    if sums is not None:
        monkeypatch.setattr(compat, "sums_for_running_products", lambda: sums)
    x = leaf(*sizes)
    expected = torch.autograd.grad(product(x).sin().sum(), x)
    is_refused = not compat.sums_for_running_products()
    warned = pytest.warns(eductor.EductorWarning, match="its trace rounds differently in this torch")
    with warned if is_refused else nullcontext():
        compiled = eductor.compile(product, profile="exact", strict=not is_refused)
        got = torch.autograd.grad(compiled(x).sin().sum(), x)
    assert torch.equal(got[0], expected[0])


@pytest.mark.parametrize(
    "program", [torch.linalg.svdvals, lambda x: torch.linalg.norm(x, "nuc"), torch.linalg.eigvalsh]
)
def test_values_for_which_a_trace_computes_vectors_are_refused_where_bits_count(program):
    x = torch.randn(9, 9)
    with pytest.warns(eductor.EductorWarning, match="without vectors"):
        got = eductor.compile(lambda x: program(x) * 2, profile="exact")(x)
    assert torch.equal(got, program(x) * 2)


@pytest.mark.parametrize(
    "program", [lambda x: torch.linalg.svd(x)[1], lambda x: x.svd()[1], lambda x: torch.linalg.eigh(x)[0]]
)
def test_values_of_a_decomposition_that_is_called_by_its_name_are_compiled(program):
    x = torch.randn(9, 9)
    assert torch.equal(aten(lambda x: program(x) * 2, profile="exact")(x), program(x) * 2)


def test_a_gradient_that_eager_refuses_for_its_phase_is_refused():
    x = torch.randn(4, 4, requires_grad=True)
    with pytest.warns(eductor.EductorWarning, match="phase of its vectors"):
        _, vectors = eductor.compile(lambda x: torch.linalg.eig(x), engine="aten")(x)
    with pytest.raises(RuntimeError, match="ill-defined"):
        vectors.real.sum().backward()


def test_a_gradient_of_eigenvalues_alone_is_compiled():
    x = torch.randn(4, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(torch.linalg.eigvals(x).abs().sum(), x)
    (got,) = torch.autograd.grad(aten(torch.linalg.eigvals)(x).abs().sum(), x)
    torch.testing.assert_close(got, expected)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        (w,) = ctx.saved_tensors
        return gradient.to(w.dtype) @ w.t(), None


@pytest.mark.parametrize("double_backward", [True, False])
def test_a_users_backward_under_autocast_casts_or_warns(double_backward):
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2)
    compiled = eductor.compile(Product.apply, engine="aten", double_backward=double_backward)

    def gradient(fn):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.autograd.grad(fn(x, w).float().sum(), x)[0]

    if double_backward:
        assert torch.equal(gradient(compiled), gradient(Product.apply))
    else:
        with pytest.warns(eductor.EductorWarning, match="runs under autocast"):
            gradient(compiled)
