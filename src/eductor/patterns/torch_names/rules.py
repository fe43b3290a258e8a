"""Rules made from the replacements and graph patterns of torch's matcher, and its two ways to trace a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from eductor.compat import FakeTensor, FakeTensorMode, created_nodes, unset_fake_temporarily
from eductor.errors import BadPattern
from eductor.graph import GraphView, No, Rewriter, known_true, provenance_of, requires_grad
from eductor.graph.effects.order import sort_in_place
from eductor.patterns.match.match import Match
from eductor.patterns.rules import Replaced, of_all, parameters_of
from eductor.patterns.torch_names.handler_edits import Seen, has_fixed_keys
from eductor.patterns.torch_names.match import StockMatch, is_there, ported
from eductor.patterns.torch_names.patterns import Captures
from eductor.patterns.trace.search_function import Traced
from eductor.patterns.trace.tracing import SearchInputs, aten_graph, search_inputs
from eductor.pipeline.versions import digest, source_hash

ExtraCheck = Callable[[StockMatch], Any]
TraceFn = Callable[..., GraphModule]


def fwd_only(fn: Callable[..., Any], args: Sequence[Any], *, run_functional_passes: bool = True) -> GraphModule:
    """As `trace_fn`: a function is looked for as its forward computes it. Called, it gives that ATen graph.

    Nothing is decomposed. Tensors are the inputs of the graph, numbers its constants.
    """
    return _graph(fn, args, [False] * len(args))


def joint_fwd_bwd(fn: Callable[..., Any], args: Sequence[Any]) -> GraphModule:
    """As `trace_fn`: a function is looked for together with its backward. Called, it gives that joint ATen graph.

    The inputs that require a gradient get one, or if none does, all that can. The tangents are the last inputs.
    """
    asked = any(requires_grad(x) for x in args)
    floats = [isinstance(x, torch.Tensor) and x.dtype.is_floating_point for x in args]
    return _graph(fn, args, [requires_grad(x) if asked else is_float for x, is_float in zip(args, floats, strict=True)])


def _graph(fn: Callable[..., Any], args: Sequence[Any], gradients: Sequence[bool]) -> GraphModule:
    mode = next((x.fake_mode for x in args if isinstance(x, FakeTensor)), None) or FakeTensorMode()
    is_real = [isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor) for x in args]
    pairs = zip(args, is_real, strict=True)
    values = [mode.from_tensor(x.detach(), static_shapes=True) if real else x for x, real in pairs]
    return aten_graph(fn, values, gradients, mode)[0]


def is_joint(trace_fn: TraceFn) -> bool:
    while isinstance(trace_fn, functools.partial):
        trace_fn = trace_fn.func
    if trace_fn not in (fwd_only, joint_fwd_bwd):
        raise BadPattern(f"trace_fn={trace_fn!r}: it must be fwd_only or joint_fwd_bwd of eductor.patterns.")
    return trace_fn is joint_fwd_bwd


# -------------------------------------------------------------------------------------------------------- replacements


@dataclass(frozen=True, eq=False)
class Replacement:
    """What a registration says of a search function and its replacement."""

    search: Callable[..., Any]
    replace: Callable[..., Any]
    examples: tuple[Any, ...]
    is_joint: bool
    scalars: Mapping[str, Any]
    exclusive: Sequence[str]

    @functools.cached_property
    def inputs(self) -> SearchInputs:
        names = tuple(p.name for p in _parameters(self.search) or ())
        unknown = next((n for n in (*self.scalars, *self.exclusive) if n not in names), None)
        if unknown is not None:
            raise BadPattern(f"{name_of(self.search)} has no parameter {unknown!r}: it has {', '.join(names)}.")
        if any(isinstance(x, (list, tuple, dict)) for x in self.examples):
            raise BadPattern(f"{name_of(self.search)}: an example is a tensor or a number; give each its parameter.")
        rest = iter(self.examples)
        given = [self.scalars[n] if n in self.scalars else next(rest, None) for n in names]
        count = len(names) - len(self.scalars)
        if count != len(self.examples):
            raise BadPattern(
                f"{name_of(self.search)} takes {count} inputs ({', '.join(n for n in names if n not in self.scalars)}), "
                f"{len(self.examples)} examples were given."
            )
        return search_inputs(self.search, list(map(_real, given)), joint=self.is_joint, exclusive=self.exclusive)

    @property
    def action(self) -> Replaced:
        """Arguments go by position, as upstream; a function with fewer parameters takes those of its names."""
        taken, names = _parameters(self.replace), self.inputs.names
        by_position = taken is None or len(taken) == len(names) or any(p.kind is p.VAR_POSITIONAL for p in taken)
        wanted = names if by_position else parameters_of(self.replace, names, in_order=False)
        return Replaced(of_all(self.replace, wanted, names), names, self.inputs)

    def source(self, stored: str | None) -> Traced:
        return Traced(self.search, self.inputs, "aten", stored, free=dict(self.scalars))

    @property
    def version(self) -> str:
        shown = [
            (x.dtype, tuple(x.shape), x.requires_grad) if isinstance(x, torch.Tensor) else x for x in self.examples
        ]
        said = repr((shown, self.is_joint, sorted(self.scalars.items()), sorted(self.exclusive)))
        return digest(source_hash(self.search), source_hash(self.replace), said)


def _real(example: Any) -> Any:
    """A fake example as a tensor: only of those does a trace take the sizes for symbols."""
    if not isinstance(example, FakeTensor):
        return example
    kind = example.device.type
    device = example.device if kind == "cpu" or torch.get_device_module(kind).is_available() else "cpu"
    with unset_fake_temporarily():
        made = torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=device)
        return made.requires_grad_(example.requires_grad)


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function; None of a builtin, which does not say."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except ValueError:
        return None


def name_of(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


# ------------------------------------------------------------------------------------------------- checks and handlers


def always(match: StockMatch) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class Check:
    """A condition that knows torch's match. Without captures, all names of the pattern are keywords."""

    captures: Captures | None
    fn: ExtraCheck

    def __call__(self, found: Match) -> Any:
        match = ported(found, self.captures or Captures(keywords={n: n for n in found.bindings}))
        if isinstance(match, No):
            return match.reason
        verdict = self.fn(match)
        return known_true(verdict) if isinstance(verdict, torch.SymBool) else bool(verdict)


