"""Backward in all its forms: twice, of itself, hooked, packed, by custom functions."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from .comparing import (
    Case,
    all_calls_then_all_backwards,
    backward,
    each_call,
    gradients,
    leaf,
    loss_of,
    plain,
    program,
    seen,
    watched,
)


@program(lines=(30, 10), steps=each_call)
def gradients_accumulate_over_two_calls():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), calls=((plain(3, 4),), (plain(3, 4),)))


@program(lines=(30,), steps=all_calls_then_all_backwards)
def two_calls_then_two_backwards():
    x, y = leaf(3, 4), leaf(3, 4)
    return Case(lambda a, b: (a * b).sin() @ b.t(), calls=((x, y), (y, x)))


def backward_twice(call, case):
    outputs = call(*case.inputs)
    loss = loss_of(outputs)
    loss.backward(retain_graph=True)
    first = {f"first, {name}": fact for name, fact in gradients(watched(case)).items()}
    loss.backward()
    return first | {"outputs": outputs}


@program(lines=(30, 31), steps=backward_twice, dynamic_on_inductor=True)
def retained_graph():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2)), (leaf(3, 4),))


@program(lines=(30, 31), steps=backward_twice)
def retained_graph_of_a_softmax():
    return Case(lambda x, y: (x @ y.t()).softmax(-1) @ y, (leaf(3, 4), leaf(3, 4)))


def backward_thrice_with_other_outputs(call, case):
    a, b = call(*case.inputs)
    facts = {}
    for i, chosen in enumerate(((a,), (b,), (a, b))):
        loss_of(chosen).backward(retain_graph=i < 2)
        facts |= {f"{i}, {name}": fact for name, fact in gradients(watched(case)).items()}
    return facts


@program(lines=(30, 24), steps=backward_thrice_with_other_outputs)
def retained_graph_with_other_outputs_each_time():
    return Case(lambda x, y: ((x * y).exp(), (x + y).sin()), (leaf(3, 4), leaf(3, 4)))


def backward_twice_without_retaining(call, case):
    loss = loss_of(call(*case.inputs))
    loss.backward()
    loss.backward()
    return {}


@program(lines=(30,), steps=backward_twice_without_retaining, raises=True)
def second_backward_without_retaining():
    return Case(lambda x: x.exp().sin(), (leaf(3, 4),))


def donated_and_then_again(call, case):
    """Many calls in a row: memory that a backward gave away must not be read again."""
    facts = {}
    for i in range(4):
        out = call(*case.inputs)
        kept = out.detach().clone()
        backward(out)
        facts[f"{i}"] = [seen(kept), seen(out)]
    return facts


@program(lines=(31,), steps=donated_and_then_again)
def outputs_stay_after_backward():
    return Case(nn.Sequential(nn.Linear(4, 6), nn.Sigmoid(), nn.Linear(6, 6), nn.Sigmoid()), (plain(3, 4),))


@program(lines=(31, 5), steps=donated_and_then_again)
def saved_input_stays_after_backward():
    return Case(lambda x, y: (x * y).exp() * x, (leaf(3, 4), leaf(3, 4)))


@program(lines=(31, 16))
def saved_values_that_alias_outputs():
    def fn(x):
        y = x.exp()
        z = y.t()
        return z, z @ y

    return Case(fn, (leaf(3, 4),))


def gradient_penalty(call, case):
    x = case.inputs[0]
    out = call(*case.inputs)
    (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    penalty = (grad.norm(2, dim=-1) - 1).square().mean()
    (penalty + out.mean()).backward()
    return {"out": out, "grad": grad, "penalty": penalty}


@program(lines=(32,), steps=gradient_penalty, dynamic_on_inductor=True, exact_on_aten=False)
def gradient_penalty_of_a_model():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1)), (leaf(3, 4),))


@program(lines=(32, 7), steps=gradient_penalty, exact_on_aten=False)
def gradient_penalty_with_batch_norm():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)), (leaf(6, 4),))


@program(lines=(32, 10), steps=gradient_penalty, exact_on_aten=False)
def gradient_penalty_with_dropout():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Dropout(0.4), nn.Linear(5, 1)), (leaf(3, 4),))


@program(lines=(32, 12), steps=gradient_penalty, exact_on_aten=False)
def gradient_penalty_with_convolution():
    return Case(nn.Sequential(nn.Conv1d(2, 3, 3), nn.Softplus(), nn.Flatten(), nn.Linear(12, 1)), (leaf(2, 2, 6),))


def hessian_vector_product(call, case):
    (x,) = case.inputs
    v = torch.linspace(-1, 1, x.numel()).view(x.shape)
    (grad,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    (product,) = torch.autograd.grad((grad * v).sum(), x)
    return {"grad": grad, "product": product}


@program(lines=(32,), steps=hessian_vector_product)
def hessian_vector_product_of_a_function():
    return Case(lambda x: (x.sin() * x.exp()).sum(-1), (leaf(3, 4),))


@program(lines=(32,), steps=hessian_vector_product)
def hessian_vector_product_of_attention():
    return Case(lambda x: (x @ x.t()).softmax(-1) @ x, (leaf(3, 4),))


def third_order(call, case):
    (x,) = case.inputs
    y = call(x).sum()
    facts = {}
    for order in range(3):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
        facts[f"order {order + 1}"] = seen(y)
        y = y.sum()
    y.backward()
    return facts


@program(lines=(32,), steps=third_order)
def derivatives_of_third_order():
    return Case(lambda x: x.sin() * x * x, (leaf(5),))


@program(lines=(32, 24), steps=gradient_penalty, exact_on_aten=False)
def gradient_penalty_and_an_unused_parameter():
    unused = leaf(3)

    def fn(x, y):
        return (x * y).tanh().sum(-1, keepdim=True) + unused.detach().sum()

    return Case(fn, (leaf(3, 4), leaf(3, 4)), tensors={"unused": unused})


def double_backward_after_a_plain_one(call, case):
    """The first backward makes no graph, the second does."""
    (x,) = case.inputs
    call(x).sum().backward()
    first = seen(x.grad)
    (grad,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    grad.square().sum().backward()
    return {"first": first, "grad": grad, "second": x.grad}


@program(lines=(32, 30), steps=double_backward_after_a_plain_one)
def plain_backward_then_double_backward():
    return Case(lambda x: x.exp() * x.cos(), (leaf(3, 4),))


@program(lines=(32,))
def gradient_taken_inside():
    """torch.func.grad inside of what is compiled."""

    def fn(x):
        return torch.func.grad(lambda v: (v.sin() * v).sum())(x) * 2

    return Case(fn, (leaf(3, 4),))


def with_saved_tensors_hooks(call, case):
    def pack(x):
        return x.detach().clone().numpy()

    def unpack(x):
        return torch.from_numpy(x)

    with saved_tensors_hooks(pack, unpack):
        outputs = call(*case.inputs)
    backward(outputs)
    return {"outputs": outputs}


@program(lines=(33,), steps=with_saved_tensors_hooks)
def saved_tensors_packed_outside():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), (leaf(3, 4),))


def with_saves_on_cpu(call, case):
    with torch.autograd.graph.save_on_cpu():
        outputs = call(*case.inputs)
    backward(outputs)
    return {"outputs": outputs}


@program(lines=(33,), steps=with_saves_on_cpu)
def saved_tensors_moved_to_the_cpu():
    return Case(lambda x, y: (x @ y).sigmoid() * 2, (leaf(3, 4), leaf(4, 2)))


def with_hooks_in_backward_only(call, case):
    outputs = call(*case.inputs)
    with saved_tensors_hooks(lambda x: x * 0, lambda x: x):
        backward(outputs)
    return {"outputs": outputs}


@program(lines=(33,), steps=with_hooks_in_backward_only)
def saved_tensors_hooks_around_backward_change_nothing():
    return Case(lambda x: x.exp().sin(), (leaf(3, 4),))


def with_tensor_hooks(call, case):
    x = case.inputs[0]
    order = []

    def on_input(grad):
        order.append(("input", seen(grad)))
        return grad * 2

    def on_output(grad):
        order.append(("output", seen(grad)))
        return grad + 1

    handle = x.register_hook(on_input)
    out = call(*case.inputs)
    out.register_hook(on_output)
    backward(out)
    handle.remove()
    return {"order": order}


@program(lines=(3, 11), steps=with_tensor_hooks)
def hooks_on_input_and_output():
    return Case(lambda x: x.sin() * 3, (leaf(3, 4),))


@program(lines=(3, 11))
def hook_inside():
    def fn(x):
        y = x * 2
        y.register_hook(lambda grad: grad * 3)
        return y.sin()

    return Case(fn, (leaf(3, 4),))


def with_accumulation_hooks(call, case):
    seen_by_hook = []
    handles = [
        p.register_post_accumulate_grad_hook(lambda p: seen_by_hook.append(seen(p.grad))) for p in case.fn.parameters()
    ]
    backward(call(*case.inputs))
    for handle in handles:
        handle.remove()
    return {"count": len(seen_by_hook)}


@program(lines=(3, 11), steps=with_accumulation_hooks)
def hooks_after_accumulation():
    return Case(nn.Linear(4, 3), (plain(2, 4),))


@program(lines=(11,))
def module_forward_hooks():
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return Case(model, (plain(3, 4),))


@program(lines=(11,))
def module_backward_hooks():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 2)
            self.first.register_full_backward_hook(lambda module, gi, go: (gi[0] * 3,))

        def forward(self, x):
            return self.second(self.first(x * 2).relu())

    return Case(Model(), (leaf(3, 4),))


def retains_gradient_of_an_output(call, case):
    out = call(*case.inputs)
    out.retain_grad()
    out.square().sum().backward()
    return {"out": out, "grad": out.grad}


@program(lines=(3,), steps=retains_gradient_of_an_output)
def gradient_of_an_output_retained():
    return Case(lambda x: x.sin(), (leaf(3, 4),))


def gradients_by_grad(call, case):
    x, y = case.inputs
    out = call(x, y)
    return {"grads": torch.autograd.grad(out, (x, y), torch.ones_like(out), allow_unused=True)}


@program(lines=(3, 6), steps=gradients_by_grad)
def gradients_asked_for_one_by_one():
    return Case(lambda x, y: x.sin() * 2 + y.detach(), (leaf(3, 4), leaf(3, 4)))


def backward_in_another_thread(call, case):
    import threading

    out = call(*case.inputs)
    thread = threading.Thread(target=backward, args=(out,))
    thread.start()
    thread.join()
    return {"out": out}


@program(lines=(3, 11), steps=backward_in_another_thread)
def backward_runs_in_another_thread():
    return Case(nn.Linear(4, 3), (leaf(2, 4),))


class Scale(torch.autograd.Function):
    """Saves a tensor and something that is none."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x * ctx.factor * 3, None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class ViewOfInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.view(3, 4) * 5


class SameAsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        order = x.argsort(-1)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(x)
        return x.sin(), order

    @staticmethod
    def backward(ctx, grad, _):
        (x,) = ctx.saved_tensors
        return grad * x.cos() * 2


class WritesInBackward(torch.autograd.Function):
    """Keeps the largest gradient in a buffer, as float8 training does."""

    @staticmethod
    def forward(ctx, x, buf):
        ctx.buf = buf
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        with torch.no_grad():
            ctx.buf.copy_(grad.abs().max())
        return grad * 2, None


class SavesAndWritesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buf):
        ctx.save_for_backward(x, buf)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        x, buf = ctx.saved_tensors
        buf.mul_(0.5).add_(grad.detach().mean())
        return grad * x.exp(), None


@program(lines=(23, 21), dynamic_on_inductor=True)
def custom_function_that_saves_numbers():
    return Case(lambda x: Scale.apply(x.sin(), 3.0) * 2, (leaf(3, 4),))


@program(lines=(23, 21))
def custom_function_with_a_gradient_of_its_own():
    return Case(lambda x, y: StraightThrough.apply(x * y) + y, (leaf(3, 4), leaf(3, 4)))


@program(lines=(23, 15))
def custom_function_that_returns_a_view_of_its_input():
    return Case(lambda x: (ViewOfInput.apply(x), x * 2), (leaf(3, 4),))


