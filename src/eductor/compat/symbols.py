"""Symbolic sizes, backed and unbacked (data-dependent)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv


def is_symbolic(value: torch.Tensor) -> bool:
    """Whether a size, a stride or the offset of a tensor is symbolic."""
    return bool(value._has_symbolic_sizes_strides)


def without_new_guards(mode: FakeTensorMode) -> AbstractContextManager[None]:
    """Evaluates without guards on symbolic sizes: what would install one raises a RuntimeError instead."""
    env = mode.shape_env
    if env is None:
        return nullcontext()
    return env.error_on_new_guards() if hasattr(env, "error_on_new_guards") else _refusing_guards(env)


@contextmanager
def _refusing_guards(env: ShapeEnv) -> Iterator[None]:
    """Raises where torch would check whether its sizes are frozen, which it does before each guard."""

    def refuse(*guard: Any) -> None:
        raise RuntimeError(f"a guard on symbolic sizes: {guard}")

    with patch.object(env, "_check_frozen", refuse):
        yield


def new_symbol(env: ShapeEnv, name: str, hint: int) -> torch.SymInt:
    """A new symbolic size with a hint."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    source = ConstantSource(name)
    symbol = env.create_symbol(hint, source=source, dynamic_dim=DimDynamic.DYNAMIC)
    size: torch.SymInt = env.create_symintnode(symbol, hint=hint, source=source)  # type: ignore[assignment]
    return size


def symbol_of(value: Any) -> Any:
    """The symbol of a size, or None if it is a number or an expression."""
    expression = value.node.expr if isinstance(value, torch.SymInt) else None
    return expression if expression is not None and expression.is_symbol else None


def symbols_of(value: Any) -> list[Any]:
    """The symbols in the sizes and strides of a value, in a stable order."""
    from torch.fx.experimental.symbolic_shapes import free_symbols

    if not isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
        return []
    return sorted(free_symbols(value), key=str)


def has_unbacked_symbols(value: Any) -> bool:
    """Whether a number, or a size of a tensor, depends on data."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    return bool(free_unbacked_symbols(value))


@contextmanager
def forgetting_unbacked(mode: FakeTensorMode) -> Iterator[None]:
    """Lets a trial run create unbacked symbols; a later trace on the same mode creates its own."""
    if mode.shape_env is None:
        yield
        return
    with mode.shape_env.ignore_fresh_unbacked_symbols():
        yield
    mode.epoch += 1


def made_of(given: Sequence[Any], mode: FakeTensorMode, make: Callable[[], torch.Tensor]) -> torch.Tensor | None:
    """A fake value whose unbacked symbols all occur in `given`; None if it needs new ones, which are discarded."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    with mode, nullcontext() if mode.shape_env is None else mode.shape_env.ignore_fresh_unbacked_symbols():
        made = make()
    return None if free_unbacked_symbols(made) - free_unbacked_symbols(list(given)) else made


def same_unbacked(seen: Any, now: Any) -> None:
    """Renames unbacked symbols that a second run created to those of the first."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if not isinstance(seen, torch.Tensor) or not free_unbacked_symbols(now):
        return
    for old, new in zip((*seen.shape, *seen.stride()), (*now.shape, *now.stride()), strict=True):
        before, after = symbol_of(old), symbol_of(new)
        if before is not None and after is not None and before != after:
            new.node.shape_env._rename_unbacked_to(after, before)


def size_as_node(graph: Graph, size: Any, known: Mapping[Any, Node]) -> Any:
    """A size as a number, or as a node that computes it from the nodes of its symbols."""
    if not isinstance(size, torch.SymInt):
        return size
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    symbols = {s: torch.fx.Proxy(node, tracer) for s, node in known.items() if s is not None}
    result = sympy_interp(PythonReferenceAnalysis, symbols, size.node.expr)
    return result.node if isinstance(result, torch.fx.Proxy) else int(result)


def number_at(size: Any, sizes: Mapping[Any, int]) -> Any:
    """A symbolic number evaluated at these values of its symbols, or else its hint; None if data-dependent."""
    if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return size
    if sizes and size.node.expr.free_symbols <= sizes.keys():
        return int(size.node.expr.xreplace(sizes))
    return size.node.hint if size.node.has_hint() else None


def other_sizes(values: Sequence[Any]) -> dict[Any, int]:
    """Values that differ from the hints, for the symbols among some values; empty if a guard forbids them."""
    sizes = [
        s for v in values for s in (v.shape if isinstance(v, torch.Tensor) else [v]) if isinstance(s, torch.SymInt)
    ]
    if not sizes or not all(s.node.has_hint() for s in sizes):
        return {}
    env = sizes[0].node.shape_env
    symbols = {symbol for s in sizes for symbol in s.node.expr.free_symbols}
    # A different number for each, so that sizes that were equal by chance differ.
    others = {
        symbol: int(env.backed_var_to_val[symbol]) + 3 + 2 * i for i, symbol in enumerate(sorted(symbols, key=str))
    }
    bounds = [env.var_to_range[symbol] for symbol in others]
    fit = all(r.lower <= n <= r.upper for r, n in zip(bounds, others.values(), strict=True))
    wrong = any(guard.expr.xreplace(others) == False for guard in env.guards)  # noqa: E712
    return others if fit and not wrong else {}
