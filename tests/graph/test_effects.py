"""What nodes do besides computing, and what follows: may this move, may this alias, does it escape, are these alike."""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_map

from eductor.graph.capture import capture
from eductor.graph.effects.effect import ACT, COLLECTIVE, PURE, RANDOM, Effect
from eductor.graph.effects.graph_effects import Effects
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.no import No
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView

aten = torch.ops.aten
prims = torch.ops.prims

# ---------------------------------------------------------------------------------------- what one node does: tables


def node_of(target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call whose tensors are the inputs x0, x1, ... of a graph, as they come, and know their values."""
    graph = Graph()
    count = 0

    def as_input(value: Any) -> Any:
        nonlocal count
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{count}")
        node.meta["val"] = value
        count += 1
        return node

    args, kwargs = tree_map(as_input, (args, kwargs))
    return graph.create_node("call_method" if isinstance(target, str) else "call_function", target, args, kwargs)


def names(nodes: tuple[Node, ...]) -> str:
    return " ".join(n.name for n in nodes)


def row_name(row: tuple[Any, ...]) -> str:
    target, args = row[0], row[1]
    return f"{target if isinstance(target, str) else getattr(target, '__name__', target)}{len(args)}"


f = torch.randn(4, 4)
g = torch.randn(4, 4)
mean, var = torch.zeros(4), torch.ones(4)
image = torch.randn(2, 4, 3, 3)
index = torch.tensor([0, 1])
heads = torch.randn(1, 2, 4, 4)


@torch.library.custom_op("eductor_test::fill", mutates_args={"out"})
def fill(out: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    out.copy_(value)
    return value * 2


@torch.library.custom_op("eductor_test::log", mutates_args=())
def log(x: torch.Tensor) -> None: ...


log.register_fake(lambda x: None)


torch.library.define("eductor_test::sly", "(Tensor x) -> Tensor", tags=(torch.Tag.maybe_aliasing_or_mutating,))
torch.library.define("eductor_test::composite", "(Tensor x) -> Tensor")
torch.library.impl("eductor_test::composite", "CompositeImplicitAutograd", lambda x: x)
torch.library.define("eductor_test::switch", "(int on) -> ()")

custom = torch.ops.eductor_test

# Each row: a call, and which of its inputs it writes.
WRITES: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (operator.iadd, (f, 1), {}, "x0"),
    (operator.iadd, (f, g), {}, "x0"),
    (operator.ipow, (f, 2), {}, "x0"),
    (operator.setitem, (f, 0, g[0]), {}, "x0"),
    (operator.setitem, (f, (slice(None), 1), 0.0), {}, "x0"),
    ("__setitem__", (f, 0, 1.0), {}, "x0"),
    ("__iadd__", (f, 1), {}, "x0"),
    ("add_", (f, g), {}, "x0"),
    ("copy_", (f, g), {}, "x0"),
    ("index_put_", (f, (index,), g[:2]), {}, "x0"),
    ("set_", (f, g), {}, "x0"),
    ("t_", (f,), {}, "x0"),
    ("resize_", (f, 2, 2), {}, "x0"),
    ("uniform_", (f,), {}, "x0"),
    ("requires_grad_", (f,), {}, "x0"),
    (torch.Tensor.mul_, (f, 2), {}, "x0"),
    (torch.relu_, (f,), {}, "x0"),
    (F.relu, (f, True), {}, "x0"),
    (F.relu, (f,), {"inplace": True}, "x0"),
    (F.relu, (f,), {"inplace": False}, ""),
    (F.relu, (f,), {}, ""),
    (F.elu, (f, 1.0, True), {}, "x0"),
    (F.dropout, (f, 0.5, True, True), {}, "x0"),
    (F.leaky_relu, (f,), {"negative_slope": 0.1, "inplace": True}, "x0"),
    (torch._foreach_add_, ([f, g], 1), {}, "x0 x1"),
    (torch._foreach_add, ([f, g], 1), {}, ""),
    (torch._foreach_copy_, ([f], [g]), {}, "x0"),
    (torch._fused_sgd_, ([f], [g], []), {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0,
                                          "nesterov": False, "maximize": False, "is_first_step": False}, "x0 x1"),
    (aten.sort.values, (f,), {"values": g, "indices": index}, "x1 x2"),
    (aten.rrelu_with_noise.default, (f, g), {}, "x1"),
    (custom.fill.default, (f, g), {}, "x0"),
    # Norms that update running statistics.
    (F.batch_norm, (f, mean, var), {"training": True}, "x1 x2"),
    (F.batch_norm, (f, mean, var, None, None, True), {}, "x1 x2"),
    (F.batch_norm, (f, mean, var), {}, ""),
    (F.batch_norm, (f, None, None), {"training": True}, ""),
    (torch.batch_norm, (f, None, None, mean, var, True, 0.1, 1e-5, True), {}, "x1 x2"),
    (aten.batch_norm.default, (f, None, None, mean, var, True, 0.1, 1e-5, True), {}, "x1 x2"),
    (aten.batch_norm.default, (f, None, None, mean, var, False, 0.1, 1e-5, True), {}, ""),
    (aten.native_batch_norm.default, (f, None, None, mean, var, True, 0.1, 1e-5), {}, "x1 x2"),
    (aten.native_batch_norm.default, (f, None, None, mean, var, False, 0.1, 1e-5), {}, ""),
    (aten._native_batch_norm_legit.default, (f, None, None, mean, var, True, 0.1, 1e-5), {}, "x1 x2"),
    (aten._native_batch_norm_legit_functional.default, (f, None, None, mean, var, True, 0.1, 1e-5), {}, ""),
    (aten._native_batch_norm_legit_no_training.default, (f, None, None, mean, var, 0.1, 1e-5), {}, ""),
    (aten.cudnn_batch_norm.default, (f, mean, None, mean, var, True, 0.1, 1e-5), {}, "x2 x3"),
    (aten.batch_norm_update_stats.default, (f, mean, var, 0.1), {}, "x1 x2"),
    (F.instance_norm, (image, mean, var), {}, "x1 x2"),
    (F.instance_norm, (image, mean, var), {"use_input_stats": False}, ""),
    (aten.instance_norm.default, (image, None, None, mean, var, True, 0.1, 1e-5, True), {}, "x1 x2"),
    # Named like a write, or like a write's neighbour.
    (torch.index_add, (f, 0, index, g[:2]), {}, ""),
    (torch.index_copy, (f, 0, index, g[:2]), {}, ""),
    (torch.index_put, (f, (index,), g[:2]), {}, ""),
    (operator.inv, (index,), {}, ""),
    (operator.invert, (index,), {}, ""),
    *([("is_contiguous", (f,), {}, "")] * (torch.__version__ >= "2.13")),
    ("__and__", (index, index), {}, ""),
    (torch.add, (f, g), {"out": None}, ""),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "written"), WRITES, ids=map(row_name, WRITES))
def test_writes(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: str) -> None:
    effect = effect_of(node_of(target, *args, **kwargs))
    assert not effect.barrier
    assert names(effect.writes) == written
    assert not (written and effect.removable)


def unknown(*args: Any, **kwargs: Any) -> Any:
    return args


# Each row: a call across which nothing moves, and a part of the reason.
BARRIERS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (unknown, (f,), {}, "unknown callable"),
    (lambda x: x, (f,), {}, "unknown callable"),
    (print, (f,), {}, "unknown callable"),
    (print, (3,), {}, "unknown callable"),
    ("append", ([], f), {}, "unknown callable"),
    (torch.add, (f, g), {"out": f}, "out="),
    (torch.norm, (f, 2, 0, False), {"out": f}, "unknown callable"),
    (torch.norm, (f, 2, 0, False, mean), {}, "unknown callable"),
    (F.normalize, (f, 2.0, 1, 1e-12, g), {}, "unknown callable"),
    (aten.add.out, (f, g), {"out": f}, "out="),
    (F.embedding, (index, f), {"max_norm": 1.0}, "max_norm"),
    (F.embedding_bag, (index, f, index), {"max_norm": 1.0}, "unknown callable"),
    (operator.setitem, ([1, 2], 0, f), {}, "an assignment"),
    (operator.iadd, ([f], [g]), {}, "unknown callable"),
    (operator.delitem, (f, 0), {}, "unknown callable"),
    (torch.manual_seed, (3,), {}, "random number generator"),
    (torch.random.set_rng_state, (index,), {}, "random number generator"),
    (torch.random.get_rng_state, (), {}, "random number generator"),
    (torch.set_num_threads, (3,), {}, "unknown callable"),
    (torch.set_default_dtype, (torch.float64,), {}, "unknown callable"),
    (torch._C._set_grad_enabled, (False,), {}, "grad mode"),
    (torch.amp.autocast_mode._enter_autocast, ("cpu", None, True, None), {}, "autocast"),
    (torch.autograd.grad_mode._enter_inference_mode, (True,), {}, "inference mode"),
    (torch._C._autograd._get_data_attr, (f,), {}, "unknown callable"),
    (getattr, (f, "grad"), {}, "unknown callable"),
    (setattr, (f, "data", g), {}, "unknown callable"),
    ("backward", (f,), {}, "unknown callable"),
    (torch.utils.checkpoint.checkpoint, (unknown, f), {}, "unknown callable"),
    (torch.ops.higher_order.cond, (True, unknown, unknown, [f]), {}, "higher-order"),
    (torch.ops.higher_order.invoke_subgraph, (unknown, "name", f), {}, "higher-order"),
    (aten._cudnn_rnn_flatten_weight.default, ([f], 1, 1, 1, 1, 1, 1, False, False), {}, "does not declare"),
    (custom.sly.default, (f,), {}, "may write and return its operands"),
    (custom.switch.default, (1,), {}, "takes and returns nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "because"), BARRIERS, ids=map(row_name, BARRIERS))
def test_barriers(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], because: str) -> None:
    effect = effect_of(node_of(target, *args, **kwargs))
    assert because in effect.barrier
    assert not effect.removable


def test_a_collective_of_c10d_writes_what_its_schema_does_not_say() -> None:
    c10d = pytest.importorskip("torch.distributed")
    if not c10d.is_available():
        pytest.skip("this torch has no distributed")
    assert effect_of(node_of(torch.ops.c10d.allreduce_.default, [f], None, None, None, True, -1)).opaque


def test_calls_of_modules_are_barriers() -> None:
    graph = Graph()
    assert "module" in effect_of(graph.call_module("inner", (graph.placeholder("x"),))).barrier


def test_switches_touch_no_memory() -> None:
    effect = effect_of(node_of(torch._C._set_grad_enabled, False))
    assert effect.is_switch
    assert not effect.opaque
    assert effect_of(node_of(unknown, f)).opaque


complex_ = torch.randn(4, 4, dtype=torch.complex64)
sequence = (f, g)

# Each row: a call, which of its inputs the result may share memory with, and whether it surely is a view.
SHARES: list[tuple[Any, tuple[Any, ...], dict[str, Any], str, bool]] = [
    # Views.
    ("view", (f, 16), {}, "x0", True),
    ("t", (f,), {}, "x0", True),
    ("expand", (f, 2, 4, 4), {}, "x0", True),
    ("expand_as", (f, g), {}, "x0", True),
    ("detach", (f,), {}, "x0", True),
    ("diagonal", (f,), {}, "x0", True),
    ("unsqueeze", (f, 0), {}, "x0", True),
    ("narrow", (f, 0, 0, 2), {}, "x0", True),
    ("view", (f, torch.int32), {}, "x0", True),
    ("view_as", (f, g), {}, "x0", True),
    (torch.view_as_real, (complex_,), {}, "x0", True),
    (torch.real, (complex_,), {}, "x0", False),
    (torch.chunk, (f, 2), {}, "x0", True),
    (torch.split, (f, 2), {}, "x0", True),
    (torch.split, (f, [1, 3]), {}, "x0", True),
    (torch.tensor_split, (f, 3), {}, "x0", True),
    (torch.unbind, (f,), {}, "x0", True),
    (torch.movedim, (f, 0, 1), {}, "x0", True),
    (getattr, (f, "T"), {}, "x0", True),
    (aten.as_strided.default, (f, [2], [1]), {}, "x0", True),
    (aten.alias.default, (f,), {}, "x0", True),
    (operator.getitem, (f, 0), {}, "x0", True),
    (operator.getitem, (f, slice(0, 2)), {}, "x0", True),
    (operator.getitem, (f, (slice(None), 1, None, ...)), {}, "x0", True),
    (operator.getitem, (f, ()), {}, "x0", True),
    # The argument itself, a view or a copy, as it turns out.
    ("reshape", (f, 16), {}, "x0", False),
    ("flatten", (f,), {}, "x0", False),
    ("contiguous", (f,), {}, "x0", False),
    ("to", (f, "cpu"), {}, "x0", False),
    ("float", (f,), {}, "x0", False),
    ("type", (f, torch.float32), {}, "x0", False),
    ("type_as", (f, g), {}, "x0 x1", False),
    ("cpu", (f,), {}, "x0", False),
    ("sum_to_size", (f, 4, 4), {}, "x0", False),
    ("resolve_conj", (f,), {}, "x0", False),
    ("conj_physical", (f,), {}, "x0", False),
    ("to_dense", (f,), {}, "x0", False),
    ("dequantize", (f,), {}, "x0", False),
    (F.dropout, (f, 0.5, False), {}, "x0", False),
    (F.local_response_norm, (image, 2), {}, "x0", False),
    (torch.positive, (f,), {}, "x0", False),
    (torch.atleast_1d, (f,), {}, "x0", False),
    (torch.atleast_2d, (f, g), {}, "x0 x1", False),
    (torch.broadcast_tensors, (f, g), {}, "x0 x1", False),
    (torch.meshgrid, (mean, var), {}, "x0 x1", False),
    (torch.einsum, ("ij->ji", f), {}, "x0", False),
    (torch.cartesian_prod, (mean,), {}, "x0", False),
    (torch.as_tensor, (f,), {}, "x0", False),
    (torch.sparse_coo_tensor, (index[None], mean[:2]), {}, "x0 x1", False),
    (operator.getitem, (f, torch.tensor(1)), {}, "x0", False),
    (operator.getitem, (f, (torch.tensor(1), slice(0, 2))), {}, "x0", False),
    (operator.getitem, (f, [slice(0, 2), None]), {}, "x0", False),
    (aten._unsafe_view.default, (f, [16]), {}, "x0", False),
    (aten.unsafe_split.Tensor, (f, 2), {}, "x0", False),
    (aten.lift.default, (f,), {}, "x0", False),
    (prims.device_put.default, (f, torch.device("cpu")), {}, "x0", False),
    (custom.composite.default, (f,), {}, "x0", False),
    # What is written is returned; and a tensor may move into the memory of another.
    ("add_", (f, g), {}, "x0", False),
    (operator.iadd, (f, g), {}, "x0", False),
    ("set_", (f, g), {}, "x0 x1", False),
    (torch._foreach_add_, ([f, g], 1), {}, "x0 x1", False),
    # New memory.
    ("clone", (f,), {}, "", False),
    ("to", (f, torch.float64), {}, "", False),
    ("to", (index, g), {}, "", False),
    ("long", (f,), {}, "", False),
    ("half", (f,), {}, "", False),
    ("size", (f, 0), {}, "", False),
    (operator.truediv, (1, f), {}, "", False),
    (operator.getitem, (f, [0, 1]), {}, "", False),
    (operator.getitem, (f, index), {}, "", False),
    (operator.getitem, (f, f > 0), {}, "", False),
    (operator.getitem, (f, (0, [1])), {}, "", False),
    (operator.getitem, (f, True), {}, "", False),
    (operator.getitem, (f, ((0, 1),)), {}, "", False),
    (F.batch_norm, (f, mean, var), {"training": True}, "", False),
    (custom.fill.default, (f, g), {}, "", False),
    (torch.tensor, (2.0,), {}, "", False),
    (getattr, (f, "shape"), {}, "", False),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("target", "args", "kwargs", "shared", "is_view"), SHARES, ids=map(row_name, SHARES))
def test_shares(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], shared: str, is_view: bool) -> None:
    node = node_of(target, *args, **kwargs)
    with contextlib.suppress(Exception):
        copies = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (args, kwargs))
        value = (
            getattr(copies[0][0], target)(*copies[0][1:])
            if isinstance(target, str)
            else target(*copies[0], **copies[1])
        )
        node.meta["val"] = value
    effect = effect_of(node)
    assert not effect.barrier
    assert names(effect.shares) == shared
    assert effect.is_view == is_view


def test_result_of_another_dtype_is_only_known_with_its_value() -> None:
    """Without a value of its own, `x.to(...)` may be `x`."""
    node = node_of("to", f, torch.float64)
    assert names(effect_of(node).shares) == "x0"
    node.meta["val"] = f.double()
    assert effect_of(node) == PURE


def test_element_of_a_sequence_is_the_sequence() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = f
    pieces = graph.call_function(torch.chunk, (x, 2))
    pieces.meta["val"] = f.chunk(2)
    piece = graph.call_function(operator.getitem, (pieces, 1))
    assert effect_of(piece) == Effect(shares=(pieces,), is_view=True)


def test_sizes_share_no_memory() -> None:
    graph = Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    x.meta["val"], n.meta["val"] = f, 4
    assert effect_of(graph.call_method("sum_to_size", (x, n, n))).shares == (x,)


PURE_CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    *((target, (f, g), {}) for target in (torch.add, torch.mul, torch.matmul, torch.maximum, operator.sub, "div")),
    *((target, (f,), {}) for target in (torch.relu, F.gelu, F.silu, torch.sum, torch.exp, "sigmoid", "abs", "mean")),
    *((target, (f, 1), {}) for target in (F.softmax, F.log_softmax, "cumsum", "argmax", "var", "norm", F.normalize)),
    *((target, ([f, g],), {}) for target in (torch.cat, torch.stack, torch.hstack, aten.cat.default)),
    (F.linear, (f, g, mean), {}),
    (F.layer_norm, (f, (4,), mean, var), {}),
    (F.rms_norm, (f, (4,)), {}),
    (F.group_norm, (image, 2), {}),
    (F.conv2d, (image, torch.randn(3, 4, 3, 3)), {}),
    (F.conv_transpose2d, (image, torch.randn(4, 3, 3, 3)), {}),
    (F.max_pool2d, (image, 2), {}),
    (F.adaptive_avg_pool2d, (image, 1), {}),
    (F.adaptive_avg_pool2d, (image, (None, 1)), {}),
    (F.scaled_dot_product_attention, (heads, heads, heads), {}),
    (F.embedding, (index, f), {}),
    (F.cross_entropy, (f, torch.zeros(4, dtype=torch.long)), {}),
    (F.mse_loss, (f, g), {}),
    (F.interpolate, (image,), {"scale_factor": 2}),
    (F.pad, (f, (1, 1)), {}),
    (torch.where, (f > 0, f, g), {}),
    (torch.zeros, (3,), {}),
    (operator.truediv, (1.0, f), {}),
    (aten.mm.default, (f, g), {}),
    (aten.native_layer_norm.default, (f, [4], None, None, 1e-5), {}),
    (prims.convert_element_type.default, (f, torch.float16), {}),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs"), PURE_CALLS, ids=map(row_name, PURE_CALLS))
def test_ordinary_operators_are_pure(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    node = node_of(target, *args, **kwargs)
    assert effect_of(node) == PURE
    assert effect_of(node).removable


# Each row: a call, and whether it draws random numbers.
DRAWS: list[tuple[Any, tuple[Any, ...], dict[str, Any], bool]] = [
    (torch.rand, (3,), {}, True),
    (torch.randn_like, (f,), {}, True),
    (torch.bernoulli, (f,), {}, True),
    (torch.randperm, (3,), {}, True),
    ("uniform_", (f,), {}, True),
    (F.dropout, (f,), {}, True),
    (F.dropout, (f, 0.5), {"training": True}, True),
    (F.dropout, (f, 0.5, False), {}, False),
    (F.dropout, (f, 0.0), {}, False),
    (aten.native_dropout.default, (f, 0.5, True), {}, True),
    (aten.native_dropout.default, (f, 0.0, True), {}, True),
    (aten.native_dropout.default, (f, 0.5, False), {}, False),
    (F.alpha_dropout, (f,), {}, False),
    (F.rrelu, (f,), {"training": True}, True),
    (F.rrelu, (f,), {}, False),
    (F.scaled_dot_product_attention, (heads, heads, heads), {}, False),
    (F.scaled_dot_product_attention, (heads, heads, heads, None, 0.1), {}, True),
    (torch.add, (f, g), {}, False),
]  # fmt: skip


@pytest.mark.parametrize(("target", "args", "kwargs", "draws"), DRAWS, ids=map(row_name, DRAWS))
def test_draws(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], draws: bool) -> None:
    effect = effect_of(node_of(target, *args, **kwargs))
    assert effect.random == draws
    assert (effect.ordered == RANDOM) == draws
    assert not (draws and effect.removable)


collectives = torch.ops._c10d_functional

# Each row: a call that must stay though nobody uses it, and the kind of order it keeps.
KEPT: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (torch._assert_async, (f.all(),), {}, ""),
    (aten._assert_async.msg, (f.all(), "no"), {}, ""),
    (aten._assert_scalar.default, (True, "no"), {}, ""),
    (aten._assert_tensor_metadata.default, (f,), {}, ""),
    (aten._functional_assert_async.msg, (f.all(), "no", f), {}, ""),
    (aten.sym_constrain_range_for_size.default, (3,), {}, ""),
    (torch.sym_constrain_range_for_size, (3,), {}, ""),
    (torch._check, (True,), {}, ""),
    (torch._check_is_size, (3,), {}, ""),
    (aten._linalg_check_errors.default, (index, "api"), {"is_matrix": True}, ACT),
    (custom.log.default, (f,), {}, ACT),
    *(
        [
            (collectives.all_reduce.default, (f, "sum", "0"), {}, COLLECTIVE),
            (collectives.all_gather_into_tensor.default, (f, 2, "0"), {}, COLLECTIVE),
            (collectives.wait_tensor.default, (f,), {}, ""),
        ]
        if torch.distributed.is_available()
        else []
    ),
]


@pytest.mark.parametrize(("target", "args", "kwargs", "order"), KEPT, ids=map(row_name, KEPT))
def test_what_must_stay(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], order: str) -> None:
    effect = effect_of(node_of(target, *args, **kwargs))
    assert not effect.removable
    assert not effect.writes
    assert not effect.barrier
    assert effect.kept
    assert effect.ordered == order


SIZES: list[tuple[Any, tuple[Any, ...], bool]] = [
    (operator.add, (2, 3), True),
    (operator.index, (2,), True),
    (operator.not_, (True,), True),
    (math.floor, (2.5,), True),
    (max, (2, 3), True),
    (int, (2.5,), True),
    (torch.sym_max, (2, 3), True),
    (torch.sym_int, (2.5,), True),
    (torch.sym_sum, ([2, 3],), True),
    (print, (2,), False),
    (setattr, (2, "x", 3), False),
    (torch.set_num_threads, (2,), False),
]


@pytest.mark.parametrize(("target", "args", "pure"), SIZES, ids=map(row_name, SIZES))
def test_arithmetic_on_sizes(target: Any, args: tuple[Any, ...], pure: bool) -> None:
    graph = Graph()

    def as_node(value: Any) -> Any:
        node = graph.placeholder("n")
        node.meta["val"] = value
        return node

    effect = effect_of(graph.call_function(target, tree_map(lambda v: v if isinstance(v, str) else as_node(v), args)))
    assert (effect == PURE) == pure
    assert bool(effect.barrier) != pure


# --------------------------------------------------------------------------------------------------- captured programs


class Program:
    """A captured function: its nodes by the names of its variables, and its effects."""

    def __init__(self, fn: Callable[..., Any], *inputs: Any, distinct: bool = False, dynamic: bool = False) -> None:
        self.module: GraphModule = capture(fn, inputs, dynamic=dynamic)
        self.effects = Effects(self.module.graph, inputs_distinct=distinct)
        nodes = list(self.module.graph.nodes)
        self._nodes = {
            n.name.removeprefix("l_").removesuffix("_") if n.op == "placeholder" else n.name: n for n in nodes
        }

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    @property
    def output(self) -> Node:
        return self.module.graph.output_node()

    def may_move(self, node: str, before: str) -> str:
        return self._answer(self.effects.may_move(self[node], self[before]))

    def may_alias(self, old: str, new: str) -> str:
        return self._answer(self.effects.may_alias(self[old], self[new]))

    def _answer(self, verdict: Literal[True] | No) -> str:
        return "yes" if verdict else re.sub(r"\bl_(\w+)_\b", r"\1", verdict.reason)

    def escapes(self, node: str) -> bool:
        return bool(self.effects.escapes(self[node]))


def test_program_names_its_nodes() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y * 2

    program = Program(fn, f)
    assert program["y"].target is operator.add
    assert program["x"].op == "placeholder"


def test_reads_move_freely() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        a = x.sin()
        b = x.cos()
        c = a + b
        return c * b

    program = Program(fn, f)
    assert program.may_move("b", "a") == "yes"
    assert program.may_move("a", "c") == "yes"
    assert program.may_move("a", "a") == "yes"
    assert "operand" in program.may_move("c", "a")
    assert "operand" in program.may_move("c", "b")
    assert "user" in program.may_move("b", "output")
    assert program.may_move("c", "c") == "yes"


def test_inputs_stay_first_and_the_output_last() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = torch.zeros(3)
        return x + y + a[0]

    program = Program(fn, f, g)
    assert "inputs come first" in program.may_move("a", "x")
    assert "inputs come first" in program.may_move("y", "output")
    assert "output last" in program.may_move("output", "a")


def test_nothing_moves_across_a_write_of_what_it_reads() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        w = x.add_(1)
        b = x.cos()
        c = torch.ones(3)
        return a, b, c, w

    program = Program(fn, f)
    assert "in between writes" in program.may_move("a", "b")
    assert "in between writes" in program.may_move("b", "w")
    assert "in between writes" in program.may_move("b", "a")
    assert program.may_move("c", "a") == "yes"
    assert program.may_move("b", "output") == "yes"
    assert "in between reads" in program.may_move("w", "a")
    assert "in between reads" in program.may_move("w", "c")


def test_writes_are_seen_through_views_sequences_and_maybe_copies() -> None:
    def fn(x: torch.Tensor) -> Any:
        pieces = x.chunk(2)
        first = pieces[0]
        other = x.reshape(-1)
        same = F.dropout(other, training=False)
        w = first.mul_(2)
        a = same + 1
        b = x.t() + 1
        return a, b, w

    program = Program(fn, f)
    w = next(n.name for n in program.module.graph.nodes if n.target == "mul_")
    assert "in between writes" in program.may_move("a", w)
    assert "in between writes" in program.may_move(program["b"].all_input_nodes[0].name, w)


@pytest.mark.parametrize("distinct", [False, True])
def test_inputs_may_overlap_unless_somebody_guards(distinct: bool) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = x.sin()
        w = y.add_(1)
        b = x.cos()
        c = x.clone()
        d = y.add_(2)
        return a + b, c + 1, w, d

    program = Program(fn, f, g, distinct=distinct)
    assert ("yes" if distinct else "in between writes what b uses") in program.may_move("b", "w")
    assert ("yes" if distinct else "may write x while c is in use") in program.may_alias("c", "x")


def test_writes_to_other_memory_pass_each_other() -> None:
    def fn(x: torch.Tensor) -> Any:
        a, b = x + 1, x + 2
        v = a.mul_(2)
        w = b.mul_(2)
        return v, w

    program = Program(fn, f)
    assert program.may_move("w", "v") == "yes"
    assert program.may_move("v", "output") == "yes"


def test_writes_to_the_same_memory_keep_their_order() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x + 1
        a.mul_(2)
        a.add_(1)
        return a

    program = Program(fn, f)
    assert "mul_ in between writes" in program.may_move("add_", "mul_")
    assert "in between writes" in program.may_move("mul_", "output")


def test_in_place_operators_and_assignments_write() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        v = x.t()
        a = v.sin()
        x += 1
        b = v.cos()
        x[0] = y[1]
        c = v.tan()
        F.relu(x, inplace=True)
        d = v.exp()
        torch._foreach_add_([x], 1)
        e = v.exp()
        return a, b, c, d, e

    program = Program(fn, f, g)
    for reader, write in (("b", operator.iadd), ("c", operator.setitem), ("d", F.relu), ("e", torch._foreach_add_)):
        before = next(n for n in program.module.graph.nodes if n.target is write)
        assert "in between writes" in program.effects.may_move(program[reader], before).reason


def test_training_batch_norm_writes_its_statistics() -> None:
    def fn(x: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
        a = m + 1
        n = F.batch_norm(x, m, v, training=True)
        b = m + 2
        return a, b, n

    program = Program(fn, f, mean, var, distinct=True)
    assert "n in between writes" in program.may_move("b", "n")
    assert "n in between writes" in program.may_move("a", "output")
    assert not program.effects.of(program["n"]).removable


def test_nothing_moves_across_grad_mode_and_autocast() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        with torch.no_grad():
            b = x.cos()
        with torch.autocast("cpu"):
            c = x @ x
        d = x.tan()
        return a, b, c, d

    program = Program(fn, f)
    assert "grad mode" in program.may_move("b", "a")
    assert "grad mode" in program.may_move("a", "b")
    assert "autocast" in program.may_move("c", "b")
    assert "autocast" in program.may_move("d", "c")
    assert "is a switch" in program.may_move("_set_grad_enabled", "a")


def test_nothing_moves_across_a_higher_order_operator() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        b = torch.cond(a.sum() > 0, lambda t: t + 1, lambda t: t - 1, (a,))
        c = x.cos()
        return b + c

    program = Program(fn, f)
    assert "higher-order" in program.may_move("c", "a")


def test_random_draws_keep_their_order() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = torch.rand(3)
        b = x.sin()
        c = F.dropout(x)
        d = F.dropout(x, training=False)
        return a, b, c, d

    program = Program(fn, f)
    assert "draws random numbers" in program.may_move("c", "a")
    assert "draws random numbers" in program.may_move("a", "d")
    assert program.may_move("b", "a") == "yes"
    assert program.may_move("a", "c") == "yes"
    assert program.may_move("d", "a") == "yes"


def test_effects_for_their_own_sake_keep_their_order() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        a = x.sin()
        log(a)
        torch.ops.eductor_test.log(x)
        b = x.cos()
        return a + b

    program = Program(fn, f)
    logs = [n.name for n in program.module.graph.nodes if n.target in (custom.log, custom.log.default)]
    assert len(logs) == 2
    assert "in between also" in program.may_move(logs[1], logs[0])
    assert program.may_move("b", logs[0]) == "yes"


def test_checks_may_be_passed_but_stay() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        ok = (x > 0).all()
        torch._assert_async(ok)
        b = x.cos()
        x.add_(1)
        return a, b

    program = Program(fn, f)
    check = next(n for n in program.module.graph.nodes if n.target is torch._assert_async)
    assert not program.effects.of(check).removable
    assert program.effects.may_move(program["b"], check)
    assert program.effects.may_move(check, program["add_"])
    assert "in between writes" in program.may_move("b", "output")


# ------------------------------------------------------------------------------------------------------- may this alias


def test_copy_that_is_only_read_may_go() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        c = x.clone()
        return c + 1

    assert Program(fn, f).may_alias("c", "x") == "yes"


def test_copy_that_leaves_the_graph_stays() -> None:
    def fn(x: torch.Tensor) -> Any:
        c = x.clone()
        return c.t()

    assert "leaves the graph" in Program(fn, f).may_alias("c", "x")


def test_output_stays_another_tensor_than_the_input() -> None:
    def fn(x: torch.Tensor) -> Any:
        v = x.view_as(x)
        w = x.t().t()
        return v, w

    program = Program(fn, f)
    assert "a separate output" in program.may_alias("v", "x")
    assert "a separate output" in program.may_alias("w", "x")


def test_two_outputs_stay_two() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        b = a.clone()
        return a, b

    assert "another output" in Program(fn, f).may_alias("b", "a")


def test_two_outputs_do_not_come_to_share_memory() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        v = a.view(-1)
        b = a.clone()
        return v, b

    assert "leaves the graph" in Program(fn, f).may_alias("b", "a")


def test_output_may_become_a_value_that_nobody_else_holds() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        b = a.clone()
        return (b,)

    assert Program(fn, f).may_alias("b", "a") == "yes"


def test_maybe_copy_that_leaves_beside_a_view_of_its_source_stays() -> None:
    """If `contiguous` copied, the outputs did not share memory."""

    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        v = a.view(-1)
        b = a.contiguous()
        return v, b

    assert "leaves the graph" in Program(fn, f).may_alias("b", "a")


def test_maybe_copy_that_alone_leaves_may_go() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        a = x.sin()
        b = a.contiguous()
        return b.view(-1)

    assert Program(fn, f).may_alias("b", "a") == "yes"


def test_copy_stays_when_its_source_is_written_while_it_is_in_use() -> None:
    def fn(x: torch.Tensor) -> Any:
        c = x.clone()
        x.add_(1)
        return c + x

    assert "add_ may write x while c is in use" in Program(fn, f).may_alias("c", "x")


def test_copy_may_go_when_its_source_is_written_after_its_last_use() -> None:
    def fn(x: torch.Tensor) -> Any:
        c = x.clone()
        y = c + 1
        x.add_(1)
        return y

    assert Program(fn, f).may_alias("c", "x") == "yes"


def test_use_through_a_view_counts_as_use() -> None:
    def fn(x: torch.Tensor) -> Any:
        c = x.clone()
        v = c.t()
        x.add_(1)
        return v + 1

    assert "while c is in use" in Program(fn, f).may_alias("c", "x")


def test_copy_that_the_write_itself_reads_stays() -> None:
    def fn(x: torch.Tensor) -> Any:
        c = x.clone()
        x.copy_(c.t())
        return x + 1

    assert "while c is in use" in Program(fn, f).may_alias("c", "x")


def test_copy_that_is_written_stays() -> None:
    def fn(x: torch.Tensor) -> Any:
        c = x.clone()
        c.t().add_(1)
        return c + x

    assert "writes c" in Program(fn, f).may_alias("c", "x")


def test_copy_that_moves_into_other_memory_stays() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        c = x.clone()
        c.set_(y)
        return c + x

    assert "set_ changes the geometry of c" in Program(fn, f, g).may_alias("c", "x")


def test_view_of_what_is_transposed_in_place_stays() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x + 1
        v = a.view_as(a)
        w = a.t_()
        return v + 1, w

    assert "w changes the geometry" in Program(fn, f).may_alias("v", "a")


def test_copy_that_autograd_may_have_saved_stays() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x * 2
        c = a.clone()
        y = c.sin()
        w = a.add_(1)
        return y, w

    def kept_inside(x: torch.Tensor) -> Any:
        y, _ = fn(x)
        return y

    assert "autograd may save c or a" in Program(fn, f.clone().requires_grad_()).may_alias("c", "a")
    assert "autograd may have saved" in Program(kept_inside, f.clone().requires_grad_()).may_alias("c", "a")
    assert Program(fn, f).may_alias("c", "a") == "yes"


def test_copy_in_use_at_an_opaque_call_stays() -> None:
    def fn(x: torch.Tensor) -> Any:
        c = x.clone()
        d = torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (x,))
        return c + d

    assert "while c is in use" in Program(fn, f).may_alias("c", "x")


def test_view_that_changes_nothing_is_the_same_memory() -> None:
    def fn(x: torch.Tensor) -> Any:
        v = x.view_as(x)
        x.add_(1)
        return v + 1

    assert Program(fn, f).may_alias("v", "x") == "yes"


def test_two_equal_views_are_the_same_memory() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x[0:2]
        b = x[0:2]
        c = x[2:4]
        x.add_(1)
        return a + b + c

    program = Program(fn, f)
    assert program.may_alias("b", "a") == "yes"
    assert "writes c" in program.may_alias("c", "a"), "equal once, but other memory"


def test_equal_pieces_of_a_chunk_are_the_same_memory_unequal_ones_are_not() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = x.chunk(2)[0]
        b = x.chunk(2)[0]
        c = x.chunk(2)[1]
        x.add_(1)
        return a + b + c

    program = Program(fn, f)
    assert program.may_alias("b", "a") == "yes"
    assert "writes c" in program.may_alias("c", "a")


def test_results_of_one_operator_are_not_the_same_memory() -> None:
    def fn(x: torch.Tensor) -> Any:
        low, high = torch.aminmax(x, dim=0)
        high.add_(1)
        return low + high

    assert "writes" in Program(fn, f).may_alias("high", "low")


def test_view_and_view_of_another_input_are_not_the_same_memory() -> None:
    """Inputs may overlap, which does not make them the same."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        v = x.view_as(x)
        x.add_(1)
        return v + y

    assert "writes v" in Program(fn, f, g).may_alias("v", "y")


def test_shifted_view_is_other_memory() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = f
    a, b = (graph.call_function(operator.getitem, (x, i)) for i in (0, 1))
    a.meta["val"], b.meta["val"] = f[0], f[1]
    graph.call_method("add_", (x, 1))
    graph.output((a, b))
    assert not Effects(graph).may_alias(b, a)


def test_index_without_dimensions_is_a_view() -> None:
    graph = Graph()
    x, i = graph.placeholder("x"), graph.placeholder("i")
    x.meta["val"], i.meta["val"] = f, torch.tensor(1)
    row = graph.call_function(operator.getitem, (x, i))
    row.meta["val"] = f[1]
    write = graph.call_method("add_", (x, 1))
    use = graph.call_function(torch.sin, (row,))
    graph.output((use,))
    assert not Effects(graph, inputs_distinct=True).may_move(use, write)


def test_writes_to_results_of_opaque_calls_reach_inputs() -> None:
    """`x.data` is the memory of `x`, however it is taken."""

    def fn(x: torch.Tensor) -> Any:
        a = x.sin()
        d = x.data
        d.add_(1)
        b = x.cos()
        return a + b

    program = Program(fn, f, distinct=True)
    assert "in between writes what b uses" in program.may_move("b", "add_")


def test_results_of_strangers_are_held_outside() -> None:
    graph = Graph()
    ours = graph.call_function(unknown, ())
    copy = graph.call_method("clone", (ours,))
    graph.output((copy,))
    effects = Effects(graph)
    assert effects.escapes(ours)
    assert not effects.may_alias(copy, ours)


def test_two_strangers_may_return_the_same() -> None:
    graph = Graph()
    a, b = (graph.call_function(unknown, ()) for _ in range(2))
    write = graph.call_method("add_", (a, 1))
    use = graph.call_method("sin", (b,))
    graph.output((use,))
    assert not Effects(graph, inputs_distinct=True).may_move(use, write)


# --------------------------------------------------------------------------------------------------- escapes, same kind


def test_escapes() -> None:
    def fn(x: torch.Tensor) -> Any:
        inner = x.sin()
        a = x.cos()
        pieces = a.split(2)
        back = x.t()
        seen = inner.exp()
        d = torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t - 1, (seen,))
        return pieces[1], inner + back + d

    program = Program(fn, f)
    assert program.escapes("a"), "an output is a piece of it"
    assert program.escapes("x"), "the caller holds it"
    assert program.escapes("back"), "it is a view of an input"
    assert program.escapes("seen"), "an opaque call has seen it"
    assert not program.escapes("inner")


