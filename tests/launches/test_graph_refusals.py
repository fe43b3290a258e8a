"""Which graphs can be captured: real graphs of values that lie on a GPU, which need not be there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import eductor  # noqa: F401  registers its operators
from eductor.compat import FakeTensorMode, ShapeEnv, make_fx
from eductor.launches import graph_refusals
from eductor.launches.graph_refusals import why_not_captured

CUDA = torch.device("cuda", 0)
aten = torch.ops.aten


def refusal(fn, *forms, device="cuda:0", captured_on=CUDA):
    """Why a function of tensors of these shapes or dtypes with shapes is not captured; None if it is."""
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        inputs = [torch.empty(shape, device=device, dtype=dtype) for shape, dtype in map(_form, forms)]
        with mode:
            module = make_fx(fn, tracing_mode="real")(*inputs)
    found = why_not_captured(module, captured_on)
    return None if found is None else str(found)


def _form(form):
    return form if isinstance(form[-1], torch.dtype) else (form, torch.float32)


LONG, MASK, BYTE = ((4,), torch.long), ((4, 4), torch.bool), ((4, 4), torch.uint8)
X = (4, 4)

WAITS = {
    "item": (lambda x: x.sum().item(), X),
    "masked_select": (lambda x, m: x.masked_select(m), X, MASK),
    "index_put by bytes": (lambda x, m: aten.index_put(x, [m], x.new_zeros(())), X, BYTE),
    "index_put by a mask": (lambda x, m: aten.index_put(x, [m], x.new_zeros(())), X, MASK),
    "index_put by a row of a mask": (lambda x, m: aten.index_put(x, [None, m], x.new_zeros(())), X, ((4,), torch.bool)),
    "bincount": (lambda i: i.bincount(), LONG),
    "unique": (lambda x: torch.unique(x), X),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x), X),
    "unique of rows": (lambda x: torch.unique(x, dim=0), X),
    "repeat_interleave": (lambda x, i: x.repeat_interleave(i, 0), X, LONG),
    "multinomial": (lambda x: x.multinomial(2), X),
    "solve": (lambda x: torch.linalg.solve(x, x), X),
    "solve_ex": (lambda x: torch.linalg.solve_ex(x, x)[0], X),
    "inverse": (lambda x: torch.linalg.inv_ex(x)[0], X),
    "determinant": (lambda x: torch.linalg.det(x), X),
    "cholesky": (lambda x: torch.linalg.cholesky(x), X),
    "eigh": (lambda x: torch.linalg.eigh(x)[0], X),
    "svd": (lambda x: torch.linalg.svdvals(x), X),
    "qr": (lambda x: torch.linalg.qr(x)[0], X),
    "matrix_exp": (lambda x: torch.linalg.matrix_exp(x), X),
    "triangular": (lambda x: torch.linalg.solve_triangular(x, x, upper=True), X),
    "histc": (lambda x: x.histc(4), X),
    "mode": (lambda x: x.mode()[0], X),
    "searchsorted with a sorter": (lambda x, y, i: torch.searchsorted(x, y, sorter=i), (4,), (4,), LONG),
    "set_": (lambda x, y: aten.set_(x.clone(), y), X, X),
    "resize_": (lambda x: x.clone().resize_(2, 2), X),
}

CAPTURED = {
    "products": (lambda x: (x @ x).relu().softmax(-1), X),
    "embedding": (lambda w, i: F.embedding(i, w), X, LONG),
    "gradient of an embedding": (lambda g, i: aten.embedding_dense_backward(g, i, 9, -1, False), X, LONG),
    "index": (lambda x, i: aten.index(x, [i, i]), X, LONG),
    "index_put": (lambda x, i: aten.index_put(x, [i], x, True), X, LONG),
    "index beside a dimension": (lambda x, i: aten.index(x, [None, i]), X, LONG),
    "gather and scatter": (lambda x, i: x.gather(0, i).scatter_add(0, i, x), X, (X, torch.long)),
    "masked_fill": (lambda x, m: x.masked_fill(m, 0.0), X, MASK),
    "where": (lambda x, m: torch.where(m, x, -x), X, MASK),
    "dropout": (lambda x: torch.dropout(x, 0.5, True), X),
    "rand": (lambda x: torch.rand_like(x) + torch.randn(4, device=x.device), X),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), (2, 2, 8, 16)),
    "convolution": (lambda x, w: F.conv2d(x, w), (1, 2, 8, 8), (2, 2, 3, 3)),
    "batch norm": (lambda x, m: aten._native_batch_norm_legit_functional(x, m, m, m, m, True, 0.1, 1e-5), X, (4,)),
    "sort, topk": (lambda x: (x.sort()[0], x.topk(2)[0]), X),
    "cumsum": (lambda x: x.cumsum(0).logcumsumexp(0), X),
    "searchsorted": (lambda x, y: torch.searchsorted(x, y), (4,), (4,)),
    "one_hot of a known width": (lambda i: torch.zeros(4, 8, device=i.device).scatter(1, i.unsqueeze(1), 1.0), LONG),
    "views alone": (lambda x: x.t().reshape(2, 8).select(0, 1), X),
    "an operator of Eductor": (lambda x: torch.ops.eductor.online_softmax(x, 1)[0], X),
}


@pytest.mark.parametrize("program", WAITS)
def test_what_waits_for_the_device(program):
    fn, *forms = WAITS[program]
    assert "waits for the device" in (refusal(fn, *forms) or "")


@pytest.mark.parametrize("program", CAPTURED)
def test_what_is_captured(program):
    fn, *forms = CAPTURED[program]
    assert refusal(fn, *forms) is None


@pytest.mark.parametrize("fn", [lambda x: x.nonzero(), lambda x: x[x > 0]], ids=["nonzero", "index by a mask"])
def test_what_has_a_size_that_the_device_knows(fn):
    cpu = torch.device("cpu")  # fake tensors of a GPU have no such operators in builds without CUDA
    assert "waits for the device" in refusal(fn, X, device=cpu, captured_on=cpu)


def test_values_elsewhere():
    assert "lies on cpu" in refusal(lambda x: x.cpu(), X)
    assert "lies on cpu" in refusal(lambda x: x * 2, X, device="cpu")
    assert "lies on cuda:1" in refusal(lambda x: x * 2, X, device="cuda:1")


def body(x):
    return x.sin()


def with_call(operator, **kwargs):
    """A graph of one call, as a trace leaves it, and its values."""
    with FakeTensorMode():
        module = make_fx(body)(torch.empty(X, device="cuda"))
    (node,) = module.graph.find_nodes(op="call_function", target=aten.sin.default)
    with module.graph.inserting_before(node):
        module.graph.call_function(operator, kwargs=kwargs)
    return module


def test_operators_that_launch_kernels_alone():
    for name in (
        "triton_kernel_wrapper_mutation",
        "triton_kernel_wrapper_functional",
        "invoke_subgraph",
        "flex_attention",
    ):
        assert why_not_captured(with_call(getattr(torch.ops.higher_order, name)), CUDA) is None


def test_operators_that_decide_on_the_host():
    for name in ("cond", "while_loop", "run_and_save_rng_state", "print"):
        if hasattr(torch.ops.higher_order, name):
            refused = why_not_captured(with_call(getattr(torch.ops.higher_order, name)), CUDA)
            assert f"{name} decides on the host" in str(refused)


def test_operators_of_other_packages():
    with torch.library._scoped_library("launches_test", "FRAGMENT") as library:
        library.define("count(Tensor x) -> Tensor")
        refused = why_not_captured(with_call(torch.ops.launches_test.count.default), CUDA)
    assert "may do something on the host in each call" in str(refused)


def test_bodies_are_looked_at():
    module = with_call(torch.ops.higher_order.invoke_subgraph)
    with FakeTensorMode():
        module.body = make_fx(lambda x: x.histc(4))(torch.empty(X, device="cuda"))
    assert "histc" in str(why_not_captured(module, CUDA))


def test_all_names_of_the_table_are_operators():
    assert not [name for name in graph_refusals._SYNCHRONIZING | graph_refusals._INDEXING if not hasattr(aten, name)]


def test_the_table_has_what_torch_forbids():
    forbidden = pytest.importorskip("torch._inductor.utils").FORBIDDEN_CUDAGRAPH_OPS
    names = {name.split(".")[1] for name in forbidden if name.startswith("aten.")}
    tagged = {
        n
        for n in names
        if any(graph_refusals._TAGS & set(getattr(getattr(aten, n), o).tags) for o in getattr(aten, n).overloads())
    }
    assert names - tagged <= graph_refusals._SYNCHRONIZING
