"""Every difference between torch versions and every private name of torch that the lower rooms need."""

from __future__ import annotations

import inspect
import itertools
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._guards import CompileContext, TracingContext, compile_context, tracing
from torch._logging._internal import trace_log, trace_structured
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as in_kernel_invocation_manager
from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx as make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv
from torch.fx.experimental.symbolic_shapes import statically_known_true as statically_known_true
from torch.fx.proxy import _COPY_META_FIELDS
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

# What a node made in place of another inherits: torch's own list, and what Dynamo and export add.
INHERITED_META: tuple[str, ...] = (*_COPY_META_FIELDS, "stack_trace", "seq_nr")

# Operators whose schema does not tell everything: they may return an input, or write one.
MAYBE_ALIASING_TAG: Any = getattr(torch.Tag, "maybe_aliasing_or_mutating", None)


SIZE_CHECKS: frozenset[Any] = frozenset({torch._check, torch._check_is_size, torch._check_value})
"""Functions that check sizes while tracing, and stay in a captured graph."""

EXPORTED_CHECKS = "_guards_fn"
"""The module by which an exported graph checks what it assumes of its inputs."""

TENSOR_BASE: type = torch._C.TensorBase
"""The class whose methods are the builtin methods of tensors."""


def operator_bindings() -> tuple[Any, ...]:
    """The modules whose builtin functions are bindings of operators of their own names."""
    c: Any = torch._C
    return (torch, c._VariableFunctions, c._nn, c._fft, c._linalg, c._special)


def codegen_of(graph: Graph) -> Any:
    """How a graph takes its inputs apart and puts its outputs together."""
    return graph._codegen


def calls_of(nodes: Iterable[Node]) -> Iterator[Any]:
    """For each node four entries: kind, target, positional and keyword arguments, as the node holds them."""
    return itertools.chain.from_iterable(map(_CALL, nodes))


_CALL = operator.attrgetter("op", "target", "_args", "_kwargs")


def sort_key(node: Node) -> Any:
    """The place of a node in its graph, comparable with that of its neighbours and kept by torch.fx at each insertion."""
    return node._sort_key


def is_erased(node: Node) -> bool:
    """Whether a node was taken out of its graph."""
    return node._erased


@contextmanager
def created_nodes(module: GraphModule) -> Iterator[list[Node]]:
    """Collects the nodes that are created in the graph of a module meanwhile, those that are erased again, too."""
    made: list[Node] = []
    module.graph.owning_module = module  # another module may have the same graph: the owner's hooks are called
    module._register_create_node_hook(made.append)
    try:
        yield made
    finally:
        module._unregister_create_node_hook(made.append)


def is_dispatched(op: OpOverload) -> bool:
    """Whether the dispatcher knows the operator; TorchScript has others of its own (`aten::cpu`, `aten::add.int`)."""
    return bool(torch._C._dispatch_has_kernel(op.name()))


def is_composite(op: OpOverload) -> bool:
    """Whether the operator is written in terms of others, so that its schema need not say what it aliases."""
    return bool(op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd))


def lazy_module(root: torch.nn.Module, graph: Graph) -> torch.fx.GraphModule:
    """A module whose code is generated when somebody reads or runs it; passes and engines look at the graph."""
    from torch.fx._lazy_graph_module import _LazyGraphModule

    return _LazyGraphModule(root, graph)


def has_grouped_product(device: torch.device) -> bool:
    """Whether `aten._grouped_mm` is one kernel on a device; elsewhere it calls one product after the other."""
    if device.type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device)[0] in (9, 10)


def changes_geometry(op: OpOverload) -> bool:
    """Whether an in-place operator changes sizes, strides or storage of what it writes (`t_`, `squeeze_`, `set_`)."""
    return torch.Tag.inplace_view in op.tags or op.overloadpacket is torch.ops.aten.set_


def sequence_number() -> int:
    """The number that autograd gives to the next step it records on this thread."""
    return int(torch._C._autograd._get_sequence_nr())


