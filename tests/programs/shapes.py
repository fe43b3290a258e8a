"""Sizes that change, sizes that data decide, empty tensors, graph breaks, other dtypes."""

import torch
import torch.nn.functional as F
from torch import nn

from .comparing import Case, all_calls_then_all_backwards, each_call, leaf, plain, program


def captures_data_dependent_sizes():
    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)


@program(lines=(13,), steps=each_call, dynamic_on_inductor=True)
def batches_of_different_sizes():
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3))
    return Case(model, calls=tuple((plain(n, 5),) for n in (4, 4, 7, 3)))


class SelfAttention(nn.Module):
    def __init__(self, width=8, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, w))


@program(lines=(13,), steps=each_call, dynamic_on_inductor=True)
def sequences_of_different_lengths():
    return Case(SelfAttention(), calls=tuple((leaf(b, n, 8),) for b, n in ((2, 5), (2, 6), (3, 4))))


@program(lines=(13, 12, 7), steps=each_call, dynamic_on_inductor=True)
def images_of_different_sizes():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return Case(model, calls=tuple((plain(b, 3, s, s),) for b, s in ((2, 6), (3, 6), (4, 8))))


@program(lines=(13, 4), steps=each_call, dynamic_on_inductor=True)
def sizes_as_outputs():
    def fn(x):
        n = x.shape[0]
        return x.view(-1), n, n * 2 + 1, x.sum(0) * n, x.numel()

    return Case(fn, calls=tuple((leaf(n, 4),) for n in (3, 5, 6)))


@program(lines=(13,), steps=each_call)
def sizes_saved_for_backward():
    def fn(x):
        return x.sum(0) / x.shape[0] + x.mean(), x.expand(2, *x.shape).sum((0, 1))

    return Case(fn, calls=tuple((leaf(n, 4),) for n in (3, 5, 6)))


@program(lines=(13, 7), steps=each_call)
def written_input_of_different_sizes():
    def fn(x, y):
        x.add_(y)
        return x[1:], y * x

    return Case(fn, calls=tuple((plain(n, 4), leaf(n, 4).detach()) for n in (3, 5, 6)))


@program(lines=(13,), steps=each_call)
def an_integer_argument_that_changes():
    return Case(lambda x, n: x.repeat(n, 1) * n, calls=tuple((leaf(2, 3), n) for n in (2, 3, 4)))


@program(lines=(13,), steps=each_call)
def a_float_argument_that_changes():
    return Case(lambda x, s: x.sin() * s, calls=tuple((leaf(2, 3), s) for s in (0.5, 1.5, 2.5)))


@program(lines=(13,), steps=all_calls_then_all_backwards)
def different_sizes_before_any_backward():
    return Case(nn.Linear(4, 3), calls=tuple((leaf(n, 4),) for n in (3, 5, 6)))


@program(lines=(13,), steps=each_call)
def batch_of_one_and_more():
    return Case(nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), calls=tuple((leaf(n, 4),) for n in (1, 3, 2)))


@program(lines=(13,))
def marked_dynamic_by_hand():
    x = leaf(6, 4)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    return Case(lambda a: (a.view(-1, 2) @ a.view(2, -1)).relu(), (x,))


@program(lines=(13,), steps=each_call, engines=("inductor",))
def interpolation_of_different_sizes():
    return Case(
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
        calls=tuple((leaf(1, 2, s, s),) for s in (3, 4, 5)),
    )


@program(lines=(13,), steps=each_call, engines=("aten",), fallback="interpolate with sizes that may change")
def interpolation_of_different_sizes_where_bits_count():
    return interpolation_of_different_sizes()


@program(lines=(13,))
def empty_batch():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), (leaf(0, 4),))


@program(lines=(13,), steps=each_call)
def batches_of_which_one_is_empty():
    return Case(nn.Linear(4, 3), calls=tuple((leaf(n, 4),) for n in (3, 0, 2)))


@program(lines=(13, 15))
def empty_tensors():
    def fn(x, y):
        return x, x[:0], torch.cat([x, y]), x.sum(), y.view(0, 2, 2)

    return Case(fn, (leaf(0, 4), leaf(0, 4)))


@program(lines=(14,), around=captures_data_dependent_sizes)
def number_read_from_a_tensor():
    def fn(x, n):
        return x * n.item() + 1

    return Case(fn, (leaf(3, 4), torch.tensor(3)))


@program(lines=(14,), around=captures_data_dependent_sizes)
def float_read_from_a_tensor():
    return Case(lambda x, s: x.sin() * s.item(), (leaf(3, 4), torch.tensor(0.5)))


