"""The operators that torch tests, and a few calls of each that are of different kinds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import set_rng_seed
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.complex64, torch.int64)
"""What an operator is called with: the first of these that it takes."""
LOOKED_AT = 60
"""As many samples of an operator are looked at for kinds that differ."""
CHOSEN = 5
"""As many of them are called at most."""

UNREPEATABLE = {
    "empty": "the contents of new memory",
    "empty_like": "the contents of new memory",
    "empty_permuted": "the contents of new memory",
    "empty_strided": "the contents of new memory",
    "new_empty": "the contents of new memory",
    "new_empty_strided": "the contents of new memory",
    "linalg.lstsq": "the driver gelsy starts from what its workspace holds",
}
"""Operators whose values eager itself does not give twice, and why; all but the values can be compared."""


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def dtype_of(op: Any) -> torch.dtype | None:
    """The dtype of an operator's samples; None where nothing of it runs on a CPU, as with those of the jiterator."""
    return None if op.name.startswith("jiterator") else next((d for d in DTYPES if d in op.dtypes), None)


OPERATORS = {name_of(op): op for op in op_db if dtype_of(op) is not None}


@dataclass(frozen=True)
class Call:
    """One call of an operator: how it is spelled, and its arguments."""

    form: str  # "function", "method", "in place", "out", "in a program" or "error"
    input: Any
    args: tuple
    kwargs: dict
    requires_grad: bool = False


def calls(op: Any) -> Iterator[Call]:
    """Calls of different kinds; the last ones are those that write, and one that eager refuses."""
    set_rng_seed(0)  # of Python and of numpy, too
    dtype = dtype_of(op)
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    samples = list(itertools.islice(op.sample_inputs_func(op, "cpu", dtype, requires_grad=False), LOOKED_AT))
    chosen = of_different_kinds(samples)
    for sample in chosen:
        yield as_call("function", sample, differentiable)
    for sample in [s for s in chosen if can_be_spread(s)][:1]:
        yield as_call("function", sample.noncontiguous(), differentiable)
    yield as_call("method" if has_method(op) else "function", chosen[0], False)
    if op.get_inplace() is not None:
        for sample in [s for s in chosen if not s.broadcasts_input][:1]:
            yield as_call("in place", sample, differentiable)
            yield as_call("in place", sample, False)
    if op.supports_out:
        yield as_call("out", chosen[0], False)
    if strided(chosen[-1].input):
        yield as_call("in a program", chosen[-1], differentiable)
        yield as_call("in a program", chosen[-1], False)
    for refused in itertools.islice(op.error_inputs_func(op, "cpu") if op.error_inputs_func else (), 1):
        yield as_call("error", refused.sample_input, False)


def as_call(form: str, sample: Any, requires_grad: bool) -> Call:
    return Call(form, sample.input, tuple(sample.args), dict(sample.kwargs), requires_grad)


def has_method(op: Any) -> bool:
    method = op.get_method()
    return method is not None and getattr(torch.Tensor, getattr(method, "__name__", ""), None) is method


def of_different_kinds(samples: list) -> list:
    """The first sample, and those that have most of what the ones before them lack."""
    chosen = samples[:1]
    known = kinds(samples[0])
    while len(chosen) < CHOSEN:
        best = max(samples, key=lambda sample: len(kinds(sample) - known))
        if kinds(best) <= known:
            break
        chosen.append(best)
        known |= kinds(best)
    return chosen


def kinds(sample: Any) -> set:
    """What is special about a call: sizes, layouts, and the arguments that are given."""
    tensors = strided((sample.input, sample.args, sample.kwargs))
    found = {f"keyword {name}" for name in sample.kwargs} | {f"{len(sample.args)} arguments"}
    found |= {f"{t.dim()}-d" for t in tensors}
    found |= {"empty" for t in tensors if t.numel() == 0}
    found |= {"not contiguous" for t in tensors if not t.is_contiguous()}
    found |= {"shapes that differ" for t in tensors if t.shape != tensors[0].shape}
    return found | {f"argument {type(x).__name__}" for x in pytree.tree_leaves(sample.args)}


def strided(values: Any) -> list:
    return [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor) and x.layout is torch.strided]


def can_be_spread(sample: Any) -> bool:
    """Whether there is a tensor that can lie in other memory than the one after the other."""
    tensors = [x for x in pytree.tree_leaves((sample.input, sample.args)) if isinstance(x, torch.Tensor)]
    return len(tensors) == len(strided(tensors)) and any(t.numel() > 1 for t in tensors)
