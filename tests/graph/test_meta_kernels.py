"""What meta kernels say of a call is what torch's fake mode says of it."""

import pytest
import torch
from torch.fx import Graph, GraphModule

from eductor.compat import FakeTensor, FakeTensorMode, ShapeEnv, enable_python_dispatcher
from eductor.graph.values.evaluate import evaluate
from eductor.graph.values.fake_cache import run_meta_kernel
from eductor.graph.values.meta import UNKNOWN, difference

aten = torch.ops.aten

CALLS = {
    "view": (aten.view.default, [(4, 6)], ([2, -1],)),
    "reshape": (aten.reshape.default, [(4, 6)], ([6, 4],)),
    "flatten": (aten.flatten.using_ints, [(2, 3, 4)], (-2, -1)),
    "unflatten": (aten.unflatten.int, [(4, 6)], (1, [2, -1])),
    "expand": (aten.expand.default, [(4, 1)], ([3, -1, 5],)),
    "transpose": (aten.transpose.int, [(2, 3, 4)], (-1, 0)),
    "t": (aten.t.default, [(2, 3)], ()),
    "permute": (aten.permute.default, [(2, 3, 4)], ([2, 0, 1],)),
    "movedim": (aten.movedim.int, [(2, 3, 4)], (0, -1)),
    "unsqueeze": (aten.unsqueeze.default, [(2, 3)], (-1,)),
    "squeeze": (aten.squeeze.dim, [(2, 1, 3)], (1,)),
    "narrow": (aten.narrow.default, [(6, 2)], (0, 2, 3)),
    "slice": (aten.slice.Tensor, [(6, 2)], (0, 1, 6, 2)),
    "select": (aten.select.int, [(6, 2)], (0, -1)),
    "unbind": (aten.unbind.int, [(3, 2)], (0,)),
    "split": (aten.split.Tensor, [(5, 2)], (2,)),
    "split_with_sizes": (aten.split_with_sizes.default, [(5, 2)], ([1, 0, 4],)),
    "chunk": (aten.chunk.default, [(5, 2)], (3,)),
    "mm": (aten.mm.default, [(2, 3), (3, 4)], ()),
    "bmm": (aten.bmm.default, [(2, 3, 4), (2, 4, 5)], ()),
    "addmm": (aten.addmm.default, [(4,), (2, 3), (3, 4)], ()),
    "baddbmm": (aten.baddbmm.default, [(2, 1, 5), (2, 3, 4), (2, 4, 5)], ()),
}


def the_call(op, shapes, rest, make):
    """A graph with one call, whose operands have the values that `make` gives for a shape."""
    graph = Graph()
    operands = [graph.placeholder(f"x{i}") for i in range(len(shapes))]
    for node, shape in zip(operands, shapes, strict=True):
        node.meta["val"] = make(shape)
    node = graph.call_function(op, (*operands, *rest))
    graph.output(node)
    return GraphModule({}, graph), node


def tensors(value):
    return [value] if isinstance(value, torch.Tensor) else list(value)


NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=NEEDS_CUDA)])
@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_the_kernel_says_what_the_fake_mode_says(name, is_followed, device):
    mode = FakeTensorMode()

    def make(shape):
        whole = FakeTensor(mode, torch.empty(2, *shape, device="meta"), torch.device(device))
        return whole.requires_grad_(is_followed)[1]  # with an offset

    module, node = the_call(*CALLS[name], make)
    with mode, enable_python_dispatcher():
        known = evaluate(module, node, mode)
    told = run_meta_kernel(node, mode)
    assert type(known) is type(told) or {type(known), type(told)} == {list, tuple}
    assert difference(known, told) is None
    memory = node.all_input_nodes[0].meta["val"].untyped_storage()
    for a, b in zip(tensors(known), tensors(told), strict=True):
        assert a.fake_mode is b.fake_mode is mode
        assert (a.requires_grad, a._is_view(), str(a.grad_fn)[:20]) == (
            b.requires_grad,
            b._is_view(),
            str(b.grad_fn)[:20],
        )
        assert (a.untyped_storage()._cdata == memory._cdata) == (b.untyped_storage()._cdata == memory._cdata)


def test_symbolic_sizes_two_devices_and_other_operators_are_left_to_the_fake_mode():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    plain = FakeTensor(mode, torch.empty(4, 4, device="meta"), torch.device("cpu"))
    elsewhere = FakeTensor(mode, torch.empty(4, 4, device="meta"), torch.device("cuda:0"))
    symbolic = mode.from_tensor(torch.empty(5, 4), static_shapes=False)
    values = iter([symbolic, plain, elsewhere, plain])
    _, view = the_call(aten.unsqueeze.default, [()], (0,), lambda _: next(values))
    _, product = the_call(aten.mm.default, [(), ()], (), lambda _: next(values))
    _, other = the_call(aten.tanh.default, [()], (), lambda _: next(values))
    assert [run_meta_kernel(node, mode) for node in (view, product, other)] == [UNKNOWN] * 3
    assert run_meta_kernel(the_call(aten.t.default, [()], (), lambda _: plain)[1], FakeTensorMode()) is UNKNOWN


def test_an_error_is_that_of_the_fake_mode():
    mode = FakeTensorMode()
    module, node = the_call(aten.mm.default, [(2, 3), (4, 5)], (), lambda s: mode.from_tensor(torch.empty(s)))
    with mode, pytest.raises(RuntimeError) as known:
        evaluate(module, node, mode)
    with pytest.raises(RuntimeError) as told:
        run_meta_kernel(node, mode)
    assert str(told.value) == str(known.value)
