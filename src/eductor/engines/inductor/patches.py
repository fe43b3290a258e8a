"""Corrections of torch's code generator, and our lowerings in its tables: in place only while this engine compiles.

Torch's own pipeline hands the generator hardly any graph that writes in place, so what is corrected here seldom shows
there. A user's own `torch.compile` must get torch's code all the same, so two things hold together:

- The first compile to enter `active` installs everything, the last to leave removes it: outside, torch's own objects are
  in place, for a later stock compile as for a library that patches or inspects them.
- A context variable says whether the running code compiles for this engine. Another thread may compile with stock
  Inductor meanwhile and finds the installed functions, too; for it they do what torch's do.

Installing alone would change the code of that other thread, the variable alone would leave our functions in the call path
of every later compile. All of them run in the thread that lowers the graph: what Inductor hands to other threads and
processes is generated source to build and kernels to time. A backward that is compiled later enters again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any
from unittest.mock import patch

import torch

from eductor.compat import OpOverload
from eductor.engines.inductor.lowerings import our_lowerings

_is_ours: ContextVar[bool] = ContextVar("eductor_is_compiling", default=False)


@contextmanager
def active() -> Iterator[None]:
    """Inside, graphs of this thread are lowered with our operators and corrections."""
    _installation.enter()
    token = _is_ours.set(True)
    try:
        yield
    finally:
        _is_ours.reset(token)
        _installation.leave()


class _Installation:
    """What is installed in torch, and how many compiles need it."""

    def __init__(self) -> None:
        self._lock, self._compiles, self._undo = Lock(), 0, ExitStack()

    def enter(self) -> None:
        with self._lock:
            if not self._compiles:
                with self._undo:  # what is installed is removed where the rest cannot be
                    self._install()
                    self._undo = self._undo.pop_all()
            self._compiles += 1

    def leave(self) -> None:
        with self._lock:
            self._compiles -= 1
            if not self._compiles:
                self._undo.close()

    def _install(self) -> None:
        from torch._inductor import graph, ir, lowering, scheduler

        kernel: Any = ir.FallbackKernel
        create: Any = classmethod(_in_ours(kernel.create.__func__, _create_kernel))
        self._undo.enter_context(patch.object(kernel, "create", create))
        for home, name, corrected in (
            (scheduler.SchedulerNode, "recompute_size_and_body", _recompute_keeping_order),
            (lowering, "mutate_to", _write_in_place),
            (graph, "make_fallback", self._make_fallback),
        ):
            self._undo.enter_context(patch.object(home, name, _in_ours(getattr(home, name), corrected)))
        for op, lower in our_lowerings().items():
            self._keep(op)
            lowering.lowerings[op] = lower

    def _keep(self, op: OpOverload) -> None:
        """What torch's tables say about an operator now, they say again in the end."""
        from torch._inductor import lowering

        for table in (lowering.lowerings, lowering._maybe_layout_constraints):
            restore = (table.__setitem__, op, table[op]) if op in table else (table.pop, op, None)
            self._undo.callback(*restore)
        for ops in (lowering.fallbacks, lowering.needs_realized_inputs):
            if op not in ops:
                self._undo.callback(ops.discard, op)

    def _make_fallback(self, make: Callable[..., None], op: OpOverload, *args: Any, **settings: Any) -> None:
        """Register the fallback of an operator without lowering for our compiles alone.

        Torch keeps it, with the strides that the first graph needs: a forward asks for others than a backward.
        """
        self._keep(op)
        make(op, *args, **settings)


_installation = _Installation()


def _in_ours(original: Any, corrected: Callable[..., Any]) -> Any:
    """Torch's function, but in our compiles the corrected one, which is given torch's first."""

    @functools.wraps(original)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        return corrected(original, *args, **kwargs) if _is_ours.get() else original(*args, **kwargs)

    return chosen


def _create_kernel(create: Any, cls: Any, op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Realize pending readers before creating a mutating fallback kernel; keep calls that return nothing.

    A reader that is not realized would read after the write. What returns nothing is called for its effect, which torch
    2.11 does not know of `_linalg_check_errors`, and drops it as dead.
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


def _recompute_keeping_order(recompute: Any, node: Any, *args: Any, **kwargs: Any) -> None:
    """Keep the order of loops and writes when loops are recomputed to fuse them on a CPU: they still read the same."""
    from torch._inductor.dependencies import StarDep, WeakDep
    from torch.utils._ordered_set import OrderedSet

    added = OrderedSet(dep for dep in node.read_writes.reads if isinstance(dep, (StarDep, WeakDep)))
    recompute(node, *args, **kwargs)
    node.set_read_writes(node.read_writes.with_read(added).rename(node.mutation_renames))


def _write_in_place(mutate_to: Any, changed: Any, value: Any, unsafe_alias: bool = False) -> Any:
    """Overwrite a value that is no input in its own memory.

    Torch lets it be the new value from now on, which makes one of two tensors and leads earlier writes of parts to the
    new one.
    """
    from torch._inductor import ir

    place = changed.data if isinstance(changed, ir.TensorBox) else changed
    if isinstance(place, ir.StorageBox) and not (place.is_input_buffer() or place.is_module_buffer()):
        ir.MutationLayoutSHOULDREMOVE.realize_into(value, place)
        return changed
    return mutate_to(changed, value, unsafe_alias)


def _written(op: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The operands that a call writes."""
    if not isinstance(op, OpOverload) or not op._schema.is_mutable:
        return
    for argument, given in torch._library.utils.zip_schema(op._schema, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write and given is not None:
            yield from (x for x in (given if isinstance(given, (list, tuple)) else [given]) if x is not None)
