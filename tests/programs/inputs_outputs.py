"""Inputs, outputs, gradients: what every model needs."""

import torch
import torch.nn.functional as F
from torch import nn

from .comparing import Case, each_call, gradients, leaf, loss_of, plain, program, seen


@program(lines=(1, 3))
def linear_layers():
    return Case(nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)), (plain(4, 5),))


@program(lines=(1, 3))
def linear_layers_with_a_differentiable_input():
    return Case(nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (leaf(4, 5),))


@program(lines=(1,))
def nested_inputs_and_outputs():
    def fn(tree, scale=2.0):
        return {"sum": tree["a"] + tree["b"][0], "pair": (tree["b"][1] * scale, [tree["a"].sin()])}

    return Case(fn, ({"a": leaf(3, 4), "b": (leaf(3, 4), leaf(2))},))


@program(lines=(1,))
def tensors_from_a_closure():
    weight, bias = leaf(4, 3), plain(3)

    def fn(x):
        return x @ weight + bias

    return Case(fn, (plain(2, 4),), tensors={"weight": weight, "bias": bias})


@program(lines=(1, 18))
def tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens):
            return self.head(self.embed(tokens).tanh())

    return Case(Tied(), (torch.randint(0, 11, (2, 5)),))


@program(lines=(1, 18))
def one_layer_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x).relu())

    return Case(Twice(), (plain(3, 4),))


@program(lines=(1,))
def python_numbers_as_inputs():
    def fn(x, power, scale, flag):
        return (x * power + scale).repeat(power, 1) if flag else x

    return Case(fn, (leaf(3, 4), 3, 0.5, True))


@program(lines=(1, 13))
def a_scalar_tensor_as_input():
    def fn(x, s):
        return x * s + s

    return Case(fn, (leaf(3), torch.tensor(2.5, requires_grad=True)))


@program(lines=(2,))
def inference_although_inputs_require_grad():
    def fn(x, w):
        with torch.no_grad():
            return (x @ w).relu()

    return Case(fn, (leaf(3, 4), leaf(4, 2)))


@program(lines=(2,), around=torch.no_grad)
def a_model_called_under_no_grad():
    return Case(nn.Sequential(nn.Linear(5, 7), nn.ReLU()), (plain(4, 5),))


@program(lines=(2,))
def nothing_requires_grad():
    def fn(x, y):
        return x @ y, x.sum(0)

    return Case(fn, (plain(3, 4), plain(4, 2)))


@program(lines=(2, 15))
def only_an_alias_requires_grad():
    """The one output that requires grad is a view of an input, so there is nothing to differentiate."""

    def fn(x):
        return x[1:], x.detach() * 2

    return Case(fn, (leaf(3, 4),))


@program(lines=(2, 4))
def frozen_parameters():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].requires_grad_(False)
    return Case(model, (plain(3, 4),))


@program(lines=(2,))
def all_parameters_are_frozen():
    return Case(nn.Linear(4, 5).requires_grad_(False), (plain(3, 4),))


@program(lines=(3,))
def saved_outputs_and_saved_inputs():
    def fn(x, y):
        a = x.exp()
        b = a * y
        return b.sigmoid(), (a / (1 + y * y)).sum(-1)

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


def writes_what_was_saved(call, case):
    """The caller writes the input between forward and backward; autograd must notice."""
    (x,) = case.inputs
    out = call(x)
    with torch.no_grad():
        x.add_(1)
    out.sum().backward()
    return {}


@program(lines=(3,), steps=writes_what_was_saved, raises=True)
def saved_input_written_before_backward():
    return Case(lambda x: x * x.sin(), (leaf(3, 4),))


def writes_the_saved_output(call, case):
    out = call(*case.inputs)
    out.mul_(2)
    out.sum().backward()
    return {}


@program(lines=(3,), steps=writes_the_saved_output, raises=True)
def saved_output_written_before_backward():
    return Case(lambda x: x.exp(), (leaf(3, 4),))


