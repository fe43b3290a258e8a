"""`bind` reads every way of spelling a call, and says why where it cannot."""

from __future__ import annotations

import inspect
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Interpreter, Node

from eductor.graph.capture import capture
from eductor.graph.no import No
from eductor.graph.reading.bind import Bound, bind, bind_call, packets_of
from eductor.graph.reading.schema import parameters
from eductor.graph.values.meta import value_of

aten = torch.ops.aten

IOTA = torch.ops.prims.iota.default
IOTA_GIVEN = {"start": 0, "step": 1, "dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False}


def tensor(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def understood(target: Any, *args: Any, **kwargs: Any) -> Bound:
    bound = bind_call(target, args, kwargs)
    assert isinstance(bound, Bound), bound.reason
    return bound


def reason(target: Any, *args: Any, **kwargs: Any) -> str:
    bound = bind_call(target, args, kwargs)
    assert isinstance(bound, No), f"read as {bound.op}"
    return bound.reason


def eager(target: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


def execute(bound: Bound) -> Any:
    args, kwargs = bound.call()
    return bound.op(*args, **kwargs)


def assert_same(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True, check_stride=True)


x, y = tensor(2, 3), tensor(2, 3)
square = tensor(3, 3)
image = tensor(1, 3, 8, 8)
weight, bias = tensor(4, 3), tensor(4)
whole = torch.arange(6).reshape(2, 3)
mask = x > 0
rows = torch.tensor([1, 0])


# Each row: a call, the overload it means, some of the arguments by their schema names.
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any, dict[str, Any]]] = [
    # Functions: positional, by keyword, with numpy's names.
    (torch.add, (x, y), {}, aten.add.Tensor, {"self": x, "other": y, "alpha": 1}),
    (torch.add, (x, 2), {}, aten.add.Tensor, {"other": 2}),
    (torch.add, (x, y), {"alpha": 3}, aten.add.Tensor, {"alpha": 3}),
    (torch.add, (), {"input": x, "other": y}, aten.add.Tensor, {"self": x, "other": y}),
    (torch.add, (), {"x1": x, "x2": y}, aten.add.Tensor, {"self": x, "other": y}),
    (torch.add, (x, y), {"out": None}, aten.add.Tensor, {}),
    (torch.sum, (x,), {}, aten.sum.default, {"dtype": None}),
    (torch.sum, (x, 1), {}, aten.sum.dim_IntList, {"dim": [1], "keepdim": False}),
    (torch.sum, (x,), {"axis": 1, "keepdims": True}, aten.sum.dim_IntList, {"dim": [1], "keepdim": True}),
    (torch.sum, (), {"a": x, "axis": (0, 1)}, aten.sum.dim_IntList, {"dim": (0, 1)}),
    (torch.cat, ([x, y], -1), {}, aten.cat.default, {"dim": -1}),
    (torch.cat, ((x, y),), {}, aten.cat.default, {"dim": 0}),
    (torch.stack, (), {"tensors": [x, y]}, aten.stack.default, {"dim": 0}),
    (torch.clamp, (x, None, 1), {}, aten.clamp.default, {"min": None, "max": 1}),
    (torch.clamp, (x,), {"min": y}, aten.clamp.Tensor, {"min": y, "max": None}),
    (torch.where, (mask, x, y), {}, aten.where.self, {"condition": mask, "self": x, "other": y}),
    (torch.where, (mask, x, 0.0), {}, aten.where.ScalarOther, {"other": 0.0}),
    (torch.where, (mask, 1.0, 0.0), {}, aten.where.Scalar, {"self": 1.0}),
    (torch.pow, (2, x), {}, aten.pow.Scalar, {"self": 2, "exponent": x}),
    (torch.pow, (x, 2), {}, aten.pow.Tensor_Scalar, {"exponent": 2}),
    (torch.var, (x, 0), {}, aten.var.dim, {"dim": [0], "unbiased": True}),
    (torch.var, (x, False), {}, aten.var.default, {"unbiased": False}),
    (torch.var, (x,), {"dim": 0, "correction": 0}, aten.var.correction, {"correction": 0}),
    (torch.linspace, (0, 1, 5), {}, aten.linspace.default, {"steps": 5}),
    (torch.mul, (2, x), {}, aten.mul.Tensor, {"self": 2, "other": x}),
    # Factories, whose sizes may be spelled out; `requires_grad=False` says nothing.
    (torch.zeros, (2, 3), {}, aten.zeros.default, {"size": [2, 3]}),
    (torch.zeros, ((2, 3),), {}, aten.zeros.default, {"size": (2, 3)}),
    (torch.zeros, (3,), {"dtype": torch.int8}, aten.zeros.default, {"size": [3], "dtype": torch.int8}),
    (torch.zeros, (3,), {"requires_grad": False}, aten.zeros.default, {"size": [3]}),
    # Unless the operator has such an argument.
    (IOTA, (3,), IOTA_GIVEN, IOTA, {"length": 3, "requires_grad": False}),
    (torch.full, ((2,), 7), {}, aten.full.default, {"fill_value": 7}),
    (torch.arange, (5,), {}, aten.arange.default, {"end": 5}),
    (torch.arange, (1, 5, 2), {}, aten.arange.start_step, {"start": 1, "end": 5, "step": 2}),
    # Methods: the receiver is the schema's `self`, wherever it stands.
    ("add", (x, y), {}, aten.add.Tensor, {"self": x, "other": y}),
    ("view", (x, 3, 2), {}, aten.view.default, {"size": [3, 2]}),
    ("view", (x, (3, 2)), {}, aten.view.default, {"size": (3, 2)}),
    ("view", (x, -1), {}, aten.view.default, {"size": [-1]}),
    ("view", (x, torch.int32), {}, aten.view.dtype, {"dtype": torch.int32}),
    ("permute", (x, 1, 0), {}, aten.permute.default, {"dims": [1, 0]}),
    ("permute", (x, [1, 0]), {}, aten.permute.default, {"dims": [1, 0]}),
    ("expand", (x[:1], -1, 3), {}, aten.expand.default, {"size": [-1, 3], "implicit": False}),
    ("reshape", (x, 6), {}, aten.reshape.default, {"shape": [6]}),
    ("repeat", (x, 2, 1), {}, aten.repeat.default, {"repeats": [2, 1]}),
    ("flip", (x, 0, 1), {}, aten.flip.default, {"dims": [0, 1]}),
    ("squeeze", (x[None], 0), {}, aten.squeeze.dim, {"dim": 0}),
    ("squeeze", (x[None, :, None], 0, 2), {}, aten.squeeze.dims, {"dim": [0, 2]}),
    ("new_zeros", (x, 4, 5), {}, aten.new_zeros.default, {"size": [4, 5]}),
    ("sum", (x,), {"dim": -1, "keepdim": True}, aten.sum.dim_IntList, {"dim": [-1], "keepdim": True}),
    ("where", (x, mask, y), {}, aten.where.self, {"condition": mask, "self": x, "other": y}),
    ("where", (mask, ~mask, mask), {}, aten.where.self, {"self": mask}),
    ("polygamma", (x.abs(), 1), {}, aten.polygamma.default, {"n": 1}),
    ("max", (x, 1), {}, aten.max.dim, {"dim": 1, "keepdim": False}),
    ("max", (x, y), {}, aten.max.other, {"other": y}),
    ("split", (x, 1), {}, aten.split.Tensor, {"split_size": 1, "dim": 0}),
    ("split", (x, [1, 2], 1), {}, aten.split.sizes, {"split_size": [1, 2], "dim": 1}),
    ("unflatten", (x, 1, (3, 1)), {}, aten.unflatten.int, {"dim": 1, "sizes": (3, 1)}),
    ("contiguous", (x,), {}, aten.contiguous.default, {"memory_format": torch.contiguous_format}),
    ("size", (x, 1), {}, aten.size.int, {"dim": 1}),
    ("masked_fill", (x, mask, 0), {}, aten.masked_fill.Scalar, {"value": 0}),
    ("index_put", (x, (rows,), y), {}, aten.index_put.default, {"accumulate": False}),
    # `to` in its forms, and the casts that mean it.
    ("to", (x, torch.float64), {}, aten.to.dtype, {"dtype": torch.float64, "copy": False}),
    ("to", (x, "cpu"), {}, aten.to.dtype_layout, {"device": torch.device("cpu")}),
    ("to", (x, "cpu", torch.float64), {}, aten.to.device, {"dtype": torch.float64}),
    ("to", (x, torch.float64, False, True), {}, aten.to.dtype, {"non_blocking": False, "copy": True}),
    ("to", (x, whole), {}, aten.to.other, {"other": whole}),
    ("to", (x,), {"dtype": torch.float16}, aten.to.dtype, {"dtype": torch.float16}),
    ("half", (x,), {}, aten.to.dtype, {"dtype": torch.float16}),
    ("long", (x,), {}, aten.to.dtype, {"dtype": torch.int64}),
    ("cpu", (x,), {}, aten.to.dtype_layout, {"device": torch.device("cpu")}),
    # Methods taken from the class, and Python's special methods.
    (torch.Tensor.add, (x, y), {}, aten.add.Tensor, {"self": x, "other": y}),
    (torch.Tensor.view, (x, 6), {}, aten.view.default, {"size": [6]}),
    (torch.Tensor.where, (x, mask, y), {}, aten.where.self, {"condition": mask, "self": x, "other": y}),
    (torch.Tensor.float, (whole,), {}, aten.to.dtype, {"dtype": torch.float32}),
    ("__add__", (x, 2), {}, aten.add.Tensor, {"self": x, "other": 2}),
    ("__rsub__", (x, 2), {}, aten.rsub.Scalar, {"self": x, "other": 2}),
    ("__rpow__", (x, 2), {}, aten.pow.Scalar, {"self": 2, "exponent": x}),
    ("__and__", (whole, 1), {}, aten.bitwise_and.Scalar, {"other": 1}),
    # Python's operators; with a number first, the reflected form.
    (operator.add, (x, y), {}, aten.add.Tensor, {"self": x, "other": y}),
    (operator.add, (2, x), {}, aten.add.Tensor, {"self": x, "other": 2}),
    (operator.sub, (2, x), {}, aten.rsub.Scalar, {"self": x, "other": 2}),
    (operator.mul, (2, x), {}, aten.mul.Tensor, {"self": x, "other": 2}),
    (operator.truediv, (x, 2), {}, aten.div.Tensor, {"self": x, "other": 2}),
    (operator.floordiv, (x, 2), {}, aten.floor_divide.default, {"other": 2}),
    (operator.mod, (5, whole + 1), {}, aten.remainder.Scalar_Tensor, {"self": 5}),
    (operator.pow, (2, x), {}, aten.pow.Scalar, {"self": 2, "exponent": x}),
    (operator.matmul, (x, square), {}, aten.matmul.default, {"other": square}),
    (operator.and_, (1, whole), {}, aten.bitwise_and.Scalar, {"self": whole, "other": 1}),
    (operator.lt, (0, x), {}, aten.gt.Scalar, {"self": x, "other": 0}),
    (operator.ge, (x, y), {}, aten.ge.Tensor, {}),
    (operator.neg, (x,), {}, aten.neg.default, {"self": x}),
    (operator.invert, (mask,), {}, aten.bitwise_not.default, {"self": mask}),
    (abs, (x,), {}, aten.abs.default, {"self": x}),
    (operator.getitem, (x, 1), {}, aten.select.int, {"dim": 0, "index": 1}),
    (operator.getitem, (x, slice(1, None)), {}, aten.slice.Tensor, {"start": 1, "end": None, "step": 1}),
    (operator.getitem, (x, None), {}, aten.unsqueeze.default, {"dim": 0}),
    (getattr, (x, "T"), {}, aten.numpy_T.default, {"self": x}),
    (getattr, (x, "mT"), {}, aten.mT.default, {"self": x}),
    # Synonyms mean the operator they are synonyms of.
    (torch.concat, ([x, y], 1), {}, aten.cat.default, {"dim": 1}),
    (torch.concatenate, ([x, y],), {"axis": 1}, aten.cat.default, {"dim": 1}),
    (torch.swapaxes, (x, 0, 1), {}, aten.transpose.int, {"dim0": 0, "dim1": 1}),
    (torch.swapaxes, (x,), {"axis0": 0, "axis1": 1}, aten.transpose.int, {"dim0": 0, "dim1": 1}),
    (torch.clip, (x, 0, 1), {}, aten.clamp.default, {"min": 0, "max": 1}),
    (torch.multiply, (x, 2), {}, aten.mul.Tensor, {"other": 2}),
    (torch.subtract, (x, y), {"alpha": 2}, aten.sub.Tensor, {"alpha": 2}),
    (torch.true_divide, (x, 2), {}, aten.div.Tensor, {"other": 2}),
    (torch.greater, (x, 0), {}, aten.gt.Scalar, {"other": 0}),
    (torch.moveaxis, (x, 0, 1), {}, aten.movedim.int, {"source": 0, "destination": 1}),
    ("absolute", (x,), {}, aten.abs.default, {}),
    # torch.nn.functional, and the builtins beneath it.
    (F.linear, (tensor(2, 3), weight, bias), {}, aten.linear.default, {"weight": weight, "bias": bias}),
    (F.linear, (tensor(2, 3),), {"weight": weight}, aten.linear.default, {"bias": None}),
    (torch._C._nn.linear, (tensor(2, 3), weight), {}, aten.linear.default, {"weight": weight}),
    (F.gelu, (x,), {"approximate": "tanh"}, aten.gelu.default, {"approximate": "tanh"}),
    (torch._C._nn.gelu, (x,), {}, aten.gelu.default, {"approximate": "none"}),
    (F.relu, (x,), {}, aten.relu.default, {"self": x}),
    (F.relu, (x, False), {}, aten.relu.default, {"self": x}),
    (F.leaky_relu, (x, 0.2), {}, aten.leaky_relu.default, {"negative_slope": 0.2}),
    (F.elu, (x, 0.5, False), {}, aten.elu.default, {"alpha": 0.5, "scale": 1}),
    (F.hardtanh, (x,), {"min_val": -2.0}, aten.hardtanh.default, {"min_val": -2.0, "max_val": 1}),
    (F.dropout, (x, 0.5, False), {}, aten.dropout.default, {"p": 0.5, "train": False}),
    (F.softmax, (x,), {"dim": -1}, aten.softmax.int, {"dim": -1, "dtype": None}),
    (F.softmax, (x, -1), {"dtype": torch.float64}, aten.softmax.int, {"dtype": torch.float64}),
    (F.layer_norm, (x, (3,)), {}, aten.layer_norm.default, {"normalized_shape": (3,), "eps": 1e-5}),
    (F.group_norm, (image, 3), {"eps": 1e-3}, aten.group_norm.default, {"num_groups": 3, "eps": 1e-3}),
    (F.rms_norm, (x, (3,)), {}, aten.rms_norm.default, {"weight": None, "eps": None}),
    (F.batch_norm, (x, None, None), {"training": True}, aten.batch_norm.default, {"input": x, "training": True}),
    (F.instance_norm, (image,), {}, aten.instance_norm.default, {"running_mean": None, "use_input_stats": True}),
    (F.embedding, (rows, weight), {}, aten.embedding.default, {"weight": weight, "indices": rows, "padding_idx": -1}),
    (F.conv2d, (image, tensor(2, 3, 3, 3)), {"padding": 1}, aten.conv2d.default, {"padding": [1, 1], "groups": 1}),
    (F.conv2d, (image, tensor(2, 3, 3, 3)), {"padding": "same"}, aten.conv2d.padding, {"padding": "same"}),
    (F.max_pool2d, (image, 2), {}, aten.max_pool2d.default, {"kernel_size": [2, 2], "stride": []}),
    (F.avg_pool2d, (image, 2, 1), {}, aten.avg_pool2d.default, {"kernel_size": [2, 2], "stride": [1, 1]}),
    (F.adaptive_avg_pool2d, (image, 1), {}, aten.adaptive_avg_pool2d.default, {"output_size": [1, 1]}),
    (F.pad, (x, (1, 1)), {}, aten.pad.default, {"mode": "constant", "value": None}),
    (F.cross_entropy, (x, rows), {"reduction": "sum"}, aten.cross_entropy_loss.default, {"reduction": 2}),
    (F.glu, (tensor(2, 4),), {}, aten.glu.default, {"dim": -1}),
    (torch.split, (x, 2, 1), {}, aten.split.Tensor, {"split_size": 2, "dim": 1}),
    (torch.split, (x,), {"split_size_or_sections": [1, 2], "dim": 1}, aten.split.sizes, {"split_size": [1, 2]}),
    (torch.einsum, ("ij,jk->ik", x, square), {}, aten.einsum.default, {"equation": "ij,jk->ik"}),
    (torch.einsum, ("ij,jk->ik", [x, square]), {}, aten.einsum.default, {"path": None}),
    (torch.broadcast_tensors, (x, x[0]), {}, aten.broadcast_tensors.default, {}),
    # Packets and overloads.
    (aten.add, (x, y), {}, aten.add.Tensor, {"alpha": 1}),
    (aten.add.Tensor, (x, y), {"alpha": 2}, aten.add.Tensor, {"alpha": 2}),
    (aten.sum, (x, [0]), {}, aten.sum.dim_IntList, {"dim": [0]}),
    (aten.view.default, (x, [6]), {}, aten.view.default, {"size": [6]}),
    (aten.convolution.default, (image, tensor(2, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1), {},
     aten.convolution.default, {"groups": 1}),
]  # fmt: skip


def _row_name(row: tuple[Any, ...]) -> str:
    target, args, kwargs = row[:3]
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    values = [type(a).__name__ for a in args] + [f"{k}=" for k in kwargs]
    return f"{name}({', '.join(values)})"


@pytest.mark.parametrize(("target", "args", "kwargs", "op", "known"), CALLS, ids=map(_row_name, CALLS))
def test_call_is_read(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], op: Any, known: dict[str, Any]
) -> None:
    bound = understood(target, *args, **kwargs)
    assert bound.op is op
    assert list(bound.arguments) == [p.name for p in parameters(op)], "every parameter, in the order of the schema"
    for name, value in known.items():
        assert bound[name] is value or bound[name] == value, name
    assert_same(execute(bound), eager(target, *args, **kwargs))


# In-place forms; each row: a call on a fresh tensor, the overload.
WRITES: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = [
    (operator.iadd, (2,), {}, aten.add_.Tensor),
    (operator.isub, (y,), {}, aten.sub_.Tensor),
    (operator.imul, (2,), {}, aten.mul_.Tensor),
    (operator.itruediv, (2,), {}, aten.div_.Tensor),
    *([(operator.ifloordiv, (2,), {}, aten.floor_divide_.Tensor)] * (torch.__version__ >= "2.13")),
    (operator.imod, (2,), {}, aten.remainder_.Scalar),
    (operator.ipow, (2,), {}, aten.pow_.Scalar),
    ("add_", (y,), {"alpha": 2}, aten.add_.Tensor),
    ("__iadd__", (2,), {}, aten.add_.Tensor),
    ("copy_", (y,), {}, aten.copy_.default),
    ("zero_", (), {}, aten.zero_.default),
    ("clip_", (0, 1), {}, aten.clamp_.default),
    ("transpose_", (0, 1), {}, aten.transpose_.default),
    (torch.Tensor.mul_, (2,), {}, aten.mul_.Tensor),
    (F.relu, (True,), {}, aten.relu_.default),
    (F.relu, (), {"inplace": True}, aten.relu_.default),
    (F.elu, (0.5, True), {}, aten.elu_.default),
    (F.hardtanh, (-1.0, 1.0, True), {}, aten.hardtanh_.default),
    (F.threshold, (0.1, 20.0), {"inplace": True}, aten.threshold_.default),
    (F.dropout, (0.5, False, True), {}, aten.dropout_.default),
    (F.rrelu, (), {"inplace": True}, aten.rrelu_.default),
    (torch.relu_, (), {}, aten.relu_.default),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "op"), WRITES, ids=map(_row_name, WRITES))
