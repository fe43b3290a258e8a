"""The engine `inductor`: torch's code generator, with none of its FX passes. All of its private API is used here, that of
its kernels in `launches`, and of what is `mended` there.

The graph comes functional and final; what its lowering needs beyond that, `legalize` does. Its caches work: the same
graph in another process compiles in no time.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

import torch
from torch._guards import TracingContext, tracing
from torch.fx import GraphModule
from torch.fx.node import has_side_effect

from eductor import ops
from eductor.compat import FakeTensorMode, OpOverload
from eductor.engines.inductor.batch_norms import in_precision_of_parameters
from eductor.engines.inductor.direct_launch import launch_directly
from eductor.engines.inductor.kernels import kernels_in
from eductor.engines.inductor.patches import mend
from eductor.engines.legalize import legalize
from eductor.errors import Unsupported
from eductor.graph.snapshot import copy_of
from eductor.graph.values.meta import fake_mode_of
from eductor.program.handoff import Compiled, Job, Kernel, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMPILERS = ("g++", "clang++", "c++", "cl")
_SETTINGS = {
    "use_pre_grad_passes": False,
    "use_joint_graph_passes": False,
    "use_post_grad_passes": False,
    "fallback_random": True,  # seeded operators are fused all the same; any other draws what eager draws
}
TELLING: dict[str, Any] = {
    "trace.provenance_tracking_level": 2,
    "fx_graph_cache": False,  # what comes from there knows no nodes; kernels still come from their own cache
}
_graph_ids = count()


def can_compile() -> bool:
    """Whether its kernels can be built here: it needs a C++ compiler, for the launchers of Triton too, and numpy."""
    compilers = (os.environ.get("CXX"), *_COMPILERS)
    return any(shutil.which(c) for c in compilers if c) and find_spec("numpy") is not None


def decompositions(*, fallback_random: bool) -> Mapping[Any, Any]:
    """The table that its lowering expects."""
    from torch._inductor import (
        config,
        lowering,  # noqa: F401 - that of max_pool2d takes it for loaded
    )
    from torch._inductor.decomposition import select_decomp_table

    with config.patch(fallback_random=fallback_random):
        table = dict(select_decomp_table())
    return table | in_precision_of_parameters(table)


def settings() -> str:
    """Its settings, as text that changes with each of them that changes a graph."""
    from torch._inductor import config

    return str(config.get_hash().hex())


def compile(job: Job) -> Compiled:
    """Kernels for a graph, and the strides of its outputs."""
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.cudagraph_utils import BoxedDeviceIndex
    from torch._inductor.utils import BoxedBool

    graphs = job.mode == "reduce-overhead"
    shared = job.shared
    if not shared:
        shared.update(id=next(_graph_ids), graphs=BoxedBool(graphs), device=BoxedDeviceIndex(None))
    _install_lowerings()
    mend()
    # The lowering edits what it gets; the graph is needed again for other forms of the backward.
    module = GraphModule(job.module, copy_of(job.module.graph))
    legalize(module)
    _refuse_unseen_writes(module)
    module.graph.output_node().meta["user_visible_output_idxs"] = sorted(job.visible)
    mode = fake_mode_of(module.graph)
    with _configured(mode, job, graphs=graphs):
        compiled = compile_fx_inner(
            module,
            _with_signs(list(job.inputs)),
            static_input_idxs=tuple(sorted(job.static | job.saved)),
            is_backward=job.is_backward,
            is_inference=job.is_inference,
            graph_id=shared["id"],
            cudagraphs=shared["graphs"],
            boxed_forward_device_index=shared["device"],
        )
    call = compiled if graphs else _call_of(compiled)  # CUDA graphs are recorded in later calls, which are logged
    run = call if not _has_signs(job) else lambda inputs: call(_with_signs(inputs))
    kernels = kernels_of(compiled) if job.tells_kernels else ()
    return Compiled(run, _strides(compiled, mode), counts_writes=False, kernels=kernels)


def _refuse_unseen_writes(module: GraphModule) -> None:
    """Operators that return what they write, and for which it only calls eager's kernel: it is not made for such calls."""
    from torch._inductor.lowering import fallbacks, lowerings
    from torch._library.utils import mutates_and_returns_first_arg

    graphs = (m.graph for m in module.modules() if isinstance(m, GraphModule))
    for op in {node.target for graph in graphs for node in graph.nodes if isinstance(node.target, OpOverload)}:
        if mutates_and_returns_first_arg(op) and (op not in lowerings or op in fallbacks):
            raise Unsupported(f"{op}, of which there is no kernel but eager's")


