"""Private names of torch: each has a test that fails when it moves or changes its meaning."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import eductor
from eductor import compat

SOURCE = Path(eductor.__file__).parent
INDUCTOR = SOURCE / "engines" / "inductor"
"""The one room that knows torch's code generator."""


def test_private_names_stay_in_their_rooms():
    """Attributes of torch that begin with an underscore, and imports of such modules, stand where the design says."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.parent.name in ("compat", "autograd") or path.parent == INDUCTOR:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                if isinstance(node.value, ast.Name) and node.value.id == "torch":
                    found.append(f"{path.name}:{node.lineno} torch.{node.attr}")
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch._"):
                found.append(f"{path.name}:{node.lineno} {node.module}")
    assert found == []


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{a.name}" for a in node.names)


def test_nothing_of_torchs_own_passes_is_imported():
    banned = (
        "torch._functorch",
        "torch._inductor.fx_passes",
        "torch._inductor.pattern_matcher",
    )
    for path in SOURCE.rglob("*.py"):
        for name in imported_modules(path):
            assert not name.startswith(banned), f"{path}: {name}"
            assert not name.startswith("torch._inductor") or path.parent == INDUCTOR, path


def test_sort_keys_follow_the_order_of_the_graph():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    last = graph.call_function(torch.sin, (x,))
    with graph.inserting_before(last):
        middle = graph.call_function(torch.cos, (x,))
    assert compat.sort_key(x) < compat.sort_key(middle) < compat.sort_key(last)
    assert x < middle < last


def test_composites_and_kernels():
    aten = torch.ops.aten
    assert compat.is_composite(aten.linear.default)
    assert not compat.is_composite(aten.add.Tensor)
    assert compat.is_dispatched(aten.add.Tensor)
    assert not compat.is_dispatched(aten.add.int)


def test_switches_are_made_and_undone():
    grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
    with compat.keeping_dispatch_state():
        compat.switch_context(torch._C._set_grad_enabled, False)
        mode = compat.switch_context(torch.amp.autocast_mode._enter_autocast, "cpu", torch.bfloat16, True, None)
        entered = compat.switch_context(torch.autograd.grad_mode._enter_inference_mode, True)
        assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == (False, True)
        assert not torch.is_inference_mode_enabled()
        compat.switch_context(torch.autograd.grad_mode._exit_inference_mode, entered)
        assert mode is not None
    torch.autocast_decrement_nesting()  # nobody left the mode, and torch would keep its casts of parameters from now on
    torch.clear_autocast_cache()
    assert (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == (grad, autocast)


def test_inherited_meta_has_what_provenance_needs():
    assert {"stack_trace", "nn_module_stack", "recompute", "custom"} <= set(compat.INHERITED_META)


def test_bindings_are_found():
    homes = compat.operator_bindings()
    assert all(
        any(hasattr(home, name) for home in homes)
        for name in ("add", "linear", "fft_fft", "linalg_norm", "special_expm1")
    )
    assert issubclass(torch.Tensor, compat.TENSOR_BASE)
    assert all(map(compat.is_context_switch, (torch._C._set_grad_enabled, torch.amp.autocast_mode._exit_autocast)))
    assert not compat.is_context_switch([])


def test_evaluation_without_new_guards():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.ones(6, 2), static_shapes=False)
    with compat.without_new_guards(mode), pytest.raises(RuntimeError):
        x.view(-1, 4).shape[0] == 3 and x.shape[0] > 5
    assert not mode.shape_env.guards


def test_hooks_of_a_module():
    for register in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
        module = torch.nn.Identity()
        assert not compat.has_hooks(module)
        getattr(module, f"register_{register}")(lambda *args: None)
        assert compat.has_hooks(module), register


def test_operators_of_quantized_graphs():
    operators = compat.quantized_operators()
    names = [a.name for a in operators.quantize_per_tensor.default._schema.arguments]
    assert names[:3] == ["input", "scale", "zero_point"]


def test_owners_of_a_storage():
    weight = torch.nn.Parameter(torch.randn(3))
    assert compat.storage_owners(weight.untyped_storage()) == 1
    array = weight.detach().numpy()
    capsule = torch.utils.dlpack.to_dlpack(weight.data)
    assert compat.storage_owners(weight.untyped_storage()) == 3
    del array, capsule
    assert compat.storage_owners(weight.untyped_storage()) == 1