def test_inplace_call_is_read(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], op: Any) -> None:
    mine, theirs = x.clone(), x.clone()
    bound = understood(target, mine, *args, **kwargs)
    assert bound.op is op
    execute(bound)
    eager(target, theirs, *args, **kwargs)
    assert_same(mine, theirs)


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Any) -> Any:
        return x

    def __repr__(self) -> str:
        return "unhashable"  # the same in each process, for the names of tests


# Each row: a call that is not one operator, or not one that can be known, and a part of the reason.
REFUSALS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (print, (x,), {}, "builtins.print is not a known operator"),
    (lambda x: x, (x,), {}, "<lambda> is not a known operator"),
    (Unhashable(), (x,), {}, "not hashable"),
    (math.sqrt, (2.0,), {}, "not a known operator"),
    (torch.manual_seed, (0,), {}, "not a known operator"),
    (torch.tensor, (2.0,), {}, "not a known operator"),
    ("no_such_method", (x,), {}, "Tensor.no_such_method is not a known operator"),
    ("grad", (x,), {}, "not a known operator"),
    (torch.add, (x, y), {"out": x}, "out= writes"),
    (aten.add.out, (x, y), {"out": x}, "out= writes"),
    (torch.add, (x, y), {"beta": 2}, "no argument 'beta'"),
    (torch.sum, (x,), {"axes": 1}, "no argument 'axes'"),
    (aten.sum, (x,), {"axis": [1]}, "no argument 'axis'"),
    (aten.view, (x, 3, 2), {}, "positional arguments are allowed"),
    (torch.add, (x, y), {"other": y}, "'other' is given twice"),
    (torch.add, (x, y), {"input": x}, "'self' is given twice"),
    (torch.sum, (x, 1), {"axis": 1}, "'dim' is given twice"),
    (torch.add, (x,), {}, "'other' is missing"),
    (torch.add, (x, "y"), {}, "'other' takes"),
    (torch.sum, (x, 1.5), {}, "takes"),
    (torch.add, (2, 3), {}, "takes no tensors"),
    (aten.add.int, (2, 3), {}, "TorchScript-only"),
    (aten.cpu, (x,), {}, "TorchScript-only"),
    (torch.zeros, (3,), {"requires_grad": True}, "no argument 'requires_grad'"),
    (F.relu, (x, True, True), {}, "too many arguments"),
    (F.dropout, (x,), {"rate": 0.5}, "unexpected keyword argument"),
    (F.embedding, (rows, weight), {"max_norm": 1.0}, "max_norm writes its weight"),
    (F.embedding, (rows, weight, -1), {}, "negative padding_idx"),
    (F.softmax, (x,), {}, "softmax without dim"),
    (F.cross_entropy, (x, rows), {"reduce": False}, "deprecated"),
    (F.max_pool2d, (image, 2), {"return_indices": True}, "with indices"),
    (F.adaptive_avg_pool2d, (image, (None, 1)), {}, "None means the input's"),
    (torch.einsum, ("ij,jk,kl->il", x, square, square), {}, "more than two operands"),
    (torch.einsum, (x, [0, 1], [1, 0]), {}, "sublist"),
    (operator.truediv, (2, x), {}, "a number divided by a tensor"),
    ("__rtruediv__", (x, y), {}, "a number divided by a tensor"),
    (operator.floordiv, (2, x), {}, "floor-divided"),
    (operator.add, (2, 3), {}, "arithmetic on sizes"),
    (operator.iadd, (2, x), {}, "arithmetic on sizes"),
    (operator.neg, (2,), {}, "arithmetic on sizes"),
    (operator.getitem, ([x, y], 0), {}, "element of a sequence"),
    (operator.getitem, (x, (0, 1)), {}, "several parts"),
    (operator.getitem, (x, True), {}, "several parts"),
    (operator.getitem, (x, rows), {}, "several parts"),
    (operator.setitem, (x, 0, y[0]), {}, "an assignment"),
    ("__setitem__", (x, 0, y[0]), {}, "an assignment"),
    (getattr, (x, "shape"), {}, "'shape' is not an operator"),
    ("to", (x, 0), {}, "a device index"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "because"), REFUSALS, ids=map(_row_name, REFUSALS))
