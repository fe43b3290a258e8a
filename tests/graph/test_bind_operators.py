"""Every operator that torch tests: what `bind` understands computes what eager computes."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from types import BuiltinFunctionType
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from eductor.graph.reading.bind import Bound, bind_call
from operators import database

pytestmark = pytest.mark.usefixtures("one_thread")

SAMPLES = 5
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.bfloat16)

# Of the calls of the database, as functions and as methods, this many are known to be understood.
UNDERSTOOD = 795


OPERATORS = [pytest.param(op, id=name) for name, op in database.OPERATORS.items() if torch.float32 in op.dtypes]


def targets(op: Any) -> Iterator[Any]:
    """What a graph would hold for a call: the function, and the method by its name. A lambda of the database is neither."""
    if isinstance(op.op, BuiltinFunctionType) or getattr(op.op, "__name__", "") != "<lambda>":
        yield op.op
    method = op.get_method()
    name = getattr(method, "__name__", "")
    if method is not None and getattr(torch.Tensor, name, None) is method:
        yield name


def samples(op: Any, dtypes: tuple[torch.dtype, ...], count: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Calls of an operator, from the database's own function: its method looks at the whole stack for each sample."""
    for dtype in dtypes:
        if dtype in op.dtypes:
            for sample in itertools.islice(op.sample_inputs_func(op, "cpu", dtype, requires_grad=False), count):
                yield (sample.input, *sample.args), dict(sample.kwargs)


def copied(values: Any) -> Any:
    """The same values in other memory, with the same strides."""

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or value.is_conj():
            return value.detach().clone()
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value.detach())

    return tree_map(copy, values)


def run(target: Any, args: Any, kwargs: Any) -> Any:
    torch.manual_seed(0)
    return getattr(args[0], target)(*args[1:], **kwargs) if isinstance(target, str) else target(*args, **kwargs)


def by_keyword(target: Any, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The same call with every argument by its name: a Python function's own names, or those of the schema."""
    if not isinstance(target, str):
        try:
            named = inspect.signature(target).bind(*args, **kwargs)
        except (TypeError, ValueError):
            pass
        else:
            if not {"args", "kwargs", "operands", "tensors"} & named.arguments.keys():
                return dict(named.arguments)
    return {"input" if name == "self" else name: bound[name] for name in bound.arguments if name in bound.given}


def assert_same(got: Any, wanted: Any, what: str) -> None:
    if isinstance(wanted, (list, tuple)):
        assert isinstance(got, (list, tuple)), what
        assert len(got) == len(wanted), what
        for g, w in zip(got, wanted, strict=True):
            assert_same(g, w, what)
    elif isinstance(wanted, torch.Tensor):
        strided = wanted.layout is torch.strided
        torch.testing.assert_close(
            got, wanted, rtol=0, atol=0, equal_nan=True, check_stride=strided, msg=lambda m: f"{what}: {m}"
        )
    else:
        assert got == wanted or (got != got and wanted != wanted), what


def is_same_argument(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(is_same_argument, a, b))
    return a is b or (not isinstance(a, torch.Tensor) and bool(a == b))


def check(op: Any, dtypes: tuple[torch.dtype, ...], count: int) -> None:
    for target, (args, kwargs) in itertools.product(targets(op), list(samples(op, dtypes, count))):
        bound = bind_call(target, args, kwargs)
        if not isinstance(bound, Bound):
            continue
        try:
            wanted = run(target, *copied((args, kwargs)))
        except (RuntimeError, TypeError, IndexError, NotImplementedError, ValueError):
            continue  # a sample that eager refuses tells nothing
        got = run(bound.op, *copied(bound.call()))
        if op.name not in database.UNREPEATABLE:
            assert_same(got, wanted, f"{target} as {bound.op}")
        check_by_keyword(target, bound, args, kwargs)


def check_by_keyword(target: Any, bound: Bound, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if getattr(target, "__name__", target).startswith("__"):
        return  # Python calls its special methods by position alone
    named = by_keyword(target, bound, args, kwargs)
    first: tuple[Any, ...] = ()
    if isinstance(target, str):
        first = args[:1]
        named.pop("input", None)
    try:
        run(target, *copied((first, named)))
    except (RuntimeError, TypeError):
        return  # eager takes some arguments by position alone
    again = bind_call(target, first, named)
    assert isinstance(again, Bound), f"{target} by keyword: {again.reason}"
    assert again.op is bound.op, f"{target} by keyword"
    for name, value in bound.arguments.items():
        assert is_same_argument(again[name], value), f"{target} by keyword: {name}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS)
def test_understood_calls_compute_what_eager_computes(op: Any) -> None:
    check(op, (torch.float32,), SAMPLES)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATORS)
def test_understood_calls_compute_what_eager_computes_in_all_dtypes(op: Any) -> None:
    check(op, DTYPES, 100)


@pytest.mark.filterwarnings("ignore")
def test_enough_is_understood() -> None:
    """Without this, understanding nothing would pass."""
    found = 0
    for (op,) in (p.values for p in OPERATORS):
        calls = list(samples(op, (torch.float32,), SAMPLES))
        found += sum(any(bind_call(target, *call) for call in calls) for target in targets(op))
    assert found >= UNDERSTOOD
