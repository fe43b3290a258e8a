"""Control flow and other operators that take functions."""

import torch
from torch import nn
from torch._higher_order_ops import associative_scan, map, scan, while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .comparing import Case, each_call, leaf, plain, program


@program(lines=(21,), steps=each_call, dynamic_on_inductor=True)
def branches():
    def fn(x, flag):
        return torch.cond(flag, lambda a: a.sin() * 2, lambda a: a.cos(), (x,))

    return Case(fn, calls=((leaf(3, 4), torch.tensor(True)), (leaf(3, 4), torch.tensor(False))))


@program(lines=(21,))
def branches_of_a_module():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda a: self.left(a), lambda a: self.right(a).relu(), (x,))

    return Case(Model(), (plain(3, 4),))


@program(lines=(21, 2), around=torch.no_grad)
def branches_without_gradients():
    def fn(x):
        return torch.cond(x.sum() > 100, lambda a: (a + 1, a * 2), lambda a: (a - 1, a.sin()), (x,))

    return Case(fn, (plain(3, 4),))


@program(lines=(21, 2), around=torch.no_grad)
def loop_until():
    def fn(x, n):
        return while_loop(lambda i, a: i > 0, lambda i, a: (i - 1, a * 2 + 1), (n, x))

    return Case(fn, (plain(3, 4), torch.tensor(3)))


@program(lines=(21, 13), around=torch.no_grad, steps=each_call)
def loop_of_different_sizes():
    def fn(x, n):
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.sin() + a.shape[0]), (n, x))

    return Case(fn, calls=tuple((plain(k, 4), torch.tensor(0)) for k in (2, 3, 5)))


@program(lines=(21,))
def mapped_rows():
    def fn(xs, w):
        return map(lambda x, w: (x * w).sin(), xs, w)

    return Case(fn, (leaf(3, 4), leaf(4)))


@program(lines=(21,))
def scanned_rows():
    def fn(start, xs):
        return scan(lambda carry, x: (carry * 0.5 + x, (carry * x).sin()), start, xs)

    return Case(fn, (leaf(4), leaf(3, 4)))


@program(lines=(21, 2), around=torch.no_grad)
def scanned_rows_without_gradients():
    def fn(start, xs):
        return scan(lambda carry, x: (carry + x, carry * x), start, xs)

    return Case(fn, (plain(4), plain(3, 4)))


@program(lines=(21, 2), around=torch.no_grad)
def associative_scan_of_sums():
    def fn(xs):
        return associative_scan(lambda a, b: a + b, xs, dim=0, combine_mode="generic")

    return Case(fn, (plain(5, 3),))


@program(lines=(21,), also_dynamic=False)
def flexible_attention_without_gradients():
    def fn(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j))

    return Case(fn, (plain(1, 1, 16, 16), plain(1, 1, 16, 16), plain(1, 1, 16, 16)))


@program(lines=(21,), also_dynamic=False, around=torch.no_grad)
def flexible_attention_with_a_mask():
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu", BLOCK_SIZE=16)
    return Case(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), tuple(plain(1, 1, 16, 16) for _ in range(3)))


@torch.compiler.nested_compile_region
def region(x, y):
    return (x * y).sin() @ y.t()


@program(lines=(21,))
def nested_region():
    return Case(lambda x, y: region(x, y) + 1, (leaf(3, 4), leaf(3, 4)))


@program(lines=(21,), exact_on_aten=False, differs_in_dynamo="its eager backend cannot differentiate a region twice")
def nested_region_called_twice():
    def fn(x, y):
        return region(x, y) + region(x * 2, y)

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(21, 19), also_dynamic=False, differs_in_dynamo="its eager backend cannot differentiate a region twice")
def nested_regions_of_a_model():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        @torch.compiler.nested_compile_region
        def forward(self, x):
            return x + self.linear(x).relu()

    return Case(nn.Sequential(Layer(), Layer()), (leaf(3, 4),))


@program(lines=(21, 32))
def per_sample_gradients():
    def fn(w, xs):
        return torch.func.vmap(torch.func.grad(lambda w, x: (w * x).sin().sum()), (None, 0))(w, xs)

    return Case(fn, (plain(4), plain(3, 4)))


@program(lines=(21,))
def forward_mode_derivatives():
    def fn(x, v):
        return torch.func.jvp(lambda a: a.sin() * a, (x,), (v,))

    return Case(fn, (plain(4), plain(4)))
