"""Traces the joint graph: forward and backward in one functional ATen graph.

Autograd runs first, on plain fake tensors: it handles in-place operators and views as eager's autograd does, with
eager's rules and errors. The resulting ATen graph is functionalized afterwards, if it writes at all.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx import traceback as fx_traceback

from eductor import compat
from eductor.autograd.analysis import analyse, has_symbols, stand_ins
from eductor.autograd.captured import Captured, Fakes, contains, keeps_subgraphs, refuse_subclasses
from eductor.autograd.decompose import Table, decompose, for_autograd
from eductor.autograd.functionalize import NewValues, functionalize, listed_writes, may_write
from eductor.autograd.gradient_uses import gradients_by_use, gradients_in_sum
from eductor.autograd.output_views import Wanted, views_of
from eductor.autograd.overlapping_writes import refuse_overlapping_writes
from eductor.autograd.provenance import ForwardRun, record_inputs
from eductor.autograd.result_layouts import keep_strides, strides_of_results
from eductor.autograd.shortened import shortened
from eductor.autograd.stamping import stamped
from eductor.autograd.unsupported import is_decomposed, refuse_inexact, refuse_operators
from eductor.compat import make_fx
from eductor.graph.effects.bases import base_node, origin_of, storage_node
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.no import No
from eductor.graph.values.meta import BACKWARD, output_of, value_of
from eductor.program.joint import Analysis, Joint, Output, Place, Tangent, Views, Writes

_log = logging.getLogger("eductor")


def aot_dispatch_autograd_graph(
    captured: Captured,
    fakes: Fakes,
    decompositions: Mapping[Any, Any],
    *,
    redraws: bool = False,
    exact: bool = False,
) -> Joint:
    """Traces forward and backward of a captured graph together; with `exact`, as eager's kernels compute them.

    Layers that repeat are traced a few times, and stamped for the others.
    """
    refuse_subclasses(captured.module)
    table = dict(decompositions)
    if exact:
        return trace_all(captured, fakes, table, redraws=redraws, exact=True)
    return _traced(captured, fakes, table, redraws=redraws)


def _traced(captured: Captured, fakes: Fakes, table: Table, *, redraws: bool) -> Joint:
    """Traces a few of the layers that repeat, and stamps the others; where this does not do, traces all."""
    made = _stamped(captured, fakes, table, redraws=redraws)
    if isinstance(made, Joint):
        return made
    _log.debug("layers are not stamped: %s", made)
    return trace_all(captured, fakes, table, redraws=redraws)


def _stamped(captured: Captured, fakes: Fakes, table: Table, *, redraws: bool) -> Joint | No:
    short = shortened(captured, fakes)
    if isinstance(short, No):
        return short
    try:  # without these layers, there may be others that repeat
        return stamped(short, _traced(short.captured, short.fakes, table, redraws=redraws), captured, fakes)
    except Exception as error:  # the trace of all layers raises what the user sees
        return No(f"the graph with fewer of them raises {error!r}")


def trace_all(captured: Captured, fakes: Fakes, table: Table, *, redraws: bool = False, exact: bool = False) -> Joint:
    """Traces all layers of a captured graph."""
    with compat.tracing_autograd(fakes.mode):
        analysis = analyse(captured, fakes)
        tangents, values = _tangents(analysis)
        trace = _Trace(captured, analysis, tangents, len(fakes.values), by_use=exact)
        primals = stand_ins(fakes.values)
        later = not has_symbols(fakes.values) and not contains(captured.module, keeps_subgraphs)
        if exact:
            refuse_inexact(captured.module, symbolic=not later)
        # torch's Python decompositions for symbolic sizes round differently for some operators.
        whole = exact and contains(captured.module, is_decomposed)
        dispatcher = nullcontext if whole else compat.enable_python_dispatcher
        with dispatcher():
            first = for_autograd(table, later=later, exact=exact)
            traced = make_fx(trace.run, decomposition_table=first)(*primals, *values)
        refuse_operators(traced, redraws=redraws, exact=exact)
        refuse_overlapping_writes(traced)
        analysis = analysis.noticing(listed_writes(traced))
        analysis, views = _take_views(traced, analysis)
        strides, new = strides_of_results(traced), NewValues()
        # The casts of autocast are in the graph: under autocast, running it again would cast more than eager's kernels do.
        with dispatcher(), torch.no_grad(), compat.without_autocast():
            if may_write(traced) or (later and table and has_symbols([value_of(n) for n in traced.graph.nodes])):
                traced, new = functionalize(traced, (*primals, *values), table, exact=exact)
            elif later:
                traced = decompose(traced, table)
            keep_strides(traced, strides)
    gradients, writes = _finish(traced, analysis, new)
    _set_input_provenance(traced, captured, tangents, len(fakes.values))
    static = captured.static_inputs()
    parameters = frozenset(i for i in static if isinstance(fakes.values[i], torch.nn.Parameter))
    return Joint(analysis, tangents, gradients, writes, views, static, traced, parameters)


class _Trace:
    """The traced function: the forward, then gradients of its returns with respect to the inputs."""

    def __init__(
        self, captured: Captured, analysis: Analysis, tangents: Sequence[Tangent], count: int, *, by_use: bool
    ) -> None:
        self._by_use = by_use
        self._captured = captured
        self._analysis = analysis
        self._tangents = tangents
        self._count = count
        # make_fx disables the cache: eager casts a leaf once in an autocast region, and sums its gradients before the cast.
        self._caches = torch.is_autocast_cache_enabled()

    def run(self, *flat: Any) -> Any:
        primals, tangents = flat[: self._count], flat[self._count :]
        analysis, copied = self._analysis, set(self._analysis.copied)
        forward = ForwardRun(self._captured.module)
        with fx_traceback.preserve_node_meta():
            taken = [x.clone() if i in copied else x for i, x in enumerate(primals)]
            with compat.keeping_dispatch_state(), compat.autocast_cache(enabled=self._caches):
                outputs = self._captured.run(self._captured.enter(taken), forward)
            returns = [r.pick(taken, outputs) for r in analysis.returns]
            views = [x for x, output in zip(outputs, analysis.outputs, strict=True) if output.kind == "view"]
            for seen, now in zip(analysis.values, returns, strict=True):
                compat.same_unbacked(seen, now)
            forward_ends = compat.last_traced_node()
            gradients = self._gradients(primals, returns, tangents, forward)
            forward.mark_backward(forward_ends)
        return returns, views, gradients, forward.unused

    def _gradients(
        self, primals: Sequence[Any], returns: Sequence[Any], tangents: Sequence[Any], forward: ForwardRun
    ) -> list[list[Any]]:
        gradients: list[list[Any]] = [[] for _ in primals]
        if self._tangents:
            sources = [i for i, given in enumerate(self._analysis.inputs) if given.requires_grad]
            results = [returns[t.of] for t in self._tangents]
            fx_traceback.current_meta = {"partitioner_tag": BACKWARD}
            starts = [primals[i] for i in sources]
            with forward.tied(results), compat.without_autocast():
                found = (gradients_by_use if self._by_use else gradients_in_sum)(results, starts, tangents)
            for i, parts in zip(sources, found, strict=True):
                gradients[i] = parts
        return gradients


def _tangents(analysis: Analysis) -> tuple[tuple[Tangent, ...], list[torch.Tensor]]:
    """The tangents of the returns that require gradients, in the strides of their returns where these are dense."""
    tangents, values = [], []
    for k, (result, value) in enumerate(zip(analysis.returns, analysis.values, strict=True)):
        if not result.requires_grad:
            continue
        strides = compat.plain_strides(value)
        memory_format = torch.contiguous_format if strides is not None else compat.memory_format_of(value)
        if strides is not None:
            like = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
        else:
            like = torch.empty(value.shape, dtype=value.dtype, device=value.device, memory_format=memory_format)
        tangents.append(Tangent(k, strides, memory_format))
        values.append(like)
    return tuple(tangents), values


def _take_views(traced: GraphModule, analysis: Analysis) -> tuple[Analysis, tuple[Views | None, Views | None]]:
    """Moves the outputs that are views from the traced graph into small graphs of their own."""
    returns, views, gradients, unused = output_of(traced)
    nodes = dict(zip((j for j, o in enumerate(analysis.outputs) if o.kind == "view"), views, strict=True))
    analysis, returns = _rooted_at_origins(analysis, returns, nodes)
    traced.graph.output_node().args = ((returns, gradients, unused),)
    if not views:
        return analysis, (None, None)
    placeholders = traced.graph.find_nodes(op="placeholder")[: len(analysis.inputs)]
    leaves: dict[Node, Place] = {p: ("input", i) for i, p in enumerate(placeholders)}
    for k, (result, node) in enumerate(zip(analysis.returns, returns, strict=True)):
        if isinstance(node, Node):
            place: Place = ("input", result.index) if result.source == "input" else ("return", k)
            leaves.setdefault(storage_node(node), place)
    wanted = [
        Wanted(nodes[j], (o.root, o.index), o.recorded, not o.requires_grad and _root_requires_grad(o, analysis))
        for j, o in enumerate(analysis.outputs)
        if o.kind == "view"
    ]

    def made(*, recorded: bool) -> Views | None:
        some = [w for w in wanted if w.recorded == recorded]
        return views_of(some, leaves) if some else None

    return analysis, (made(recorded=True), made(recorded=False))


def _rooted_at_origins(
    analysis: Analysis, returns: Sequence[Any], views: dict[int, Node]
) -> tuple[Analysis, list[Any]]:
    """Returns the origin of several outputs without gradients, where one of these outputs was returned in its place.

    For autograd the result of `detach` is not a view: only the trace shows which of two such values came first.
    `views` are the nodes of outputs that are views; outputs that turn out to be views are added.
    """
    outputs, values, returns = list(analysis.outputs), list(analysis.values), list(returns)
    for k in {o.index for o in outputs if o.kind == "view" and o.root == "return"}:
        node = storage_node(returns[k])
        origin = origin_of(node)
        if analysis.returns[k].requires_grad or origin is node:
            continue
        for j, output in enumerate(outputs):
            if output.kind == "return" and output.index == k:
                outputs[j], views[j] = Output("view", k), node
            elif output.kind == "view" and storage_node(views[j]) is origin:
                outputs[j] = Output("return", k)
        returns[k], values[k] = origin, value_of(origin)
    return replace(analysis, outputs=tuple(outputs), values=tuple(values)), returns


def _root_requires_grad(output: Output, analysis: Analysis) -> bool:
    roots = analysis.inputs if output.root == "input" else analysis.returns
    return roots[output.index].requires_grad


def _finish(traced: GraphModule, analysis: Analysis, new: NewValues) -> tuple[tuple[int, ...], Writes]:
    """Flat outputs, write-backs at the end, and the names that the documents use."""
    graph, count = traced.graph, len(analysis.inputs)
    output = graph.output_node()
    placeholders = graph.find_nodes(op="placeholder")
    returns, gradients, _ = output_of(traced)
    written = {placeholders[i] for i, _ in (*new.forward, *new.backward)}
    with graph.inserting_before(output):
        forward = [i for i, value in new.forward if _write_back(traced, placeholders[i], value, written)]
        backward = [i for i, value in new.backward if _write_back(traced, placeholders[i], value, written, BACKWARD)]
    for i, node in enumerate(placeholders):
        node.target = f"primals_{i + 1}" if i < count else f"tangents_{i - count + 1}"
        node._rename(node.target)
    wanted = tuple(i for i, parts in enumerate(gradients) for _ in parts)
    output.args = ((*returns, *(part for parts in gradients for part in parts)),)
    graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output") or not effect_of(n).removable)
    traced.recompile()
    return wanted, Writes(tuple(forward), tuple(backward))


def _set_input_provenance(traced: GraphModule, captured: Captured, tangents: Sequence[Tangent], count: int) -> None:
    placeholders, outputs = traced.graph.find_nodes(op="placeholder"), output_of(traced)
    results = {count + k: outputs[t.of] for k, t in enumerate(tangents) if isinstance(outputs[t.of], Node)}
    record_inputs(placeholders, captured.module.graph.find_nodes(op="placeholder"), len(captured.held), results)


def _write_back(
    traced: GraphModule, place: Node, value: Node, written: Collection[Node], tag: str | None = None
) -> bool:
    """Writes a new value to an input; False if it is the old one."""
    if value.target is torch.ops.aten.copy.default and value.args[0] is place:
        source = value.args[1]
        # The old value of another input may be overwritten by the time this one is written.
        if isinstance(source, Node) and (source is place or base_node(source) not in written):
            value = source
    if value is place:
        return False
    node = traced.graph.call_function(torch.ops.aten.copy_.default, (place, value))
    node.meta = {**value.meta, "partitioner_tag": tag, "val": value_of(place)}
    return True
