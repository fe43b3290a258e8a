"""Bodies that repeated regions share, in torch's code generator: `invoke_subgraph`, lowered once and called for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.fx import GraphModule, Node

from eductor.graph.effects.bases import is_view
from eductor.program.bodies import SHARED, STANDS_FOR, body_of, invoke_subgraph, shared_calls


def prepare_bodies(module: GraphModule) -> None:
    """Let what a shared body passes to another one keep its strides: torch would copy it otherwise."""
    for call in shared_calls(module):
        output = body_of(module, call).graph.output_node()
        passed = {item.args[1] for item in call.users if any(map(_reaches_a_call, item.users))}
        output.meta["user_visible_output_idxs"] = sorted(passed.union(output.meta.get("user_visible_output_idxs", ())))


def _reaches_a_call(user: Node) -> bool:
    return user.target is invoke_subgraph or (is_view(user) and any(map(_reaches_a_call, user.users)))


def flat_calls(module: GraphModule) -> Iterator[tuple[Node, Mapping[Node, Node]]]:
    """The calls of a graph and, at each call of a shared body, those in it, with the operands that its inputs are."""
    shared = set(shared_calls(module))
    for call in _calls(module):
        yield call, {}
        if call in shared:
            body = body_of(module, call)
            given = dict(zip(body.graph.find_nodes(op="placeholder"), call.all_input_nodes[1:], strict=True))
            yield from ((inner, given) for inner in _calls(body))


def _calls(module: GraphModule) -> Iterator[Node]:
    return (node for node in module.graph.nodes if node.op == "call_function")


def calls_of_bodies(module: GraphModule) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name of each call in a shared body, with those of the calls that it stands for."""
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, GraphModule) else ():
            if STANDS_FOR in node.meta:
                yield node.name, node.meta[STANDS_FOR]


def create_call(create: Callable[..., Any], cls: Any, subgraph: Any, *operands: Any) -> Any:
    """Lower the call of a body; fail if results of a shared one share memory, which torch would free and reuse twice."""
    results = create(cls, subgraph, *operands)
    graph = subgraph.graph
    if SHARED not in subgraph.graph_module.meta:
        return results
    names = [result.get_name() for result in graph.graph_outputs]
    if len(set(names)) < len(names) or not graph.graph_inputs.keys().isdisjoint(names):
        raise NotImplementedError(f"the results of {subgraph.name} share memory with each other or with its operands")
    return results


def start_body(start: Callable[..., None], lowering: Any, *args: Any, **kwargs: Any) -> None:
    """Start to lower a body without the donated inputs of the graph around it, whose indices torch takes for its own."""
    start(lowering, *args, **kwargs)
    lowering.bw_donated_idxs = None


def assert_sizes(write: Callable[..., None], wrapper: Any, *args: Any) -> None:
    """Write the assertions about operands, except for shared bodies, whose operands all have the types of the first."""
    from torch._inductor.virtualized import V

    body: Any = V.graph.module
    if SHARED not in body.meta:
        write(wrapper, *args)


def guard_device(write: Callable[..., None], wrapper: Any, *args: Any, **kwargs: Any) -> None:
    """Write the begin or the end of a device guard, but not in a shared body where the graph around it holds the guard."""
    if not _is_guarded():
        write(wrapper, *args, **kwargs)


def _is_guarded() -> bool:
    """Whether the code is that of a shared body in a graph on one GPU, whose guard includes all calls."""
    from torch._inductor.virtualized import V

    graph: Any = V.graph
    return SHARED in graph.module.meta and graph.device_types == {"cuda"} and len(graph.device_idxs) == 1