@program(lines=(14,), around=captures_data_dependent_sizes, dynamic_on_inductor=True)
def size_read_from_a_tensor():
    def fn(x, n):
        k = n.item()
        torch._check(k >= 0)
        torch._check(k <= 5)
        return x.sum() * torch.ones(k), torch.zeros(k, 2)

    return Case(fn, (leaf(3, 4), torch.tensor(3)))


@program(lines=(14,), around=captures_data_dependent_sizes, steps=each_call)
def positions_of_nonzeros():
    def fn(x):
        where = (x > 0).nonzero()
        return where, where.shape[0], x * 2

    return Case(fn, calls=((leaf(3, 4),), (leaf(3, 4),)))


@program(lines=(14,), around=captures_data_dependent_sizes, steps=each_call)
def selection_by_a_mask():
    def fn(x):
        return x[x > 0] * 2

    return Case(fn, calls=((leaf(3, 4),), (leaf(3, 4),)))


@program(lines=(14,), around=captures_data_dependent_sizes)
def split_by_sizes_from_a_tensor():
    def fn(x, sizes):
        a, b = sizes.tolist()
        torch._check(a >= 0)
        torch._check(b >= 0)
        torch._check(a + b == 6)
        first, second = torch.split(x, [a, b])
        return first * 2, second.sum(0)

    return Case(fn, (leaf(6, 3), torch.tensor([2, 4])))


@program(lines=(14, 11))
def number_read_with_a_graph_break():
    def fn(x, n):
        y = x * 2
        return y * n.item() if n.item() > 1 else y

    return Case(fn, (leaf(3, 4), torch.tensor(3)))


@program(lines=(11,), dynamic_on_inductor=True)
def graph_break_with_tensors_across():
    def fn(x, y):
        a, b = x * y, x.sin()
        torch._dynamo.graph_break()
        c = a @ b.t()
        torch._dynamo.graph_break()
        return c.relu(), a + y

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(11, 16))
def graph_break_with_a_view_across():
    def fn(x):
        y = x * 2
        z = y.t()
        torch._dynamo.graph_break()
        return y + 1, z.sin(), z

    return Case(fn, (leaf(3, 4),))


@program(lines=(11, 7, 16))
def graph_break_and_then_a_view_is_written():
    def fn(x):
        y = x * 2
        z = y[1:]
        torch._dynamo.graph_break()
        z.mul_(3)
        return y + 1, z

    return Case(fn, (leaf(3, 4),))


@program(lines=(11, 25))
def graph_break_and_then_an_intermediate_is_written():
    def fn(x):
        y = x.sin()
        torch._dynamo.graph_break()
        y.add_(x)
        return y * 2

    return Case(fn, (leaf(3, 4),))


@program(lines=(11, 7), steps=each_call)
def graph_break_between_batch_norms():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

        def forward(self, x):
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.second(x.relu())

    return Case(Model(), calls=((leaf(5, 4),), (leaf(6, 4),)))


@program(lines=(11, 13), steps=each_call)
def graph_break_and_different_sizes():
    def fn(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.sum(0) / x.shape[0]

    return Case(fn, calls=tuple((leaf(n, 4),) for n in (3, 5, 6)))


@program(lines=(11, 20))
def graph_break_under_no_grad():
    def fn(x):
        with torch.no_grad():
            y = x * 2
            torch._dynamo.graph_break()
            z = y + x
        return z, x * z

    return Case(fn, (leaf(3, 4),))


@program(lines=(1, 3))
def double_precision():
    return Case(nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double(), (leaf(2, 4, dtype=torch.float64),))


@program(lines=(1, 3), low_precision=True)
def half_precision():
    return Case(lambda x, y: (x * y).sin() + x.sum(0), (leaf(3, 4, dtype=torch.bfloat16), leaf(4, dtype=torch.float16)))


@program(lines=(1, 3))
def complex_numbers():
    def fn(x, y):
        return (x * y).abs(), x.conj() @ y.t(), torch.fft.fft(x).sum(0)

    return Case(fn, (leaf(3, 4, dtype=torch.complex64), leaf(3, 4, dtype=torch.complex64)))


@program(lines=(1, 15))
def conjugated_input():
    return Case(lambda x: (x.conj() * 2, x.conj()), (leaf(3, dtype=torch.complex64).conj(),))


@program(lines=(3, 6))
def where_with_nan():
    def fn(x):
        safe = torch.where(x > 0, x, torch.ones_like(x))
        return torch.where(x > 0, safe.log(), 0.0), torch.where(x > 0, x.sqrt(), 0.0), x.sqrt()

    return Case(fn, (leaf(3, 4),))


@program(lines=(3,))
def infinities():
    return Case(lambda x: (1 / x, x.log(), (x * 1e30).exp()), (torch.tensor([0.0, -1.0, 2.0], requires_grad=True),))
