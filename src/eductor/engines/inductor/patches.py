"""Patches of torch's code generator, and our lowerings in its tables: active only while this engine compiles.

Torch's own pipeline rarely passes graphs that write in place to the generator, so the bugs patched here seldom show
there. A user's own `torch.compile` must still get torch's code. Two mechanisms ensure it:

- The first compile to enter `active` installs everything, the last to leave removes it: outside, torch's own objects are
  in place, for a later stock compile and for a library that patches or inspects them.
- A context variable says whether the running code compiles for this engine. Another thread may compile with stock
  Inductor meanwhile and finds the installed functions, too; there they call torch's.

Installing alone would change the code of that other thread, the variable alone would leave our functions in the call path
of every later compile. All patches run in the thread that lowers the graph: other threads and processes of Inductor only
build generated source and time kernels. A backward that is compiled later enters again.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from logging import DEBUG
from threading import Lock
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from eductor.compat import OpOverload, is_traced
from eductor.engines.inductor.bodies import assert_sizes, create_call, guard_device, start_body
from eductor.engines.inductor.cpp_units import bind_in_batch
from eductor.engines.inductor.lowerings import our_lowerings
from eductor.engines.inductor.pending import keep_or_defer, wait_or_defer
from eductor.engines.inductor.result_layouts import lay_out_marked
from eductor.engines.inductor.source_keys import key_of_torch, key_of_triton
from eductor.engines.inductor.vector_isa import valid_sets
from eductor.engines.inductor.workers import generate_awake

_is_ours: ContextVar[bool] = ContextVar("eductor_is_compiling", default=False)


@contextmanager
def active() -> Iterator[None]:
    """Lower graphs of this thread with our operators and patches."""
    with installed():
        token = _is_ours.set(True)
        try:
            yield
        finally:
            _is_ours.reset(token)


@contextmanager
def installed() -> Iterator[None]:
    """Keep the patches installed, which leave all compiles outside of `active` as torch's."""
    _installation.enter()
    try:
        yield
    finally:
        _installation.leave()


