"""Outputs that share memory with inputs or with each other."""

import torch
import torch.nn.functional as F
from torch import nn

from .comparing import Case, backward, each_call, leaf, plain, program, seen


@program(lines=(15,), dynamic_on_inductor=True)
def view_of_an_input():
    return Case(lambda x: (x.view(-1), x * 2), (leaf(3, 4),))


@program(lines=(15,))
def slice_of_an_input():
    return Case(lambda x: (x[1:, ::2], x[0], x.sum()), (leaf(3, 4),))


@program(lines=(15, 8))
def expanded_input():
    return Case(lambda x: (x.expand(3, 4), x * 2), (leaf(1, 4),))


@program(lines=(15,))
def diagonal_of_an_input():
    return Case(lambda x: (x.diagonal(), x.sin()), (leaf(4, 4),))


@program(lines=(15,))
def unbound_input():
    return Case(lambda x: (*x.unbind(0), x.sum(0)), (leaf(3, 4),))


@program(lines=(15,), also_dynamic=False)
def strided_input():
    return Case(lambda x: (x.as_strided((2, 3), (1, 4), 1), x + 1), (leaf(3, 4),))


@program(lines=(15,), exact_on_aten=False)
def split_and_chunked_input():
    return Case(lambda x: (*x.split(2, dim=1), *x.chunk(3, dim=0), x * 2), (leaf(3, 4),))


@program(lines=(15,), exact_on_aten=False)
def transposed_and_permuted_input():
    return Case(lambda x: (x.t(), x.permute(1, 0), x.unsqueeze(0), x.transpose(0, 1) + 1), (leaf(3, 4),))


@program(lines=(15,), exact_on_aten=False)
def real_and_imaginary_views():
    def fn(x):
        return x.real, x.imag, torch.view_as_real(x), x * 2

    return Case(fn, (leaf(3, 4, dtype=torch.complex64),))


@program(lines=(15,))
def complex_view_of_a_real_input():
    return Case(lambda x: (torch.view_as_complex(x), x * 2), (leaf(3, 2),))


@program(lines=(15,))
def view_of_another_dtype():
    return Case(lambda x: (x.view(torch.int32), x + 1), (plain(3, 4),))


@program(lines=(15,))
def detached_input():
    return Case(lambda x: (x.detach(), x * 2), (leaf(3, 4),))


@program(lines=(15,))
def view_of_a_detached_input():
    return Case(lambda x: (x.detach()[1:], x[1:].detach(), x.detach().sum()), (leaf(3, 4),))


@program(lines=(15, 2))
def views_without_gradients():
    return Case(lambda x: (x.view(-1), x[0], x.t(), x + 1), (plain(3, 4),))


@program(lines=(15, 2))
def nothing_but_views():
    return Case(lambda x: (x.view(-1), x[0]), (leaf(3, 4),))


@program(lines=(15,))
def view_of_a_view_of_an_input():
    base = leaf(4, 6)
    return Case(lambda x: (x.t()[1:], x * 2), (base[1:, ::2],), tensors={"base": base})


@program(lines=(15,), exact_on_aten=False)
def reshape_that_is_a_view_and_reshape_that_copies():
    return Case(lambda x: (x.reshape(-1), x.t().reshape(-1), x.contiguous(), x.t().contiguous()), (leaf(3, 4),))


@program(lines=(15,))
def casts_that_change_nothing():
    """Of the same dtype, these return the input itself."""
    return Case(lambda x: (x.float(), x.to(torch.float32), x.to("cpu"), x.double()), (leaf(3, 4),))


@program(lines=(15, 7))
def view_of_a_buffer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(5, 4))

        def forward(self, x):
            return self.table[1:3], x + self.table[0]

    return Case(Model(), (leaf(4),))


@program(lines=(15,))
def view_of_a_parameter():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 3))

        def forward(self, x):
            return self.weight.t(), x @ self.weight

    return Case(Model(), (plain(2, 4),))


def views_written_by_the_caller(call, case):
    """Writing an output that is a view of an input writes the input."""
    outputs = call(*case.inputs)
    with torch.no_grad():
        outputs[0].add_(10)
    return {"outputs": [seen(x) for x in outputs], "input": case.inputs[0]}


@program(lines=(15,), steps=views_written_by_the_caller)
def view_of_an_input_written_by_the_caller():
    return Case(lambda x: (x[1:], x * 2), (plain(3, 4),))


def views_of_nonleaf_written_by_the_caller(call, case):
    view, other = call(*case.inputs)
    view.mul_(2)
    backward((case.inputs[0], other))
    return {"view": view, "input": case.inputs[0]}


@program(lines=(15, 25), steps=views_of_nonleaf_written_by_the_caller)
def differentiable_view_written_by_the_caller():
    base = leaf(3, 4)
    return Case(lambda x: (x[1:], x + 1), (base * 1,), tensors={"base": base})


@program(lines=(16,), dynamic_on_inductor=True)
def intermediate_and_its_transpose():
    def fn(x):
        y = x * 2
        return y, y.t()

    return Case(fn, (leaf(3, 4),))


@program(lines=(16,))
def unbound_intermediate():
    return Case(lambda x: (x * 2).unbind(0), (leaf(3, 4),))


@program(lines=(16,))
def unbound_intermediate_and_itself():
    def fn(x):
        y = x.sin()
        return (*y.unbind(0), y)

    return Case(fn, (leaf(3, 4),))


@program(lines=(16,))
def intermediate_and_its_detached_self():
    def fn(x):
        y = x * 2
        return y, y.detach()

    return Case(fn, (leaf(3, 4),))


@program(lines=(16,))
def detached_before_differentiable():
    def fn(x):
        y = x * 2
        return y.detach(), y.detach().t(), y

    return Case(fn, (leaf(3, 4),))


