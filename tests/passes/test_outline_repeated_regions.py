"""Repeated layers share a body: where they are found, where not, and the outlined graph gives what the flat one does."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import eductor
from eductor.engines import ATEN, Engine
from eductor.graph.effects.bases import base_node
from eductor.options import Options
from eductor.passes.lower.repeated.runs import runs_of
from eductor.pipeline import Context, Pipeline, Recorder
from eductor.program.bodies import STANDS_FOR, invoke_subgraph

F = nn.functional


class Outlined:
    """An engine that outlines, and calls ATen's operators one by one; it keeps the graphs that it gets."""

    def __init__(self, regions=True):
        self.regions, self.graphs, self.recorder = regions, [], Recorder()
        self.engine = Engine("outlined", self._compile, lower=("outline_repeated_regions",), seeded_random=True)

    def _compile(self, job):
        self.graphs.append(job.module)
        return ATEN(job)

    def compile(self, fn, **options):
        given = {"engine": self.engine, "regions": self.regions, "strict": True, "instruments": [self.recorder]}
        return eductor.compile(fn, **given, **options)

    @property
    def calls(self):
        """For each graph the calls of bodies, by body."""
        found = [g.graph.find_nodes(op="call_function", target=invoke_subgraph) for g in self.graphs]
        return [[str(call.args[0].target) for call in calls] for calls in found]

    @property
    def counts(self):
        """For each graph how many regions share each body."""
        return [[calls.count(body) for body in dict.fromkeys(calls)] for calls in self.calls]

    @property
    def reasons(self):
        return [reject.reason for record in self.recorder.records for reject in record.rejects]


def check_bodies(module):
    """No result of a body shares memory with an operand or with another result."""
    for call in module.graph.find_nodes(op="call_function", target=invoke_subgraph):
        graph = getattr(module, str(call.args[0].target)).graph
        results = list(graph.output_node().args[0])
        assert [base_node(n) for n in results] == results
        assert len(set(results)) == len(results) > 0
        assert all(n.op == "call_function" for n in results)
        for inner, result in zip(call.meta["val"], results, strict=True):
            assert (inner.shape, inner.stride(), inner.dtype) == tuple(
                getattr(result.meta["val"], key)() if key == "stride" else getattr(result.meta["val"], key)
                for key in ("shape", "stride", "dtype")
            )


