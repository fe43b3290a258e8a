"""Programs, what a caller can see of a run of one, and how two runs differ."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from eductor.graph.values.value_comparison import is_bitwise_equal

ENGINES = ("aten", "inductor")


@dataclass(frozen=True)
class Case:
    """What is compiled and what it is called with.

    `tensors` names further tensors to watch (leaves behind the inputs, tensors in a closure); `calls` are the
    arguments of several calls, for the drivers that make several.
    """

    fn: Any
    inputs: tuple = ()
    tensors: dict = field(default_factory=dict)
    calls: tuple = ()


@dataclass(frozen=True)
class Program:
    """One thing that must be handled; `lines` are the lines of the checklist in the specification of autograd."""

    name: str
    lines: tuple
    make: Callable[[], Case]
    also_dynamic: bool = True
    dynamic_on_inductor: bool = False
    engines: tuple = ENGINES
    backward: bool = True
    steps: Callable | None = None  # (call, case) -> dict of what was observed
    around: Callable = contextlib.nullcontext  # makes a context in which the case is made and run
    fallback: str | None = None  # the warning that is expected
    exact_on_aten: bool = True  # False where sums are taken in another order, or an operator is decomposed
    differs_in_dynamo: str | None = None  # why Dynamo with the backend "eager" does something else than eager
    raises: bool = False
    low_precision: bool = False  # computed in bfloat16 or float16 somewhere, so that kernels round differently


PROGRAMS = []


def program(lines, **flags):
    """Registers a function that makes a case."""

    def register(make):
        assert all(p.name != make.__name__ for p in PROGRAMS), f"two programs are called {make.__name__}"
        PROGRAMS.append(Program(make.__name__, lines, make, **flags))
        return make

    return register


def leaf(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype).requires_grad_()


def plain(*shape, dtype=torch.float32):
    return torch.randn(shape, dtype=dtype)


@dataclass(frozen=True)
class Seen:
    """A tensor at one moment."""

    value: torch.Tensor
    kind: str
    stride: tuple
    requires_grad: bool
    is_leaf: bool

    def __str__(self):
        return f"{self.kind} {self.value.dtype} {tuple(self.value.shape)} {self.value.flatten()[:6].tolist()}"


def is_wrapper(tensor):
    return hasattr(tensor, "__tensor_flatten__")


def parts(tensor):
    """The plain tensors that a tensor consists of; those of a sparse one are nobody's but its own."""
    if tensor.layout is not torch.strided:
        return []
    if not is_wrapper(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    inner = [getattr(tensor, name) for name in names]
    return [part for x in inner if isinstance(x, torch.Tensor) for part in parts(x)]


def strides(tensor):
    """The strides that matter: none where a dimension has one element, none at all where there is no element."""
    if tensor.numel() == 0:
        return ()
    return tuple(step if size > 1 else 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def seen(x):
    """Whatever a caller gets, as it is now."""
    if not isinstance(x, torch.Tensor):
        return x
    kind = type(x).__name__
    if x.layout is not torch.strided:
        return {"kind": kind, "layout": str(x.layout), "dense": seen(x.detach().to_dense())}
    if is_wrapper(x):
        return {"kind": kind, "requires_grad": x.requires_grad, "parts": [seen(part.detach()) for part in parts(x)]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = x.detach().resolve_conj().resolve_neg().clone()
    return Seen(value, kind, strides(x), x.requires_grad, x.is_leaf)


def leaves(prefix, tree):
    """The leaves of nested arguments or results, by name."""
    flat = pytree.tree_leaves(tree)
    return {f"{prefix} {i}": x for i, x in enumerate(flat)}


def watched(case):
    """All tensors that are there before the first call, by name."""
    named = {}
    for i, inputs in enumerate(case.calls or (case.inputs,)):
        named |= leaves(f"call {i} input" if case.calls else "input", inputs)
    if isinstance(case.fn, nn.Module):
        named |= {f"parameter {name}": p for name, p in case.fn.named_parameters()}
        named |= {f"buffer {name}": b for name, b in case.fn.named_buffers()}
    named |= case.tensors
    return {name: x for name, x in named.items() if isinstance(x, torch.Tensor)}


def relations(named):
    """Which of the tensors are the same object, and which share memory."""

    def memory(x):
        return {part.untyped_storage().data_ptr() for part in parts(x)} - {0}

    items = [(name, x, memory(x)) for name, x in named.items() if isinstance(x, torch.Tensor)]
    pairs = [(a, b) for i, a in enumerate(items) for b in items[i + 1 :]]
    return {
        "is": sorted(f"{a} is {b}" for (a, x, _), (b, y, _) in pairs if x is y),
        "shares": sorted(f"{a} shares memory with {b}" for (a, _, m), (b, _, n) in pairs if m & n),
    }


def loss_of(outputs, offset=0):
    """A number that depends on every element of every differentiable output, each with a weight of its own."""
    terms = []
    for i, out in enumerate(pytree.tree_leaves(outputs)):
        if isinstance(out, torch.Tensor) and out.requires_grad:
            generator = torch.Generator().manual_seed(100 + offset + i)
            weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
            product = out * weight
            terms.append(product.real.sum() if product.is_complex() else product.sum())
    return sum(terms[1:], terms[0]) if terms else None


def backward(outputs, offset=0):
    with torch.enable_grad():
        loss = loss_of(outputs, offset)
        if loss is not None:
            loss.backward()


def versions(named):
    return {name: x._version for name, x in named.items() if not x.is_inference()}


def after_call(outputs, named, before):
    """What a call left behind, apart from gradients."""
    results = leaves("output", outputs)
    facts = {"tree of outputs": str(pytree.tree_structure(outputs))}
    facts |= {name: seen(x) for name, x in results.items()}
    facts |= relations(results | named)
    shared = " ".join(facts["shares"])
    facts |= {
        f"{name} offset": x.storage_offset()
        for name, x in results.items()
        if f"{name} shares" in shared and x.numel() > 0 and not is_wrapper(x)
    }
    facts |= {f"{name} after the call": seen(x) for name, x in named.items()}
    facts |= {f"{name} was written": v != before[name] for name, v in versions(named).items() if name in before}
    facts |= {"rng": torch.get_rng_state(), "grad mode": torch.is_grad_enabled()}
    return facts


def gradients(named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a non-leaf has no gradient
        return {f"{name} gradient": seen(x.grad) for name, x in named.items() if x.is_leaf}


def once(call, case, with_backward=True):
    """One call and the backward of all its outputs."""
    named = watched(case)
    before = versions(named)
    outputs = call(*case.inputs)
    facts = after_call(outputs, named, before)
    if with_backward:
        backward(outputs)
    return facts


def each_call(call, case):
    """Several calls one after the other, each with its backward; gradients accumulate."""
    facts, named = {}, watched(case)
    for i, inputs in enumerate(case.calls):
        before = versions(named)
        outputs = call(*inputs)
        facts |= {f"call {i}, {name}": fact for name, fact in after_call(outputs, named, before).items()}
        backward(outputs)
        facts |= {f"call {i}, {name}": fact for name, fact in gradients(named).items()}
    return facts


def all_calls_then_all_backwards(call, case):
    """Several calls, then their backwards in the order of the calls."""
    results = [call(*inputs) for inputs in case.calls]
    facts = {f"call {i}": pytree.tree_map(seen, result) for i, result in enumerate(results)}
    for i, result in enumerate(results):
        backward(result)
        facts |= {f"after backward {i}, {name}": fact for name, fact in gradients(watched(case)).items()}
    return facts


@dataclass(frozen=True)
class Observation:
    facts: dict
    raised: str | None = None


def observe(compile_fn, program):
    """Makes the case anew, compiles it, runs it, and records all that a caller can see."""
    with program.around():
        return run(compile_fn, program)


def run(compile_fn, program):
    torch.manual_seed(0)
    case = program.make()
    named = watched(case)
    call = compile_fn(case.fn)
    torch.manual_seed(1)
    try:
        if program.steps:
            facts = pytree.tree_map(seen, program.steps(call, case))
        else:
            facts = once(call, case, program.backward)
    except Exception as error:
        if not program.raises:
            raise
        lines = str(error).splitlines()
        return Observation({}, f"{type(error).__name__}: {lines[0] if lines else ''}")
    facts |= gradients(named)
    facts |= {f"{name} at the end": seen(x) for name, x in named.items()}
    facts |= {"rng at the end": torch.get_rng_state(), "grad mode at the end": torch.is_grad_enabled()}
    return Observation(facts)


TOLERANCES = {
    torch.float16: (2e-2, 2e-2),
    torch.bfloat16: (2e-2, 2e-2),
    torch.float32: (1e-4, 1e-5),
    torch.complex64: (1e-4, 1e-5),
    torch.float64: (1e-9, 1e-9),
    torch.complex128: (1e-9, 1e-9),
}


def is_close(a, b):
    if a.dtype not in TOLERANCES:
        return is_bitwise_equal(a, b)
    rtol, atol = TOLERANCES[a.dtype]
    return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def is_roughly_close(a, b):
    """Close for something that was computed in bfloat16, whatever its dtype is now."""
    if a.dtype not in TOLERANCES:
        return is_bitwise_equal(a, b)
    rtol, atol = TOLERANCES[torch.bfloat16]
    return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)


def kind_of_error(raised):
    """The class of an error; Dynamo has one of its own for errors of operators on fake tensors."""
    return raised.partition(":")[0].replace("TorchRuntimeError", "RuntimeError")


def differences(expected, got, *, exact, low_precision=False):
    """Every difference between two observations, in words."""
    equal = is_bitwise_equal if exact else is_roughly_close if low_precision else is_close
    if (expected.raised is None) != (got.raised is None):
        return [f"raised: expected {expected.raised}, got {got.raised}"]
    if expected.raised and kind_of_error(expected.raised) != kind_of_error(got.raised):
        return [f"raised: expected {expected.raised}, got {got.raised}"]
    found = []
    for name in [*expected.facts, *(n for n in got.facts if n not in expected.facts)]:
        if "rng" in name and not exact:
            continue
        if name not in got.facts:
            found.append(f"{name}: missing")
        elif name not in expected.facts:
            found.append(f"{name}: not expected")
        else:
            found += compare(name, expected.facts[name], got.facts[name], equal)
    return found


def compare(name, a, b, equal):
    if isinstance(a, Seen) and isinstance(b, Seen):
        return compare_tensors(name, a, b, equal)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return [] if torch.equal(a, b) else [f"{name}: differs"]
    if type(a) is not type(b):
        return [f"{name}: expected {a}, got {b}"]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{name}: expected {list(a)}, got {list(b)}"]
        return [d for key in a for d in compare(f"{name}, {key}", a[key], b[key], equal)]
    if name.rpartition(", ")[2] in ("is", "shares"):
        lost = [f"{name}: lost {x!r}" for x in a if x not in b]
        return lost + [f"{name}: new {x!r}" for x in b if x not in a]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{name}: expected {len(a)} elements, got {len(b)}"]
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in compare(f"{name}[{i}]", x, y, equal)]
    if isinstance(a, float) and equal is not is_bitwise_equal:
        return [] if abs(a - b) <= 1e-5 + 1e-4 * abs(a) else [f"{name}: expected {a}, got {b}"]
    return [] if a == b or (a != a and b != b) else [f"{name}: expected {a!r}, got {b!r}"]


def compare_tensors(name, a, b, equal):
    found = []
    for what in ("kind", "stride", "requires_grad", "is_leaf"):
        x, y = getattr(a, what), getattr(b, what)
        if x != y:
            found.append(f"{name}: {what} is {y}, expected {x}")
    for what in ("dtype", "shape", "device"):
        x, y = getattr(a.value, what), getattr(b.value, what)
        if x != y:
            return [*found, f"{name}: {what} is {y}, expected {x}"]
    if not equal(a.value, b.value):
        worst = (a.value - b.value).abs().max().item() if a.value.dtype != torch.bool else "bool"
        found.append(f"{name}: values differ by {worst}: expected {a}, got {b}")
    return found