def writes_an_output(call, case):
    out = call(*case.inputs)
    out.mul_(3)
    out.sum().backward()
    return {"out": out}


@program(lines=(3, 16), steps=writes_an_output)
def output_written_by_the_caller():
    return Case(lambda x: x * 2 + 1, (leaf(3, 4),))


@program(lines=(3, 16), steps=writes_an_output)
def viewed_output_written_by_the_caller():
    return Case(lambda x: (x + 1).t(), (leaf(3, 4),))


@program(lines=(4,))
def integer_and_bool_outputs():
    def fn(x):
        return x * 2, x > 0, x.argmax(-1), (x * 3).long()

    return Case(fn, (leaf(3, 4),))


@program(lines=(4,))
def sorted_values_and_indices():
    def fn(x):
        values, order = torch.sort(x, dim=-1, descending=True)
        top, where = torch.topk(x, 2, dim=0)
        return values, order, top, where

    return Case(fn, (leaf(5, 4),))


@program(lines=(4,))
def maximum_with_indices():
    def fn(x):
        best = x.max(dim=1)
        return best.values, best.indices, x.median(dim=0).values, x.mode(dim=0).indices

    return Case(fn, (leaf(4, 5),))


@program(lines=(4,))
def integer_and_bool_inputs():
    def fn(i, b, x):
        return torch.where(b, x, x * i), i + 1, b.logical_not(), i & 3

    return Case(fn, (torch.randint(0, 9, (3, 4)), torch.rand(3, 4) > 0.5, leaf(3, 4)))


@program(lines=(4,))
def detached_output():
    def fn(x):
        y = x.sin() * 2
        return y, (y * 3).detach(), y.sum().detach()

    return Case(fn, (leaf(3, 4),))


@program(lines=(4, 1))
def outputs_that_are_no_tensors():
    def fn(x):
        return x * 2, None, 3, "text", x.shape[0], (x.dim(), 1.5)

    return Case(fn, (leaf(3, 4),))


@program(lines=(5,))
def returns_its_input():
    def fn(x, y):
        return x, x + y

    return Case(fn, (leaf(3, 4), plain(3, 4)))


@program(lines=(5,))
def returns_its_inputs_and_a_constant():
    def fn(x, y):
        return y, x, torch.arange(3)

    return Case(fn, (leaf(3, 4), plain(3, 4)))


@program(lines=(5,))
def duplicates_in_the_outputs():
    def fn(x, y):
        z = x * y
        return z, z, x, x, (z, y)

    return Case(fn, (leaf(3, 4), plain(3, 4)))


@program(lines=(5,))
def returns_a_parameter():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return x @ self.weight, self.weight

    return Case(Model(), (plain(3, 4),))


@program(lines=(5, 7))
def returns_its_own_buffer():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(3))

        def forward(self, x):
            self.count.add_(1)
            return x * self.count, self.count

    return Case(Counter(), (leaf(2, 3),))


@program(lines=(5, 25))
def returns_a_written_input():
    def fn(x):
        x.mul_(2)
        return x

    return Case(fn, (plain(3, 4),))


@program(lines=(6,))
def unused_inputs_get_no_gradient():
    def fn(x, y, z):
        return x * 2 + z.shape[0] + y.detach()

    return Case(fn, (leaf(3, 4), leaf(3, 4), leaf(3, 4)))


@program(lines=(6,))
def unused_parameters_get_no_gradient():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.used(x) + self.unused(x).detach()

    return Case(Model(), (plain(3, 4),))


def the_tape_of_a_dead_input_stays(call, case):
    """The second input gets no gradient, so its own tape must not be walked, nor freed."""
    base = case.tensors["base"]
    dead = base * base
    call(case.inputs[0], dead).sum().backward()
    first = seen(base.grad)
    dead.sum().backward()
    return {"first": first, "second": base.grad}


