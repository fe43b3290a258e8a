"""Properties of torch's operators beyond their schemas."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx

# Operators that may return or write an input although their schema does not say so.
MAYBE_ALIASING_TAG: Any = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)

SIZE_CHECKS: frozenset[Any] = frozenset({torch._check, torch._check_is_size, torch._check_value})
"""Functions that check sizes while tracing, and stay in a captured graph."""

TENSOR_BASE: type = torch._C.TensorBase
"""The class whose methods are the builtin methods of tensors."""


def operator_bindings() -> tuple[Any, ...]:
    """The modules whose builtin functions are bindings of the operators with the same names."""
    c: Any = torch._C
    return (torch, c._VariableFunctions, c._nn, c._fft, c._linalg, c._special)


def register_fake(library: torch.library.Library, name: str, fake: Callable[..., Any]) -> None:
    """`torch.library.register_fake` without its search for the caller among all modules, a third of `import eductor`."""
    operator = torch._library.simple_registry.singleton.find(f"{library.ns}::{name}")
    operator.fake_impl.register(fake, fake.__module__, library)


def is_dispatched(op: OpOverload) -> bool:
    """Whether the dispatcher knows the operator; TorchScript has some that it does not (`aten::cpu`, `aten::add.int`)."""
    return bool(torch._C._dispatch_has_kernel(op.name()))


def is_composite(op: OpOverload) -> bool:
    """Whether the operator is CompositeImplicit, so that its schema may omit aliases."""
    return bool(op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


def has_grouped_product(device: torch.device) -> bool:
    """Whether `aten._grouped_mm` is one kernel on a device; elsewhere it calls one product after the other."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def changes_geometry(op: OpOverload) -> bool:
    """Whether an in-place operator changes sizes, strides or storage of what it writes (`t_`, `squeeze_`, `set_`)."""
    return torch.Tag.inplace_view in op.tags or op.overloadpacket is torch.ops.aten.set_


def quantized_operators() -> Any:
    """The quantization operators of exported graphs; importing their module registers them."""
    import torch.ao.quantization.fx._decomposed  # registers them

    return torch.ops.quantized_decomposed


def is_marked_impure(target: Any) -> bool:
    """Whether a function or an operator was marked with `torch.fx.node.has_side_effect`."""
    marked = torch.fx.node._side_effectful_functions
    return target in marked or (isinstance(target, OpOverload) and target.overloadpacket in marked)


def is_random(target: Any) -> bool:
    """Whether an operator draws from a random generator."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def gets_tokens(target: Any) -> bool:
    """Whether functionalization orders an operator by effect tokens; true for ATen's checks as well."""
    from torch._higher_order_ops import effects

    return bool(effects.has_effects(target))


def has_effects(target: Any) -> bool:
    """Whether an operator has effects besides computing: it prints, or communicates with other processes."""
    namespace = getattr(target, "namespace", "")
    return namespace == "_c10d_functional" or (namespace != "aten" and gets_tokens(target))


def is_transform(target: Any) -> bool:
    """Whether a call enters or leaves a transform of torch.func, whose tensors are invalid outside of it."""
    home = str(getattr(target, "__module__", ""))
    return home.startswith(("torch._functorch", "torch._C._functorch")) or "_nesting" in getattr(target, "__name__", "")


def has_inductor_table() -> bool:
    """Whether Inductor's decompositions are loaded; if not, no graph was traced with them."""
    return "torch._inductor.decomposition" in sys.modules


def check_one_hot(input: torch.Tensor, num_classes: int = -1) -> None:
    """The check that eager's one_hot makes on a CPU; torch 2.11 omits it from a trace, later versions do not."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if key in torch.ops.aten.one_hot.default.py_kernels or input.device.type != "cpu":
        return
    torch._assert_async((input >= 0).all(), "Class values must be non-negative.")
    if num_classes >= 0:
        torch._assert_async((input < num_classes).all(), "Class values must be smaller than num_classes.")


@functools.cache
def sums_for_running_products() -> bool:
    """Whether a trace of the gradient of `cumprod` has eager's formula, with sums; that of torch 2.11 has products."""
    with unset_fake_temporarily(), torch.enable_grad():
        x = torch.ones(2, requires_grad=True)
        trace = make_fx(lambda x: torch.autograd.grad(x.cumprod(0), x, torch.ones(2)))(x)
    return any(node.target is torch.ops.aten.cumsum.default for node in trace.graph.nodes)
