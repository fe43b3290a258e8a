"""reinplace_inplaceable_ops: what is written in place, and what must be copied."""

from __future__ import annotations

import operator

import pytest
import torch

import eductor
from eductor import Recorder
from eductor.compat import FakeTensorMode
from eductor.graph import capture, from_python, to_python
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.values.evaluate import propagate
from eductor.observe.manual.manual import run_pass
from eductor.passes.post_grad.reinplace_inplaceable_ops import reinplace_inplaceable_ops
from eductor.pipeline.instruments import Instrument

aten = torch.ops.aten


def ran(source: str, *shapes):
    """A functional graph after the pass, checked by running it beside the graph before."""
    before, module = from_python(source), from_python(source)
    for m in (before, module):
        propagate(m)
    run = run_pass(reinplace_inplaceable_ops, "post_grad", module)
    inputs = [p.meta["val"] for p in module.graph.find_nodes(op="placeholder")]
    first, second = ([made(v, i) for i, v in enumerate(inputs)] for _ in range(2))
    expected, got = before(*first), module(*second)
    for a, b in zip([*expected, *first], [*got, *second], strict=True):
        assert torch.equal(a, b)
    assert memory([*first, *expected]) == memory([*second, *got])
    again = run_pass(reinplace_inplaceable_ops, "post_grad", module)
    assert not again.record.changed
    return run, to_python(module.graph)


def made(value, seed):
    generator = torch.Generator().manual_seed(seed)
    if value.dtype.is_floating_point:
        return torch.randn(value.shape, generator=generator).to(value.dtype)
    return torch.randint(0, 2, value.shape, generator=generator).to(value.dtype)


def memory(tensors):
    return [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in tensors] for b in tensors]


def graph(*lines, inputs=("x: f32[4, 3]", "y: f32[3]", "i: i64[1]"), returns="()"):
    names = [line.split(":")[0] for line in inputs]
    body = [f"    # {line}" for line in inputs] + [f"    {line}" for line in lines]
    body = [line.replace("aten.", "torch.ops.aten.") for line in body]
    return "\n".join([f"def forward({', '.join(names)}):", *body, f"    return {returns}", ""])


WRITE_BACK = "back = aten.copy_.default(x, u)"


# ------------------------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("u = aten.index_put.default(x, [i], y)", "index_put_"),
        ("u = aten.index_put.default(x, [i], y, True)", "index_put_"),
        ("u = aten._unsafe_index_put.default(x, [i], y)", "index_put_"),
        ("u = aten.index_fill.int_Scalar(x, 0, i, 2)", "index_fill_"),
        ("u = aten.masked_fill.Scalar(x, m, 2)", "masked_fill_"),
        ("u = aten.fill.Scalar(x, 2)", "fill_"),
        ("u = aten.select_scatter.default(x, y, 0, 1)", "copy_.default(select"),
        ("u = aten.select_scatter.default(x, y, 0, -1)", "copy_.default(select"),
        ("u = aten.slice_scatter.default(x, w, 0, 1, 3)", "copy_.default(slice"),
        ("u = aten.slice_scatter.default(x, w, 0, 0, 4, 2)", "copy_.default(slice"),
        ("u = aten.diagonal_scatter.default(x, y)", "copy_.default(diagonal"),
        ("u = aten.as_strided_scatter.default(x, y, [3], [2], 1)", "copy_.default(as_strided"),
        ("u = aten.scatter.value(x, 0, j, 2.0)", "scatter_"),
        ("u = aten.scatter_add.default(x, 0, j, w)", "scatter_add_"),
    ],
)
def test_an_input_that_is_written_back_is_written_at_once(line, written):
    inputs = ("x: f32[4, 3]", "y: f32[3]", "i: i64[1]", "m: b8[4, 3]", "w: f32[2, 3]", "j: i64[2, 3]")
    _, text = ran(graph(line, "s = aten.sum.default(u)", WRITE_BACK, inputs=inputs, returns="(s,)"))
    assert written in text
    assert "copy_.default(x, " not in text


def test_chains_of_views_are_written_at_their_end():
    """x[1][0:2] = w, as functionalization spells it."""
    lines = (
        "select = aten.select.int(x, 0, 1)",
        "part = aten.slice.Tensor(select, 0, 0, 2)",
        "new = aten.copy.default(part, w)",
        "select_1 = aten.select.int(x, 0, 1)",
        "inner = aten.slice_scatter.default(select_1, new, 0, 0, 2)",
        "u = aten.select_scatter.default(x, inner, 0, 1)",
        "s = aten.sum.default(u)",
        WRITE_BACK,
    )
    _, text = ran(graph(*lines, inputs=("x: f32[4, 3]", "w: f32[2]"), returns="(s,)"))
    assert "scatter" not in text
    assert text.count("copy_") == 2  # the name and the call
    assert "clone" not in text