def last_traced_node() -> Node:
    """The newest node of the trace that goes on."""
    from torch.fx.experimental.proxy_tensor import get_innermost_proxy_mode

    mode = get_innermost_proxy_mode()
    assert mode is not None
    newest: Node = mode.tracer.graph._root.prev
    return newest


def made_without_grad_mode(value: torch.Tensor) -> bool:
    """Whether a tensor is a view that was made while no gradients were recorded."""
    autograd: Any = torch._C._autograd
    return value._is_view() and autograd._get_creation_meta(value) == autograd.CreationMeta.NO_GRAD_MODE


def must_not_be_written(value: torch.Tensor) -> bool:
    """Whether autograd forbids to write a tensor: one of several views of one call, or one made without grad mode."""
    if not value.requires_grad or not value._is_view():
        return False
    autograd: Any = torch._C._autograd
    return bool(autograd._get_creation_meta(value) != autograd.CreationMeta.DEFAULT)


def is_symbolic(value: torch.Tensor) -> bool:
    """Whether a size, a stride or the offset of a tensor is no plain number."""
    return bool(value._has_symbolic_sizes_strides)


def version_of(tensor: torch.Tensor) -> int:
    """How often a tensor was written; nobody counts for tensors of inference mode."""
    return -1 if tensor.is_inference() else tensor._version


def with_history(value: Any) -> Any:
    """A value from which others can be computed, though its base was written since, which autograd may not follow."""
    if not isinstance(value, torch.Tensor) or not must_not_be_written(value) or not value._version:
        return value
    leaf = value.detach().requires_grad_()
    if not made_without_grad_mode(value):
        return leaf.unsqueeze(0).unbind(0)[0]
    with torch.no_grad():
        return leaf.view_as(leaf)


def is_wrapper_subclass(tensor: torch.Tensor) -> bool:
    """Whether a tensor wraps others (DTensor, nested, quantized), so that it is more than its data."""
    return type(tensor) is not FakeTensor and bool(is_traceable_wrapper_subclass(tensor))


@contextmanager
def without_tracing_context() -> Iterator[None]:
    """Hides the ambient tracing context, so that a nested capture does not meet the outer compile's fake mode."""
    with tracing(None):
        yield


class CompileState:
    """What Dynamo knows of the compile that goes on, to be entered again when a backward is compiled later.

    No other thread compiles meanwhile: neither traces nor code generators bear that.
    """

    def __init__(self) -> None:
        self._tracing = TracingContext.try_get()
        self._compile = CompileContext.try_get()

    @contextmanager
    def entered(self) -> Iterator[None]:
        from torch._dynamo.convert_frame import compile_lock

        with ExitStack() as stack:
            stack.enter_context(compile_lock)
            if TracingContext.try_get() is not self._tracing:
                stack.enter_context(tracing(self._tracing))
            if CompileContext.try_get() is not self._compile:
                stack.enter_context(compile_context(self._compile))
            yield


def quantized_operators() -> Any:
    """The operators by which exported graphs quantize; they are there only once their module is loaded."""
    import torch.ao.quantization.fx._decomposed  # registers them

    return torch.ops.quantized_decomposed


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a call of a module runs more than its forward."""
    return any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks))


def has_saved_tensors_hooks() -> bool:
    """Whether the user looks at saved tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@contextmanager
def forgetting_unbacked(mode: FakeTensorMode) -> Iterator[None]:
    """Lets a trial run make sizes that depend on data; a later trace on the same mode makes its own."""
    if mode.shape_env is None:
        yield
        return
    with mode.shape_env.ignore_fresh_unbacked_symbols():
        yield
    mode.epoch += 1


@contextmanager
def taking_real_tensors(mode: FakeTensorMode) -> Iterator[None]:
    """Lets parameters and constants of a module into a trace on fake inputs; they become attributes of its graph."""
    strict, mode.allow_non_fake_inputs = mode.allow_non_fake_inputs, True
    try:
        with enable_python_dispatcher():
            yield
    finally:
        mode.allow_non_fake_inputs = strict