@program(lines=(16,))
def chunks_of_an_intermediate():
    return Case(lambda x: (x @ x.t()).chunk(2, dim=1), (leaf(4, 3),))


@program(lines=(16,))
def two_views_of_a_hidden_intermediate():
    """The base of the two is not an output itself."""

    def fn(x):
        y = x.exp()
        return y[0], y.t(), y.view(-1)[2:]

    return Case(fn, (leaf(3, 4),))


@program(lines=(16,))
def one_view_of_a_hidden_intermediate():
    return Case(lambda x: x.exp().view(-1)[2:], (leaf(3, 4),))


@program(lines=(16, 2))
def views_of_an_intermediate_without_gradients():
    def fn(x):
        y = x * 2
        return y, y.t(), y[1:], y.view(-1)

    return Case(fn, (plain(3, 4),))


@program(lines=(16, 8))
def intermediate_and_its_expansion():
    def fn(x):
        y = x.sum(0)
        return y, y.expand(2, 4), y.unsqueeze(0)

    return Case(fn, (leaf(3, 4),))


@program(lines=(16, 15))
def views_of_inputs_and_of_intermediates():
    def fn(x):
        y = x.sin()
        return x.t(), y.t(), x, y, y[0], x[0]

    return Case(fn, (leaf(3, 4),))


def aliases_written_by_the_caller(call, case):
    """Writing one of two outputs that share memory writes the other."""
    y, z = call(*case.inputs)
    with torch.no_grad():
        y.add_(1)
    backward((y, z))
    return {"y": y, "z": z}


@program(lines=(16,), steps=aliases_written_by_the_caller)
def aliased_outputs_written_by_the_caller():
    def fn(x):
        y = x * 2
        return y, y.t()

    return Case(fn, (leaf(3, 4),))


def alias_written_with_grad(call, case):
    y, z = call(*case.inputs)
    z.mul_(3)
    backward((y, z))
    return {"y": y, "z": z}


@program(lines=(16,), steps=alias_written_with_grad)
def aliased_outputs_written_under_grad():
    """Autograd sees the write through the view."""

    def fn(x):
        y = x * 2
        return y, y[1:]

    return Case(fn, (leaf(3, 4),))


@program(lines=(16,))
def real_and_imaginary_parts_of_an_intermediate():
    def fn(x):
        y = x * 2
        return y.real, y.imag, y

    return Case(fn, (leaf(3, dtype=torch.complex64),))


@program(lines=(16, 7))
def views_of_an_intermediate_written_in_the_graph():
    def fn(x):
        y = x * 2
        first = y[0]
        first.add_(1)
        return y, first

    return Case(fn, (leaf(3, 4),))


@program(lines=(16,))
def lstm_gates():
    def fn(x, w):
        i, f, g, o = (x @ w).chunk(4, dim=-1)
        c = f.sigmoid() + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c, i

    return Case(fn, (leaf(2, 3), leaf(3, 8)))


@program(lines=(15, 16), steps=each_call)
def slices_of_different_sizes():
    return Case(lambda x: (x[1:], (x * 2)[:1], x.sum()), calls=((leaf(3, 4),), (leaf(5, 4),)))


@program(lines=(16, 3))
def cat_stack_split():
    def fn(x, y):
        both = torch.cat([x, y], dim=0)
        a, b, c = both.split([1, 2, 3])
        return torch.stack([x, y]), a * 2, b, c.sum(0)

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(16,))
def unfolded_windows():
    return Case(lambda x: (x.sin().unfold(0, 2, 1), F.pad(x, (1, 1))), (leaf(5, 3),))


@program(lines=(15,))
def dropout_that_drops_nothing_of_a_slice():
    return Case(lambda x: (F.dropout(x[:, 2], 0.5, training=False), x * 2), (leaf(3, 4, 5),))


@program(lines=(15,))
def dropout_that_drops_nothing_of_an_input():
    return Case(lambda x: (F.dropout(x, 0.0), x * 2), (plain(3, 4),))


@program(lines=(16,))
def detached_before_its_source():
    def fn(x):
        y = torch.cat([x, x])
        return y.detach(), y

    return Case(fn, (plain(3, 4),))


@program(lines=(16,))
def detached_views_of_a_value_that_is_not_returned():
    def fn(x):
        y = x * 2
        return y[1:].detach(), y.t().detach(), y[:, 1:]

    return Case(fn, (plain(3, 4),))


@program(lines=(16, 7))
def detached_and_written():
    def fn(x):
        y = x * 2
        first = y.t().detach()
        first.zero_()
        return first, y

    return Case(fn, (plain(3, 4),))


@program(lines=(16,))
def detached_without_the_sizes_that_its_views_read():
    def fn(x, w, b):
        y = F.linear(x, w, b)
        return y.detach(), y

    return Case(fn, (plain(3, 4, 2), plain(5, 2), leaf(5)))


@program(lines=(7,), fallback="unsafe_split.Tensor whose operand or parts are written")
def parts_of_an_unsafe_split_whose_operand_is_written():
    def fn(x):
        held = x.clone()
        a, b = torch.unsafe_split(held, 2)
        held.add_(1)
        return a * 2, b

    return Case(fn, (plain(4, 3),))


@program(lines=(7,), fallback="unsafe_split.Tensor of an input")
def input_written_through_parts_of_an_unsafe_split():
    def fn(x):
        a, b = torch.unsafe_split(x, 2)
        a.add_(1)
        return b * 2

    return Case(fn, (plain(4, 3),))


@program(lines=(7,))
def parts_of_an_unsafe_split_that_are_written_alone():
    def fn(x):
        a, b = torch.unsafe_split(x * 2, 2)
        return a.sigmoid_() * b.tanh_()

    return Case(fn, (plain(4, 3),))
