"""The kernels of a graph, read from the Python that Inductor generates for it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch.fx import GraphModule

from eductor.engines.inductor.bodies import calls_of_bodies
from eductor.program.job import Kernel

_DEFINITION = re.compile(
    r"^(?P<name>\w+) = async_compile\.(?P<kind>\w+)\((?:(?!\n\w).)*?r?'''(?P<code>.*?)'''", re.M | re.S
)


def kernels_of(compiled: Any, module: GraphModule) -> list[Kernel]:
    """The kernels of the graph that was compiled last, with the nodes that the code generator recorded for each.

    A node in a shared body stands for nodes of all regions.
    """
    from torch._inductor import debug

    noted = debug._inductor_triton_kernel_to_post_grad_node_info
    shared = dict(calls_of_bodies(module))
    origins = {key: [name for node in nodes for name in shared.get(node, [node])] for key, nodes in noted.items()}
    found = kernels_in(getattr(compiled, "source_code", None) or "", origins)  # a graph without calls has none
    noted.clear()
    return found


def kernels_in(text: str, origins: Mapping[str, Sequence[str]]) -> list[Kernel]:
    """The kernels that a graph runs, in order; `origins` are the nodes of each by `name:number`."""
    defined = {found["name"]: found for found in _DEFINITION.finditer(text)}
    kernels = []
    for key in sorted(origins, key=lambda key: int(key.rpartition(":")[2])):
        name = key.rpartition(":")[0]
        found = defined.get(name)
        code = found["code"].strip("\n") if found is not None else None
        kernels.append(Kernel(name, _language(found), tuple(origins[key]), code))
    return kernels


def _language(found: re.Match[str] | None) -> Literal["triton", "cpp", "extern"]:
    if found is None:
        return "extern"
    return "cpp" if found["kind"].startswith("cpp") else "triton"