def test_the_memory_of_a_value_that_nobody_reads_is_taken():
    _, text = ran(graph("t = aten.sin.default(x)", "u = aten.index_put.default(t, [i], y)", returns="(u,)"))
    assert "index_put_.default(t, " in text


def test_of_two_writes_to_one_value_the_last_is_made_in_place():
    lines = ("t = aten.sin.default(x)", "u = aten.index_put.default(t, [i], y)", "v = aten.fill.Scalar(t, 2)")
    run, text = ran(graph(*lines, "w = aten.add.Tensor(u, v)", returns="(w,)"))
    assert "index_put.default" in text or "index_put_" in text
    lines = (
        "t = aten.sin.default(x)",
        "u = aten.index_put.default(t, [i], y)",
        "v = aten.index_put.default(t, [i], z)",
    )
    inputs = ("x: f32[4, 3]", "y: f32[3]", "i: i64[1]", "z: f32[3]")
    run, text = ran(graph(*lines, "w = aten.add.Tensor(u, v)", inputs=inputs, returns="(w,)"))
    assert "index_put.default(t, [i], y)" in text
    assert "index_put_.default(t, [i], z)" in text
    assert [r.reason for r in run.record.rejects] == ["v reads the old contents of t"]


def test_lists_are_written_together():
    lines = (
        "f = aten._foreach_add.List([a, b], [c, c])",
        "f0 = operator.getitem(f, 0)",
        "f1 = operator.getitem(f, 1)",
        "s = aten.sum.default(f0)",
        "back = aten.copy_.default(a, f0)",
        "back_1 = aten.copy_.default(b, f1)",
    )
    _, text = ran(graph(*lines, inputs=("a: f32[3]", "b: f32[3]", "c: f32[3]"), returns="(s,)"))
    assert "_foreach_add_" in text
    assert "copy_" not in text


# -------------------------------------------------------------------------------------------------------- what is copied


@pytest.mark.parametrize(
    ("lines", "returns", "because"),
    [
        # Known miscompiles of the original.
        (("u = aten.diagonal_scatter.default(x, y)", WRITE_BACK), "(u,)", "u is returned, and would alias x"),
        (
            (
                "p = aten.slice.Tensor(x, 0, 1, 3)",
                "r = aten.slice_scatter.default(x, p, 0, 1, 3)",
                "u = aten.full_like.default(x, 7)",
                WRITE_BACK,
            ),
            "(r,)",
            "nothing was written there",
        ),
        (
            (
                "a = aten.select_scatter.default(x, y, 0, 0)",
                "b = aten.select_scatter.default(a, y, 0, 1)",
                "back = aten.copy_.default(x, b)",
            ),
            "(a,)",
            "a is returned, and would alias x",
        ),
        (
            (
                "a = aten.select_scatter.default(x, y, 0, 0)",
                "v = aten.select.int(a, 0, 2)",
                "b = aten.select_scatter.default(a, y, 0, 1)",
                "back = aten.copy_.default(x, b)",
            ),
            "(v,)",
            "v is returned, and would alias x",
        ),
        # Reads of what was there before.
        (
            ("u = aten.index_put.default(x, [i], y)", "s = aten.sum.default(x)", WRITE_BACK),
            "(s,)",
            "s reads the old contents of x",
        ),
        (
            (
                "v = aten.select.int(x, 0, 1)",
                "u = aten.index_put.default(x, [i], y)",
                "s = aten.sin.default(v)",
                WRITE_BACK,
            ),
            "(s,)",
            "s reads the old contents of v",
        ),
        (
            (
                "d = aten.view.dtype(x, torch.int32)",
                "u = aten.index_put.default(x, [i], y)",
                "s = aten.neg.default(d)",
                WRITE_BACK,
            ),
            "(s,)",
            "s reads the old contents of d",
        ),
        # Other operands of the same call.
        (
            ("v = aten.select.int(x, 0, 1)", "u = aten.index_put.default(x, [i], v)", WRITE_BACK),
            "()",
            "shares its memory",
        ),
        (
            ("v = aten.slice.Tensor(x, 0, 0, 2)", "u = aten.slice_scatter.default(x, v, 0, 1, 3)", WRITE_BACK),
            "()",
            "shares its memory",
        ),
        # What the write-back writes.
        (
            ("u = aten.index_put.default(x, [i], y)", "t = aten.sin.default(x)", "back = aten.copy_.default(x, t)"),
            "(u,)",
            "reads",
        ),
        (("u = aten.index_put.default(x, [i], y)",), "(u,)", "does not write back"),
        # Results that are other tensors than the operand.
        (
            ("e = aten.sin.default(y)", "m = aten.gt.Scalar(x, 0)", "u = aten.masked_fill.Scalar(e, m, 2)"),
            "(u,)",
            "the result differs from the operand",
        ),
        # Memory in which elements share a place.
        (
            (
                "e = aten.sin.default(y)",
                "e_1 = aten.expand.default(e, [4, 3])",
                "u = aten.index_put.default(e_1, [i], y)",
            ),
            "(u,)",
            "may overlap",
        ),
    ],
)
def test_is_refused(lines, returns, because):
    run, _ = ran(graph(*lines, returns=returns))
    assert not run.record.changed
    assert because in " ".join(r.reason for r in run.record.rejects)