_GRAD_MODE = torch._C._set_grad_enabled
_AUTOCAST = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)
_INFERENCE = (torch.autograd.grad_mode._enter_inference_mode, torch.autograd.grad_mode._exit_inference_mode)
_SWITCHES = frozenset({_GRAD_MODE, *_AUTOCAST, *_INFERENCE})


def is_context_switch(target: Any) -> bool:
    """Whether a target switches grad mode, inference mode or autocast for what follows it."""
    try:
        return target in _SWITCHES
    except TypeError:
        return False


def autocast_step(target: Any) -> int:
    """1 for a target that enters autocast, -1 for one that leaves it, else 0."""
    if not is_context_switch(target) or target not in _AUTOCAST:
        return 0
    return 1 if target is _AUTOCAST[0] else -1


def switch_context(target: Any, *args: Any) -> Any:
    """Makes a switch; inference mode as no-grad mode, which can be undone even if its end is never reached."""
    if target is _INFERENCE[0]:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(before and not args[0])
        return before
    return torch._C._set_grad_enabled(args[0]) if target is _INFERENCE[1] else target(*args)


@contextmanager
def autocast_cache(*, enabled: bool) -> Iterator[None]:
    """Lets autocast keep what it casted, or not; nothing is kept before and after."""
    before = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(enabled)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


@contextmanager
def keeping_dispatch_state() -> Iterator[None]:
    """Restores grad mode and autocast afterwards, whatever the body switches."""
    grad = torch.is_grad_enabled()
    autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _autocast_devices()}
    cache = torch.is_autocast_cache_enabled()
    try:
        yield
    finally:
        torch._C._set_grad_enabled(grad)
        for device, (enabled, dtype) in autocast.items():
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)


def dynamo_export(fn: Callable[..., Any], args: tuple[Any, ...], *, dynamic: bool) -> torch.fx.GraphModule:
    """Dynamo's Torch-level graph of a function, without running or compiling it."""
    import torch._dynamo

    exported = torch._dynamo.export(fn, assume_static_by_default=not dynamic)(*args)
    module: torch.fx.GraphModule = exported.graph_module
    return module


def new_symbol(env: ShapeEnv, name: str, hint: int) -> torch.SymInt:
    """A size that is not known, with the value it had in an example."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    size: torch.SymInt = env.create_symintnode(symbol, hint=hint, source=source)  # type: ignore[assignment]
    return size


@contextmanager
def tracing_autograd(mode: FakeTensorMode) -> Iterator[None]:
    """What a trace of a backward needs: all on this thread, no hooks of the user."""
    hooks: Any = torch._C._autograd
    before = hooks._saved_tensors_hooks_set_tracing(True)
    compiled_autograd: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    try:
        with ExitStack() as stack:
            if compiled_autograd is not None and compiled_autograd.compiled_autograd_enabled:
                stack.enter_context(compiled_autograd._disable())
            stack.enter_context(mode)
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            if hasattr(mode, "allow_scalar_outputs"):  # the backward of a while_loop counts with `item`
                stack.enter_context(patch.object(mode, "allow_scalar_outputs", True))
            yield
    finally:
        hooks._saved_tensors_hooks_set_tracing(before)


def set_versions(tensors: list[torch.Tensor], versions: list[int]) -> None:
    """Sets what autograd takes for the number of writes to a tensor."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))


def has_inductor_table() -> bool:
    """Whether anybody asked for the decompositions of torch's code generator: otherwise no graph was made with them."""
    return "torch._inductor.decomposition" in sys.modules


def keeps_graph() -> bool:
    """Whether the backward that runs was asked to leave saved values for another one."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def is_batched(value: Any) -> bool:
    """Whether a tensor stands for a batch of tensors inside of a vmap."""
    if value is None:
        return False
    functorch: Any = torch._C._functorch
    return bool(functorch.is_batchedtensor(value) or functorch.is_legacy_batchedtensor(value))


def is_random(target: Any) -> bool:
    """Whether an operator draws from a random generator."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