def _call_of(compiled: Any) -> Run:
    """A graph's call, from the second one on without what is done around it for logs and caches; its kernels likewise."""
    from torch._inductor import debug
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    runner = getattr(compiled, "compiled_fn_runner", None)
    if runner is not None and torch.version.cuda and not hasattr(CachingAutotuner, "_build_fast_launcher"):
        launch_directly(runner.call.__func__.__globals__, CachingAutotuner, _somebody_looks_on)
    if not hasattr(compiled, "current_callable"):
        return cast(Run, compiled)
    is_settled = False

    def run(inputs: list[Any]) -> Sequence[Any]:
        nonlocal is_settled
        if is_settled and not (torch.autograd.profiler._is_profiler_enabled or debug.RECORD_GRAPH_EXECUTION):
            return cast("Sequence[Any]", compiled.current_callable(inputs))
        results = compiled(inputs)
        is_settled = True
        return cast("Sequence[Any]", results)

    return run


def _somebody_looks_on() -> bool:
    return torch.autograd.profiler._is_profiler_enabled or torch._C._len_torch_dispatch_stack() > 0


def kernels_of(compiled: Any) -> list[Kernel]:
    """The kernels of a graph, by what its code generator noted meanwhile of the nodes that each comes from."""
    from torch._inductor import debug

    noted = debug._inductor_triton_kernel_to_post_grad_node_info
    found = kernels_in(getattr(compiled, "source_code", None) or "", noted)  # a graph without calls has none
    noted.clear()
    return found


def _has_signs(job: Job) -> bool:
    """Whether some input is the negative of what lies in its memory, as the imaginary part of a conjugate is."""
    found = {i for i, x in enumerate(job.inputs) if isinstance(x, torch.Tensor) and x.is_neg()}
    if found & job.written:
        raise Unsupported("an input that is the negative of what lies in its memory, and is written")
    return bool(found)


def _with_signs(inputs: list[Any]) -> list[Any]:
    """The inputs, in place, with their signs in memory: its kernels read nothing else."""
    for i, x in enumerate(inputs):
        if isinstance(x, torch.Tensor) and x.is_neg():
            inputs[i] = x.resolve_neg()
    return inputs