@program(lines=(23, 15))
def custom_function_that_returns_its_input():
    return Case(lambda x: (SameAsInput.apply(x) * 1, x.sin()), (leaf(3, 4),))


@program(lines=(23, 16))
def custom_function_that_returns_a_view_of_an_intermediate():
    def fn(x):
        y = x * 2
        return y, ViewOfInput.apply(y)

    return Case(fn, (leaf(3, 4),))


@program(lines=(23, 4))
def custom_function_with_an_integer_output():
    return Case(lambda x: TwoOutputs.apply(x), (leaf(3, 4),))


@program(
    lines=(23, 32),
    steps=hessian_vector_product,
    differs_in_dynamo="its eager backend does not differentiate the backward of a custom function",
)
def custom_function_differentiated_twice():
    return Case(lambda x: Scale.apply(x, 2.0), (leaf(3, 4),))


@program(lines=(29,))
def buffer_written_in_backward():
    buf = torch.zeros(())
    return Case(lambda x: WritesInBackward.apply(x.sin(), buf), (leaf(3, 4),), tensors={"buf": buf})


@program(lines=(29,))
def input_written_in_backward():
    return Case(lambda x, buf: WritesInBackward.apply(x.sin(), buf), (leaf(3, 4), torch.zeros(())))


@program(lines=(29,), steps=each_call)
def saved_buffer_written_in_backward():
    x, buf = leaf(3, 4), torch.ones(())
    return Case(lambda a, b: SavesAndWritesInBackward.apply(a * 2, b), calls=((x, buf), (x, buf)))