@program(lines=(6,), steps=the_tape_of_a_dead_input_stays)
def a_dead_input_keeps_its_tape():
    return Case(lambda x, y: x * 2 + y.detach(), (leaf(3, 4),), tensors={"base": leaf(3, 4)})


@program(lines=(6,), steps=the_tape_of_a_dead_input_stays)
def an_input_used_only_for_its_shape_keeps_its_tape():
    return Case(lambda x, y: x * torch.ones_like(y), (leaf(3, 4),), tensors={"base": leaf(3, 4)})


@program(lines=(6, 4))
def a_gradient_stopped_by_rounding():
    """The gradient of round is zero and not None."""

    def fn(x, y):
        return x.round() * 2 + (y > 0).float()

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(8,))
def transposed_outputs():
    def fn(x):
        return (x * 2).t(), x.unsqueeze(0).expand(3, 3, 4) * 1, (x + 1).permute(1, 0)

    return Case(fn, (leaf(3, 4),))


def strided_tangents(call, case):
    """Tangents that are transposed, expanded, sliced."""
    x = case.inputs[0]
    facts = {}
    tangents = {
        "transposed": torch.randn(x.shape[1], x.shape[0]).t(),
        "expanded": torch.tensor(2.0).expand(x.shape),
        "a row": torch.randn(1, x.shape[1]).expand(x.shape),
        "sliced": torch.randn(x.shape[0], 2 * x.shape[1])[:, ::2],
        "zeros": torch.zeros(x.shape),
    }
    for name, tangent in tangents.items():
        out = call(*case.inputs)
        out.backward(tangent)
        facts |= {f"{name}, {key}": fact for key, fact in gradients({"x": x}).items()}
        x.grad = None
    return facts


@program(lines=(8,), steps=strided_tangents, dynamic_on_inductor=True)
def tangents_of_other_strides():
    return Case(lambda x: (x.sin() * 2).cos(), (leaf(3, 4),))


@program(lines=(8,), steps=strided_tangents)
def tangents_of_other_strides_for_a_matmul():
    weight = leaf(4, 4)
    return Case(lambda x: (x @ weight).relu(), (leaf(3, 4),), tensors={"weight": weight})


@program(lines=(8,))
def an_expanded_output():
    def fn(x):
        return x.sum(0, keepdim=True).expand(5, 4), (x * 2).sum().expand(2, 3)

    return Case(fn, (leaf(3, 4),))


def backward_of_a_transposed_sum(call, case):
    out = call(*case.inputs)
    out.t().sum().backward()
    return {"out": out}


@program(lines=(8,), steps=backward_of_a_transposed_sum)
def transposed_sum_outside():
    return Case(lambda x: x * x, (leaf(3, 4),))


# The loss gives a contiguous gradient, which is taken in the layout of the output: the bias is summed in another order.
@program(lines=(8, 12), dynamic_on_inductor=True, exact_on_aten=False)
def channels_last_convolutions():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))
    model = model.to(memory_format=torch.channels_last)
    return Case(model, (plain(2, 3, 5, 5).to(memory_format=torch.channels_last),))


@program(lines=(8, 12))
def channels_last_input_contiguous_weights():
    x = plain(2, 3, 5, 5).to(memory_format=torch.channels_last).requires_grad_()
    return Case(nn.Conv2d(3, 4, 3), (x,))


@program(lines=(12,), dynamic_on_inductor=True)
def conv_batch_norm_relu():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(F.relu(self.norm(self.conv(x)), inplace=True).mean((2, 3)))

    return Case(Block(), (plain(3, 3, 6, 6),))


@program(lines=(12,))
def transposed_convolution():
    return Case(nn.Sequential(nn.Conv1d(3, 4, 3), nn.SiLU(), nn.ConvTranspose1d(4, 2, 3)), (leaf(2, 3, 8),))


@program(lines=(12, 8), steps=each_call)
def convolution_of_two_memory_formats():
    first, second = plain(2, 3, 6, 6), plain(2, 3, 6, 6).to(memory_format=torch.channels_last)
    return Case(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2)), calls=((first,), (second,)))