RandomState = tuple[torch.Tensor, list[torch.Tensor]]


def random_state() -> RandomState:
    """The state of the random generators of all devices in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.get_rng_state(), cuda


@contextmanager
def replayed_randomness(state: RandomState) -> Iterator[None]:
    """Draws from an earlier state, and leaves the generators as if nothing had been drawn."""
    now = random_state()
    _set_random_state(state)
    try:
        yield
    finally:
        _set_random_state(now)


def _set_random_state(state: RandomState) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


class DispatchState:
    """Grad mode and autocast as they were at some time, to be entered again."""

    def __init__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._autocast = {d: (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _autocast_devices()}

    @contextmanager
    def entered(self) -> Iterator[None]:
        with keeping_dispatch_state():
            torch._C._set_grad_enabled(self._grad)
            for device, (enabled, dtype) in self._autocast.items():
                torch.set_autocast_enabled(device, enabled)
                torch.set_autocast_dtype(device, dtype)
            yield


def _autocast_devices() -> list[str]:
    return [d for d in ("cpu", "cuda") if torch.amp.is_autocast_available(d)]


def global_state() -> list[Any]:
    """What torch's operators, their autograd and their kernels on CUDA depend on besides their arguments."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return [
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        [(d, torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in _autocast_devices()],
        torch.is_autocast_cache_enabled(),
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.get_deterministic_debug_mode(),
        float32_precisions(),
        [cudnn.enabled, cudnn.deterministic, cudnn.benchmark],
        [cuda.matmul.allow_bf16_reduced_precision_reduction, cuda.matmul.allow_fp16_reduced_precision_reduction],
        [cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()],
        torch.backends.mkldnn.enabled,
        [
            torch.backends.opt_einsum.is_available(),
            torch.backends.opt_einsum.enabled,
            torch.backends.opt_einsum.strategy,
        ],
        torch.get_num_threads(),
    ]


def float32_precisions() -> list[str]:
    """In what precision products and convolutions of float32 are computed, by all settings that torch has for it.

    `torch.get_float32_matmul_precision` raises where somebody used the settings of a single backend.
    """
    backends: Any = torch.backends
    cudnn, mkldnn = backends.cudnn, backends.mkldnn
    places = (
        backends,
        backends.cuda.matmul,
        cudnn,
        cudnn.conv,
        cudnn.rnn,
        mkldnn,
        mkldnn.conv,
        mkldnn.matmul,
        mkldnn.rnn,
    )
    return [_precision(place) for place in places]


def uses_tf32() -> bool:
    """Whether products of float32 may be computed by the matrix units of a CUDA device."""
    own = _precision(torch.backends.cuda.matmul)
    return (own if own != "none" else _precision(torch.backends)) not in ("none", "ieee")


def _precision(place: Any) -> str:
    return str(getattr(place, "fp32_precision", "none"))


def without_autocast() -> Any:
    """A context in which no device casts."""
    return torch._C._DisableAutocast()


def any_autocast() -> bool:
    """Whether autocast is on for some device."""
    return bool(torch._C._is_any_autocast_enabled())


def has_checkpoint_policy(region: GraphModule) -> bool:
    """Whether a checkpointed region has a function that says of each operator whether to save it."""
    return "_checkpoint_context_fn" in region.meta


def wants_recompute(node: Node) -> bool:
    """Whether the user's checkpointing asks that the value of a node be computed again in the backward."""
    from torch.utils.checkpoint import CheckpointPolicy

    policy = node.meta.get("recompute")
    return policy in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def must_be_saved(node: Node) -> bool:
    """Whether the user's checkpointing asks that the value of a node be kept for the backward."""
    from torch.utils.checkpoint import CheckpointPolicy

    return node.meta.get("recompute") is CheckpointPolicy.MUST_SAVE


def prefers_saving(node: Node) -> bool:
    """Whether the user's checkpointing would rather have the value of a node kept, if there is room for it."""
    from torch.utils.checkpoint import CheckpointPolicy

    return node.meta.get("recompute") is CheckpointPolicy.PREFER_SAVE


