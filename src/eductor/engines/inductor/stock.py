"""Torch's own Inductor, observed from outside: its stages with their passes, its graphs and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from unittest.mock import patch

from torch.fx import GraphModule
from torch.fx.passes.graph_transform_observer import GraphTransformObserver

from eductor.engines.inductor.config import PROVENANCE
from eductor.engines.inductor.kernels import kernels_of
from eductor.graph.values.meta import value_of
from eductor.partition.plan import Plan, PlanEntry
from eductor.program.parts import bytes_of

_STAGES = {
    "pre_grad": "_recursive_pre_grad_passes",
    "joint": "_recursive_joint_graph_passes",
    "post_grad": "_recursive_post_grad_passes",
}
"""The functions of Inductor that run the passes of each stage."""


class Watcher(Protocol):
    """An observer of its stages and passes."""

    def stage(self, name: str, role: str, module: GraphModule) -> AbstractContextManager[dict[str, Any]]: ...

    def run_pass(self, name: str, module: GraphModule) -> AbstractContextManager[None]: ...


def settings_of(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings that `torch.compile(mode=..., options=...)` makes."""
    from torch._inductor import list_mode_options

    return {**(list_mode_options(mode) if mode else {}), **(options or {})}


def compile_watched(
    module: GraphModule, inputs: Sequence[Any], settings: Mapping[str, Any], watcher: Watcher
) -> Callable[..., Any]:
    """Compiles a captured graph as the backend `inductor` does, without graph caches, which would skip the passes."""
    from torch._inductor import compile_fx as home

    watched = _Watched(watcher)
    with watched.active("captured"):
        compiled: Any = home.compile_fx(
            module, inputs, inner_compile=watched.compile, config_patches={**settings, **PROVENANCE}
        )
    return compiled  # type: ignore[no-any-return]


@dataclass
class _Watched:
    """The compile of one graph; its backward is compiled only when it is first called."""

    watcher: Watcher
    forward_nodes: int = 0
    joint: GraphModule | None = None
    role: str = ""
    is_inside: bool = False

    def compile(self, module: GraphModule, inputs: Sequence[Any], **given: Any) -> Any:
        """Replaces Inductor's `compile_fx_inner`: post-grad passes and code generation."""
        from torch._inductor import compile_fx as home
        from torch._inductor import config

        role = "backward" if given.get("is_backward") else "forward"
        if role == "backward":
            with self.watcher.stage("partition", "joint", self.joint or module) as facts:
                facts.update(_saved(module), forward_nodes=self.forward_nodes)
        else:
            self.forward_nodes = len(module.graph.nodes)
        with self.active(role), config.patch(PROVENANCE), self.watcher.stage("engine", role, module) as facts:
            compiled = home.compile_fx_inner(module, inputs, **given)
            facts.update(engine="inductor", kernels=[kernel.to_json() for kernel in kernels_of(compiled, module)])
        return compiled

    @contextmanager
    def active(self, role: str) -> Iterator[None]:
        """Patch the functions that run passes to notify the watcher, for graphs of this role."""
        from torch._inductor import compile_fx as home

        outer, self.role = self.role, role
        with ExitStack() as stack:
            if not outer:
                for stage, name in _STAGES.items():
                    stack.enter_context(patch.object(home, name, self._stage(stage, getattr(home, name))))
                for name in ("apply_graph_pass", "apply_gm_pass"):
                    run = getattr(GraphTransformObserver, name)
                    stack.enter_context(patch.object(GraphTransformObserver, name, self._pass(run)))
            try:
                yield
            finally:
                self.role = outer

    def _stage(self, name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def stage(module: GraphModule, *args: Any, **kwargs: Any) -> Any:
            if self.is_inside:  # the subgraph of a higher-order operator
                return run(module, *args, **kwargs)
            self.is_inside = True
            self.joint = module if name == "joint" else self.joint
            try:
                with self.watcher.stage(name, "joint" if name == "joint" else self.role, module):
                    return run(module, *args, **kwargs)
            finally:
                self.is_inside = False

        return stage

    def _pass(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def apply(observer: Any, fn: Callable[..., Any]) -> Any:
            with self.watcher.run_pass(observer.passname, observer.gm):
                return run(observer, fn)

        return apply


def _saved(backward: GraphModule) -> dict[str, Any]:
    """The values that a backward takes from its forward, as facts of the partition."""
    saved = [p for p in backward.graph.find_nodes(op="placeholder") if not p.name.startswith("tangents")]
    made = {p.name: bytes_of(value_of(p)) for p in saved if not p.name.startswith("primals")}
    known = all(isinstance(size, int) for size in made.values())
    why = "torch's partitioner saves it"
    entries = [PlanEntry(p.name, p.name, made.get(p.name, 0) if known else 0, 0.0, None, why) for p in saved]
    return {
        "backward_nodes": len(backward.graph.nodes),
        "saved_inputs": len(saved) - len(made),
        "saved_values": len(made),
        "saved_bytes": sum(made.values()) if known else None,
        "plan": Plan(1, tuple(entries), (), (), None).to_json(),
    }