def test_refusal_has_a_reason(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], because: str) -> None:
    assert because in reason(target, *args, **kwargs)


def test_refusal_is_false() -> None:
    assert not bind_call(print, (x,), {})


def test_given_are_the_arguments_of_the_call() -> None:
    bound = understood(torch.sum, x, dim=1)
    assert bound.given == {"self", "dim"}
    assert bound.get("keepdim") is False
    assert bound.get("no_such") is None
    with pytest.raises(KeyError):
        bound["no_such"]


def test_call_leaves_defaults_out_and_is_positional_where_it_can_be() -> None:
    assert understood(torch.sum, x, dim=1).call() == ((x, [1]), {})
    assert understood(torch.sum, x, 1, dtype=torch.float64).call() == ((x, [1]), {"dtype": torch.float64})
    assert understood(torch.argmax, x, keepdim=True).call() == ((x,), {"keepdim": True})
    assert understood(torch.add, x, y, alpha=1).call() == ((x, y), {"alpha": 1})


def test_default_lists_are_not_shared() -> None:
    one, two = (understood(F.conv2d, image, tensor(2, 3, 3, 3)) for _ in range(2))
    assert one["stride"] == [1, 1]
    assert one["stride"] is not two["stride"]


def test_defaults_are_values_of_python() -> None:
    """A schema writes the default of `contiguous` as 0, which is no memory format."""
    for schema in torch._C._jit_get_all_schemas():
        if not schema.name.startswith("aten::"):
            continue
        op = getattr(getattr(aten, schema.name[6:]), schema.overload_name or "default")
        for p in parameters(op):
            if p.kind in ("ScalarType", "MemoryFormat", "Layout", "Device") and p.has_default:
                assert not isinstance(p.default, int), (op, p.name)