def checkpointed_in(node: Node) -> Any:
    """The checkpointed region in which a node was computed, or None."""
    return node.meta.get("ac_graph_id") if "recompute" in node.meta else None


def symbol_of(value: Any) -> Any:
    """The symbol that a size is, or None where it is a number or an expression."""
    expression = value.node.expr if isinstance(value, torch.SymInt) else None
    return expression if expression is not None and expression.is_symbol else None


def symbols_of(value: Any) -> list[Any]:
    """The symbols in the sizes and strides of a value, in a stable order."""
    from torch.fx.experimental.symbolic_shapes import free_symbols

    if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return []
    return sorted(free_symbols(value), key=str)


def has_unbacked_symbols(value: Any) -> bool:
    """Whether a number, or a size of a tensor, depends on data."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(value))


def made_of(given: Sequence[Any], mode: FakeTensorMode, make: Callable[[], torch.Tensor]) -> torch.Tensor | None:
    """A fake value that needs no symbols but those of what it is made of; None if it does, and they are forgotten."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    with mode, nullcontext() if mode.shape_env is None else mode.shape_env.ignore_fresh_unbacked_symbols():
        made = make()
    return None if free_unbacked_symbols(made) - free_unbacked_symbols(list(given)) else made


def same_unbacked(seen: Any, now: Any) -> None:
    """Lets sizes that depend on data, made anew by a second run, be those of the first."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if not isinstance(seen, torch.Tensor) or not free_unbacked_symbols(now):
        return
    for old, new in zip((*seen.shape, *seen.stride()), (*now.shape, *now.stride()), strict=True):
        before, after = symbol_of(old), symbol_of(new)
        if before is not None and after is not None and before != after:
            new.node.shape_env._rename_unbacked_to(after, before)


def size_as_node(graph: Graph, size: Any, known: Mapping[Any, Node]) -> Any:
    """A size as a number or as a node that computes it from the nodes whose values its symbols are."""
    if not isinstance(size, torch.SymInt):
        return size
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    symbols = {s: torch.fx.Proxy(node, tracer) for s, node in known.items() if s is not None}
    result = sympy_interp(PythonReferenceAnalysis, symbols, size.node.expr)
    return result.node if isinstance(result, torch.fx.Proxy) else int(result)


def plain_strides(value: torch.Tensor) -> tuple[int, ...] | None:
    """The strides of a tensor, where they are numbers and no two elements share memory."""
    sizes = (*value.shape, *value.stride())
    if not all(type(x) is int for x in sizes) or torch._debug_has_internal_overlap(value) != 0:
        return None
    return tuple(value.stride())


def memory_format_of(value: torch.Tensor) -> torch.memory_format:
    """The memory format that a tensor's strides are in, or the contiguous one."""
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(value)


def check_one_hot(input: torch.Tensor, num_classes: int = -1) -> None:
    """The check that eager's one_hot makes on a CPU: torch 2.11 leaves it out of a trace, later versions do not."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if key in torch.ops.aten.one_hot.default.py_kernels or input.device.type != "cpu":
        return
    torch._assert_async((input >= 0).all(), "Class values must be non-negative.")
    if num_classes >= 0:
        torch._assert_async((input < num_classes).all(), "Class values must be smaller than num_classes.")


def gets_tokens(target: Any) -> bool:
    """Whether functionalization orders an operator by tokens, checks of ATen included."""
    from torch._higher_order_ops import effects

    return bool(effects.has_effects(target))


def has_effects(target: Any) -> bool:
    """Whether an operator does something besides computing: it prints, or talks to other processes."""
    namespace = getattr(target, "namespace", "")
    return namespace == "_c10d_functional" or (namespace != "aten" and gets_tokens(target))


def compile_id() -> str:
    """Dynamo's name of the graph that is being compiled, `frame/compile`; empty outside of a compile."""
    found = CompileContext.current_compile_id()
    return "" if found is None else str(found)


