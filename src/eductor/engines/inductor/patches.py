"""What torch's code generator gets wrong in graphs that write in place, mended once, for whoever compiles with it.

Its own pipeline hands it hardly any such graph, so it seldom shows there. A read of what is written must stay on its side
of the write: the scheduler sees to it, if it is told of both in time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from eductor.compat import OpOverload


@functools.cache
def mend() -> None:
    """Puts the mended functions in the place of torch's; to do so twice would do no harm."""
    from torch._inductor import ir, lowering, scheduler

    called: Any = ir.FallbackKernel
    called.create = classmethod(_tells_first(called.create.__func__))
    generated: Any = scheduler.SchedulerNode
    generated.recompute_size_and_body = _keeps_order(generated.recompute_size_and_body)
    lowering.mutate_to = _writes(lowering.mutate_to)


def _tells_first(create: Any) -> Any:
    """A kernel of eager's is made after all who read what it writes: they are stored now, or would be after the write."""

    @functools.wraps(create)
    def told(cls: Any, op: Any, /, *args: Any, **kwargs: Any) -> Any:
        from torch._inductor.virtualized import V

        for operand in _written(op, args, kwargs):
            operand.realize()
            V.graph.mark_buffer_mutated(operand.get_name())
        return create(cls, op, *args, **kwargs)

    return told


def _keeps_order(recompute: Any) -> Any:
    """Loops that are made anew, to fuse them with others on a CPU, still read what they read, before or after a write."""

    @functools.wraps(recompute)
    def kept(self: Any, *args: Any, **kwargs: Any) -> None:
        from torch._inductor.dependencies import StarDep, WeakDep
        from torch.utils._ordered_set import OrderedSet

        added = OrderedSet(dep for dep in self.read_writes.reads if isinstance(dep, (StarDep, WeakDep)))
        recompute(self, *args, **kwargs)
        self.set_read_writes(self.read_writes.with_read(added).rename(self.mutation_renames))

    return kept


def _writes(mutate_to: Any) -> Any:
    """A whole value that is no input is written where it lies.

    To let it be the new value from now on would make one of two tensors, and lead earlier writes of parts to the new one.
    """

    @functools.wraps(mutate_to)
    def written(changed: Any, value: Any, unsafe_alias: bool = False) -> Any:
        from torch._inductor import ir

        place = changed.data if isinstance(changed, ir.TensorBox) else changed
        if isinstance(place, ir.StorageBox) and not (place.is_input_buffer() or place.is_module_buffer()):
            ir.MutationLayoutSHOULDREMOVE.realize_into(value, place)
            return changed
        return mutate_to(changed, value, unsafe_alias)

    return written


def _written(op: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """The operands that a call writes."""
    if not isinstance(op, OpOverload) or not op._schema.is_mutable:
        return
    for argument, given in torch._library.utils.zip_schema(op._schema, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write and given is not None:
            yield from (x for x in (given if isinstance(given, (list, tuple)) else [given]) if x is not None)