def test_same_kind() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> Any:
        a = x.sin()
        b = x.cos()
        h = x.double()
        n = i + 1
        with torch.no_grad():
            c = x.tan()
        d = x.exp()
        with torch.autocast("cpu"):
            e = x.abs()
        return a, b, h, n, c, d, e

    program = Program(fn, f, index)

    def same(*names: str) -> str:
        verdict = program.effects.same_kind([program[n] for n in names])
        return "" if verdict else verdict.reason

    assert same("a", "b") == ""
    assert same("a") == ""
    assert same() == ""
    assert "dtype" in same("a", "b", "h")
    assert "dtype" in same("a", "n")
    assert "barrier" in same("a", "c")
    assert "barrier" in same("a", "d")
    assert "barrier" in same("d", "e")
    assert "not known to be a tensor" in same("a", "output")


def test_same_kind_tells_requires_grad_device_and_class() -> None:
    graph = Graph()

    class Mine(torch.Tensor):
        pass

    def value(v: torch.Tensor) -> Node:
        node = graph.placeholder("v")
        node.meta["val"] = v
        return node

    plain = value(torch.ones(2))
    others = {
        "requires_grad": value(torch.ones(2, requires_grad=True)),
        "device": value(torch.ones(2, device="meta")),
        "class": value(torch.ones(2).as_subclass(Mine)),
        "layout": value(torch.ones(2).to_sparse()),
    }
    graph.output((plain,))
    effects = Effects(graph)
    for what, other in others.items():
        assert what in effects.same_kind([plain, other]).reason