@program(lines=(29, 7))
def buffer_written_in_forward_and_in_backward():
    def fn(x, buf):
        buf.add_(1)
        return WritesInBackward.apply(x.sin(), buf)

    return Case(fn, (leaf(3, 4), torch.zeros(())))


class Block(nn.Module):
    def __init__(self, width=4, dropout=0.0):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 6), nn.Linear(6, width)
        self.dropout = dropout

    def forward(self, x):
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), self.dropout, self.training))


class Checkpointed(nn.Module):
    def __init__(self, dropout=0.0, **options):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(2))
        self.options = options

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, **self.options)
        return x


@program(lines=(19,), dynamic_on_inductor=True)
def checkpointed_blocks():
    return Case(Checkpointed(), (plain(3, 4),))


@program(lines=(19, 10), differs_in_dynamo="its eager backend recomputes with other random numbers")
def checkpointed_dropout():
    return Case(Checkpointed(dropout=0.4), (leaf(3, 4),))


@program(lines=(19, 10), differs_in_dynamo="its eager backend recomputes with other random numbers")
def dropout_inside_and_outside_of_a_checkpoint():
    def fn(x, y):
        x = F.dropout(x, 0.5)
        z = checkpoint(lambda a: F.dropout(a.sin(), 0.5) * y, x, use_reentrant=False)
        return F.dropout(z, 0.5) + torch.rand(4)

    return Case(fn, (leaf(3, 4), leaf(3, 4)))


@program(lines=(19,))
def one_checkpoint_of_several_arguments():
    def fn(x, y):
        a, b = checkpoint(lambda p, q: ((p @ q).relu(), q.exp()), x, y, use_reentrant=False)
        return a.sum() * b

    return Case(fn, (leaf(3, 4), leaf(4, 2)))


def saves_matmuls(ctx, op, *args, **kwargs):
    matmuls = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in matmuls else CheckpointPolicy.PREFER_RECOMPUTE


def selective():
    return create_selective_checkpoint_contexts(saves_matmuls)


@program(lines=(19,))
def selective_checkpoint():
    return Case(Checkpointed(context_fn=selective), (leaf(3, 4),))


@program(lines=(19,))
def sequence_of_checkpoints():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(Block(), Block(), Block())

        def forward(self, x):
            return checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)

    return Case(Model(), (leaf(3, 4),))


@program(lines=(19, 30), steps=backward_twice)
def checkpoint_with_a_retained_graph():
    return Case(lambda x: checkpoint(lambda a: a.sin().exp(), x, use_reentrant=False), (leaf(3, 4),))


@program(lines=(19, 7))
def checkpointed_batch_norm():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False))

        def forward(self, x):
            return checkpoint(self.layers, x, use_reentrant=False)

    return Case(Model(), (leaf(5, 4),))


def under_compiled_autograd(call, case):
    def step():
        outputs = call(*case.inputs)
        backward(outputs)
        return outputs

    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        outputs = step()
    return {"outputs": outputs}


@program(lines=(34,), steps=under_compiled_autograd)
def compiled_autograd_of_a_model():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), (plain(3, 4),))


@program(lines=(34, 7), steps=under_compiled_autograd)
def compiled_autograd_of_batch_norm():
    return Case(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), (leaf(6, 4),))


@program(lines=(34, 24), steps=under_compiled_autograd)
def compiled_autograd_of_several_outputs():
    return Case(lambda x, y: (x * 2, y.detach(), (x * y).sin()), (leaf(3, 4), leaf(3, 4)))