def gradients(fn, model, *inputs):
    torch.manual_seed(1)
    leaves = [*model.parameters(), *(x for x in inputs if x.requires_grad)]
    outputs = fn(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum(o.square().sum() for o in outputs if o.is_floating_point())
    return [*(o.detach() for o in outputs), *torch.autograd.grad(total, leaves, allow_unused=True)]


def check(model, *inputs, regions=True, **options):
    """Trains one step flat and outlined: equal bits; returns the engine of the outlined one."""
    flat, outlined = Outlined(False), Outlined(regions)
    expected = gradients(flat.compile(model, **options), model, *inputs)
    torch._dynamo.reset()
    got = gradients(outlined.compile(model, **options), model, *inputs)
    assert not any(map(any, flat.calls))
    for one, other in zip(expected, got, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
        assert one is None or one.stride() == other.stride()
    for module in outlined.graphs:
        check_bodies(module)
    return outlined


class Block(nn.Module):
    """A layer with a residual, a norm and an activation."""

    def __init__(self, size=8, dropout=0.0, activation=torch.tanh):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.dropout, self.activation = nn.Dropout(dropout), activation

    def forward(self, x):
        return x + self.dropout(self.down(self.activation(self.up(self.norm(x)))))


def x(*shape):
    return torch.randn(shape or (4, 8), requires_grad=True)


def test_equal_layers_share_a_body_in_forward_and_backward():
    outlined = check(nn.Sequential(*(Block() for _ in range(4))), x())
    forward, backward = outlined.counts
    assert max(forward) >= 3
    assert max(backward) >= 3
    notes = [match.note for record in outlined.recorder.records for match in record.matches if match.note]
    assert f"{max(forward)} regions of" in notes[0]
    assert "share one body: 0, 1, 2" in notes[0]


def test_a_body_has_the_names_of_all_its_regions():
    outlined = check(nn.Sequential(*(Block() for _ in range(3))), x())
    module = outlined.graphs[0]
    body = getattr(module, outlined.calls[0][0])
    stands_for = [node.meta[STANDS_FOR] for node in body.graph.nodes if node.op == "call_function"]
    assert {len(names) for names in stands_for} == {outlined.counts[0][0]}
    names = [name for group in stands_for for name in group]
    assert len(set(names)) == len(names)
    assert not set(names) & {node.name for node in module.graph.nodes}


@pytest.mark.parametrize("regions", [None, False])
def test_few_small_layers_stay_flat_unless_asked_for(regions):
    outlined = Outlined(regions)
    gradients(outlined.compile(model := nn.Sequential(Block(), Block())), model, x())
    assert outlined.calls == [[], []]


def test_by_default_it_declines_with_the_saving_and_with_the_loss():
    def chain(y):
        for step in range(90):
            y = (y.sin() * y + 1).cos() * (step % 30)
        return y

    outlined = Outlined(None)
    outlined.compile(chain)(torch.randn(300, 300))
    assert outlined.calls == [[]]
    assert any("more time if they shared a body" in reason for reason in outlined.reasons)


def test_layers_of_two_kinds_in_turn_share_two_layers():
    layers = [Block(activation=torch.tanh), Block(activation=torch.sigmoid)]
    model = nn.Sequential(*(Block(activation=layers[i % 2].activation) for i in range(6)))
    assert check(model, x()).counts[0][0] == 3


def test_an_encoder_and_a_decoder_have_a_body_each():
    model = nn.Sequential(*(Block() for _ in range(3)), nn.Linear(8, 12), *(Block(12) for _ in range(4)))
    assert sorted(check(model, x()).counts[0]) == [3, 4]


def test_a_layer_that_differs_stays_inline():
    model = nn.Sequential(*(Block(activation=torch.sin if i == 2 else torch.tanh) for i in range(6)))
    outlined = check(model, x())
    assert sum(outlined.counts[0]) in (4, 5)
    assert torch.ops.aten.sin.default in {n.target for n in outlined.graphs[0].graph.nodes}


class Tied(nn.Module):
    """Every layer has the same weights, and two share a mask."""

    def __init__(self):
        super().__init__()
        self.block, self.mask = Block(), nn.Parameter(torch.randn(4, 8))

    def forward(self, y):
        for _ in range(4):
            y = self.block(y) * self.mask
        return y


class Half(nn.Module):
    """Layers whose weights are tied in pairs are wired in two ways."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(6))

    def forward(self, y):
        for first, second in ((0, 0), (1, 1), (2, 3), (4, 5)):
            y = torch.tanh(self.linears[second](torch.sin(self.linears[first](y))))
        return y


class Escaping(nn.Module):
    """Each layer returns views of what it computes, of its input and of its weight."""

    def __init__(self):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, y):
        seen = []
        for linear in self.linears:
            z = torch.tanh(linear(y))
            seen += [z.sum(0).view(2, 4), z.t(), linear.weight.t()[1:], y[0]]
            y = z * y.sum(1, keepdim=True)
        return (y, *seen)


class SeveralResults(nn.Module):
    """Operators with several results, and views with several parts."""

    def forward(self, y):
        seen = []
        for _ in range(4):
            values, order = torch.sort(y, 1)
            left, right = values.split(4, 1)
            y = torch.cat([right.tanh(), left.sigmoid()], 1) + torch.var_mean(y, 1, keepdim=True)[0]
            seen += [order, right]
        return (y, *seen)


@pytest.mark.parametrize("model", [Tied, Half, Escaping, SeveralResults])
def test_wiring_and_views_that_escape(model):
    outlined = check(model(), x())
    assert max(outlined.counts[0], default=0) >= 2, outlined.counts


def test_regions_that_are_wired_in_two_ways_have_two_bodies():
    assert sorted(check(Half(), x()).counts[0])[-2:] == [2, 2]


@pytest.mark.parametrize("count", [2, 3])
def test_each_layer_draws_from_its_own_seed(count):
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

        def forward(self, y):
            for linear in self.linears:
                y = torch.tanh(linear(y))
                for _ in range(count):
                    y = F.dropout(y * 1.5, 0.5)
            return y

    outlined = check(Dropping(), x())
    assert max(outlined.counts[0]) >= 2
    body = getattr(outlined.graphs[0], outlined.calls[0][0])
    assert [n for n in body.graph.nodes if n.target is torch.ops.eductor.random.default]


def test_draws_from_the_generator_stay_outside():
    outlined = check(nn.Sequential(*(Block(dropout=0.5) for _ in range(4))), x(), fallback_random=True)
    drawn = [n for n in outlined.graphs[0].graph.nodes if n.target is torch.ops.aten.native_dropout.default]
    assert len(drawn) == 4


def test_writes_stay_outside():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.BatchNorm1d(8) for _ in range(4))

        def forward(self, y):
            for norm in self.norms:
                y = torch.tanh(norm(y) * 2) + y
            return y

    torch.manual_seed(0)
    one, other = Counting(), Counting()
    other.load_state_dict(one.state_dict())
    given = x()
    flat, outlined = Outlined(False), Outlined()
    expected = gradients(flat.compile(one), one, given)
    torch._dynamo.reset()
    got = gradients(outlined.compile(other), other, given)
    assert all(map(torch.equal, expected, got))
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))
    for module in outlined.graphs:
        for body in (getattr(module, name) for name in outlined.calls[outlined.graphs.index(module)]):
            assert not any(getattr(n.target, "_schema", None) and n.target._schema.is_mutable for n in body.graph.nodes)


def test_symbolic_sizes_and_loops_stay_outside():
    def loop(y):
        for _ in range(4):
            y = scan(lambda c, row: (c + row.sin(), c * row), y[0], y)[1].tanh()
        return y

    outlined = Outlined()
    assert torch.equal(outlined.compile(loop, fullgraph=True)(torch.randn(3, 8)).isfinite().all(), torch.tensor(True))
    assert outlined.calls == [[]]
    model = nn.Sequential(*(Block() for _ in range(4)))
    torch._dynamo.reset()
    outlined = check(model, x(), dynamic=True)
    assert outlined.calls == [[], []]


def test_runs_are_found_between_others():
    layer = list(range(10, 40))
    tokens = [1, 2, *layer * 3, 3, 4, 5, *range(100, 130), *range(100, 130), 6]
    found = [(run.period, start, count) for run, start, count in runs_of(tokens, 24, lambda run: (run.start, 2))]
    assert (30, 2, 2) in found
    assert (30, 95, 2) in found
    assert not list(runs_of(list(range(200)), 2, lambda run: (run.start, 2)))
    assert not list(runs_of(tokens, 24, lambda run: None))


def test_random_chains_of_layers():
    """Blocks of random operators, repeated, with residuals, escapes and shared operands."""
    for seed in range(12):
        chosen = random.Random(seed)
        steps = [chosen.choice(STEPS) for _ in range(chosen.randint(2, 6))]
        count, escapes = chosen.randint(2, 5), chosen.random() < 0.5

        class Chain(nn.Module):
            def __init__(self, count=count):
                super().__init__()
                self.weights = nn.ParameterList(nn.Parameter(torch.randn(8, 8) / 3) for _ in range(count))
                self.shared = nn.Parameter(torch.randn(4, 8))

            def forward(self, y, steps=steps, escapes=escapes):
                seen = []
                for weight in self.weights:
                    start = y
                    for step in steps:
                        y = step(y, weight, self.shared, start)
                    seen += [y.sum(0).view(2, 4)] * escapes
                return (y, *seen)

        torch.manual_seed(seed)
        torch._dynamo.reset()
        check(Chain(), x())


STEPS = (
    lambda y, w, s, r: y @ w,
    lambda y, w, s, r: torch.tanh(y) + r,
    lambda y, w, s, r: F.layer_norm(y, (8,)) * w[0],
    lambda y, w, s, r: (y * s).softmax(-1),
    lambda y, w, s, r: y.view(2, 2, 8).transpose(0, 1).reshape(4, 8) * 0.5,
    lambda y, w, s, r: torch.cat([y[:, 4:], r[:, :4]], 1),
    lambda y, w, s, r: torch.where(y > 0, y, s),
    lambda y, w, s, r: y - y.mean(0, keepdim=True),
)


def test_attention_kernels_of_a_gpu_are_shared():
    """They return numbers and None beside tensors."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default

    def layers(y, *weights):
        for weight in weights:
            out = flash(y, y, y, 0.0, True)
            y = torch.tanh(out[0] @ weight) + y
            y = y * out[1].unsqueeze(-1)
        return y

    with FakeTensorMode():
        given = [torch.empty(2, 4, 16, 8, device="cuda", dtype=torch.half)]
        given += [torch.empty(8, 8, device="cuda", dtype=torch.half) for _ in range(4)]
        module = make_fx(layers)(*given)
    module.graph.eliminate_dead_code()
    context = Context("lower", Options(strict=True, debug=True, regions=True))
    assert Pipeline.of(context.options, ["outline_repeated_regions"]).run("lower", module, context)
    assert len(module.graph.find_nodes(op="call_function", target=invoke_subgraph)) >= 3
    check_bodies(module)


@pytest.mark.parametrize(("device", "shares"), [("cuda", False), ("cpu", True)])
def test_convolutions_of_a_gpu_share_no_body_that_would_transpose(device, shares):
    """They run in channels last there, and a body keeps the layouts of the graph."""

    def layers(y, *weights):
        for weight in weights:
            y = F.conv2d(torch.relu(y), weight, padding=1) + y
            for step in range(30):
                y = torch.tanh(y) * step
        return y

    with FakeTensorMode():
        given = [torch.empty(8, 512, 32, 32, device=device)]
        given += [torch.empty(512, 512, 3, 3, device=device) for _ in range(4)]
        module = make_fx(layers)(*given)
    recorder = Recorder()
    context = Context("lower", Options(strict=True))
    changed = Pipeline.of(context.options, ["outline_repeated_regions"]).run("lower", module, context, [recorder])
    reasons = {r.reason for record in recorder.records for r in record.rejects}
    assert changed is shares, reasons
    assert ("a body would transpose what its convolutions get and return" in reasons) is not shares


def test_layers_are_cut_where_no_kernel_becomes_two():
    """A sum and the norm that follows it are one kernel, whatever layer they belong to."""

    def layers(y, *weights):
        for weight in weights:
            for _ in range(3):
                y = y + F.gelu(F.layer_norm(y, (512,)) @ weight) @ weight.t()
        return y

    with FakeTensorMode():
        given = [torch.empty(2048, 512, device="cuda", dtype=torch.bfloat16)]
        given += [torch.empty(512, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(12)]
        module = make_fx(layers)(*given)
    context = Context("lower", Options(strict=True))
    assert Pipeline.of(context.options, ["outline_repeated_regions"]).run("lower", module, context)
    (body,) = {call.args[0].target for call in module.graph.find_nodes(op="call_function", target=invoke_subgraph)}
    first, *_ = (node for node in getattr(module, body).graph.nodes if node.op == "call_function")
    assert first.target is torch.ops.aten.mm.default