def test_what_another_input_is_given_is_read_before_the_write():
    """z.copy_(x) after x was written: the write-back of z reads what x was before."""
    inputs = ("x: f32[4, 3]", "y: f32[3]", "i: i64[1]", "z: f32[4, 3]")
    lines = ("u = aten.index_put.default(x, [i], y)", "other = aten.copy_.default(z, x)", WRITE_BACK)
    run, _ = ran(graph(*lines, inputs=inputs))
    assert not run.record.changed


def test_a_square_matrix_is_not_copied_onto_its_own_transpose():
    inputs = ("x: f32[3, 3]", "y: f32[3]", "i: i64[1]")
    lines = ("t = aten.transpose.int(x, 0, 1)", "u = aten.index_put.default(t, [i], y)", WRITE_BACK)
    run, _ = ran(graph(*lines, inputs=inputs))
    assert "within its own memory" in run.record.rejects[0].reason
    lines = (
        "t = aten.transpose.int(x, 0, 1)",
        "v = aten.index_put.default(t, [i], y)",
        "u = aten.transpose.int(v, 0, 1)",
        WRITE_BACK,
    )
    _, text = ran(graph(*lines, inputs=inputs))
    assert "index_put_.default(t" in text
    assert "copy_" not in text


def test_numbers_of_another_dtype_are_not_written():
    lines = ("a = aten.neg.default(x)", "b = aten.neg.default(y)")
    text = graph(
        *lines,
        "f = aten._foreach_mul.Scalar([a, b], 0.5)",
        "f0 = operator.getitem(f, 0)",
        inputs=("x: i64[3]", "y: i64[3]"),
        returns="(f0,)",
    )
    run, _ = ran(text)
    assert "differs from its operand" in run.record.rejects[0].reason


def test_memory_around_an_input_is_not_written():
    """A part by strides may lie between the elements of an input that is itself a part."""

    def program(x, y):
        return x.copy_(torch.as_strided_scatter(x, y, (2,), (2,), 1)).sum()

    module = capture(program, [torch.randn(8)[::2], torch.randn(2)], "aten")
    run = run_pass(reinplace_inplaceable_ops, "post_grad", module)
    assert "it may write outside of" in " ".join(r.reason for r in run.record.rejects)


def test_the_inputs_of_a_backward_are_not_written():
    """What was saved may share memory with what is written back."""
    from eductor.options import Options
    from eductor.pipeline import Pipeline
    from eductor.pipeline.base import Context, GraphName

    module = from_python(graph("u = aten.index_put.default(x, [i], y)", WRITE_BACK))
    propagate(module)
    recorder = Recorder()
    context = Context("post_grad", Options(strict=True), graph=GraphName(role="backward"))
    Pipeline.parse("post_grad(reinplace_inplaceable_ops)").run("post_grad", module, context, [recorder])
    assert "inputs of the backward" in recorder.records[0].rejects[0].reason


def test_an_attribute_is_written_where_it_is_written_back():
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4, 3))

        def forward(self, i, y):
            self.seen[i] = y
            return self.seen.sum()

    step = Step()
    module = capture(step, [torch.tensor([1]), torch.ones(3)], "aten")
    assert run_pass(reinplace_inplaceable_ops, "post_grad", module).record.changed
    assert "copy_" not in to_python(module.graph)
    assert module(torch.tensor([2]), torch.ones(3)) == 3