def activations_die(call, case):
    """Boxed calls: an argument that only the call knows must not outlive the backward."""
    import gc
    import weakref

    (x,) = case.inputs
    base = x * 2
    alive = weakref.ref(base)
    out = call(base)
    del base
    out.sum().backward()
    del out
    gc.collect()
    return {"dead": alive() is None}


@program(lines=(9,), steps=activations_die)
def arguments_die_after_backward():
    return Case(lambda x: (x * x).sin(), (leaf(3, 4),))


def outputs_die(call, case):
    """Without a backward, what the call saved dies with its outputs."""
    import gc
    import weakref

    base = case.inputs[0] * 2
    alive = weakref.ref(base)
    out = call(base)
    kept = seen(out)
    del base, out
    gc.collect()
    return {"out": kept, "dead": alive() is None}


@program(lines=(9,), steps=outputs_die)
def arguments_die_with_the_outputs():
    return Case(lambda x: (x * x).sin(), (leaf(3, 4),))


def a_list_of_arguments_stays(call, case):
    inputs = list(case.inputs[0])
    out = call(inputs)
    loss_of(out).backward()
    return {"length": len(inputs), "same": all(a is b for a, b in zip(inputs, case.inputs[0], strict=True)), "out": out}


@program(lines=(9,), steps=a_list_of_arguments_stays)
def a_list_that_the_caller_keeps():
    return Case(lambda xs: xs[0] * xs[1] + xs[2], ([leaf(3), leaf(3), leaf(3)],))


@program(lines=(24,))
def all_three_outputs_used():
    def fn(x, y, z):
        return x * 2, y.sin(), x * z

    return Case(fn, (leaf(3, 4), leaf(3, 4), leaf(3, 4)))


def backward_of_one_output(which):
    def steps(call, case):
        outputs = call(*case.inputs)
        loss_of(outputs[which]).backward()
        return {"outputs": outputs}

    return steps


@program(lines=(24, 6), steps=backward_of_one_output(0))
def only_the_first_of_three_outputs_used():
    return Case(lambda x, y, z: (x * 2, y.sin(), x * z), (leaf(3, 4), leaf(3, 4), leaf(3, 4)))


@program(lines=(24, 6), steps=backward_of_one_output(1))
def only_the_second_of_three_outputs_used():
    return Case(lambda x, y, z: (x * 2, y.sin(), x * z), (leaf(3, 4), leaf(3, 4), leaf(3, 4)))


@program(lines=(24,), steps=backward_of_one_output(2))
def only_the_third_of_three_outputs_used():
    return Case(lambda x, y, z: (x * 2, y.sin(), x * z), (leaf(3, 4), leaf(3, 4), leaf(3, 4)))


def backward_of_each_output_in_turn(call, case):
    """A different set of undefined tangents each time."""
    facts = {}
    named = {f"input {i}": x for i, x in enumerate(case.inputs)}
    for chosen in ([0], [1], [2], [0, 2], [0, 1, 2]):
        outputs = call(*case.inputs)
        loss_of([outputs[i] for i in chosen]).backward()
        facts |= {f"{chosen}, {name}": fact for name, fact in gradients(named).items()}
        for x in case.inputs:
            x.grad = None
    return facts


@program(lines=(24, 6), steps=backward_of_each_output_in_turn, dynamic_on_inductor=True)
def each_output_in_turn():
    return Case(lambda x, y, z: (x * 2, y.sin(), x * z), (leaf(3, 4), leaf(3, 4), leaf(3, 4)))


@program(lines=(24,), steps=backward_of_one_output(1))
def one_head_of_two_used():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.left, self.right = nn.Linear(4, 5), nn.Linear(5, 2), nn.Linear(5, 3)

        def forward(self, x):
            x = self.body(x).relu()
            return self.left(x), self.right(x)

    return Case(Heads(), (plain(3, 4),))
