"""The engine `aten`: runs the graph as it is, as generated Python that drops each value after its last use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule


def aten(module: GraphModule) -> Callable[[list[Any]], Sequence[Any]]:
    """Makes the graph callable without compiling anything."""
    module.recompile()

    def run(inputs: list[Any]) -> Sequence[Any]:
        args = tuple(inputs)
        inputs.clear()
        outputs: Sequence[Any] = module.forward(*args)
        return outputs

    return run
