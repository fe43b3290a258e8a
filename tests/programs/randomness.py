"""Random numbers: the same ones as in eager, the same mask in forward and backward."""

import torch
import torch.nn.functional as F
from torch import nn

from .comparing import Case, all_calls_then_all_backwards, each_call, leaf, loss_of, plain, program


@program(lines=(10,), dynamic_on_inductor=True)
def dropout():
    return Case(nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2)), (leaf(3, 4),))


@program(lines=(10, 12))
def dropout_of_channels():
    return Case(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.5)), (leaf(2, 2, 5, 5),))


@program(lines=(10,))
def dropout_in_place():
    return Case(lambda x: F.dropout(x * 2, 0.5, inplace=True).sin(), (leaf(3, 4),))


@program(lines=(10,))
def dropout_in_evaluation():
    return Case(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)).eval(), (leaf(3, 4),))


@program(lines=(10,))
def random_numbers_of_all_kinds():
    def fn(x):
        return (
            x * torch.rand(3, 4),
            torch.randn(4) + x,
            torch.randint(0, 9, (3,)),
            torch.randperm(5),
            torch.rand_like(x),
            torch.randn_like(x) * x,
            torch.randint_like(x, 7),
        )

    return Case(fn, (leaf(3, 4),))


@program(lines=(10,))
def bernoulli_and_multinomial():
    def fn(p):
        return torch.bernoulli(p) * p, torch.multinomial(p, 2), torch.normal(p, 1.0), torch.poisson(p * 4)

    return Case(fn, (torch.rand(3, 4),))


@program(lines=(10, 7))
def random_writes():
    def fn(x):
        x.uniform_(-1, 1)
        y = torch.empty(3).normal_()
        return x + 1, y, torch.empty(3).exponential_(), torch.zeros(4).bernoulli_(0.5)

    return Case(fn, (plain(3, 4),))


@program(lines=(10, 7), fallback="normal_ on a tensor with gaps in its memory")
def normal_numbers_into_memory_with_gaps():
    def fn(x):
        x[:, ::2].normal_()
        return x + 1, torch.empty(6, 8).t().normal_()

    return Case(fn, (plain(6, 8),))


@program(lines=(10,))
def random_and_then_a_graph_break():
    def fn(x):
        x = F.dropout(x, 0.5)
        torch._dynamo.graph_break()
        return F.dropout(x, 0.5) + torch.rand(4)

    return Case(fn, (leaf(3, 4),))


@program(lines=(10, 30), steps=all_calls_then_all_backwards)
def two_forwards_then_two_backwards_with_dropout():
    x = leaf(3, 4)
    return Case(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), calls=((x,), (x,)))


@program(lines=(10,), steps=each_call)
def dropout_called_again_draws_anew():
    x = leaf(3, 4)
    return Case(lambda a: F.dropout(a, 0.5), calls=((x,), (x,), (x,)))


@program(lines=(10, 2), around=torch.no_grad)
def dropout_under_no_grad():
    return Case(nn.Dropout(0.5), (plain(3, 4),))


@program(lines=(10,))
def attention_with_dropout():
    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)

    return Case(fn, (leaf(1, 2, 3, 4), leaf(1, 2, 3, 4), leaf(1, 2, 3, 4)))


@program(lines=(10,))
def unused_random_numbers_are_drawn():
    def fn(x):
        torch.rand(5)
        return x * torch.rand(4)

    return Case(fn, (leaf(3, 4),))


def seeded_between(call, case):
    """The backward must not depend on the generator's state when it runs."""
    torch.manual_seed(5)
    out = call(*case.inputs)
    torch.manual_seed(6)
    torch.rand(3)
    loss_of(out).backward()
    return {"out": out, "rng": torch.get_rng_state()}


@program(lines=(10,), steps=seeded_between)
def seed_changed_between_forward_and_backward():
    return Case(lambda x: F.dropout(x.sin(), 0.5) * torch.rand(4), (leaf(3, 4),))


@program(lines=(10,))
def random_relu_and_gumbel():
    return Case(lambda x: (F.rrelu(x, training=True), F.gumbel_softmax(x, tau=0.5)), (leaf(3, 4),))


@program(lines=(10, 24), steps=all_calls_then_all_backwards)
def different_sizes_with_dropout():
    return Case(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)), calls=((leaf(3, 4),), (leaf(5, 4),), (leaf(2, 4),)))
