"""Programs that write: buffers, inputs, leaves, slices, metadata."""

import torch
import torch.nn.functional as F
from torch import nn

from .comparing import Case, backward, each_call, leaf, plain, program, relations, seen, versions, watched


class Buffered(nn.Module):
    """A module with one buffer and a function of the module and the input."""

    def __init__(self, body, *shape):
        super().__init__()
        self.register_buffer("buf", torch.randn(shape))
        self.body = body

    def forward(self, *inputs):
        return self.body(self, *inputs)


def copied_and_then_written(x, y):
    y.copy_(x)
    x.mul_(2)
    return y.sum()


def exchanged(x, y):
    held = x.clone()
    x.copy_(y)
    y.copy_(held)
    return x + 1


@program(lines=(3, 8))
def input_that_another_one_is_copied_to_and_then_written():
    return Case(copied_and_then_written, (plain(3, 4), plain(3, 4)))


@program(lines=(3, 8))
def inputs_that_are_exchanged():
    return Case(exchanged, (plain(3, 4), plain(3, 4)))


@program(lines=(7,))
def batch_norm_1d():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), (plain(6, 4),))


@program(lines=(7, 12), dynamic_on_inductor=True)
def batch_norm_2d():
    return Case(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), (leaf(3, 3, 5, 5),))