def test_unfamiliar_numbers_and_sequences() -> None:
    assert understood("view", x, torch.Size([3, 2]))["size"] == (3, 2)
    assert understood(torch.add, x, 1 + 2j).op is aten.add.Tensor
    assert understood("view", tensor(1), ())["size"] == ()
    assert understood(torch.Tensor.sum, x, ())["dim"] == ()


@pytest.mark.parametrize(
    ("target", "packet"),
    [
        (torch.add, aten.add), ("add", aten.add), (torch.Tensor.add, aten.add), (aten.add.Tensor, aten.add),
        (torch.concat, aten.cat), ("swapaxes", aten.transpose), ("clip_", aten.clamp_), (aten.multiply, aten.mul),
        (torch._C._nn.gelu, aten.gelu), (torch.fft.fft, aten.fft_fft), (torch.linalg.inv, aten.linalg_inv),
    ],
)  # fmt: skip
def test_packet_of_a_target(target: Any, packet: Any) -> None:
    assert packets_of(target) == (packet,)


def test_packets_of_what_depends_on_arguments_and_of_what_is_unknown() -> None:
    assert packets_of(F.relu) is None
    assert packets_of(print) == ()
    assert packets_of(Unhashable()) == ()


# ------------------------------------------------------------------------------------------------------ real graphs


