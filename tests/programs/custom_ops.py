"""Operators that users register."""

import torch

from .comparing import Case, each_call, leaf, plain, program


@torch.library.custom_op("eductor_programs::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("eductor_programs::cubed", mutates_args=())
def cubed(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x**3 * factor


@cubed.register_fake
def _(x, factor):
    return torch.empty_like(x)


def cubed_setup(ctx, inputs, output):
    x, ctx.factor = inputs
    ctx.save_for_backward(x)


def cubed_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * 3 * x * x * ctx.factor, None


cubed.register_autograd(cubed_backward, setup_context=cubed_setup)


@torch.library.custom_op("eductor_programs::add_one_", mutates_args={"x"})
def add_one_(x: torch.Tensor) -> None:
    x.add_(1)


@torch.library.custom_op("eductor_programs::move_", mutates_args={"target", "count"})
def move_(source: torch.Tensor, target: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    target.copy_(source)
    count.add_(1)
    return source.sum(-1)


@move_.register_fake
def _(source, target, count):
    return source.new_empty(source.shape[:-1])


@torch.library.custom_op("eductor_programs::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@positive.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@torch.library.custom_op("eductor_programs::parts", mutates_args=())
def parts(x: torch.Tensor, n: int) -> list[torch.Tensor]:
    return [x * i for i in range(n)]


@parts.register_fake
def _(x, n):
    return [torch.empty_like(x) for _ in range(n)]


@program(lines=(22, 4))
def custom_operator_without_a_gradient():
    return Case(lambda x: twice(x) + x.detach(), (plain(3, 4),))


@program(lines=(22, 3), dynamic_on_inductor=True)
def custom_operator_with_a_gradient():
    return Case(lambda x: cubed(x.sin(), 0.5) * 2, (leaf(3, 4),))


@program(lines=(22,))
def custom_operator_that_writes_an_input():
    def fn(x):
        add_one_(x)
        return x * 2

    return Case(fn, (plain(3, 4),))


@program(lines=(22,))
def custom_operator_that_writes_an_intermediate():
    def fn(x):
        y = x * 2
        add_one_(y)
        return y.sin()

    return Case(fn, (plain(3, 4),))


@program(lines=(22, 7))
def custom_operator_that_writes_a_slice():
    def fn(x):
        add_one_(x[1:])
        y = x.clone()
        add_one_(y[:, 0])
        return x + 1, y

    return Case(fn, (plain(3, 4),))


@program(lines=(22, 7), steps=each_call)
def custom_operator_that_writes_two_inputs_and_returns():
    def fn(source, target, count):
        old = target * 2
        sums = move_(source, target, count)
        return old, sums + count, target + 1

    return Case(fn, calls=((plain(3, 4), plain(3, 4), torch.zeros(())), (plain(3, 4), plain(3, 4), torch.ones(()))))


@program(lines=(22, 20))
def custom_operator_that_writes_under_no_grad():
    def fn(x, cache):
        with torch.no_grad():
            add_one_(cache)
        return x * cache

    return Case(fn, (leaf(3, 4), plain(3, 4)))


@program(
    lines=(22, 14),
    around=lambda: torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
)
def custom_operator_whose_size_depends_on_data():
    return Case(lambda x: positive(x) * 2, (plain(3, 4),))


@program(lines=(22,))
def custom_operator_that_returns_a_list():
    def fn(x):
        a, b, c = parts(x, 3)
        return a + b, c

    return Case(fn, (plain(3, 4),))


@program(lines=(22, 31))
def custom_operator_between_layers():
    def fn(x, w):
        return (cubed(x @ w, 2.0).relu() @ w.t()).sum(0)

    return Case(fn, (leaf(3, 4), leaf(4, 2)))
