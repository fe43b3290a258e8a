"""A region of a joint graph is computed in another way, and so are its gradients."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import map_arg

import eductor
from eductor.compat import OpOverload
from eductor.engines import ATEN, INDUCTOR, Engine
from eductor.graph.rewriter import Rewriter
from eductor.graph.values.meta import is_backward, tensor_of
from eductor.graph.view import GraphView
from eductor.patterns.trace.tracing import aten_graph
from eductor.pipeline.base import graph_pass
from eductor.regions import retrace
from eductor.regions.replace_region import Region, replace_region

aten = torch.ops.aten
TAKEN_APART = Engine("taken_apart", ATEN.compile, INDUCTOR.decompositions)
"""Runs what Inductor would compile, as it is."""
ENGINES = (ATEN, TAKEN_APART)


@dataclass
class Toy:
    """A pass that replaces what lies between sines and an arc tangent; inputs of the program need no sine."""

    again: Callable[..., Any]
    by: Callable[..., Any]
    edit: Callable[[GraphView, Rewriter], None] | None = None
    times: int = 1
    """How often a region takes its inputs."""
    reasons: list[str] = field(default_factory=list)
    forward: list[Any] = field(default_factory=list)
    backward: list[Any] = field(default_factory=list)

    @property
    def calls(self) -> list[Any]:
        return [*self.forward, *self.backward]

    def passes(self) -> list[Any]:
        @graph_pass(stage="joint", numerics="reassociates", after="remove_noop_ops")
        def toy(graph, rewrite):
            """Replaces the regions."""
            if self.edit is not None:
                self.edit(graph, rewrite)
            for end in graph.candidates(calls_of(graph, aten.atan.default)):
                answer = replace_region(graph, rewrite, self.region(graph, end), self.by)
                self.reasons.append("" if answer else answer.reason)

        @graph_pass(stage="joint", numerics="exact", after="toy")
        def look(graph, rewrite):
            """Looks at the graph."""
            made = [n for n in graph.graph.nodes if n.op == "call_function"]
            self.forward = [n.target for n in made if not is_backward(n)]
            self.backward = [n.target for n in made if is_backward(n)]

        return [toy, look]

    def region(self, graph, end) -> Region:
        nodes = set(between(end))
        sines = calls_of(graph, aten.sin.default)
        given = [n for n in graph.graph.find_nodes(op="placeholder") if tensor_of(n) is not None]
        inputs = tuple(n for n in (*sines, *given) if any(u in nodes for u in n.users))
        return Region(inputs * self.times, frozenset(nodes), end.args[0], self.again)

    def check(self, fn, inputs, *, engine, tolerance=2e-5) -> None:
        """Compiles a function with the pass; values and gradients are eager's, in eager's layout."""
        compare(eductor.compile(fn, passes=self.passes(), engine=engine, dynamic=False), fn, inputs, tolerance)


def calls_of(graph, target) -> list[Any]:
    return [n for n in graph.graph.nodes if n.target is target and not is_backward(n)]


def between(end) -> list[Any]:
    """The calls from the sines to an arc tangent, in the order of the graph."""
    found, pending = set(), [end.args[0]]
    while pending:
        node = pending.pop()
        if node.op == "call_function" and node.target is not aten.sin.default and node not in found:
            found.add(node)
            pending.extend(node.all_input_nodes)
    return sorted(found)


def compare(compiled, fn, inputs, tolerance=2e-5) -> None:
    for mine, expected in zip(run(compiled, inputs), run(fn, inputs), strict=True):
        assert mine.dtype == expected.dtype
        assert mine.stride() == expected.stride()
        torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)


def run(fn, inputs) -> list[torch.Tensor]:
    given = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
    results = fn(*given)
    results = results if isinstance(results, tuple) else (results,)
    wanted = [x for x in given if x.requires_grad]
    loss = sum(r.square().sum() for r in results)
    return [*(r.detach() for r in results), *(torch.autograd.grad(loss, wanted) if wanted else ())]


def tensors(*shapes, dtype=torch.float32, frozen=()) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(s).to(dtype).requires_grad_(i not in frozen) for i, s in enumerate(shapes)]


# ---------------------------------------------------------------------------------------------------------- attention


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def fused_attention(q, k, v, *sizes):
    return F.scaled_dot_product_attention(q, k, v)


def with_attention(q, k, v):
    return torch.atan(attention(q.sin(), k.sin(), v.sin()))


QKV = ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def assert_fused(toy: Toy) -> None:
    assert set(toy.reasons) == {""}
    assert toy.forward.count(FLASH) == toy.backward.count(FLASH_BACKWARD) == len(toy.reasons)
    assert aten.bmm.default not in toy.calls
    assert FLASH not in toy.backward


def one_tensor_in_all_places(x):
    x = x.sin()
    return torch.atan(attention(x, x, x)) + x


def a_tangent_that_is_transposed(q, k, v):
    """As in every model: the heads are put side by side, and the gradient comes in that layout."""
    out = attention(q.sin(), k.sin(), v.sin())
    return torch.atan(out).transpose(1, 2).reshape(2, 5, 24) @ torch.eye(24)


def an_output_that_is_used_often(q, k, v):
    out = attention(q.sin(), k.sin(), v.sin())
    return torch.atan(out) + out.exp(), out


def a_view_of_an_input_that_is_used_elsewhere(q, k, v):
    q, k = q.sin(), k.sin().transpose(-2, -1)
    return torch.atan(torch.softmax(q @ k / math.sqrt(8), -1) @ v.sin()), k.detach().exp()


def masked(q, k, v, mask):
    scores = (q @ k.transpose(-2, -1) * 0.5).masked_fill(mask, -math.inf)
    return torch.softmax(scores, -1) @ v


def a_mask_that_gets_no_gradient(q, k, v, mask):
    return torch.atan(masked(q.sin(), k.sin(), v.sin(), mask))


def fused_masked(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~mask, scale=0.5)


@dataclass(frozen=True)
class Case:
    """A program with a region, what computes the region as it is, and what is put in its place."""

    fn: Callable[..., Any]
    inputs: Callable[[], list[torch.Tensor]] = partial(tensors, *QKV)
    again: Callable[..., Any] = attention
    by: Callable[..., Any] = fused_attention
    times: int = 1
    engines: tuple[Engine, ...] = (ATEN,)
    tolerance: float = 2e-5
    because: str = ""
    """A part of the reason, where the region stays."""


def by_engine(cases: dict[str, Case]) -> Any:
    """Each case with each of its engines."""
    rows = [pytest.param(case, e, id=f"{name}-{e.name}") for name, case in cases.items() for e in case.engines]
    return pytest.mark.parametrize(("case", "engine"), rows)


FUSED = {
    "attention_and_its_backward": Case(with_attention, engines=(*ENGINES, INDUCTOR)),
    "bfloat16": Case(with_attention, partial(tensors, *QKV, dtype=torch.bfloat16), engines=ENGINES, tolerance=5e-2),
    **{
        f"gradients_for_some_inputs_only_{frozen}": Case(with_attention, partial(tensors, *QKV, frozen=frozen))
        for frozen in ((0,), (1,), (2,), (0, 1), (1, 2))
    },
    "one_tensor_in_all_places": Case(
        one_tensor_in_all_places, partial(tensors, (2, 3, 5, 8)), times=3, engines=ENGINES
    ),
    "a_tangent_that_is_transposed": Case(a_tangent_that_is_transposed, engines=ENGINES),
    "an_output_that_is_used_often": Case(an_output_that_is_used_often),
    "a_view_of_an_input_that_is_used_elsewhere": Case(a_view_of_an_input_that_is_used_elsewhere),
    "a_mask_that_gets_no_gradient": Case(
        a_mask_that_gets_no_gradient,
        lambda: [*tensors(*QKV), torch.ones(5, 7, dtype=torch.bool).triu(2)],
        masked,
        fused_masked,
        engines=ENGINES,
    ),
}
"""Each kernel is one operator in the forward and one in the backward."""


@by_engine(FUSED)
def test_attention_and_its_backward_become_one_operator_each(case, engine):
    toy = Toy(case.again, case.by, times=case.times)
    toy.check(case.fn, case.inputs(), engine=engine, tolerance=case.tolerance)
    assert_fused(toy)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_dynamic_shapes(engine):
    toy = Toy(attention, fused_attention)
    compiled = eductor.compile(with_attention, passes=toy.passes(), engine=engine, dynamic=True)
    for b, h, s, t in ((2, 3, 5, 7), (3, 2, 4, 9), (5, 4, 6, 6)):
        compare(compiled, with_attention, tensors((b, h, s, 8), (b, h, t, 8), (b, h, t, 8)))
    assert len(toy.reasons) == 1  # no size is guarded
    assert_fused(toy)


def test_sizes_are_inputs_too():
    class Replayed(Toy):
        def region(self, graph, end):
            nodes = [n for n in between(end) if tensor_of(n) is not None]
            outside = dict.fromkeys(o for n in nodes for o in n.all_input_nodes if o not in nodes)
            tensors = sorted(n for n in outside if tensor_of(n) is not None)
            inputs = (*tensors, *(n for n in outside if n not in tensors))
            return Region(inputs, frozenset(nodes), end.args[0], partial(self.replay, nodes, inputs))

        @staticmethod
        def replay(nodes, inputs, *given):
            known = dict(zip(inputs, given, strict=True))
            for node in nodes:
                known[node] = node.target(*map_arg(node.args, known.__getitem__), **node.kwargs)
            return known[nodes[-1]]

    toy = Replayed(attention, fused_attention)
    compiled = eductor.compile(with_attention, passes=toy.passes(), engine=ATEN, dynamic=True)
    compare(compiled, with_attention, tensors(*QKV))
    assert_fused(toy)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_inference(engine):
    toy = Toy(attention, fused_attention)
    toy.check(with_attention, tensors(*QKV, frozen=(0, 1, 2)), engine=engine)
    assert toy.reasons == [""]
    assert FLASH in toy.calls
    assert aten.bmm.default not in toy.calls


def test_autocast_of_the_caller_is_not_that_of_the_region():
    def fn(q, k, v):
        with torch.autocast("cpu", enabled=False):
            return with_attention(q, k, v)

    def under_autocast(fn):
        def run(*given):
            with torch.autocast("cpu", torch.bfloat16):
                return fn(*given)

        return run

    toy = Toy(attention, fused_attention)
    compiled = eductor.compile(fn, passes=toy.passes(), engine=ATEN, dynamic=False)
    compare(under_autocast(compiled), under_autocast(fn), tensors(*QKV))
    assert_fused(toy)


# -------------------------------------------------------------------------------------------------------- other regions


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def mixed(x, v):
    return torch.softmax(x * 0.3, -1) @ v


OTHERS: dict[str, tuple[Any, Any, Any, Any]] = {
    "gelu": (gelu, lambda x: x * torch.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x)), [(4, 6)], aten.tanh),
    "layer_norm": (layer_norm, lambda x, w, b: F.layer_norm(x, (6,), w, b), [(4, 6), (6,), (6,)], aten.mean),
    "mixed": (mixed, lambda x, v: torch.log_softmax(x * 0.3, -1).exp() @ v, [(4, 6), (6, 5)], aten._softmax),
}


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("name", OTHERS)
def test_regions_that_are_no_attention(name, engine):
    again, by, shapes, old = OTHERS[name]
    toy = Toy(again, by)
    toy.check(lambda *given: torch.atan(again(*(x.sin() for x in given))), tensors(*shapes), engine=engine)
    assert toy.reasons == [""]
    assert old not in {op.overloadpacket for op in toy.calls if isinstance(op, OpOverload)}


def test_a_region_of_which_the_backward_needs_nothing():
    """Its gradients are computed from the tangent alone, and stay as they are."""
    toy = Toy(lambda x, y: x * 2.0 + y * 3.0, lambda x, y: torch.add(x * 2.0, y, alpha=3.0))
    toy.check(lambda x, y: torch.atan(x.sin() * 2.0 + y.sin() * 3.0), tensors((4, 6), (4, 6)), engine=ATEN)
    assert toy.reasons == [""]
    assert toy.forward.count(aten.mul.Tensor) == 1


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_forward_and_backward_agree_on_what_is_drawn(engine):
    def dropped(x, v):
        return F.dropout(torch.softmax(x, -1), 0.5) @ v

    def by(x, v):
        return (v.t() @ F.dropout(torch.softmax(x, -1), 0.5).t()).t().contiguous()

    toy = Toy(dropped, by)
    compiled = eductor.compile(
        lambda x, v: torch.atan(dropped(x.sin(), v)), passes=toy.passes(), engine=engine, dynamic=False
    )
    x, v = torch.randn(16, 16, requires_grad=True), torch.eye(16, requires_grad=True)
    result = compiled(x, v)
    weights = result.detach().tan()
    assert toy.reasons == [""]
    assert (weights == 0).any()
    (gradient,) = torch.autograd.grad(result.sum(), [v])
    torch.testing.assert_close(gradient, weights.t() @ (1 / (1 + weights.square())))


# ---------------------------------------------------------------------------------------------------------------- traces


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_layers_share_their_traces(engine, monkeypatch):
    """Of several layers only the last one, whose gradient comes from the loss, may need a trace of its own."""
    made: list[Any] = []
    monkeypatch.setattr(retrace, "aten_graph", lambda *args: made.append(args) or aten_graph(*args))

    def traces(count):
        def fn(q, k, v):
            for i in range(count):
                q = torch.atan(attention((q + i).sin(), (k + i).sin(), (v + i).sin()))
            return q

        made.clear()
        toy = Toy(attention, fused_attention)
        toy.check(fn, tensors((2, 3, 7, 8), *QKV[1:]), engine=engine)
        assert_fused(toy)
        assert len(toy.reasons) == count
        return len(made)

    one = traces(1)
    torch._dynamo.reset()
    assert traces(4) <= one + 1


def test_functions_that_captured_other_numbers_are_told_apart():
    def scaled(scale):
        return lambda x: torch.softmax(x * scale, -1)

    class Scaled(Toy):
        def region(self, graph, end):
            found = super().region(graph, end)
            scale = next(n for n in found.nodes if n.target is aten.mul.Tensor).args[1]
            self.by = scaled(scale)
            return replace(found, again=scaled(scale))

    def fn(x):
        for scale in (0.5, 2.0, 0.5):
            x = torch.atan(torch.softmax(x.sin() * scale, -1))
        return x

    toy = Scaled(fn, fn)
    toy.check(fn, tensors((4, 6)), engine=ATEN)
    assert toy.reasons == [""] * 3


# -------------------------------------------------------------------------------------------------------------- refusals


def assert_left(toy: Toy, reason: str) -> None:
    assert len(toy.reasons) == 1
    assert reason in toy.reasons[0]
    assert FLASH not in toy.calls


def not_scaled(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def a_value_that_is_returned(q, k, v):
    weights = torch.softmax(q.sin() @ k.sin().transpose(-2, -1), -1)
    return torch.atan(weights @ v.sin()), weights


def a_value_that_is_used_elsewhere(q, k, v):
    weights = torch.softmax(q.sin() @ k.sin().transpose(-2, -1), -1)
    return torch.atan(weights @ v.sin()), weights.detach().amax(-1)


LEFT = {
    "a_value_that_is_returned": Case(
        a_value_that_is_returned, again=not_scaled, because="_softmax of the region is returned by the graph"
    ),
    "a_value_that_is_used_elsewhere": Case(
        a_value_that_is_used_elsewhere, again=not_scaled, because="_softmax of the region is also used by amax"
    ),
    "a_reference_that_computes_something_else": Case(
        with_attention,
        again=lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / 3.0, -1) @ v,
        engines=ENGINES,
        because="the region has nothing like div",
    ),
    "a_replacement_of_another_shape": Case(
        with_attention,
        partial(tensors, *QKV, frozen=(0, 1, 2)),
        by=lambda q, k, v: q[..., :1] + k.sum() + v.sum(),
        because="differs from it: shape",
    ),
    "a_replacement_that_cannot_be_traced": Case(
        with_attention, by=lambda q, k, v: q @ v, because="the replacement cannot be traced"
    ),
}
"""Regions that stay as they are, and why."""


@by_engine(LEFT)
def test_regions_that_are_left(case, engine):
    toy = Toy(case.again, case.by)
    toy.check(case.fn, case.inputs(), engine=engine, tolerance=case.tolerance)
    assert_left(toy, case.because)


def test_a_backward_that_was_changed():
    def edit(graph, rewrite):
        (node,) = [n for n in graph.calls(aten.div) if is_backward(n) and isinstance(n.args[1], float)]
        rewrite.update(node, args=(node.args[0], 2 * node.args[1]))

    toy = Toy(attention, fused_attention, edit)
    run(eductor.compile(with_attention, passes=toy.passes(), engine=ATEN), tensors(*QKV))
    assert_left(toy, "outside of the region and its backward")


def test_a_region_that_writes():
    graph = torch.fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    written = graph.call_function(aten.copy_.default, (x, y))
    graph.output(graph.call_function(aten.neg.default, (written,)))
    view = GraphView(torch.fx.GraphModule({}, graph))
    region = Region((x, y), frozenset([written]), written, torch.add)
    assert "does more than to compute its result" in replace_region(view, Rewriter(view), region, torch.add).reason
