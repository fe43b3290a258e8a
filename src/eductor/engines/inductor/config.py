"""Settings of torch's code generator for one compile: none of its passes, and a cache key of our own."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch._guards import TracingContext, tracing

from eductor.compat import FakeTensorMode
from eductor.engines.inductor.patches import active
from eductor.program.job import Job

_SETTINGS = {
    "use_pre_grad_passes": False,
    "use_joint_graph_passes": False,
    "use_post_grad_passes": False,
    "triton.cudagraphs": False,  # launches are replayed by a runtime of our own
    "fallback_random": True,  # seeded operators are fused anyway; all others draw what eager draws
}
PROVENANCE: dict[str, Any] = {
    "trace.provenance_tracking_level": 2,
    "fx_graph_cache": False,  # cached graphs have no record of nodes; kernels are still cached
}
"""Settings that record the nodes of each kernel."""


@contextmanager
def configured(mode: FakeTensorMode | None, job: Job) -> Iterator[None]:
    """Set everything that torch's code generator reads from its environment, and restore it at the end.

    Torch's settings belong to the thread; those of torch 2.11 to the process, where Dynamo's lock serializes compiles.
    """
    from torch._inductor import config
    from torch._inductor.virtualized import V

    compiler_config: Any = torch.compiler.config
    settings = {**_SETTINGS, **(PROVENANCE if job.wants_kernels else {})}
    # On a GPU it would turn off fused multiply-adds, too; there, `_round_cast` in `patches` is enough.
    settings["emulate_precision_casts"] = not any(x.is_cuda for x in job.inputs if isinstance(x, torch.Tensor))
    with ExitStack() as stack:
        stack.enter_context(active())
        stack.enter_context(config.patch(settings))
        stack.enter_context(compiler_config.patch(cache_key_tag=_cache_key_tag(job)))
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
        # The name is part of the generated module, so that stock Inductor, which loads equal text once, never shares it.
        names = {"aot_graph_name": ["eductor"]}
        stack.enter_context(TracingContext.patch(fw_metadata=facts, output_strides=None, **names))
        yield


def _cache_key_tag(job: Job) -> str:
    """A part of torch's cache keys that changes with what they do not cover.

    That is our code and marks on nodes, and what is known of inputs and outputs: a backward that keeps what was saved has the
    graph of one that may overwrite it.
    """
    known = f"{job.rounds} {sorted(job.visible)} {sorted(job.donated)} {len(job.written)}"
    return f"{torch.compiler.config.cache_key_tag}eductor-{_own_version()} {known}"


@functools.cache
def _own_version() -> str:
    """A hash of all sources of this package, which contains all our code that affects generated code."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
