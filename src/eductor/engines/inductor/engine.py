"""The engine `inductor`: torch's code generator, with none of its FX passes.

The graph comes from the passes of the stage `lower`, as a copy that the generator may edit. Its caches work: they make a
compile of the same graph in another process fast. Only this package uses the generator's private API:

- `config`: settings of one compile, and its cache key; `patches` and `lowerings`: our changes to the generator
- `warm_up`: what is started before the passes run: `workers`, `vector_isa`
- `bodies`: what repeated layers share; `cpp_units`: the C++ kernels of a graph in few files; `kernels`: the kernels of a compiled graph
- `pending`: kernels that are still being built when a compile returns
- `calls`, `direct_launch`: how it runs; `bounds`: errors of indices
- `result_layouts`: strides of results that are views
- `batch_norms`, `empty_norms`, `repeated_cats`: decompositions; `stock`: torch's own pipeline, observed
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import count
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.compat import FakeTensorMode, OpOverload
from eductor.engines.inductor.batch_norms import in_precision_of_parameters
from eductor.engines.inductor.bodies import prepare_bodies
from eductor.engines.inductor.bounds import explaining_bounds, lookups_in
from eductor.engines.inductor.calls import direct_call
from eductor.engines.inductor.config import configured
from eductor.engines.inductor.empty_norms import with_empty_means
from eductor.engines.inductor.kernels import kernels_of
from eductor.engines.inductor.patches import emulates_roundings
from eductor.engines.inductor.pending import pending
from eductor.engines.inductor.repeated_cats import with_layouts_of_cats
from eductor.engines.inductor.result_layouts import mark_results
from eductor.engines.inductor.warm_up import load as load
from eductor.engines.inductor.warm_up import warmed_up as warmed_up
from eductor.errors import Unsupported
from eductor.graph.values.meta import fake_mode_of
from eductor.program.job import Compiled, Job

_COMPILERS = ("g++", "clang++", "c++", "cl")
_graph_ids = count()


def can_compile() -> bool:
    """Whether its kernels can be built here: that needs numpy and a C++ compiler, also for Triton's launchers."""
    compilers = (os.environ.get("CXX"), *_COMPILERS)
    return any(shutil.which(c) for c in compilers if c) and find_spec("numpy") is not None


def decompositions(*, fallback_random: bool) -> Mapping[Any, Any]:
    """The table that its lowering expects."""
    from torch._inductor import (
        config,
        lowering,  # noqa: F401 - the decomposition of max_pool2d assumes that it is loaded
    )
    from torch._inductor.decomposition import fast_random_decomps, select_decomp_table

    is_cached = fast_random_decomps.cache_info().currsize
    with config.patch(fallback_random=fallback_random):
        table = dict(select_decomp_table())
    if not is_cached:  # a user may still add decompositions before the first stock compile
        fast_random_decomps.cache_clear()
    return table | in_precision_of_parameters(table) | with_empty_means(table) | with_layouts_of_cats(table)


def settings() -> str:
    """The hash of Inductor's settings, which changes with each setting that affects a graph."""
    from torch._inductor import config

    return str(config.get_hash().hex())


def compile(job: Job) -> Compiled:
    """Compile a graph to kernels; also returns the strides of its outputs."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.utils import BoxedBool

    is_negative = has_negative_inputs(job)
    shared = job.shared
    if not shared:
        shared["id"] = next(_graph_ids)
    module = job.module
    _refuse_unseen_writes(module)
    lookups = lookups_in(module)
    module.graph.output_node().meta["user_visible_output_idxs"] = sorted(job.visible)
    mark_results(module, job.visible)
    prepare_bodies(module)
    if job.rounds:
        _mark_roundings(module)
    mode = fake_mode_of(module.graph)
    with configured(mode, job), pending(shared["id"], defers=job.defers) as kernels:
        compiled = compile_fx_inner(
            module,
            resolve_negative(list(job.inputs)),
            static_input_idxs=tuple(sorted(job.static | job.saved)),
            is_backward=job.is_backward,
            is_inference=job.is_inference,
            graph_id=shared["id"],
            cudagraphs=BoxedBool(False),
        )
    call = explaining_bounds(direct_call(compiled), lookups)
    run = call if not is_negative else lambda inputs: call(resolve_negative(inputs))
    reported = kernels_of(compiled, module) if job.wants_kernels else ()

    def wait() -> None:
        with configured(mode, job):
            kernels.finish()

    strides, waits = output_strides(compiled, mode), wait if kernels.is_pending else None
    return Compiled(run, strides, counts_writes=False, kernels=reported, wait=waits)


def _mark_roundings(module: GraphModule) -> None:
    """Make the lowering round the operands and the result of each operator to half precision, where that is their dtype."""
    if not emulates_roundings():
        raise Unsupported("round_intermediates=True with this version of torch")
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, GraphModule) else ():
            node.meta["low_precision_pointwise_barrier"] = True


def _refuse_unseen_writes(module: GraphModule) -> None:
    """Refuse fallbacks to eager's kernels that return the operand they write: Inductor cannot lower such calls."""
    from torch._inductor.lowering import fallbacks, lowerings
    from torch._library.utils import mutates_and_returns_first_arg

    graphs = (m.graph for m in module.modules() if isinstance(m, GraphModule))
    for op in {node.target for graph in graphs for node in graph.nodes if isinstance(node.target, OpOverload)}:
        if mutates_and_returns_first_arg(op) and (op not in lowerings or op in fallbacks):
            raise Unsupported(f"{op}, which has only eager's kernel and returns the operand that it writes")


def output_strides(compiled: Any, mode: FakeTensorMode | None) -> Sequence[Sequence[Any] | None] | None:
    """The strides as numbers and symbols, parsed from text; None where the compiled graph keeps those of the graph."""
    found = getattr(compiled, "output_strides", None)
    if not found:
        return None
    return [None if strides is None else tuple(_size(x, mode) for x in strides) for strides in found]


def _size(text: Any, mode: FakeTensorMode | None) -> Any:
    if isinstance(text, int) or str(text).lstrip("-").isdigit():
        return int(text)
    assert mode is not None
    assert mode.shape_env is not None
    return mode.shape_env.deserialize_symexpr(text)


def has_negative_inputs(job: Job) -> bool:
    """Whether an input has the negative bit; an input that is written must not."""
    found = {i for i, x in enumerate(job.inputs) if isinstance(x, torch.Tensor) and x.is_neg()}
    if found & job.written:
        raise Unsupported("an input that has a negative bit and is written in place")
    return bool(found)


def resolve_negative(inputs: list[Any]) -> list[Any]:
    """The inputs, replaced in their list by tensors without the bit."""
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor) and x.is_neg():
            inputs[i] = x.resolve_neg()
    return inputs
