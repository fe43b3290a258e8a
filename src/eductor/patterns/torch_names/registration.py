"""The entry points of torch's matcher, under their names: a pattern written for it ports by changing the import.

    patterns = PatternMatcherPass("mine")
    register_replacement(search, replacement, [torch.empty(4, 4)], fwd_only, patterns)
    patterns.apply(graph)                                      # how many replacements there were

What differs from torch is wanted. Matching is closed: an argument that a pattern does not mention has its default, and a
constant is compared. A number that is a parameter of a search function is free by its nature: `scalar_workaround` only
supplies its example. The tensors of a match have the ranks of the examples. Rules are applied until none applies, also
in the bodies of higher-order operators, and what is counted are changes, not calls of handlers. Graphs need fake values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.utils import _pytree as pytree

from eductor.compat import FakeTensor
from eductor.errors import BadPattern
from eductor.graph import GraphView, Rewriter, known_equal
from eductor.graph.rewriter import inner_first
from eductor.graph.snapshot import subgraphs
from eductor.patterns.compile.forms import forms
from eductor.patterns.language.pattern import AnyOf, Pattern, listing
from eductor.patterns.pattern_pass import PatternPass
from eductor.patterns.rules import Handled, Rule, Rules, Said, Source, names_in
from eductor.patterns.torch_names.patterns import PatternExpr, translated
from eductor.patterns.torch_names.rules import (
    Check,
    ExtraCheck,
    Handler,
    Replacement,
    TraceFn,
    always,
    is_joint,
    name_of,
)
from eductor.patterns.trace.store import Store, dumps
from eductor.pipeline.base import STAGES, Contract, is_name
from eductor.pipeline.versions import digest, packages_of, source_hash


class PatternMatcherPass(PatternPass):
    """A set of rules. It is a pass of the pipeline, for any stage; `apply` and a call run it on a graph by itself."""

    foreign = True  # what handlers do with the graph, they do without the rewriter

    def __init__(self, pass_name: str | None = None, subsystem: str | None = None) -> None:
        name = pass_name if is_name(pass_name) else "pattern_matcher_pass"
        super().__init__(_patterns, name=name, stages=STAGES, contract=Contract("reassociates"))
        self.pass_name = pass_name
        self.subsystem = subsystem
        self.seen: set[str] = set()
        """The replacements that were registered, by what they look for and what they put there."""

    def apply(self, gm: GraphModule | Graph) -> int:
        """Applies the rules to a graph until none applies; returns how often one changed something."""
        module = _module_of(gm)
        _bring_to_one_mode(module)
        view = GraphView(module)
        rewriter = Rewriter(view, self.name)
        view.scope = rewriter
        made = sum(inner_first(rewriter, self.rules.apply))
        rewriter.finish()
        if made:
            view.graph.lint()
            module.recompile()
        return made

    __call__ = apply

    def clear(self) -> None:
        """Forgets all rules."""
        self.rules = Rules()
        self.seen = set()


def _patterns() -> None:
    """Applies patterns that were written for torch's matcher."""


def _module_of(given: GraphModule | Graph) -> GraphModule:
    if isinstance(given, GraphModule):
        return given
    if not isinstance(given, Graph):
        raise BadPattern(f"apply({type(given).__name__}): give a torch.fx.Graph or a GraphModule.")
    owner = given.owning_module
    if isinstance(owner, GraphModule) and owner.graph is given:
        return owner
    return GraphModule(owner or torch.nn.Module(), given)