def is_traced() -> bool:
    """Whether torch writes its structured trace, as TORCH_TRACE asks for it."""
    return bool(os.environ.get("TORCH_TRACE") and trace_log.handlers)


def trace_artifact(name: str, encoding: str, payload: Callable[[], Any]) -> None:
    """Puts something of our own into torch's structured trace, where tlparse shows it under this name."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": encoding},
        payload_fn=payload,
        expect_trace_id=False,  # a backward is compiled when it first runs, outside of a compile of Dynamo
    )


def number_at(size: Any, sizes: Mapping[Any, int]) -> Any:
    """A symbolic number where its symbols have these values, or those of the capture; None where it depends on data."""
    if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return size
    if sizes and size.node.expr.free_symbols <= sizes.keys():
        return int(size.node.expr.xreplace(sizes))
    return size.node.hint if size.node.has_hint() else None


def other_sizes(values: Sequence[Any]) -> dict[Any, int]:
    """Other values than those of the capture for the symbols among some values; none where a guard forbids them."""
    sizes = [
        s for v in values for s in (v.shape if isinstance(v, torch.Tensor) else [v]) if isinstance(s, torch.SymInt)
    ]
    if not sizes or not all(s.node.has_hint() for s in sizes):
        return {}
    env = sizes[0].node.shape_env
    symbols = {symbol for s in sizes for symbol in s.node.expr.free_symbols}
    # Another number for each: sizes that were equal by chance are not so any more.
    others = {
        symbol: int(env.backed_var_to_val[symbol]) + 3 + 2 * i for i, symbol in enumerate(sorted(symbols, key=str))
    }
    bounds = [env.var_to_range[symbol] for symbol in others]
    fit = all(r.lower <= n <= r.upper for r, n in zip(bounds, others.values(), strict=True))
    wrong = any(guard.expr.xreplace(others) == False for guard in env.guards)  # noqa: E712
    return others if fit and not wrong else {}


def code_name() -> str:
    """The name of the Python code whose graph Dynamo hands over; empty outside of a compile."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    if CompileContext.current_compile_id() is None:
        return ""
    return str(InstructionTranslator.current_tx().f_code.co_name)


def recompile_reason() -> str:
    """Why Dynamo compiles code again that it has compiled before: the guard that failed; empty where it does not say."""
    from torch._dynamo.utils import get_metrics_context

    found = get_metrics_context()._metrics.get("recompile_reason") or ""
    first = next(iter(str(found).splitlines()), "")
    return re.sub(r"^\d+/\d+: ", "", first).strip()


RESUMED = r"torch_dynamo_resume_in_(?P<function>.+)_at_(?P<line>\d+)"
"""How Dynamo calls the code of a function behind a graph break."""


def original_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What was given to torch.compile, where a function or a module is what that made of it."""
    from torch._dynamo.eval_frame import OptimizedModule, innermost_fn

    original: Callable[..., Any] = fn._orig_mod if isinstance(fn, OptimizedModule) else innermost_fn(fn)
    return original


def compiled_apart(fn: Callable[..., Any], **keywords: Any) -> Any:
    """torch.compile that neither reuses nor counts what was compiled of the same code before.

    Before torch 2.13 that is only to be had by forgetting it: what the user compiled is compiled anew when it is called.
    """
    compile: Any = torch.compile
    if "isolate_recompiles" in inspect.signature(compile).parameters:
        return compile(fn, **keywords, isolate_recompiles=True)
    torch._dynamo.reset()
    return compile(fn, **keywords)


def default_backend() -> Any:
    """What torch.compile compiles with where it is given no backend, which newer versions of torch let one choose."""
    chosen = getattr(torch.compiler, "get_default_backend", None)
    return "inductor" if chosen is None else chosen()


def is_transform(target: Any) -> bool:
    """Whether a call enters or leaves a transform of torch.func, whose tensors mean nothing outside of it."""
    home = str(getattr(target, "__module__", ""))
    return home.startswith(("torch._functorch", "torch._C._functorch")) or "_nesting" in getattr(target, "__name__", "")