class Averaging(nn.Module):
    """Batch norm whose statistics are the average of all steps: it reads the number of steps from a buffer."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)

    def forward(self, x):
        return self.norm(self.layer(x)).relu()


@program(lines=(7, 14), around=lambda: torch._dynamo.config.patch(capture_scalar_outputs=True), steps=each_call)
def batch_norm_with_the_average_of_all_steps():
    return Case(Averaging(), calls=((leaf(6, 4),), (leaf(6, 4),)))


@program(lines=(7, 11), steps=each_call)
def batch_norm_with_the_average_of_all_steps_and_a_graph_break():
    return Case(Averaging(), calls=((plain(6, 4),), (plain(6, 4),), (plain(6, 4),)))


@program(lines=(7,))
def batch_norm_without_running_stats():
    return Case(nn.BatchNorm2d(3, track_running_stats=False), (leaf(2, 3, 4, 4),))


@program(lines=(7, 2))
def batch_norm_in_evaluation():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    return Case(model.eval(), (leaf(2, 3, 5, 5),))


@program(lines=(7, 20), around=torch.no_grad)
def batch_norm_in_training_under_no_grad():
    return Case(nn.BatchNorm2d(3), (plain(2, 3, 4, 4),))


@program(lines=(7,))
def one_batch_norm_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(self.norm(x).relu())

    return Case(Twice(), (leaf(6, 4),))


@program(lines=(7,), steps=each_call)
def batch_norm_in_training_then_in_evaluation():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x, training):
            self.norm.train(training)
            return self.norm(x)

    return Case(Both(), calls=((leaf(6, 4), True), (leaf(6, 4), False), (leaf(6, 4), True)))


@program(lines=(7,))
def instance_norm_with_running_stats():
    return Case(nn.InstanceNorm2d(3, track_running_stats=True, affine=True), (leaf(2, 3, 4, 4),))


@program(lines=(7,), dynamic_on_inductor=True)
def average_of_a_buffer_after_it_was_read():
    """The value that backward needs is the one before the write."""

    def body(self, x):
        y = x * (self.buf + 1)
        with torch.no_grad():
            self.buf.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y

    return Case(Buffered(body, 4), (leaf(3, 4),))


@program(lines=(7,))
def buffer_itself_saved_then_not_written():
    def body(self, x):
        return x * self.buf, self.buf + 1

    return Case(Buffered(body, 4), (leaf(3, 4),))


@program(lines=(7,))
def buffer_copied_over():
    def body(self, x):
        y = x * (self.buf * 2)
        self.buf.copy_(y.detach()[0])
        return y + self.buf

    return Case(Buffered(body, 4), (leaf(3, 4),))


@program(lines=(7,))
def buffer_replaced_by_a_new_tensor():
    def body(self, x):
        self.buf = self.buf * 0.5 + x.detach().mean(0)
        return x * self.buf

    return Case(Buffered(body, 4), (leaf(3, 4),))


@program(lines=(7, 3), raises=True, fallback="modified by an inplace operation")
def saved_buffer_written_in_the_graph():
    """Eager refuses the backward: the write destroyed what it needs."""

    def body(self, x):
        y = x * self.buf
        self.buf.mul_(0.9)
        return y

    return Case(Buffered(body, 4), (leaf(3, 4),))


@program(lines=(7,), steps=each_call, dynamic_on_inductor=True)
def key_value_cache():
    class Cache(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(4, 4)
            self.register_buffer("keys", torch.zeros(2, 8, 4))

        def forward(self, x, start):
            end = start + x.shape[1]
            with torch.no_grad():
                self.keys[:, start:end] = self.proj(x)
            return (x @ self.keys[:, :end].clone().transpose(1, 2)).softmax(-1)

    return Case(Cache(), calls=((plain(2, 3, 4), 0), (plain(2, 1, 4), 3), (plain(2, 1, 4), 4)))


@program(lines=(7,), steps=each_call)
def key_value_cache_written_by_index():
    def body(self, x, where):
        self.buf.index_copy_(1, where, x)
        return self.buf.sum(-1), x.sum()

    calls = tuple((plain(2, 1, 4), torch.tensor([i])) for i in range(3))
    return Case(Buffered(body, 2, 6, 4), calls=calls)


@program(lines=(7, 4), steps=each_call)
def integer_counter():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            self.count += 1
            return x / self.count

    return Case(Counter(), calls=((leaf(3),), (leaf(3),)))


@program(lines=(7,))
def put_by_index_in_an_input():
    def fn(x, where, values):
        x.index_put_((where,), values, accumulate=True)
        return x * 2

    return Case(fn, (plain(5, 3), torch.tensor([0, 3, 3]), leaf(3, 3).detach()))


@program(lines=(7,))
def masked_fill_of_an_input():
    def fn(x, mask):
        x.masked_fill_(mask, -1.0)
        return x.sum()

    return Case(fn, (plain(3, 4), torch.rand(3, 4) > 0.5))


@program(lines=(7,))
def scatter_into_an_input():
    def fn(x, where, values):
        x.scatter_(1, where, values)
        x.scatter_add_(1, where, values)
        return x + 1

    return Case(fn, (plain(3, 4), torch.randint(0, 4, (3, 2)), plain(3, 2)))


@program(lines=(7,))
def input_written_through_a_slice():
    def fn(x, y):
        x[1:, ::2] = y.sin()
        x[0] += 1
        return x.cos()

    return Case(fn, (plain(3, 4), plain(2, 2)))


@program(lines=(7,))
def input_written_through_a_view():
    def fn(x):
        x.view(-1)[3:7].mul_(2)
        x.t().diagonal().zero_()
        return x.sum(0)

    return Case(fn, (plain(3, 4),))


@program(lines=(7, 15))
def written_input_and_its_view_returned():
    def fn(x):
        view = x[1:]
        x.add_(1)
        return view, x, view.sum()

    return Case(fn, (plain(3, 4),))


@program(lines=(7,))
def input_of_other_strides_written():
    def fn(x):
        x.add_(1)
        return x * 2

    return Case(fn, (plain(4, 3).t(),))


@program(lines=(7,))
def sliced_input_written():
    base = plain(6, 8)
    return Case(lambda x: x.mul_(2) * 3, (base[1:4, ::2],), tensors={"base": base})


@program(lines=(7, 4))
def integer_input_written():
    def fn(i, x):
        i.add_(1)
        i[0] = 7
        return x * i

    return Case(fn, (torch.arange(4), leaf(4)))


@program(lines=(7,))
def input_written_and_written_back():
    def fn(x):
        old = x.clone()
        x.zero_()
        y = x + 1
        x.copy_(old)
        return y

    return Case(fn, (plain(3, 4),))


@program(lines=(7,), steps=each_call)
def input_filled_with_itself():
    """A write that changes nothing is still a write."""

    def fn(x):
        x.copy_(x * 1)
        return x + 1

    return Case(fn, calls=((plain(3),), (plain(3),)))


@program(lines=(7,))
def inputs_that_results_are_written_to():
    def fn(x, outs):
        torch.unbind_copy(x, out=outs)
        return outs[0] + 1

    return Case(fn, (plain(3, 4), [plain(4), plain(4), plain(4)]))


@program(lines=(7,), fallback="writes other arguments besides those for its results", also_dynamic=False)
def statistics_written_beside_the_results():
    def fn(x, mean, var, outs):
        aten = torch.ops.aten._native_batch_norm_legit
        aten.out(x, None, None, mean, var, True, 0.1, 1e-5, out=outs[0], save_mean=outs[1], save_invstd=outs[2])
        return outs[0] + 1

    return Case(fn, (plain(4, 3), plain(3), torch.ones(3), [plain(4, 3), plain(3), plain(3)]))


@program(lines=(7,), fallback="out= of linalg_matrix_rank", engines=("aten",))
def out_argument_that_the_trace_forgets():
    def fn(x, out):
        return torch.linalg.matrix_rank(x, out=out) + 1

    return Case(fn, (plain(3, 3), torch.zeros((), dtype=torch.long)))


@program(lines=(7,))
def checked_decomposition_beside_a_write():
    def fn(x, y):
        y.add_(1)
        return torch.linalg.inv(x), y.sum()

    return Case(fn, (torch.eye(3).requires_grad_(), plain(3)))


@program(lines=(7,), raises=True)
def failed_decomposition_beside_a_write():
    def fn(x, y):
        y.add_(1)
        return torch.linalg.inv(x), y.sum()

    return Case(fn, (torch.zeros(3, 3), plain(3)))


@program(lines=(7,))
def many_inputs_written_by_foreach():
    def fn(xs, ys):
        torch._foreach_mul_(xs, 0.9)
        torch._foreach_add_(xs, ys, alpha=0.1)
        return xs[0].sum()

    return Case(fn, ([plain(3), plain(2, 2)], [plain(3), plain(2, 2)]))


@program(lines=(7,))
def out_argument():
    def fn(x, y, out):
        torch.add(x, y, out=out)
        return out * 2

    return Case(fn, (plain(3, 4), plain(3, 4), torch.empty(3, 4)))


@program(lines=(7, 3))
def in_place_operations_on_intermediates():
    def fn(x, y):
        a = x * 2
        a.add_(y).clamp_(min=-1)
        a[0] = y[1] * 3
        a[:, 1:].mul_(y[:, 1:])
        return a.relu_() + 1

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(7, 3))
def in_place_operations_on_views_of_intermediates():
    def fn(x):
        a = x.clone()
        left, right = a[:, :2], a[:, 2:]
        left = left.clone()
        right.mul_(2)
        a.view(-1)[2:5].fill_(1.0)
        return a, left

    return Case(fn, (leaf(3, 4),))


@program(lines=(7, 12))
def relu_in_place_after_conv_and_batch_norm():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            y = F.relu(self.norm(self.conv(x)), inplace=True)
            y = self.conv(y) + x
            y *= 2
            return F.relu(y, inplace=True)

    return Case(Residual(), (leaf(2, 3, 4, 4),))


def nonleaf(case_fn, *more, shape=(3, 4)):
    base = leaf(*shape)
    return Case(case_fn, (base * 2, *more), tensors={"base": base})


@program(lines=(25,), dynamic_on_inductor=True)
def differentiable_input_written():
    def fn(x, y):
        x.mul_(y)
        return x.sin()

    return nonleaf(fn, leaf(3, 4))


def the_written_input_is_used_after(call, case):
    named = watched(case)
    before = versions(named)
    out = call(*case.inputs)
    facts = {name: v != before[name] for name, v in versions(named).items()}
    x = case.inputs[0]
    facts |= {"x": seen(x), "grad_fn": x.grad_fn is not None}
    backward((x * 3, out))
    return facts


@program(lines=(25,), steps=the_written_input_is_used_after)
def differentiable_input_written_and_used_after():
    def fn(x, y):
        x.mul_(y)
        return x.sin()

    return nonleaf(fn, leaf(3, 4))


@program(lines=(25,), steps=the_written_input_is_used_after)
def differentiable_input_written_through_a_slice():
    def fn(x, y):
        x[0] = y[1] * 2
        x[:, 1:].add_(1)
        return x.sum(0)

    return nonleaf(fn, leaf(3, 4))


@program(lines=(25,), steps=the_written_input_is_used_after)
def differentiable_input_written_and_nothing_else():
    def fn(x, y):
        x.add_(y)
        return y.detach() + 1

    return nonleaf(fn, leaf(3, 4))


@program(lines=(25,), steps=the_written_input_is_used_after)
def plain_input_that_becomes_differentiable():
    """A write with a differentiable value makes the input require grad."""

    def fn(x, y):
        x.add_(y)
        return x * 2

    return Case(fn, (plain(3, 4), leaf(3, 4)))


@program(lines=(25, 15), steps=the_written_input_is_used_after)
def differentiable_input_written_and_viewed():
    def fn(x):
        x.mul_(2)
        return x[1:], x.t()

    return nonleaf(fn)


@program(lines=(25, 20), steps=the_written_input_is_used_after)
def differentiable_input_written_under_no_grad():
    def fn(x):
        y = x + 1
        with torch.no_grad():
            x.mul_(2)
        return y

    return nonleaf(fn)


@program(lines=(25,), steps=the_written_input_is_used_after)
def differentiable_view_written():
    """The input is a view of a non-leaf: the write goes to the base as well."""
    base = leaf(3, 4)
    middle = base * 2
    return Case(lambda x: x.mul_(3).sum(), (middle[1:],), tensors={"base": base, "middle": middle})


@program(lines=(26,))
def leaf_written_under_no_grad():
    def fn(x):
        with torch.no_grad():
            x += 1
        return x * 2

    return Case(fn, (leaf(3, 4),))


@program(lines=(26, 6))
def leaf_written_under_no_grad_and_not_used():
    def fn(x, y):
        with torch.no_grad():
            x.add_(1)
        return y * 2

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(26, 6))
def leaf_written_through_detach():
    def fn(x, y):
        x.detach().mul_(2)
        return y * 2

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(26, 6))
def leaf_written_through_detach_and_used():
    def fn(x):
        x.detach().mul_(2)
        return x * 3

    return Case(fn, (leaf(3, 4),))


@program(lines=(26,))
def leaf_written_through_data():
    def fn(x, y):
        x.data.add_(1)
        return x * y

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(26,), raises=True)
def leaf_written_with_grad_on():
    def fn(x):
        x.add_(1)
        return x * 2

    return Case(fn, (leaf(3, 4),))


@program(lines=(26,), around=torch.no_grad)
def parameters_written_by_hand():
    """An optimizer's step: parameters and their state, no gradient anywhere."""

    def fn(params, grads, moments):
        for p, g, m in zip(params, grads, moments, strict=True):
            m.mul_(0.9).add_(g)
            p.sub_(m, alpha=0.1)

    return Case(fn, ([leaf(3), leaf(2, 2)], [plain(3), plain(2, 2)], [torch.zeros(3), torch.zeros(2, 2)]))