def _bring_to_one_mode(module: GraphModule) -> None:
    """Recreates the fake values of a graph in one mode: a trace with real tensors gives each value its own mode."""
    graphs = [module.graph]
    for graph in graphs:  # it grows
        graphs += [body.graph for body in subgraphs(graph).values()]
    found = [(n, key) for g in graphs for n in g.nodes for key in ("val", "example_value") if key in n.meta]
    fakes = [v for n, key in found for v in pytree.tree_leaves(n.meta[key]) if isinstance(v, FakeTensor)]
    modes = dict.fromkeys(v.fake_mode for v in fakes)
    if len(modes) < 2:
        return
    symbolic = (v.fake_mode for v in fakes if any(isinstance(s, torch.SymInt) for s in (*v.shape, *v.stride())))
    mode = next(symbolic, next(iter(modes)))
    made: dict[int, Any] = {}

    def again(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or value.fake_mode is mode or value.layout is not torch.strided:
            return value
        if id(value) not in made:
            with mode:
                new = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
                if not known_equal(offset := value.storage_offset(), 0):
                    size = offset + new.untyped_storage().nbytes() // new.itemsize
                    new = new.new_empty(size).as_strided(value.shape, value.stride(), offset)
            made[id(value)] = new.requires_grad_(value.requires_grad)
        return made[id(value)]

    for node, key in found:
        node.meta[key] = pytree.tree_map(again, node.meta[key])


# -------------------------------------------------------------------------------------------------------- registration


def register_replacement(
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    trace_fn: TraceFn,
    pass_dicts: PatternMatcherPass | Sequence[PatternMatcherPass],
    extra_check: ExtraCheck = always,
    scalar_workaround: Mapping[str, float | int] | None = None,
    exclusive_arg_names: Sequence[str] = (),
    search_fn_pattern: PatternExpr | Pattern | None = None,
    skip_duplicates: bool = False,
) -> bool:
    """Declares that what one function computes gives way to what another one computes of the same arguments.

    Nothing is traced before a graph is searched. `search_fn_pattern` says what to look for in place of a trace; it
    captures the parameters by keyword. The same functions with the same examples twice are an error, or with
    `skip_duplicates` nothing. Returns whether a rule was added.
    """
    replacement = Replacement(
        search_fn, replace_fn, tuple(example_inputs), is_joint(trace_fn), scalar_workaround or {}, exclusive_arg_names
    )
    return _register(replacement, pass_dicts, extra_check, skip_duplicates, pattern=search_fn_pattern)


def gen_register_replacement(
    unique_name: str,
    search_fn: Callable[..., Any],
    replace_fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    trace_fn: TraceFn,
    pass_dicts: PatternMatcherPass | Sequence[PatternMatcherPass],
    extra_check: ExtraCheck = always,
    scalar_workaround: Mapping[str, float | int] | None = None,
    exclusive_arg_names: Sequence[str] = (),
    skip_duplicates: bool = False,
) -> None:
    """The same for a pattern that may be precompiled: it is stored in `user.json`, beside the file of the search function.

    One that is not there is traced when it is wanted. `python -m eductor.patterns.precompile MODULE` writes the file.
    """
    if not is_name(unique_name):
        raise BadPattern(f"gen_register_replacement({unique_name!r}, ...): a name must be an identifier.")
    replacement = Replacement(
        search_fn, replace_fn, tuple(example_inputs), is_joint(trace_fn), scalar_workaround or {}, exclusive_arg_names
    )
    _register(replacement, pass_dicts, extra_check, skip_duplicates, stored=f"user.{unique_name}")


def gen_pattern(
    search_fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    trace_fn: TraceFn,
    scalar_workaround: Mapping[str, float | int] | None = None,
    exclusive_arg_names: Sequence[str] = (),
) -> Pattern:
    """The pattern of a search function, traced now."""
    given = (tuple(example_inputs), is_joint(trace_fn), scalar_workaround or {}, exclusive_arg_names)
    return Replacement(search_fn, search_fn, *given).source(None).pattern


def _serialize_pattern(
    unique_name: str,
    search_fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    trace_fn: TraceFn,
    scalar_workaround: Mapping[str, float | int] | None = None,
) -> Pattern:
    """Traces a search function, and stores its pattern where `gen_register_replacement` looks for it."""
    given = (tuple(example_inputs), is_joint(trace_fn), scalar_workaround or {}, ())
    source = Replacement(search_fn, search_fn, *given).source(f"user.{unique_name}")
    found = Store(source.path)
    others = {name: [v.pattern for v in found.variants(name) if v.pattern is not None] for name in found}
    pattern = source.fresh()
    everything = {name: AnyOf(tuple(patterns)) for name, patterns in others.items() if patterns}
    source.path.write_text(dumps({**everything, unique_name: pattern}))
    return pattern


def register_graph_pattern(
    pattern: PatternExpr | Pattern,
    extra_check: ExtraCheck = always,
    *,
    pass_dict: PatternMatcherPass | Sequence[PatternMatcherPass],
    prepend: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares a handler, which is called with each match, the positional captures and the keyword captures.

    It edits the graph as it likes. A match on which it changes nothing does not count, and what it made itself it is not
    given again.
    """
    said, captures = translated(pattern)
    forms(said)  # what is wrong with it is said here

    def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
        passes = _passes(pass_dict)
        name = _free_name(passes, handler)
        version = digest(listing(said), source_hash(handler), source_hash(extra_check))
        action = Handled(Handler(name, handler, captures))
        packages = packages_of(handler, extra_check)
        rule = Rule(name, Said(said), action, Check(captures, extra_check), version=version, packages=packages)
        for p in passes:
            p.rules.add(rule, first=prepend)
        return handler

    return declare


def _register(
    given: Replacement,
    pass_dicts: PatternMatcherPass | Sequence[PatternMatcherPass],
    extra_check: ExtraCheck,
    skip_duplicates: bool,
    *,
    pattern: PatternExpr | Pattern | None = None,
    stored: str | None = None,
) -> bool:
    source: Source = given.source(stored)
    captures, version = None, given.version
    if pattern is not None:
        said, captures = translated(pattern)
        forms(said)
        missing = next((n for n in given.inputs.names if n not in names_in(said)), None)
        if missing is not None:
            raise BadPattern(f"the pattern of {name_of(given.search)} does not capture its parameter {missing!r}.")
        source, version = Said(said), digest(listing(said), version)
    passes = _passes(pass_dicts)
    seen = [p for p in passes if version in p.seen]
    if seen and not skip_duplicates:
        raise BadPattern(
            f"{seen[0].name} has the replacement of {name_of(given.search)} by {name_of(given.replace)} already: take it "
            "out, or give skip_duplicates=True."
        )
    wanted = [p for p in passes if p not in seen]
    check = Check(captures, extra_check)
    full = digest(version, source_hash(extra_check))
    packages = packages_of(given.search, given.replace, extra_check)
    rule = Rule(_free_name(passes, given.replace), source, given.action, check, version=full, packages=packages)
    for p in wanted:
        p.rules.add(rule)
        p.seen.add(version)
    return bool(wanted)


def _passes(given: PatternMatcherPass | Sequence[PatternMatcherPass]) -> list[PatternMatcherPass]:
    found = [given] if isinstance(given, PatternMatcherPass) else list(given)
    wrong = next((p for p in found if not isinstance(p, PatternMatcherPass)), None)
    if wrong is not None or not found:
        raise BadPattern(f"a rule goes to a PatternMatcherPass of eductor.patterns, or to several; not to {given!r}.")
    return found


def _free_name(passes: Sequence[PatternMatcherPass], fn: Callable[..., Any]) -> str:
    """The name of a function, or one like it, that a rule can have in each of the passes."""
    taken = {r.name for p in passes for r in p.rules.rules}
    name = name_of(fn) if is_name(name_of(fn)) else "rule"
    return next(n for i in itertools.count(1) if (n := f"{name}_{i}" if i > 1 else name) not in taken)
