"""The engine `aten`: runs the graph unchanged, as generated Python that frees each value after its last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import CodeGen

from eductor.compat import OpOverload
from eductor.graph.snapshot import copy_of
from eductor.program.job import Kernel


def aten(module: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """Makes the graph callable without compiling anything."""
    graph = copy_of(module.graph)
    graph.set_codegen(_TakingAList([str(p.target) for p in graph.find_nodes(op="placeholder")]))
    run: Callable[[list[Any]], Sequence[Any]] = GraphModule(module, graph).forward
    return run


def calls(module: GraphModule) -> list[Kernel]:
    """The kernels that it runs: one for each operator."""
    return [Kernel(str(n.target), "aten", (n.name,)) for n in module.graph.nodes if isinstance(n.target, OpOverload)]


class _TakingAList(CodeGen):
    """Generates a function of one list, which it empties, so that no caller keeps an input alive."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def gen_fn_def(self, free_vars: list[str], maybe_return_annotation: str, **settings: Any) -> str:
        unpack = f"[{', '.join(self._names)}] = inputs\n    inputs.clear()" if self._names else "inputs.clear()"
        return f"def forward(self, inputs){maybe_return_annotation}:\n    {unpack}"