def test_sizes_may_be_symbols():
    def program(x, i, y):
        x[1:][i] = y
        return x.sum()

    given = [torch.zeros(6, 5), torch.tensor([1]), torch.ones(5)]
    module = capture(program, given, "aten", dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    guards = len(env.guards)
    assert run_pass(reinplace_inplaceable_ops, "post_grad", module).record.changed
    assert len(env.guards) == guards
    assert "scatter" not in to_python(module.graph)
    x = torch.zeros(8, 7)
    assert module(x, torch.tensor([3]), torch.ones(7)) == 7
    assert x[4].sum() == 7


# --------------------------------------------------------------------------------------------------- through all stages


class Final(Instrument):
    """Keeps the graphs that engines get."""

    def __init__(self):
        self.graphs = []

    def before_stage(self, run):
        if run.name == "engine":
            self.graphs.append(run.module.graph)


def compiled(fn, engine="aten", **options):
    torch._dynamo.reset()
    final = Final()
    return eductor.compile(fn, engine=engine, strict=True, instruments=[final], **options), final


@torch.library.custom_op("eductor_tests::shift", mutates_args={"x"})
def shift(x: torch.Tensor, by: float) -> None:
    x.add_(by)


def test_mutable_operators_write_what_nobody_reads():
    def program(x, y):
        shift(x[1:], 2.0)
        z = y * 2
        shift(z, 1.0)
        w = y * 3
        v = w.clone()
        shift(w, 1.0)
        return z, w + v

    call, final = compiled(program)
    x, y = torch.zeros(3, 2), torch.ones(3, 2)
    z, w = call(x, y)
    assert torch.equal(x, torch.tensor([[0.0, 0], [2, 2], [2, 2]]))
    assert torch.equal(z, torch.full((3, 2), 3.0))
    assert torch.equal(w, torch.full((3, 2), 7.0))
    (graph,) = final.graphs
    targets = [str(n.target) for n in graph.nodes]
    assert targets.count("eductor_tests.shift.default") >= 2
    assert "aten.copy_.default" not in targets


def test_a_mutable_operator_gets_a_copy_of_what_is_read_later():
    def program(y):
        z = y * 2
        w = z.clone()
        shift(w, 1.0)
        return z, w

    call, _ = compiled(program)
    z, w = call(torch.ones(3))
    assert torch.equal(z, torch.full((3,), 2.0))
    assert torch.equal(w, torch.full((3,), 3.0))
    assert z.data_ptr() != w.data_ptr()


def kernel_graph(second_use):
    """A Triton kernel that writes an input, which is written back; the kernel is not run."""
    functional = torch.ops.higher_order.triton_kernel_wrapper_functional
    with FakeTensorMode():
        x, out = torch.empty(8), torch.empty(8)
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in ("x", "out")]
    for node, value in zip(given, (x, out), strict=True):
        node.meta["val"] = value
    written = given[1]
    for _ in range(2):
        kernel = {"kernel_idx": 0, "constant_args_idx": 0, "grid": [(1, 1, 1)], "tma_descriptor_metadata": {}}
        tensors = {"x": given[0], "out": written, "n": 8}
        call = graph.call_function(functional, (), {**kernel, "kwargs": tensors, "tensors_to_clone": ["out"]})
        call.meta["val"] = {"out": torch.empty_like(out)}
        written = graph.call_function(operator.getitem, (call, "out"))
        written.meta["val"] = call.meta["val"]["out"]
    results = []
    if second_use:
        results = [graph.call_function(aten.sin.default, (given[1],))]
        results[0].meta["val"] = torch.empty_like(out)
    back = graph.call_function(aten.copy_.default, (given[1], written))
    back.meta["val"] = out
    graph.output(tuple(results))
    return torch.fx.GraphModule({}, graph)


def test_kernels_write_what_is_written_back():
    module = kernel_graph(second_use=False)
    run_pass(reinplace_inplaceable_ops, "post_grad", module)
    x, out, first, second, _ = module.graph.nodes
    for kernel in (first, second):
        assert kernel.target is torch.ops.higher_order.triton_kernel_wrapper_mutation
        assert kernel.kwargs["kwargs"] == {"x": x, "out": out, "n": 8}