def optimizer_steps(call, case):
    optimizer = torch.optim.SGD(case.fn.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(*case.inputs).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(seen(loss))
    return {"losses": losses}


@program(lines=(3, 7, 26), steps=optimizer_steps)
def three_steps_of_an_optimizer():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)), (plain(6, 4),))


def compiled_step_of_an_optimizer(call, case):
    model, x = case.inputs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step():
        optimizer.step()

    for _ in range(2):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        call(step)
    return {"parameters": [seen(p) for p in model.parameters()]}


@program(lines=(26, 2), steps=compiled_step_of_an_optimizer)
def optimizer_step_is_compiled():
    return Case(lambda step: step(), (nn.Linear(3, 2), plain(4, 3)))


def shape_changes(call, case):
    named = watched(case)
    before = versions(named)
    out = call(*case.inputs)
    facts = {name: v != before[name] for name, v in versions(named).items()}
    return facts | relations({"out": out} | named) | {"out": out}


@program(lines=(28,), steps=shape_changes)
def input_transposed_in_place():
    def fn(x):
        x.t_()
        return x * 2

    return Case(fn, (plain(3, 4),))


@program(lines=(28,), steps=shape_changes)
def input_unsqueezed_in_place():
    def fn(x):
        x.unsqueeze_(0)
        return x.sum(1)

    return Case(fn, (plain(3, 4),))


