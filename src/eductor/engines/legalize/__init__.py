"""What Inductor's lowering cannot take, or takes wrongly, said in operators that it takes well.

Most of these rewrites Inductor does in its own passes, which the engine switches off. They change no value and no order
of random draws; a graph without a candidate is only looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import GraphModule, Node

from eductor.compat import HigherOrderOperator
from eductor.engines.legalize.constants import fill_constants
from eductor.engines.legalize.empty_means import compute_empty_means
from eductor.engines.legalize.loops import map_to_while, scan_to_while
from eductor.engines.legalize.randomness import keep_draws_in_order
from eductor.engines.legalize.small_masks import store_small_masks
from eductor.engines.legalize.wide_cats import call_wide_cats
from eductor.graph.rewriter import Rewriter
from eductor.graph.snapshot import subgraphs
from eductor.graph.view import GraphView
from eductor.graph.wrappers.auto_functionalized import functional_call, functional_call_on_bases
from eductor.graph.wrappers.triton_wrapper import functional_kernel

REWRITES: dict[str, Callable[[Rewriter, Node], None]] = {
    "auto_functionalized": functional_call,
    "auto_functionalized_v2": functional_call_on_bases,
    "triton_kernel_wrapper_functional": functional_kernel,
    "scan": scan_to_while,
    "map_impl": map_to_while,
}
"""By the names of higher-order operators, some of which torch defines only when they are first wanted."""


def legalize(module: GraphModule) -> None:
    """Rewrites what the lowering cannot take, in place, in subgraphs first."""
    for body in subgraphs(module.graph).values():
        legalize(body)
    rewrite = Rewriter(GraphView(module), "engine/legalize")
    for node in list(module.graph.nodes):
        if isinstance(node.target, HigherOrderOperator) and node.target.name() in REWRITES:
            REWRITES[node.target.name()](rewrite, node)
    fill_constants(rewrite)
    call_wide_cats(rewrite)
    compute_empty_means(rewrite)
    store_small_masks(rewrite)
    keep_draws_in_order(rewrite)
    if rewrite.matches:
        rewrite.finish()
        module.delete_all_unused_submodules()
        module.graph.lint()
        module.recompile()