def calls(module: GraphModule) -> dict[str, Bound | No]:
    return {n.name: bind(n) for n in module.graph.nodes if n.op in ("call_function", "call_method")}


class Rebound(Interpreter):
    """Runs a graph with each call that was understood made by its operator."""

    count = 0

    def run_node(self, n: Node) -> Any:
        bound = bind(n)
        if not isinstance(bound, Bound):
            return super().run_node(n)
        self.count += 1
        args, kwargs = torch.fx.map_arg(bound.call(), lambda operand: self.env[operand])
        return bound.op(*args, **kwargs)


def attention(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    b, n, c = q.shape
    q, k = (t.view(b, n, 2, c // 2).transpose(1, 2) for t in (q, k))
    scores = (q @ k.transpose(-2, -1) / math.sqrt(c)).softmax(dim=-1)
    return scores.matmul(k).transpose(1, 2).reshape(b, n, -1)


def spellings(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = torch.cat([a, b], axis=-1)  # type: ignore[call-overload]
    d, e = c.chunk(2, dim=-1)
    return 2 - d + (e * 3).clip(min=0).float().sum(1, keepdim=True) + 1 / (1 + a.abs())


def in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    c = a.clone()
    c += b
    c.mul_(2)
    F.relu(c, inplace=True)
    c[0] = b[1]
    return c.expand(a.size(0), *c.shape[1:])


def sizes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    flat = a.reshape(a.shape[0] * a.shape[1], -1)
    return torch.zeros(flat.shape[0], 3) + torch.arange(flat.size(0)).unsqueeze(1) + b.sum() * a.numel()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", [attention, spellings, in_place, sizes], ids=lambda f: f.__name__)
def test_bound_program_computes_the_same(program: Callable[..., Any], dynamic: bool) -> None:
    inputs = [tensor(2, 4, 6), tensor(2, 4, 6)]
    module = capture(program, inputs, dynamic=dynamic)
    rebound = Rebound(module)
    assert_same(rebound.run(*inputs), program(*inputs))
    assert rebound.count >= 5


def test_all_calls_of_an_aten_graph_are_understood() -> None:
    module = capture(attention, [tensor(2, 4, 6), tensor(2, 4, 6)], "aten", dynamic=True)
    unread = {name: b.reason for name, b in calls(module).items() if isinstance(b, No)}
    assert all("sizes" in why or "not a known operator" in why for why in unread.values()), unread
    assert any(isinstance(b, Bound) and b.packet is aten.bmm for b in calls(module).values())


def test_symbolic_sizes_are_integers() -> None:
    def program(a: torch.Tensor) -> torch.Tensor:
        return a.view(-1, a.shape[0]).expand(a.shape[1], a.shape[0])

    module = capture(program, [tensor(4, 5)], dynamic=True)
    found = {b.packet: b for b in calls(module).values() if isinstance(b, Bound)}
    size = found[aten.view]["size"][1]
    assert isinstance(size, Node)
    assert isinstance(value_of(size), torch.SymInt)
    assert isinstance(found[aten.expand]["size"], list)


def test_arithmetic_on_sizes_is_not_an_operator() -> None:
    module = capture(sizes, [tensor(2, 4, 6), tensor(2, 4, 6)], dynamic=True)
    because = [b.reason for b in calls(module).values() if isinstance(b, No)]
    assert any("arithmetic on sizes" in why for why in because)


def by_hand(build: Callable[[Graph, Node], Node], value: Any = None) -> Bound | No:
    """The reading of a node that `build` makes of one placeholder, which has a value or none."""
    graph = Graph()
    operand = graph.placeholder("operand")
    if value is not None:
        operand.meta["val"] = value
    return bind(build(graph, operand))


def test_node_without_value_is_read_where_one_overload_fits() -> None:
    bound = by_hand(lambda g, n: g.call_function(torch.relu, (n,)))
    assert isinstance(bound, Bound)
    assert bound.op is aten.relu.default
    bound = by_hand(lambda g, n: g.call_function(aten.add.Tensor, (n, n)))
    assert isinstance(bound, Bound)


@pytest.mark.parametrize(
    "build",
    [
        lambda g, n: g.call_function(torch.mul, (n, n)),
        lambda g, n: g.call_function(torch.sum, (n, n)),
        lambda g, n: g.call_method("view", (n, n)),
        lambda g, n: g.call_method("expand", (n, n)),
        lambda g, n: g.call_function(torch.zeros, (n,)),
        lambda g, n: g.call_method("split", (n, n)),
    ],
)  # fmt: skip
def test_node_without_value_is_not_read_where_it_could_mean_two_things(build: Callable[[Graph, Node], Node]) -> None:
    bound = by_hand(build)
    assert isinstance(bound, No)
    assert "no fake value" in bound.reason


def test_sizes_without_values_can_be_spelled_out() -> None:
    bound = by_hand(lambda g, n: g.call_method("expand", (n, n, 3)))
    assert isinstance(bound, Bound)
    assert len(bound["size"]) == 2


def test_node_that_is_a_sequence_is_the_whole_list() -> None:
    """`x.sum(dims)` where `dims` is computed: it is not one integer that stands for a list."""
    graph = Graph()
    dims = graph.placeholder("dims")
    dims.meta["val"] = (0, 1)
    bound = bind(graph.call_method("sum", (x, dims)))
    assert isinstance(bound, Bound)
    assert bound["dim"] is dims
    dims.meta["val"] = 1
    bound = bind(graph.call_method("sum", (x, dims)))
    assert isinstance(bound, Bound)
    assert bound["dim"] == [dims]


def test_node_that_is_a_boolean_does_not_select() -> None:
    bound = by_hand(lambda g, n: g.call_function(operator.getitem, (x, n)), True)
    assert isinstance(bound, No)


def test_nodes_of_other_kinds_are_no_calls() -> None:
    graph = Graph()
    node = graph.placeholder("x")
    for other in (node, graph.get_attr("w"), graph.call_module("m", (node,)), graph.output(node)):
        bound = bind(other)
        assert isinstance(bound, No)
        assert "not a call of an operator" in bound.reason


def test_readings_are_looked_up_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    understood(torch.add, x, y)
    monkeypatch.setattr(sys.modules[bind.__module__], "_plan", lambda *kinds: pytest.fail(f"worked out again: {kinds}"))
    understood(torch.add, tensor(5), tensor(5))


def test_a_list_of_a_reading_is_its_own() -> None:
    """Readings share what is worked out of them once, but no list that one of them could change."""
    first, second = (understood(F.avg_pool2d, x, 2).arguments for _ in range(2))
    lists = [name for name, value in first.items() if isinstance(value, list)]
    assert {"kernel_size", "stride", "padding"} <= set(lists)
    assert not any(first[name] is second[name] for name in lists)


def test_adapters_have_the_signature_of_what_they_read() -> None:
    """A function of another torch version with more parameters must not be read by an adapter that ignores them."""
    from eductor.graph.reading.spellings import _functions

    for function, adapter in _functions().items():
        if getattr(function, "__module__", "") != "torch.nn.functional":
            continue
        mine, theirs = inspect.signature(adapter).parameters, inspect.signature(function).parameters
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in (*mine.values(), *theirs.values())):
            continue
        assert [(p.name, p.default) for p in mine.values()] == [(p.name, p.default) for p in theirs.values()], function