@program(lines=(28, 7), steps=shape_changes)
def input_squeezed_and_written():
    def fn(x):
        x.squeeze_(1)
        x.add_(1)
        return x * 2

    return Case(fn, (plain(3, 1, 4),))


@program(lines=(28,), steps=shape_changes)
def input_transposed_in_place_and_back():
    def fn(x):
        x.transpose_(0, 1)
        y = x * 2
        x.transpose_(0, 1)
        return y

    return Case(fn, (plain(3, 4),))


@program(lines=(28,), steps=shape_changes)
def input_resized():
    def fn(x):
        x.resize_(6)
        x.zero_()
        return x + 1

    return Case(fn, (plain(3, 4),))


@program(lines=(28,), steps=shape_changes)
def input_set_to_another():
    def fn(x, y):
        x.set_(y)
        return x * 2

    return Case(fn, (plain(3, 4), plain(2, 5)))


@program(lines=(28,), steps=shape_changes)
def strided_in_place():
    def fn(x):
        x.as_strided_((2, 2), (4, 1), 1)
        return x + 1

    return Case(fn, (plain(3, 4),))


@program(lines=(28,))
def intermediate_transposed_in_place():
    def fn(x):
        y = x * 2
        y.t_()
        y.unsqueeze_(0)
        return y.sin()

    return Case(fn, (leaf(3, 4),))


@program(lines=(28,))
def input_written_with_what_it_holds():
    def fn(x):
        x.copy_(x)
        return x + 1

    return Case(fn, (plain(3, 4),))


def leaf_that_is_a_view(*shape):
    return torch.randn(*shape, 2)[..., 0].requires_grad_()


@program(lines=(26, 20))
def row_of_a_leaf_that_is_a_view_written_without_gradients():
    """Autograd takes the row for a view of the base, to which no gradient goes; of another leaf it could not be read."""

    def fn(x):
        with torch.no_grad():
            row = x[0]
            row.relu_()
        return row, row * 3, x * 2

    return Case(fn, (leaf_that_is_a_view(3, 4),))