@contextmanager
def _configured(mode: FakeTensorMode | None, job: Job, *, graphs: bool) -> Iterator[None]:
    """Its settings for one graph: no passes, and what it reads from the compile that goes on."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    compiler_config: Any = torch.compiler.config
    settings = {**_SETTINGS, "triton.cudagraphs": graphs, **(TELLING if job.tells_kernels else {})}
    with ExitStack() as stack:
        stack.enter_context(config.patch(settings))
        stack.enter_context(compiler_config.patch(cache_key_tag=_cache_key_tag()))
        stack.enter_context(V.set_fake_mode(mode))
        if mode is not None:
            stack.enter_context(patch.object(mode, "allow_non_fake_inputs", True))  # constants of the graph are real
            if hasattr(mode, "allow_scalar_outputs"):  # a while_loop may count with `item`
                stack.enter_context(patch.object(mode, "allow_scalar_outputs", True))
        if TracingContext.try_get() is None:
            stack.enter_context(tracing(TracingContext(mode)))
        facts = SimpleNamespace(
            bw_donated_idxs=sorted(job.donated) or None,
            static_input_indices=sorted(job.static | job.saved),
            num_mutated_inp_runtime_indices=len(job.written),
        )
        stack.enter_context(TracingContext.patch(fw_metadata=facts, output_strides=None))
        yield


def _cache_key_tag() -> str:
    """Its caches know nothing of our lowerings, and what is mended: another version of them is another key."""
    return f"{torch.compiler.config.cache_key_tag}eductor-{_own_version()}"


@functools.cache
def _own_version() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]


def _strides(compiled: Any, mode: FakeTensorMode | None) -> Sequence[Sequence[Any] | None] | None:
    """The strides of the outputs as numbers and symbols; it gives them as text."""
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


@functools.cache
def _install_lowerings() -> None:
    """Tells Inductor about our operators, once.

    Its own random primitives refuse to be lowered where random operators of ATen fall back to eager's kernels, and
    those refuse where they do not. One graph may hold both, so ours borrow the primitives with that switch turned.
    """
    from torch._inductor import config, inductor_prims
    from torch._inductor.lowering import fallback_handler, lowerings, mul, register_lowering, to_dtype

    def seeds(count: int, *, device: torch.device) -> Any:
        return lowerings[inductor_prims.seeds](count, device)

    def seed(seeds: Any, index: int) -> Any:
        seeds.realize()
        return lowerings[inductor_prims.lookup_seed](seeds, index)

    def random(seeds: Any, index: int, size: Sequence[Any], distribution: str, *, dtype: torch.dtype) -> Any:
        with config.patch(fallback_random=False):
            drawn = lowerings[inductor_prims.random](size, seed(seeds, index), distribution)
        if distribution == "rand" and torch.finfo(dtype).eps > torch.finfo(torch.float32).eps:
            # Rounded to fewer digits, a number just below 1 would be 1.
            steps = 2 / torch.finfo(dtype).eps
            drawn = mul(lowerings[torch.ops.aten.floor.default](mul(drawn, steps)), 1 / steps)
        return to_dtype(drawn, dtype)

    def random_integers(seeds: Any, index: int, size: Sequence[Any], low: Any, high: Any, *, dtype: torch.dtype) -> Any:
        with config.patch(fallback_random=False):
            drawn = lowerings[inductor_prims.randint](low, high, size, seed(seeds, index))
        return to_dtype(drawn, dtype)

    def stored(x: Any) -> Any:
        x.realize()
        return x

    def activated(bias: Any, a: Any, b: Any, *, use_gelu: bool) -> Any:
        on_cuda = bias.get_device().type == "cuda"
        op = torch.ops.aten._addmm_activation if on_cuda else ops.addmm_activation.addmm_activation
        return fallback_handler(op.default, add_to_fallback_set=False)(bias, a, b, use_gelu=use_gelu)

    register = functools.partial(register_lowering, type_promotion_kind=None)
    register(ops.stored.stored.default)(stored)
    register(ops.random.seeds.default)(seeds)
    register(ops.random.random.default)(random)
    register(ops.random.random_integers.default)(random_integers)
    register(ops.random.drawn_in_order.default)(_order)
    register(ops.addmm_activation.addmm_activation.default)(activated)
    register(ops.online_softmax.online_softmax.default)(lowerings[inductor_prims.prepare_softmax_online])
    register(ops.cut_mm.cut_mm.default)(fallback_handler(ops.cut_mm.cut_mm.default, add_to_fallback_set=False))
    register(ops.wide_cat.wide_cat.default)(fallback_handler(torch.ops.aten.cat.default, add_to_fallback_set=False))
    has_side_effect(torch.ops.aten._linalg_check_errors.default)  # torch 2.11 drops it: nobody takes its result


def _order(draws: Sequence[Any]) -> None:
    """Lets the kernels of each draw wait for the results of the one before it."""
    from torch._inductor.virtualized import V

    earlier: list[str] = []
    for draw in draws:
        draw.realize()
        kernels = _kernels(draw.get_name())
        for kernel in kernels:
            V.graph.additional_buffer_deps[kernel.get_operation_name()].update(earlier)
        earlier = [buffer.get_name() for kernel in kernels for buffer in kernel.get_outputs()]


def _kernels(buffer: str) -> list[Any]:
    """What fills a buffer: the kernel that makes it, alone or with others, and kernels that write it later."""
    from torch._inductor.ir import MultiOutput
    from torch._inductor.virtualized import V

    made, operations = V.graph.name_to_buffer[buffer], cast("list[Any]", V.graph.operations)
    maker = made.inputs[0] if isinstance(made, MultiOutput) else made
    return [maker, *(o for o in operations if buffer in o.get_mutation_names())]