# ------------------------------------------------------------------------------------------------- while a pass edits


@pytest.fixture
def edited() -> tuple[GraphView, Rewriter]:
    def fn(x: torch.Tensor) -> Any:
        a = x.clone()
        b = a.sin()
        c = b.clone()
        return c.add_(1)

    view = GraphView(capture(fn, [f]))
    assert view.effects
    return view, Rewriter(view, "test")


def by_name(view: GraphView, name: str) -> Node:
    return next(n for n in view.nodes if n.name == name)


def test_effects_follow_a_replacement(edited: tuple[GraphView, Rewriter]) -> None:
    view, rewrite = edited
    a, b, c = (by_name(view, name) for name in "abc")
    assert "writes c" in view.effects.may_alias(c, b).reason
    rewrite.replace(a, a.all_input_nodes[0])
    assert not view.effects.escapes(b)
    rewrite.replace(c, b)
    assert view.effects.escapes(b), "the write, whose result leaves, is now to it"


def test_effect_that_vanishes_leaves_no_trace(edited: tuple[GraphView, Rewriter]) -> None:
    """A node that wrote, and after an update does not, must not be looked for among the writes."""
    view, rewrite = edited
    write = by_name(view, "add_")
    rewrite.update(write, target=torch.add)
    assert view.effects.of(write) == PURE
    assert view.effects.may_alias(by_name(view, "c"), by_name(view, "b"))
    new = rewrite.insert(torch.sin, by_name(view, "c"), before=write)
    rewrite.replace(write, new)
    assert view.effects.may_alias(by_name(view, "c"), by_name(view, "b"))


def test_reading_a_node_anew_does_not_count_it_twice() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["val"] = f
    write = graph.call_method("add_", (x, 1))
    use = graph.call_method("sin", (x,))
    graph.output((use,))
    effects = Effects(graph)
    effects.add(write)
    write.target = "add"
    effects.add(write)
    effects.remove(write)
    assert effects.may_move(use, write)


def test_move_is_followed(edited: tuple[GraphView, Rewriter]) -> None:
    view, rewrite = edited
    with view.graph.inserting_before(view.output):
        draw = view.graph.call_function(torch.rand, (3,))
    view.added(draw)
    with view.graph.inserting_before(view.output):
        second = view.graph.call_function(torch.rand, (3,))
    view.added(second)
    assert not view.effects.may_move(second, draw)
    rewrite.move(draw, before=by_name(view, "a"))
    assert not view.effects.may_move(draw, view.output)
    assert view.effects.may_move(second, by_name(view, "b"))