@dataclass(frozen=True, eq=False)
class Handler:
    """A handler that edits the graph by itself; the rewriter is told afterwards what it did."""

    rule: str
    fn: Callable[..., Any]
    captures: Captures

    def __call__(self, found: Match, view: GraphView, rewrite: Rewriter) -> None:
        made_by = getattr(provenance_of(found.output), "address", "")
        if made_by.startswith(f"{rewrite.address}:{self.rule}@"):
            rewrite.reject(f"{found.output.name} was made by this rule", found.output)
            return
        match = ported(found, self.captures, view, rewrite)
        assert isinstance(match, StockMatch)  # its check came first
        edits, before = view.memo.pop(_SEEN, (-1, None))
        if before is None or edits != rewrite.edits or before.graph is not view.graph:
            before = Seen(view.graph)
        edits = rewrite.edits
        with created_nodes(view.module) as created, view.graph.inserting_before(match.output):
            self.fn(match, *match.args, **match.kwargs)
        now, edit = before.again()
        if edit or rewrite.edits > edits:
            is_sorted = all(n < node for node in edit.placed for n in node.all_input_nodes)
            if not is_sorted:
                sort_in_place(view.graph)
                now, edit = before.again()
            # A node of the match that is still there counts as new: its rule has dealt with it.
            made = [*edit.added, *(n for n in edit.changed if n in match.nodes)]
            erased = [*edit.erased, *(n for n in created if not is_there(n))]
            simple = is_sorted and edit.is_simple and all(map(has_fixed_keys, erased))
            rewrite.edited_by_hand(made, edit.added, edit.changed, erased, is_simple=simple)
        view.memo[_SEEN] = rewrite.edits, now


_SEEN = object()
"""Under what a view has the graph as it was after the last handler, and how many edits there were until then."""
