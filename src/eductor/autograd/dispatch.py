"""The whole way: joint graph, partition, compiled graphs, and the function around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor import compat
from eductor.autograd.backward_variants import Backwards
from eductor.autograd.captured import Captured, Fakes
from eductor.autograd.eager_replay import Again, Needs, has_function, pure_copy
from eductor.autograd.input_overlaps import Merged, Pairs, overlapping, watching_overlaps
from eductor.autograd.joint import Joint, Signature, aot_dispatch_autograd_graph
from eductor.autograd.output_views import base_node
from eductor.autograd.program import Program
from eductor.autograd.runtime import assemble
from eductor.errors import BadGraph, Unsupported, warn
from eductor.graph.values.meta import known_equal, output_of, value_of
from eductor.program.handoff import Compiled, Job, Parts

_MOST_VARIANTS = 4


def aot_dispatch_autograd(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    partition_fn: Callable[[Joint], Parts],
    compile: Callable[[Job], Compiled],
    decompositions: Mapping[Any, Any] | None = None,
    double_backward: bool = True,
    exact: bool = False,
    draws_anew: bool = False,
    keep: Callable[[Program], None] | None = None,
) -> Callable[..., Any]:
    """A function like the captured graph, made of compiled forward and backward graphs.

    `partition_fn` parts the joint graph, `compile` makes a graph runnable; both may do to the graphs what they like. With
    `exact`, a backward that is called under autocast casts where eager's would. `draws_anew` says that the compiled
    graphs draw other random numbers than eager does. `keep` is called with what `aot_resume_autograd` goes on from; not
    for inputs that overlap, which are taken as they lie in this call.
    """
    again = partial(
        aot_dispatch_autograd,
        module,
        partition_fn=partition_fn,
        compile=compile,
        decompositions=decompositions,
        double_backward=double_backward,
        exact=exact,
        draws_anew=draws_anew,
    )
    captured, table = Captured(module), decompositions or {}
    given = [*captured.held, *inputs]
    trace = partial(aot_dispatch_autograd_graph, draws_anew=draws_anew, exact=exact)
    joint = trace(captured, Fakes.of(given, captured.sources()), table)
    written = joint.written
    pairs = overlapping(given, written) if written else frozenset()
    if pairs:
        captured = Merged(captured, given, pairs)
        fakes = Fakes.of(captured.flatten(given), captured.sources())
        counted = [i for i in captured.without_base() if joint.analysis.inputs[i].seen_write]
        joint = trace(captured, fakes, table)
    needs = Needs.of(joint, draws_anew=draws_anew) if double_backward and joint.tangents else None
    function_graph = pure_copy(joint.module) if needs is not None and has_function(module) else None
    with compat.without_autocast():  # whose casts are in the graph
        program = Program(joint.signature, partition_fn(joint), needs, function_graph)
    if keep is not None and not pairs and captured.spec is None:
        keep(program)
    run = _compiled(captured, program, compile, exact=exact)
    if pairs and counted:
        run = _counting(run, captured, counted)
    return watching_overlaps(run, captured, written, pairs, _Variants(again, module, inputs)) if written else run


def aot_resume_autograd(
    module: GraphModule,
    inputs: Sequence[Any],
    program: Program,
    *,
    compile: Callable[[Job], Compiled],
    again: Callable[[GraphModule, Sequence[Any]], Callable[..., Any]],
    exact: bool = False,
) -> Callable[..., Any] | None:
    """The same from what was kept of it; None for inputs that overlap. `again` compiles anew, for those of later calls."""
    captured, signature = Captured(module), program.signature
    given, written = [*captured.held, *inputs], signature.written
    if len(given) != len(signature.analysis.inputs):
        raise BadGraph(f"it was made for {len(signature.analysis.inputs)} inputs, not for {len(given)}")
    if written and overlapping(given, written):
        return None
    run = _compiled(captured, program, compile, exact=exact)
    variants = _Variants(partial(again, module), module, inputs)
    return watching_overlaps(run, captured, written, frozenset(), variants) if written else run


def _compiled(
    captured: Captured, program: Program, compile: Callable[[Job], Compiled], *, exact: bool
) -> Callable[..., Any]:
    signature, parts, needs = program.signature, program.parts, program.needs
    again = None
    if needs is not None:
        again = Again(captured, signature, needs, program.function_graph, by_use=exact)
    job = _forward_job(signature, parts)
    with torch.no_grad(), compat.without_autocast():
        forward = compile(job)
    backwards = _backwards(signature, parts, forward, compile, job.shared)
    return assemble(captured, signature, parts, forward, backwards, again, exact=exact)


def _counting(run: Callable[..., Any], captured: Captured, written: Sequence[int]) -> Callable[..., Any]:
    """Moves the version counters of inputs whose storage is written."""

    def call(*args: Any) -> Any:
        inputs = [*captured.held, *args]
        torch.autograd.graph.increment_version([inputs[i] for i in written])
        return run(*args)

    return call


class _Variants:
    """What runs when inputs overlap in another way than those that the graph was compiled for."""

    def __init__(
        self, compile: Callable[[Sequence[Any]], Callable[..., Any]], module: GraphModule, inputs: Sequence[Any]
    ) -> None:
        self._compile = compile
        self._module = module
        self._is_static = not any(isinstance(x, (int, torch.SymInt)) for x in inputs)
        self._state = compat.CompileState()
        self._made: dict[Pairs, Callable[..., Any]] = {}

    def __call__(self, pairs: Pairs, args: tuple[Any, ...]) -> Callable[..., Any]:
        """Compiled for the new overlap; where sizes are dynamic, or the overlaps are many, the graph as captured."""
        if pairs not in self._made:
            if not self._is_static or len(self._made) >= _MOST_VARIANTS:
                return self._module
            try:
                with self._state.entered():
                    self._made[pairs] = self._compile(args)
            except Unsupported as construct:
                warn(
                    f"ahead-of-time autograd does not support {construct}; the captured graph runs uncompiled, as in eager.",
                    stacklevel=3,
                )
                self._made[pairs] = self._module
        return self._made[pairs]


def _forward_job(signature: Signature, parts: Parts) -> Job:
    return Job(
        parts.forward,
        _values(parts.forward),
        is_inference=not signature.tangents,
        static=signature.static,
        written=frozenset(signature.writes.forward),
        visible=frozenset(range(len(signature.analysis.returns))),
    )


def _backwards(
    signature: Signature, parts: Parts, forward: Compiled, compile: Callable[[Job], Compiled], shared: dict[str, Any]
) -> Backwards | None:
    """The backward, compiled when it is first called; at once where sizes are saved, whose guards Dynamo waits for."""
    if parts.backward is None:
        return None
    state, sizes, count = compat.CompileState(), len(parts.sizes), len(parts.sizes) + len(parts.saved)
    destinations = frozenset(range(count, count + len(parts.destinations)))
    laid_out = _laid_out(parts, forward)
    own = _own_values(signature, parts)

    def compile_backward(module: GraphModule, keeps: bool) -> Any:
        job = Job(
            module,
            [*laid_out, *_values(module)[count:]],
            is_inference=False,
            is_backward=True,
            static=_static(signature, parts) | destinations,
            saved=frozenset(range(sizes, count)),
            written=destinations,
            visible=frozenset(range(len(output_of(module)))),
            donated=frozenset() if keeps else own,
            shared=shared,
        )
        with state.entered(), torch.no_grad(), compat.without_autocast():
            return compile(job).run

    def cut(defined: Sequence[bool]) -> tuple[GraphModule, list[bool]]:
        assert parts.cut is not None
        with state.entered(), torch.no_grad(), compat.without_autocast():
            return parts.cut(defined)

    backwards = Backwards(parts.backward, len(signature.tangents), compile_backward, cut if parts.cut else None)
    if parts.sizes:
        backwards.prepare()
    return backwards


def _values(module: GraphModule) -> list[Any]:
    return [value_of(p) for p in module.graph.find_nodes(op="placeholder")]


def _laid_out(parts: Parts, forward: Compiled) -> list[Any]:
    """Fake values of what the backward takes besides tangents, with the strides that the engine chose for them."""
    assert parts.backward is not None
    values = _values(parts.backward)[: len(parts.sizes) + len(parts.saved)]
    for k, place in enumerate(parts.saved, start=len(parts.sizes)):
        strides = forward.strides[place.index] if forward.strides is not None and place.source == "output" else None
        value = values[k]
        if strides is not None and not known_equal(tuple(value.stride()), tuple(strides)):
            with value.fake_mode:
                values[k] = torch.empty_strided(value.shape, tuple(strides), dtype=value.dtype, device=value.device)
    return values


def _own_values(signature: Signature, parts: Parts) -> frozenset[int]:
    """Inputs of the backward that share no memory with anything the caller has."""
    outputs = output_of(parts.forward)
    count = len(signature.analysis.returns)
    seen = {base_node(n) for n in outputs[:count] if isinstance(n, Node)}
    return frozenset(
        len(parts.sizes) + k
        for k, place in enumerate(parts.saved)
        if place.source == "output"
        and place.index >= count
        and base_node(outputs[place.index]) not in seen
        and base_node(outputs[place.index]).op != "placeholder"
    )


def _static(signature: Signature, parts: Parts) -> frozenset[int]:
    """Inputs of the backward that are parameters or buffers."""
    places = enumerate(parts.saved, start=len(parts.sizes))
    return frozenset(k for k, place in places if place.source == "input" and place.index in signature.static)
