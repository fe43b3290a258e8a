"""Lowered graphs give what the program gives, as plain graphs and through Inductor, and have right fake values."""

from __future__ import annotations

import operator
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._dynamo.backends.common import aot_autograd
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx

from eductor import ops
from eductor.graph.snapshot import subgraphs
from eductor.ops.random import drawn_in_order
from eductor.options import Options
from eductor.passes.lower.unwrap_functional_calls import UNWRAP
from eductor.pipeline import Context, Pipeline

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

aten = torch.ops.aten
OFF = {"use_pre_grad_passes": False, "use_joint_graph_passes": False, "use_post_grad_passes": False}


torch.library.define("legal::bump", "(Tensor(a!) x, Tensor by) -> ()")
torch.library.define("legal::one", "(Tensor(a!) x) -> Tensor")
torch.library.define("legal::several", "(Tensor(a!)[] self, Tensor(b!)? out, Tensor x) -> (Tensor, Tensor)")


@torch.library.impl("legal::bump", "CompositeExplicitAutograd")
def _bump(x: torch.Tensor, by: torch.Tensor) -> None:
    x.add_(by)


@torch.library.impl("legal::one", "CompositeExplicitAutograd")
def _one(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1) * 3


@torch.library.impl("legal::several", "CompositeExplicitAutograd")
def _several(self: list[torch.Tensor], out: torch.Tensor | None, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for s in self:
        s.mul_(x)
    if out is not None:
        out.copy_(x)
    return x + 1, x + 2


torch.library.register_fake("legal::one", lambda x: x * 3)
torch.library.register_fake("legal::several", lambda self, out, x: (x + 1, x + 2))


class Checked(Interpreter):
    """Runs a graph and holds each result against its description."""

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
            assert "val" in n.meta or not pytree.tree_leaves(result), n.format_node()
            described, given = pytree.tree_leaves(n.meta.get("val")), pytree.tree_leaves(result)
            for fake, real in zip(described, given, strict=True):
                if isinstance(real, torch.Tensor):
                    assert (fake.dtype, fake.device) == (real.dtype, real.device), n.format_node()
                    if all(isinstance(s, int) for s in fake.shape):
                        assert (fake.shape, fake.stride()) == (real.shape, real.stride()), n.format_node()
        return result


def nodes_of(module: GraphModule) -> list[Node]:
    inner = [n for body in subgraphs(module.graph).values() for n in nodes_of(body)]
    return [*inner, *module.graph.nodes]


def lowered(module: GraphModule) -> bool:
    """Runs the passes of the stage; whether they changed the graph."""
    return Pipeline.default().run("lower", module, Context("lower", Options(strict=True, debug=True)))


def text_of(module: GraphModule) -> str:
    return module.print_readable(print_output=False)


def lower(module: GraphModule, inputs: list[Any], **config: Any) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.utils import BoxedBool
    from torch._inductor.virtualized import V

    from eductor.engines.inductor.patches import active

    mode = torch._guards.detect_fake_mode(inputs)
    options = {**OFF, "fallback_random": True, "force_disable_caches": True, **config}
    output = module.graph.output_node()
    output.args = (tuple(output.args[0]),)
    module.recompile()
    with active(), torch._inductor.config.patch(options), V.set_fake_mode(mode), torch.no_grad():
        return compile_fx_inner(module, inputs, cudagraphs=BoxedBool(False))


class Capture:
    """A Dynamo backend: lowers, checks the graph, and runs it as an engine would."""

    def __init__(self, inductor: bool) -> None:
        self.inductor = inductor
        self.module: GraphModule | None = None

    def __call__(self, module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.module = module
        assert module.graph.nodes
        lowered(module)
        assert not [n for n in nodes_of(module) if getattr(n.target, "__name__", "") in {*UNWRAP, "scan", "map_impl"}]
        once = text_of(module)
        lowered(module)
        assert text_of(module) == once
        compiled = lower(module, inputs) if self.inductor else lambda args: Checked(module).run(*args)

        def run(args: list[Any]) -> Any:
            return compiled(args)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    @property
    def targets(self) -> list[Any]:
        assert self.module is not None
        return [n.target for n in nodes_of(self.module) if n.op == "call_function"]


def check(fn: Callable[..., Any], *args: Any, inductor: bool, dynamic: bool = False) -> Capture:
    from torch._inductor.decomposition import select_decomp_table

    capture = Capture(inductor)
    torch._dynamo.reset()
    with torch._inductor.config.patch(fallback_random=True):
        table = dict(select_decomp_table())
    backend = aot_autograd(fw_compiler=capture, inference_compiler=capture, decompositions=table)
    compiled = torch.compile(fn, backend=backend, fullgraph=True, dynamic=dynamic)
    results = []
    for f in (fn, compiled):
        torch.manual_seed(3)
        given = [a() if callable(a) else a.clone() for a in args]
        with torch.no_grad():
            results.append((f(*given), given, torch.rand(())))
    torch.testing.assert_close(*results)
    return capture


both = pytest.mark.parametrize("inductor", [False, True], ids=["plain", "inductor"])


@both
def test_a_written_input_is_copied_and_its_views_are_made_anew(inductor: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = y.sin()
        torch.ops.legal.bump(x[1:3], y[:2])  # a slice
        torch.ops.legal.bump(z.t(), x)  # neither a slice nor the whole
        torch.ops.legal.bump(z.view(4, 4), x)
        return x * 2, z

    capture = check(fn, torch.randn(4, 4), torch.randn(4, 4), inductor=inductor)
    assert capture.targets.count(torch.ops.legal.bump.default) == 3


@both
def test_a_base_that_begins_inside_its_memory(inductor: bool) -> None:
    def fn(x: torch.Tensor) -> Any:
        torch.ops.legal.bump(x.t(), x.new_ones(2, 2))
        return x + 1

    check(fn, lambda: torch.arange(16.0).view(4, 4)[2:, 1:3], inductor=inductor)


def test_only_memory_that_nobody_else_sees_is_written_without_a_copy() -> None:
    def private(x: torch.Tensor) -> Any:
        out = torch.zeros(4)
        torch.ops.legal.bump(out, x)
        torch.ops.legal.bump(out, x * 2)
        return out.sin()

    def read_later(x: torch.Tensor) -> Any:
        out = x.new_zeros(4)
        view = out[:2]
        torch.ops.legal.bump(out, x)
        return out, view, x

    def read_by_the_call(x: torch.Tensor) -> Any:
        out = torch.zeros(4)
        torch.ops.legal.bump(out, out)
        return out

    def given(x: torch.Tensor) -> Any:
        torch.ops.legal.bump(x, x.sin())
        return x

    copies = [
        check(fn, torch.randn(4), inductor=False).targets.count(aten.clone.default)
        for fn in (private, read_by_the_call, given, read_later)
    ]
    assert copies[:3] == [0, 1, 1]


@both
def test_results_lists_and_absent_arguments(inductor: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        w = y.cos()
        a, b = torch.ops.legal.several([w, y.view(3, 1)], None, x[:1])
        c, d = torch.ops.legal.several([w], y[0], x[0])
        return a * b, c + d, w, torch.ops.legal.one(w)

    check(fn, torch.randn(3), torch.randn(3), inductor=inductor)


def test_the_first_form_of_functionalized_calls() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        nothing, z = torch.ops.higher_order.auto_functionalized(torch.ops.legal.bump.default, x=x, by=y)
        return x, z * 2, nothing

    args = torch.randn(3), torch.randn(3)
    expected = fn(*args)
    module = make_fx(fn, tracing_mode="fake")(*args)
    lowered(module)
    torch.testing.assert_close(Checked(module).run(*args), expected)
    assert [n.target for n in module.graph.nodes if n.op == "call_function"] == [
        *(aten.clone.default, torch.ops.legal.bump.default, aten.mul.Tensor)
    ]


def triton_graph() -> GraphModule:
    wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
    with FakeTensorMode():
        x, out = torch.empty(8), torch.empty(8).as_strided((4,), (2,))
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in ("x", "out")]
    for node, value in zip(given, (x, out), strict=True):
        node.meta["val"] = value
    kernel = {"kernel_idx": 0, "constant_args_idx": 0, "grid": [(1, 1, 1)], "tma_descriptor_metadata": {}}
    tensors = {"x": given[0], "out": given[1], "n": 4}
    call = graph.call_function(wrapper, (), {**kernel, "kwargs": tensors, "tensors_to_clone": ["out"]})
    call.meta.update(val={"out": out}, stack_trace="here")
    item = graph.call_function(operator.getitem, (call, "out"))
    item.meta["val"] = out
    graph.output((item,))
    return GraphModule({}, graph)


def test_a_triton_kernel_writes_copies_of_what_it_is_said_to_write() -> None:
    module = triton_graph()
    lowered(module)
    x, out, memory, view, copied, kernel, result = module.graph.nodes
    assert (memory.target, memory.args) == (aten.empty.memory_format, ([7],))
    assert (copied.target, copied.args) == (aten.copy_.default, (view, out))
    assert copied.meta["val"].stride() == (2,)
    assert kernel.target is torch.ops.higher_order.triton_kernel_wrapper_mutation
    assert kernel.kwargs["kwargs"] == {"x": x, "out": copied, "n": 4}
    assert "tensors_to_clone" not in kernel.kwargs
    assert kernel.meta["stack_trace"] == "here"
    assert result.args == ((copied,),)


def step(carry: torch.Tensor, x: torch.Tensor) -> Any:
    return carry * 0.5 + x, (carry + x).sin()


def scanned(x: torch.Tensor, init: torch.Tensor) -> Any:
    return scan(step, init, x)


def scan_of_everything(x: torch.Tensor, init: torch.Tensor, w: torch.Tensor) -> Any:
    """Several carries, one that only passes through, one that is the slice itself, closures, other dtypes, reverse."""

    def combine(carry: Any, xs: Any) -> Any:
        a, b, c = carry
        x, y = xs
        return ((a @ w).t() + x.t(), x.clone(), c.clone()), (a.sum(), (x.t() * 2, y > 0), b + a)

    return scan(combine, (init.t() * 2, init + 1, init), (x, x + 1), reverse=True)


def mapped(x: torch.Tensor, w: torch.Tensor) -> Any:
    return torch_map(lambda a: ((a @ w).relu(), a.sum()), x)


@both
@pytest.mark.parametrize("length", [1, 5])
def test_a_scan_is_a_loop(length: int, inductor: bool) -> None:
    capture = check(scanned, torch.randn(length, 3), torch.randn(3), inductor=inductor)
    assert torch.ops.higher_order.while_loop in capture.targets


@both
def test_a_scan_of_everything_is_a_loop(inductor: bool) -> None:
    check(scan_of_everything, torch.randn(4, 3, 3), torch.randn(3, 3), torch.randn(3, 3), inductor=inductor)


@both
def test_a_map_is_a_loop(inductor: bool) -> None:
    capture = check(mapped, torch.randn(4, 3, 3), torch.randn(3, 3), inductor=inductor)
    assert torch.ops.higher_order.while_loop in capture.targets


@both
def test_a_loop_over_a_length_that_is_not_known(inductor: bool) -> None:
    def fn(x: torch.Tensor, init: torch.Tensor) -> Any:
        return scan(lambda c, y: (c + y, torch.cat([c, y])), init, x)

    check(fn, torch.randn(6, 3), torch.randn(3), inductor=inductor, dynamic=True)


@both
def test_a_loop_in_a_loop(inductor: bool) -> None:
    def fn(x: torch.Tensor, init: torch.Tensor) -> Any:
        def outer(carry: torch.Tensor, rows: torch.Tensor) -> Any:
            last, all_ = scan(step, carry, rows)
            return last, all_.sum(0)

        return scan(outer, init, x)

    capture = check(fn, torch.randn(3, 4, 2), torch.randn(2), inductor=inductor)
    assert capture.targets.count(torch.ops.higher_order.while_loop) == 2


def test_a_loop_over_nothing_gives_its_initial_state() -> None:
    init = torch.randn(3)

    def fn(x: torch.Tensor, init: torch.Tensor) -> Any:
        return torch.ops.higher_order.scan(step_graph, [init], [x], ())

    step_graph = make_fx(lambda c, x: [c + x, c * x])(init, init)
    module = make_fx(fn, tracing_mode="symbolic")(torch.randn(5, 3), init)
    lowered(module)
    last, stacked = module(torch.randn(0, 3), init)
    torch.testing.assert_close(last, init)
    assert last is not init
    assert stacked.shape == (0, 3)


@both
def test_random_operators_draw_what_eager_draws_in_the_order_of_the_program(inductor: bool) -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        b = torch.rand(300, 300)
        c = torch.bernoulli(torch.full((8, 8), 0.3))
        d, _ = torch.native_dropout(x, 0.5, True)
        e = torch.randint(0, 5, (8, 8)) * torch.randperm(8)
        f = torch.empty(8, 8).normal_() + torch.empty(8, 8).bernoulli_(0.5)
        g = torch.rand(8, 8)
        h = (g + a).sum()
        return b.sum(), c + a, d * a, e, f, h, g + a, torch.randn_like(x)

    capture = check(fn, torch.randn(8, 8), inductor=inductor)
    assert capture.targets.count(drawn_in_order.default) == 1


def test_seeded_numbers_beside_numbers_of_eager() -> None:
    """Ours are fused into what uses them, are functions of their seed, and disturb nobody."""

    def fn(x: torch.Tensor) -> Any:
        a = torch.rand(300, 300)
        seeds = ops.random.seeds(2, device=x.device)
        b = ops.random.random(seeds, 0, [1000], "rand", dtype=torch.float32)
        c = ops.random.random(seeds, 1, [1000], "randn", dtype=torch.float64)
        again = ops.random.random(seeds, 1, [1000], "randn", dtype=torch.float64)
        return a.sum(), b * 2, c, again, torch.rand(8, 8) + x, seeds

    x = torch.randn(8, 8)
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    with mode:
        module = make_fx(fn)(fake)
    lowered(module)
    compiled = lower(module, [fake])
    torch.manual_seed(1)
    expected = fn(x)
    torch.manual_seed(1)
    a, b, c, again, d, seeds = compiled([x])
    torch.testing.assert_close((a, d, seeds), (expected[0], expected[4], expected[5]))
    torch.testing.assert_close(c, again, rtol=0, atol=0)
    assert c.dtype == torch.float64
    assert abs(c.mean().item()) < 0.2
    assert 0.8 < c.std().item() < 1.2
    assert 0.8 < b.mean().item() < 1.2
    assert 0 <= b.min().item() < b.max().item() <= 2


def test_a_graph_without_candidates_is_left_alone() -> None:
    module = make_fx(lambda x: (x.sin() + 1, torch.rand(3)), tracing_mode="fake")(torch.randn(3))
    before = text_of(module), list(module.graph.nodes)
    lowered(module)
    assert (text_of(module), list(module.graph.nodes)) == before


def test_importing_it_imports_no_inductor() -> None:
    code = (
        "import sys; from eductor.pipeline import Pipeline; [s.load() for s in Pipeline.default().stage('lower') "
        "if not s.is_slot]; sys.exit('torch._inductor' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


if triton is not None:

    @triton.jit
    def double_kernel(x, out, n: tl.constexpr):  # type: ignore[no-untyped-def]
        place = tl.arange(0, n)
        tl.store(out + place, tl.load(x + place) * 2 + tl.load(out + place))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or triton is None, reason="needs a CUDA device")
def test_kernels_loops_and_draws_on_a_device() -> None:
    def kernel(x: torch.Tensor, y: torch.Tensor) -> Any:
        out = torch.zeros_like(x)
        double_kernel[(1,)](x, out, x.numel())
        double_kernel[(1,)](out, y, x.numel())
        return out + y

    def draws(x: torch.Tensor) -> Any:
        a, b = x.sin(), torch.rand(300, 300, device=x.device)
        c, _ = torch.native_dropout(x, 0.5, True)
        d = torch.rand_like(x)
        return b.sum(), c + a, (d + a).sum(), d + a, torch.randn_like(x)

    def x(*size: int) -> torch.Tensor:
        return torch.randn(*size, device="cuda")

    assert torch.ops.higher_order.while_loop in check(scanned, x(5, 3), x(3), inductor=True).targets
    check(mapped, x(4, 3, 3), x(3, 3), inductor=True)
    check(draws, x(8, 8), inductor=True)
    mutation = check(kernel, x(16), x(16), inductor=True).targets
    assert "triton_kernel_wrapper_mutation" in map(str, mutation)


def traced_cat(count: int, fn: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> GraphModule:
    """A cat of this many inputs, as they are or with a function of each."""
    given = [torch.randn(2, 3) for _ in range(count)]
    return make_fx(lambda *xs: torch.cat([fn(x) for x in xs]) * 2, tracing_mode="fake")(*given)


def test_a_cat_of_many_inputs_is_a_call():
    module = traced_cat(40)
    given = [torch.randn(2, 3) for _ in range(40)]
    lowered(module)
    assert any(n.target is ops.copies.wide_cat.default for n in module.graph.nodes)
    assert torch.equal(module(*given), torch.cat(given) * 2)


@pytest.mark.parametrize("module", [traced_cat(8), traced_cat(40, torch.sin)], ids=["few", "computed"])
def test_other_cats_are_generated(module):
    lowered(module)
    assert not any(n.target is ops.copies.wide_cat.default for n in module.graph.nodes)


def test_a_wide_cat_through_inductor():
    import eductor

    def fn(*xs):
        return torch.stack(xs).tanh()

    given = [torch.randn(2, 3, requires_grad=True) for _ in range(40)]
    got = eductor.compile(fn, engine="inductor", strict=True)(*given)
    torch.testing.assert_close(got, fn(*given))
    gradients = torch.autograd.grad(got.square().sum(), given)
    torch.testing.assert_close(gradients, torch.autograd.grad(fn(*given).square().sum(), given))


def test_a_wide_cat_is_a_good_operator():
    torch.library.opcheck(ops.copies.wide_cat.default, ([torch.randn(2, 3), torch.randn(4, 3)], 0))


@pytest.mark.parametrize("sizes", [(0,), (0, 3), (3, 0)])
def test_the_mean_of_nothing_is_no_number(sizes):
    import eductor

    def fn(x):
        return torch.var_mean(x, correction=0), torch.std_mean(x, 0, keepdim=True)

    x = torch.empty(sizes)
    got = eductor.compile(fn, engine="inductor", strict=True)(x)
    torch.testing.assert_close(got, fn(x), equal_nan=True)


def test_a_small_mask_is_stored_once():
    """It is computed for its own few elements, and expanded as a view for the kernel that reads it."""

    def attention(q, k, v, mask):
        bias = (mask * -100.0).expand(2, 4, 64, 64)
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, False)[0]

    with FakeTensorMode():
        q, k, v = (torch.randn(2, 4, 64, 32, device="cuda") for _ in range(3))
        mask = torch.rand(2, 1, 1, 64, device="cuda")
        module = make_fx(attention)(q, k, v, mask)
    lowered(module)
    (kept,) = module.graph.find_nodes(op="call_function", target=ops.copies.stored.default)
    assert kept.meta["val"].shape == (2, 1, 1, 64)
    (expanded,) = kept.users
    assert expanded.target is torch.ops.aten.expand.default
    assert [user.target.overloadpacket for user in expanded.users] == [
        torch.ops.aten._scaled_dot_product_efficient_attention
    ]
    nodes = len(module.graph.nodes)
    lowered(module)
    assert len(module.graph.nodes) == nodes
