"""Attention in many spellings: the patterns for the matcher's benchmark.

Each is a combination of a few choices, in inference and with its backward. Tracing all of them takes minutes, so they
are stored between runs, in the package's own format.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch._inductor.decomposition import select_decomp_table

from eductor.patterns.rules import Check, Replaced, Rule, Rules, parameters_of
from eductor.patterns.trace import store, trace_comparison, tracing
from eductor.patterns.trace.search_function import Traced
from eductor.patterns.trace.tracing import SearchInputs, pattern_of, search_inputs

FILE = "attention"
LAYOUTS = ("heads_first", "heads_inside", "one_sequence")
"""(batch, heads, sequence, width); (batch, sequence, heads, width), permuted inside; the same with a batch of one."""
SCALES = ("divided", "multiplied", "unscaled")
MASKS = ("unmasked", "added", "chosen")
DROPOUTS = ("kept", "dropped")
SOFTMAXES = ("native", "widened")
"""In half precision, the softmax may be computed in float32."""
MODES = ("inference", "training")


@dataclass(frozen=True)
class Spelling:
    """One way to write attention."""

    layout: str
    scale: str
    mask: str
    dropout: str
    softmax: str
    mode: str

    @property
    def name(self) -> str:
        return "_".join(astuple(self))

    @property
    def inputs(self) -> dict[str, Any]:
        """The parameters of the function, with an example of each."""
        dtype = torch.float16 if self.softmax == "widened" else torch.float32
        batch = 1 if self.layout == "one_sequence" else 2
        shape = (batch, 4, 6, 8) if self.layout == "heads_first" else (batch, 6, 4, 8)
        found: dict[str, Any] = {
            name: torch.zeros(shape, dtype=dtype, requires_grad=self.mode == "training")
            for name in ("query", "key", "value")
        }
        if self.scale != "unscaled":
            found["scale"] = 0.3
        if self.mask != "unmasked":
            found["mask"] = torch.zeros(batch, 1, 6, 6, dtype=dtype if self.mask == "added" else torch.bool)
        if self.dropout == "dropped":
            found["p"] = 0.1
        return found

    @property
    def search_inputs(self) -> SearchInputs:
        return search_inputs(self.search, tuple(self.inputs.values()), joint=self.mode == "training")

    @property
    def search(self) -> Callable[..., Any]:
        """The attention, written out."""
        return self._function(self._written_out)

    @property
    def replacement(self) -> Callable[..., Any]:
        """The same by one call."""
        return self._function(self._by_one_call)

    def _function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """A function that has the parameters of this spelling, and no others."""
        names = tuple(self.inputs)

        def fn(*given: Any) -> Any:
            return body(**dict(zip(names, given, strict=True)))

        fn.__name__ = self.name
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        fn.__signature__ = inspect.SearchInputs(parameters)  # type: ignore[attr-defined]
        return fn

    def _heads_first(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [t if self.layout == "heads_first" else t.transpose(1, 2) for t in tensors]

    def _written_out(self, query: Any, key: Any, value: Any, scale: Any = None, mask: Any = None, p: Any = None) -> Any:
        query, key, value = self._heads_first(query, key, value)
        scores = query @ key.transpose(-1, -2)
        if self.scale != "unscaled":
            scores = scores / scale if self.scale == "divided" else scores * scale
        if self.mask == "added":
            scores = scores + mask
        elif self.mask == "chosen":
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
        dtype = torch.float32 if self.softmax == "widened" else None
        weights = torch.softmax(scores, -1, dtype=dtype).to(query.dtype)
        return (weights if p is None else F.dropout(weights, p, training=True)) @ value

    def _by_one_call(self, query: Any, key: Any, value: Any, scale: Any = None, mask: Any = None, p: Any = None) -> Any:
        query, key, value = self._heads_first(query, key, value)
        factor = 1.0 if scale is None else 1 / scale if self.scale == "divided" else scale
        kept = mask if self.mask != "chosen" else mask.logical_not()
        return F.scaled_dot_product_attention(query, key, value, kept, p or 0.0, scale=factor)


def spellings() -> Iterator[Spelling]:
    """All of them in float32, and some in half precision."""
    for choices in itertools.product(LAYOUTS, SCALES, MASKS, DROPOUTS, SOFTMAXES, MODES):
        spelling = Spelling(*choices)
        if spelling.softmax == "native" or (spelling.layout, spelling.mask) == ("heads_inside", "added"):
            yield spelling


def rules(wanted: Sequence[Spelling], home: Path, check: Check | None = None) -> Rules:
    """A rule for each spelling, whose pattern is loaded from the store when a graph could have it."""
    found = Rules()
    for spelling in wanted:
        given, replacement = spelling.signature, spelling.replacement
        source = Traced(spelling.search, given, "aten", f"{FILE}.{spelling.name}", home=home)
        action = Replaced(replacement, parameters_of(replacement, given.names, in_order=True), given)
        found.add(Rule(spelling.name, source, action, check))
    return found


def stored(wanted: Sequence[Spelling]) -> Path:
    """The folder with the traced patterns; traces and stores them if they are missing."""
    home = Path(tempfile.gettempdir()) / f"eductor-bench-patterns-{_digest(wanted)}"
    path = home / f"{FILE}.json"
    if not path.exists():
        found = dict(_traced(wanted))
        home.mkdir(exist_ok=True)
        path.write_text(store.dumps(found))
    return home


def _traced(wanted: Sequence[Spelling]) -> Iterator[tuple[str, Any]]:
    """The patterns in the decompositions of Inductor, as in the graph."""
    table = select_decomp_table()
    for i, spelling in enumerate(wanted):
        print(f"\r  tracing pattern {i + 1} of {len(wanted)}, once for all runs", end="", file=sys.stderr, flush=True)
        yield spelling.name, pattern_of(spelling.search, spelling.signature, decompositions=table, probe=False)
    print(file=sys.stderr)


def _digest(wanted: Sequence[Spelling]) -> str:
    """A hash of everything that the stored patterns depend on."""
    sources = map(inspect.getsource, (Spelling, trace_comparison, tracing))
    names = (spelling.name for spelling in wanted)
    content = "\0".join((torch.__version__, str(store.VERSION), *sources, *names))
    return hashlib.sha256(content.encode()).hexdigest()[:16]
