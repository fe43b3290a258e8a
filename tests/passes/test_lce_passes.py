"""The compresses of embeddings: which spellings are read, what replaces them, what must stay."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor.graph import capture
from eductor.graph.values.evaluate import propagate
from eductor.observe.manual.manual import run_pass
from eductor.passes.pre_grad.linear_compressions import (
    use_matmul_lce_replace_normal_LCE,
    use_triton_lce_replace_normal_LCE,
    use_triton_lce_replace_simple_LCE,
)
from eductor.passes.pre_grad.use_matmul_fuse_lce_replace_first_LCE import use_matmul_fuse_lce_replace_first_LCE
from eductor.passes.pre_grad.use_triton_dot_compress import use_triton_dot_compress
from eductor.pipeline import f32
from eductor.testing import assert_refused, check_contract

aten, own = torch.ops.aten, torch.ops.eductor

X, W, B = f32(4, 8, 6), f32(3, 8), f32(3)

PASSES = [
    use_matmul_fuse_lce_replace_first_LCE,
    use_matmul_lce_replace_normal_LCE,
    use_triton_dot_compress,
    use_triton_lce_replace_normal_LCE,
    use_triton_lce_replace_simple_LCE,
]


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def inputs(*shapes, dtype=torch.float32, grad=True):
    made = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=made).to(dtype).requires_grad_(grad) for s in shapes]


def fires(pass_, program, *given, dynamic=False):
    """The graph after a pass that must fire; it computes what it did."""
    module = capture(program, given, dynamic=dynamic)
    run = run_pass(pass_, "pre_grad", module)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    assert_same(module, program, given)
    return module


def assert_same(fn, program, given):
    results = [_flat(f(*given)) for f in (program, fn)]
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(
            b, a, rtol=2e-2 if a.dtype.itemsize < 4 else 1e-4, atol=5e-2 if a.dtype.itemsize < 4 else 1e-5
        )
        assert a.stride() == b.stride()
    wanted = [x for x in given if x.requires_grad]
    if wanted:
        grads = [torch.autograd.grad(sum(r.float().square().sum() for r in rs), wanted) for rs in results]
        for a, b in zip(*grads, strict=True):
            close = 1e-1 if a.dtype.itemsize < 4 else 1e-4
            torch.testing.assert_close(b, a, rtol=close, atol=close * max([1, *a.abs().flatten().tolist()]))


def _flat(result):
    return list(result) if isinstance(result, (list, tuple)) else [result]


@pytest.mark.parametrize("pass_", PASSES, ids=lambda p: p.name)
def test_contract(pass_):
    check_contract(pass_, "pre_grad")
    assert not pass_.on


SWAPS = {
    "permute": lambda x: x.permute(0, 2, 1),
    "negative": lambda x: x.permute(0, -1, -2),
    "tuple": lambda x: x.permute((0, 2, 1)),
    "keyword": lambda x: x.permute(dims=(0, 2, 1)),
    "function": lambda x: torch.permute(x, (0, 2, 1)),
    "transpose": lambda x: x.transpose(1, 2),
    "backwards": lambda x: x.transpose(-1, -2),
    "mT": lambda x: x.mT,
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "swapdims": lambda x: torch.swapdims(x, dim0=2, dim1=1),
    "movedim": lambda x: x.movedim(1, 2),
    "moveaxis": lambda x: torch.moveaxis(x, (2, 1), (1, 2)),
}


@pytest.mark.parametrize("swap", SWAPS.values(), ids=SWAPS)
@pytest.mark.parametrize("back", ["transpose", "mT", "movedim"])
def test_each_spelling_of_the_exchange(swap, back):
    def program(x, w):
        return SWAPS[back](F.linear(swap(x), w)).flatten(1)

    module = fires(use_triton_lce_replace_simple_LCE, program, *inputs((4, 8, 6), (3, 8)))
    assert own.lce.default in targets(module)
    module = fires(use_matmul_lce_replace_normal_LCE, program, *inputs((4, 8, 6), (3, 8)))
    assert targets(module)[:2] == [aten.expand.default, aten.matmul.default]


@pytest.mark.parametrize("equation", ["mn,bnd->bmd", "oi, xyiz -> xyoz", "mn,nd->md"])
@pytest.mark.parametrize("exchanged", [False, True])
def test_einsum(equation, exchanged):
    w, x = inputs((3, 8), {"mn,bnd->bmd": (4, 8, 6), "mn,nd->md": (8, 6)}.get(equation, (2, 4, 8, 6)))

    def program(w, x):
        left, _, rest = equation.replace(" ", "").partition(",")
        right, _, result = rest.partition("->")
        if exchanged:
            return torch.einsum(f"{right},{left}->{result}", x, w).sum(-1)
        return torch.einsum(equation, w, x).sum(-1)

    fires(use_triton_lce_replace_simple_LCE, program, w, x)


@pytest.mark.parametrize(
    "equation", ["nm,bnd->bmd", "mn,bnd->mbd", "mn,bnd->bdm", "mn,bnd->bm", "mn,bdn->bmd", "bn,bnd->bd"]
)
def test_other_einsums_are_no_candidates(equation):
    sizes = {"n": 8, "m": 8, "b": 8, "d": 8}
    shapes = [[sizes[c] for c in term] for term in equation.partition("->")[0].split(",")]
    module = capture(lambda w, x: torch.einsum(equation, w, x).sin(), inputs(*shapes))
    assert not run_pass(use_triton_lce_replace_simple_LCE, "pre_grad", module).record.changed


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w, b: F.linear(x.mT, w, b).mT.flatten(1),
        lambda x, w, b: F.linear(x.mT, weight=w, bias=b).mT.relu().flatten(1),
        lambda x, w, b: F.relu(F.linear(x.mT, w, b)).mT.flatten(1),
        lambda x, w, b: F.linear(x.mT.reshape(-1, 8), w, b).view(4, 6, 3).mT.flatten(1),
        lambda x, w, b: F.linear(x.mT.flatten(0, 1), w, b).relu().unflatten(0, (4, 6)).mT.flatten(1),
        lambda x, w, b: F.linear(x.view(4, 8, 6).mT, w, b).mT.reshape(4, 18),
        lambda x, w, b: F.layer_norm(F.linear(x.mT, w, b).mT.flatten(1), [18]),
        lambda x, w, b: torch.cat([x, F.linear(x.mT, w, b).mT], 1),
        lambda x, w, b: torch.bmm(F.linear(x.mT, w, b).mT, x.mT),
        lambda x, w, b: (lambda y: (y * y.sigmoid()).flatten(1))(F.linear(x.mT, w, b).mT),
        lambda x, w, b: torch.stack(F.linear(x.mT, w, b).mT.unbind(1), 1),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normal_ones(program, dtype):
    for pass_ in (use_triton_lce_replace_normal_LCE, use_matmul_lce_replace_normal_LCE):
        module = fires(pass_, program, *inputs((4, 8, 6), (3, 8), (3,), dtype=dtype))
        assert not run_pass(pass_, "pre_grad", module).record.changed


def test_a_relu_becomes_part_of_the_kernel():
    module = fires(
        use_triton_lce_replace_normal_LCE,
        lambda x, w: F.relu(F.linear(x.mT, w).mT).flatten(1),
        *inputs((4, 8, 6), (3, 8)),
    )
    assert targets(module)[0] is own.lce.default
    assert len([n for n in module.graph.nodes if n.op.startswith("call")]) == 2


def test_a_relu_makes_it_no_simple_one():
    assert_refused(
        use_triton_lce_replace_simple_LCE,
        lambda x, w: F.relu(F.linear(x.mT, w).mT).flatten(1),
        [X, W],
        because="the normal pass replaces it",
    )


def test_leading_dims_and_matrices():
    for shape in ((8, 6), (2, 4, 8, 6)):
        fires(use_matmul_lce_replace_normal_LCE, lambda x, w: F.linear(x.mT, w).mT.sum(-1), *inputs(shape, (3, 8)))
        fires(use_triton_lce_replace_simple_LCE, lambda x, w: F.linear(x.mT, w).mT.sum(-1), *inputs(shape, (3, 8)))


@pytest.mark.parametrize("pass_", [use_matmul_lce_replace_normal_LCE, use_triton_lce_replace_normal_LCE])
def test_sizes_may_be_symbolic(pass_):
    def program(x, w, b):
        return F.linear(x.mT, w, b).mT.sum(2)

    module = capture(program, inputs((4, 8, 6), (3, 8), (3,)), dynamic=True)
    env = next(n.meta["example_value"] for n in module.graph.nodes if n.op == "placeholder").fake_mode.shape_env
    guards = len(env.guards)
    assert run_pass(pass_, "pre_grad", module).record.changed
    assert len(env.guards) == guards
    assert_same(module, program, inputs((5, 9, 7), (2, 9), (2,)))


@pytest.mark.parametrize("sizes", [(0, 8, 6, 3), (4, 0, 6, 3), (4, 8, 0, 3), (4, 8, 6, 0), (1, 1, 1, 1)])
def test_empty_and_single_sizes(sizes):
    b, n, d, m = sizes

    def program(x, w, b):
        return F.linear(x.mT, w, b).mT.sum(1)

    for pass_ in (use_triton_lce_replace_normal_LCE, use_matmul_lce_replace_normal_LCE):
        module = capture(program, inputs((b, n, d), (m, n), (m,)))
        run_pass(pass_, "pre_grad", module)
        assert_same(module, program, inputs((b, n, d), (m, n), (m,)))


def keeps_its_layout(consumer):
    return lambda x, w, b: consumer(F.linear(x.mT, w, b).mT)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (keeps_its_layout(lambda y: y), "observable outside"),
        (keeps_its_layout(lambda y: y * 2), "observable outside"),
        (keeps_its_layout(lambda y: y[:, 0]), "observable outside"),
        (keeps_its_layout(lambda y: y.as_strided((2,), (1,)).sin()), "read its strides"),
        (keeps_its_layout(lambda y: y.mT.view(-1).sin()), "fails with other strides"),
        (keeps_its_layout(lambda y: y.add_(1).flatten(1)), "writes memory"),
        (keeps_its_layout(lambda y: y.flatten(1).add_(1)), "writes memory"),
        (keeps_its_layout(lambda y: (y.flatten(1), y.reshape(4, 18))), "several outputs"),
        (keeps_its_layout(lambda y: F.dropout(y, 0.5).flatten(1)), "read its strides"),
        (lambda x, w, b: (lambda r: (r.mT.flatten(1), r.sum()))(F.linear(x.mT, w, b)), "also used by"),
        (lambda x, w, b: F.linear(x.transpose(0, 2).reshape(4, 6, 8), w, b).mT.flatten(1), "does not exchange"),
        (lambda x, w, b: F.linear(x.mT.reshape(4, 6, 8).reshape(6, 4, 8), w, b).mT.flatten(1), "other rows"),
        (lambda x, w, b: F.linear(x.permute(1, 2, 0).reshape(4, 6, 8), w, b).mT.flatten(1), "does not exchange"),
    ],
)
@pytest.mark.parametrize("pass_", [use_triton_lce_replace_normal_LCE, use_matmul_lce_replace_normal_LCE])
def test_stays(pass_, program, because):
    assert_refused(pass_, program, [X, W, B], because)


def written_between(x, w, b):
    x = x * 1
    rows = x.mT
    y = F.linear(rows, w, b)
    x.add_(1)
    return y.mT.flatten(1) + x.sum()


def without_gradients(x, w, b):
    with torch.no_grad():
        rows = x.mT
    return F.linear(rows, w, b).mT.flatten(1)


def autocast(x, w, b):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x.mT, w, b).mT.flatten(1)


def mixed(x, w, b):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x.mT, w.bfloat16(), b).mT.flatten(1)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (written_between, "may write what is read"),
        (without_gradients, "a barrier separates"),
        (autocast, "differ in dtype"),
        (mixed, "differ in dtype"),
    ],
)
@pytest.mark.parametrize("pass_", [use_triton_lce_replace_normal_LCE, use_matmul_lce_replace_normal_LCE])
def test_barriers_and_writes(pass_, program, because):
    assert_refused(pass_, program, [X, W, B], because)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 3), nn.Linear(8, 2)
        self.compress = nn.Parameter(torch.randn(4, 8))

    def forward(self, a, b):
        x = torch.cat([a, b], 1)
        y, z = self.first(x.permute(0, 2, 1)).permute(0, 2, 1), self.second(x.permute(0, 2, 1)).permute(0, 2, 1)
        dots = torch.bmm(x, F.linear(x.permute(0, 2, 1), self.compress)).flatten(1)
        return torch.cat([y.relu().flatten(1), z.flatten(1), dots], 1)


ALL = [
    use_triton_dot_compress,
    use_matmul_fuse_lce_replace_first_LCE,
    use_triton_lce_replace_normal_LCE,
    use_triton_lce_replace_simple_LCE,
    use_matmul_lce_replace_normal_LCE,
]


@pytest.mark.parametrize("passes", [[p] for p in ALL if "simple" not in p.name] + [ALL], ids=lambda p: p[0].name)
def test_end_to_end_with_gradients(passes):
    torch.manual_seed(0)
    model = Model()
    a, b = torch.randn(4, 3, 6, requires_grad=True), torch.randn(4, 5, 6, requires_grad=True)
    recorder = eductor.Recorder()
    compiled = eductor.compile(
        model, enable=[p.name for p in passes], engine="aten", instruments=[recorder], strict=True
    )
    given = [a, b, *model.parameters()]
    results = [fn(a, b) for fn in (model, compiled)]
    assert f"pre_grad/{passes[0].name}" in recorder.changed()
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert results[0].stride() == results[1].stride()
    for x, y in zip(*(torch.autograd.grad(r.square().sum(), given) for r in results), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pass_", [p for p in ALL if "simple" not in p.name], ids=lambda p: p.name)
def test_exported_graphs(pass_):
    model, given = Model(), (torch.randn(4, 3, 6), torch.randn(4, 5, 6))
    expected = model(*given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.export(model, given).module()
    propagate(module, given)
    run = run_pass(pass_, "pre_grad", module)
    assert run.record.changed, [r.reason for r in run.record.rejects]
    torch.testing.assert_close(module(*given), expected)


def test_compresses_of_one_value_are_one_product():
    def program(a, b, u, v, w):
        x = torch.cat([a, b], 1)
        return tuple(F.linear(x.transpose(1, 2), m).transpose(1, 2).sum(2) for m in (u, v, w))

    given = inputs((4, 3, 6), (4, 5, 6), (3, 8), (2, 8), (1, 8))
    module = fires(use_matmul_fuse_lce_replace_first_LCE, program, *given)
    assert targets(module).count(aten.matmul.default) == 1
    assert not run_pass(use_matmul_fuse_lce_replace_first_LCE, "pre_grad", module).record.changed


def test_only_equals_are_grouped():
    def program(a, b, u, v, c):
        x = torch.stack([a, b], 1)
        return F.linear(x.mT, u).mT.sum(2), F.linear(x.mT, v, c).mT.sum(2)

    module = fires(use_matmul_fuse_lce_replace_first_LCE, program, *inputs((4, 6), (4, 6), (3, 2), (5, 2), (5,)))
    assert targets(module).count(aten.matmul.default) == 2


def test_a_weight_that_comes_later_is_not_waited_for():
    def program(a, b, u, v):
        x = torch.cat([a, b], 1)
        first = F.linear(x.mT, u).mT.sum(2)
        late = v * first.sum()
        return first, F.linear(x.mT, late).mT.sum(2)

    module = capture(program, inputs((4, 3, 6), (4, 5, 6), (3, 8), (2, 8)))
    run = run_pass(use_matmul_fuse_lce_replace_first_LCE, "pre_grad", module)
    assert any("is defined only after" in r.reason for r in run.record.rejects)
    assert_same(module, program, inputs((4, 3, 6), (4, 5, 6), (3, 8), (2, 8)))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: torch.bmm(x, F.linear(x.mT, w)),
        lambda x, w: x @ F.linear(x.permute(0, 2, 1), w).mT.mT,
        lambda x, w: torch.matmul(x, torch.matmul(w, x).transpose(-1, -2)).flatten(1),
        lambda x, w: x.bmm(torch.einsum("kn,bnd->bkd", w, x).swapaxes(1, 2)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dot_compress(program, dtype):
    module = fires(use_triton_dot_compress, program, *inputs((4, 8, 6), (3, 8), dtype=dtype))
    assert own.dot_compress.default in targets(module)
    assert not run_pass(use_triton_dot_compress, "pre_grad", module).record.changed


@pytest.mark.parametrize(
    ("program", "because"),
    [
        (lambda x, w: (x @ x.mT) @ w.t(), "another order"),
        (lambda x, w: (lambda c: torch.bmm(x, c) + c.sum())(F.linear(x.mT, w)), "also used by"),
        (lambda x, w: x.double() @ F.linear(x.double().mT, w.double()), ""),
    ],
)
def test_dot_compress_stays(program, because):
    module = capture(program, inputs((4, 8, 6), (3, 8)))
    run = run_pass(use_triton_dot_compress, "pre_grad", module)
    assert not run.record.changed
    assert any(because in r.reason for r in run.record.rejects) or not because


def test_other_interactions_are_no_candidates():
    for program in (
        lambda x, w: torch.bmm(x + 1, F.linear(x.mT, w)),
        lambda x, w: torch.bmm(x, F.linear(x.mT, w, torch.ones(3))),
        lambda x, w: torch.bmm(x, F.linear(x.mT, w).relu()),
        lambda x, w: torch.bmm(x, x.mT),
    ):
        module = capture(program, inputs((4, 8, 6), (3, 8)))
        assert not run_pass(use_triton_dot_compress, "pre_grad", module).record.changed