def test_a_kernel_does_not_write_what_is_read_later():
    module = kernel_graph(second_use=True)
    run = run_pass(reinplace_inplaceable_ops, "post_grad", module)
    assert run.record.rejects[0].reason == "sin_default reads the old contents of out"
    assert any(n.target is torch.ops.higher_order.triton_kernel_wrapper_functional for n in module.graph.nodes)


class Decoder(torch.nn.Module):
    """A step of decoding: one more row in each cache, attention over all of it."""

    def __init__(self, how, held):
        super().__init__()
        self.how = how
        if held:
            self.register_buffer("keys", torch.zeros(2, 4, 64, 8))
            self.register_buffer("values", torch.zeros(2, 4, 64, 8))

    def forward(self, q, k, v, at, keys=None, values=None):
        keys, values = (self.keys, self.values) if keys is None else (keys, values)
        for cache, new in ((keys, k), (values, v)):
            if self.how == "index_put":
                cache[:, :, at] = new
            elif self.how == "index_copy":
                cache.index_copy_(2, at, new)
            else:
                cache[:, :, 5:6] = new
        return torch.softmax(q @ keys.transpose(2, 3), -1) @ values


def copies_of_the_cache(graph, size):
    """Nodes that make, or write, as many elements as a cache has."""
    found = []
    for node in graph.nodes:
        value = node.meta.get("val")
        is_large = isinstance(value, torch.Tensor) and value.numel() >= size
        makes = node.op == "call_function" and not effect_of(node).shares
        writes_all = node.target is aten.copy_.default
        if is_large and (makes or writes_all):
            found.append(node.name)
    return found


@pytest.mark.parametrize("engine", ["aten", "inductor"])
@pytest.mark.parametrize("held", [True, False], ids=["buffer", "input"])
@pytest.mark.parametrize("how", ["index_put", "index_copy", "slice"])
def test_a_step_of_decoding_copies_no_cache(how, held, engine):
    if engine == "inductor" and how == "index_copy":
        pytest.skip("it is an index_put there")
    eager, decoder = Decoder(how, held), Decoder(how, held)
    call, final = compiled(decoder, engine)
    caches = [[torch.zeros(2, 4, 64, 8) for _ in range(2)] for _ in range(2)]
    with torch.no_grad():
        for step in range(2):
            q, k, v = torch.randn(3, 2, 4, 1, 8).unbind()
            at = torch.tensor([5 + step])
            expected = eager(q, k, v, at, *(() if held else caches[0]))
            got = call(q, k, v, at, *(() if held else caches[1]))
            torch.testing.assert_close(got, expected)
    pairs = zip(eager.buffers(), decoder.buffers(), strict=True) if held else zip(*caches, strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    (graph,) = final.graphs
    assert copies_of_the_cache(graph, 2 * 4 * 64 * 8) == []


def test_gradients_that_come_undefined_stay_undefined():
    """The backward of an embedding is written in place; with one of two outputs unused, it is cut before that."""

    def program(table, other, rows):
        return table[rows] * 2, other[rows] * 3

    call, _ = compiled(program)
    table, other = (torch.randn(5, 3, requires_grad=True) for _ in range(2))
    first, _ = call(table, other, torch.tensor([1, 1, 2]))
    first.sum().backward()
    assert other.grad is None
    assert torch.equal(table.grad.sum(1), torch.tensor([0.0, 12, 6, 0, 0]))


def test_the_backward_of_an_embedding_fills_zeros_in_place():
    def program(table, rows):
        return table[rows] * 2

    call, final = compiled(program)
    table = torch.randn(5, 3, requires_grad=True)
    call(table, torch.tensor([1, 1, 2])).sum().backward()
    assert torch.equal(table.grad.sum(1), torch.tensor([0.0, 12, 6, 0, 0]))
    assert any("index_put_" in str(n.target) for n in final.graphs[-1].nodes)


def test_a_written_version_moves_where_it_did():
    def program(x):
        x[1:3] = x[1:3]
        return x.sum()

    call, _ = compiled(program)
    x = torch.ones(4)
    version = x._version
    call(x)
    assert x._version > version


def test_a_constant_is_not_written():
    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.zeros(4, 3))

        def forward(self, i, y):
            return torch.index_put(self.table, [i], y).sin()

    module = capture(Step(), [torch.tensor([1]), torch.ones(3)], "aten")
    run = run_pass(reinplace_inplaceable_ops, "post_grad", module)
    assert not run.record.changed
    assert "does not write back to table" in run.record.rejects[0].reason