class _Installation:
    """The patches installed in torch, and the number of compiles that need them."""

    def __init__(self) -> None:
        self._lock, self._compiles, self._undo = Lock(), 0, ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._compiles:
                with self._undo:  # a failed installation is undone
                    self._install()
                    self._undo = self._undo.pop_all()
            self._compiles += 1

    def leave(self) -> None:
        with self._lock:
            self._compiles -= 1
            if not self._compiles:
                self._undo.close()

    def _install(self) -> None:
        from torch._inductor import codecache, compile_fx, cpu_vec_isa, graph, ir, lowering, scheduler
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.codecache import FxGraphCache
        from torch._inductor.codegen import cpp, wrapper
        from torch._inductor.runtime import triton_compat

        search = valid_sets(cpu_vec_isa.valid_vec_isa_list, _is_ours.get)
        self._undo.enter_context(patch.object(cpu_vec_isa, "valid_vec_isa_list", search))
        kernels: Any = ((ir.FallbackKernel, _create_kernel), (ir.InvokeSubgraph, create_call))
        for kernel, created in kernels:
            create: Any = classmethod(_in_ours(kernel.create.__func__, created))
            self._undo.enter_context(patch.object(kernel, "create", create))
        for home, name, corrected in (
            (scheduler.SchedulerNode, "recompute_size_and_body", _recompute_keeping_order),
            (scheduler.Scheduler, "fusable_weak_dep", _fuse_with_write),
            (lowering, "mutate_to", _write_in_place),
            (graph, "make_fallback", self._make_fallback),
            (graph.GraphLowering, "run_node", lay_out_marked),
            (graph.SubgraphLowering, "__init__", start_body),
            (wrapper.SubgraphPythonWrapperCodegen, "codegen_input_size_asserts", assert_sizes),
            (cpp.CppTile2DKernel, "store", _store_in_tile),
            (wrapper.SubgraphPythonWrapperCodegen, "codegen_device_guard_enter", guard_device),
            (wrapper.SubgraphPythonWrapperCodegen, "codegen_device_guard_exit", guard_device),
            (AsyncCompile, "cpp_pybinding", bind_in_batch),
            (AsyncCompile, "wait", wait_or_defer),
            (FxGraphCache, "_save_graph", keep_or_defer),
            (compile_fx, "fx_codegen_and_compile", generate_awake),
            (codecache, "torch_key", key_of_torch),
            (codecache.FxGraphCachePickler, "debug_lines", _described_if_logged),
        ):
            self._undo.enter_context(patch.object(home, name, _in_ours(getattr(home, name), corrected)))
        for home in _homes_of_triton_key(triton_compat):
            self._undo.enter_context(patch.object(home, "triton_key", _in_ours(home.triton_key, key_of_triton)))
        cast = torch.ops.prims.convert_element_type.default
        self._keep(cast)
        lowering.lowerings[cast] = _in_ours(lowering.lowerings[cast], _round_cast)
        for op, lower in our_lowerings().items():
            self._keep(op)
            lowering.lowerings[op] = lower

    def _keep(self, op: OpOverload) -> None:
        """Restore the entries of an operator in torch's tables at the end."""
        from torch._inductor import lowering

        for table in (lowering.lowerings, lowering._maybe_layout_constraints):
            restore = (table.__setitem__, op, table[op]) if op in table else (table.pop, op, None)
            self._undo.callback(*restore)
        for ops in (lowering.fallbacks, lowering.needs_realized_inputs):
            if op not in ops:
                self._undo.callback(ops.discard, op)

    def _make_fallback(self, make: Callable[..., None], op: OpOverload, *args: Any, **settings: Any) -> None:
        """Register the fallback of an operator without lowering only for our compiles.

        Torch keeps it, with the strides that the first graph needs; a backward may need others than its forward.
        """
        self._keep(op)
        make(op, *args, **settings)


_installation = _Installation()


def _homes_of_triton_key(imported: ModuleType) -> Iterator[ModuleType]:
    """Where the hash of Triton's code is looked up: in torch's module, and in Triton's own, for kernels it compiles here."""
    yield imported
    if imported.HAS_TRITON:
        yield sys.modules[imported.triton_key.__module__]


