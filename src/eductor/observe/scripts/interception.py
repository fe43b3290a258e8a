"""Intercepts every function that the user's code compiles with Eductor."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import eductor.compiler
from eductor.compat import default_backend, isolated_compile
from eductor.engines.inductor.stock import settings_of
from eductor.options import Options


@dataclass(frozen=True)
class CompiledFunction:
    """A function that a script compiles with Eductor, with its options."""

    fn: Callable[..., Any]
    options: Options
    keywords: dict[str, Any]
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of stock Inductor, if the script uses that."""

    def with_options(self, **changes: Any) -> Options:
        """The script's options with these changed."""
        return replace(self.options, **changes)

    def compile(self, **changes: Any) -> Callable[..., Any]:
        """Compiles it with the script's options, with these changed."""
        backend = eductor.compiler.checked_backend(self.with_options(**changes))
        return isolated_compile(self.fn, backend=backend, **self.keywords)


Wrap = Callable[[CompiledFunction], Callable[..., Any]]
"""Returns what the script calls instead of the compiled function: a function, so that it can be a method."""


@dataclass
class Interception:
    """Patches torch.compile and eductor.compile, and counts the functions that were compiled.

    With `takes_stock`, functions compiled with stock Inductor count as well.
    """

    wrap: Wrap
    takes_stock: bool = False
    functions: int = 0
    other_backends: set[str] = field(default_factory=set)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replaces torch.compile and eductor.compile."""
        self._torch_compile = torch.compile
        with ExitStack() as stack:
            stack.enter_context(patch.object(torch, "compile", self._compile_with_torch))
            for home in (eductor, eductor.compiler):
                stack.enter_context(patch.object(home, "compile", self._compile_with_eductor))
            yield

    def take(
        self,
        fn: Callable[..., Any],
        options: Options,
        settings: dict[str, Any] | None = None,
        **keywords: Any,
    ) -> Callable[..., Any]:
        """Wraps a function; a module stays the module that torch.compile would return, with another forward."""
        self.functions += 1
        found = CompiledFunction(fn, options, keywords, name_of(fn), settings or {})
        called = self.wrap(found)
        if isinstance(called, nn.Module):
            return called
        if not isinstance(fn, nn.Module):
            # As torch.compile does: keep the name, and the signature that `script.py:function` needs.
            return called if hasattr(called, "__wrapped__") else functools.update_wrapper(called, fn)
        shell: Any = found.compile()
        shell.forward = called
        return shell  # type: ignore[no-any-return]

    def _compile_with_torch(self, model: Callable[..., Any] | None = None, **given: Any) -> Any:
        if model is None:
            return functools.partial(self._compile_with_torch, **given)
        backend = given.get("backend") or default_backend()
        keywords = {k: given[k] for k in ("fullgraph", "dynamic") if k in given}
        if self.takes_stock and backend == "inductor" and not given.get("disable"):
            return self.take(model, Options(), settings_of(given.get("mode"), given.get("options")), **keywords)
        if backend not in ("eductor", eductor.compiler.backend) or given.get("disable"):
            self.other_backends.add(_backend_name(backend))
            return self._torch_compile(model, **given)
        options, mode = Options.of(given.get("options")), given.get("mode")
        return self.take(model, options if mode is None else replace(options, mode=mode), **keywords)

    def _compile_with_eductor(
        self, model: Callable[..., Any], *, fullgraph: bool = False, dynamic: bool | None = None, **options: Any
    ) -> Callable[..., Any]:
        return self.take(model, Options.of(options), fullgraph=fullgraph, dynamic=dynamic)


def name_of(fn: Callable[..., Any]) -> str:
    """A readable name: the qualified one, or the class of a module."""
    owner = getattr(fn, "__self__", None)
    if isinstance(fn, functools.partial):
        return name_of(fn.func)
    if isinstance(owner, nn.Module) and fn.__name__ == "_call_impl":  # what nn.Module.compile() compiles
        return type(owner).__name__
    return str(getattr(fn, "__qualname__", type(fn).__name__)).replace("<locals>.", "")


def _backend_name(backend: Any) -> str:
    return backend if isinstance(backend, str) else str(getattr(backend, "__name__", type(backend).__name__))