def _in_ours(original: Any, corrected: Callable[..., Any]) -> Any:
    """Torch's function, or in our compiles the patched one, which gets torch's as its first argument."""

    @functools.wraps(original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return corrected(original, *args, **kwargs) if _is_ours.get() else original(*args, **kwargs)

    return chosen


def _create_kernel(create: Any, cls: Any, op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Realize pending readers before creating a mutating fallback kernel; keep calls that return nothing.

    A reader that is not realized would read after the write. A call that returns nothing has an effect; torch 2.11 misses
    that of `_linalg_check_errors`, and removes it as dead.
    """
    from torch._inductor.virtualized import V

    for operand in _written(op, args, kwargs):
        operand.realize()
        V.graph.mark_buffer_mutated(operand.get_name())
    results = create(cls, op, *args, **kwargs)
    if isinstance(op, OpOverload) and not op._schema.returns:
        kernel: Any = V.graph.operations[-1]
        kernel.has_side_effects = lambda: True
    return results


def _store_in_tile(store: Any, kernel: Any, name: str, index: Any, value: Any, mode: Any = None) -> None:
    """Add to indexed elements in a transposed tile at the place in the tile, which torch counts twice.

    Where several threads add, the index is made a value, and its row in the tile is added when that is done: not before,
    too.
    """
    from torch._inductor import config
    from torch._inductor.codegen.cpp import CppVecKernel

    adds_at_values = mode == "atomic_add" and (kernel.num_threads > 1 or config.cpp.dynamic_threads)
    if not adds_at_values or kernel.need_vec_transpose(kernel.rename_indexing(index)):
        store(kernel, name, index, value, mode)
    else:
        CppVecKernel.store(kernel, name, index, value if value.is_vec else kernel.broadcast(value), mode)


def _recompute_keeping_order(recompute: Any, node: Any, *args: Any, **kwargs: Any) -> None:
    """Keep the order of loops and writes when loops are recomputed to fuse them on a CPU: their reads stay the same."""
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch.utils._ordered_set import OrderedSet

    added = OrderedSet(dep for dep in node.read_writes.reads if isinstance(dep, (StarDep, WeakDep)))
    recompute(node, *args, **kwargs)
    node.set_read_writes(node.read_writes.with_read(added).rename(node.mutation_renames))


def _fuse_with_write(fusable: Any, scheduler: Any, dep: Any, reader: Any, writer: Any) -> bool:
    """Fuse the readers of a tensor with its overwrite only if each step reads the element that it writes.

    After an earlier write, torch calls the same memory by another name, and does not see these readers.
    """
    from torch._inductor.dependencies import MemoryDep

    if not fusable(scheduler, dep, reader, writer):
        return False
    names = scheduler.mutation_real_name
    place = names[dep.mutating_buf]
    (write,) = (w for w in writer.read_writes.writes if w.name == dep.mutating_buf)
    reads = [read for read in reader.read_writes.reads if names.get(read.name, read.name) == place]
    return all(isinstance(r, MemoryDep) and (r.index, r.size) == (write.index, write.size) for r in reads)


def _write_in_place(mutate_to: Any, changed: Any, value: Any, unsafe_alias: bool = False) -> Any:
    """Overwrite a value that is no input in its own memory.

    Torch instead replaces it by the new value, which makes one tensor of two and redirects earlier writes of parts to the
    new one.
    """
    from torch._inductor import ir

    place = changed.data if isinstance(changed, ir.TensorBox) else changed
    if isinstance(place, ir.StorageBox) and not (place.is_input_buffer() or place.is_module_buffer()):
        ir.MutationLayoutSHOULDREMOVE.realize_into(value, place)
        return changed
    return mutate_to(changed, value, unsafe_alias)


def _described_if_logged(describe: Any, pickler: Any, details: Any) -> list[str]:
    """Describe the parts of a graph's key only where a log or torch's structured trace shows them."""
    from torch._inductor.codecache import log

    return describe(pickler, details) if log.isEnabledFor(DEBUG) or is_traced() else []


def _round_cast(cast: Any, x: Any, dtype: torch.dtype) -> Any:
    """Keep the rounding of a cast to half precision in kernels that go on in float32.

    C++ kernels of older versions of torch forget it where the value is cast up again: there, eager's kernel casts.
    """
    from torch._inductor.lowering import fallback_handler, make_pointwise
    from torch._inductor.virtualized import V, ops

    given, node = x.get_dtype(), V.graph.current_node
    if dtype not in (torch.bfloat16, torch.half) or given not in (torch.float32, torch.float64):
        return cast(x, dtype)
    if x.get_device().type == "cpu" and not emulates_roundings() and any(u.target is node.target for u in node.users):
        return fallback_handler(node.target, add_to_fallback_set=False)(x, dtype)

    def rounded(value: Any) -> Any:
        stored = ops.to_dtype(value, dtype, src_dtype=given, use_compute_types=False)
        return ops.to_dtype(stored, dtype)  # the kernel goes on in float32

    return make_pointwise(rounded, override_return_dtype=dtype)(x)


@functools.cache
def emulates_roundings() -> bool:
    """Whether torch's code generator can round in kernels as eager does, which version 2.11 cannot."""
    from torch._inductor import lowering

    return "use_compute_types" in inspect.signature(lowering.to_dtype).parameters


def _written(op: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The operands that a call writes."""
    if not isinstance(op, OpOverload) or not op._schema.is_mutable:
        return
    for argument, given in torch._library.utils.zip_schema(op._schema, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write and given is not None:
            yield from (x for x in (given if isinstance(given, (list, tuple)) else [given]) if x is not None)
