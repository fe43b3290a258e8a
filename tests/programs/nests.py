"""Random programs around split, cat and their kin, one for each number; lines are tried in eager as they are written."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch

from .straight import END, IN_PLACE, Input, Name, Program, Step, World, block, volume

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
POINTWISE = ("relu", "tanh", "sigmoid", "neg", "abs", "detach", "clone")
LARGEST = 2048
"""How many elements a value may have."""


class Refused(Exception):
    """A line that eager does not run, or that is too large; the program goes on without it."""


class Spoiled(Exception):
    """A write that one of the sizes of a batch took and another did not; the program is begun anew."""


def nest(number: int, runs: Callable[[Program], bool]) -> Program:
    """The random program of a number; one that does not run in eager, backward included, is written anew."""
    for attempt in range(1000):
        try:
            program = Builder(random.Random(f"{number}/{attempt}")).build()
        except Spoiled:
            continue
        if runs(program):
            return program
    raise AssertionError(f"no program for {number}")


class Builder:
    """Writes a program line by line, and runs each line at once, for each size of the batch."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dynamic = rng.random() < 0.2
        self.grad = rng.random() < 0.7
        self.noise = rng.choice((0.0, 0.0, 0.05, 0.15))
        self.dtype = rng.choices(FLOATS, (6, 2, 1))[0]
        self.held = rng.random() < 0.4
        self.batches = (6, 3, 9) if self.dynamic else (rng.choice((2, 4, 6)),)
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.worlds = [World({}) for _ in self.batches]
        self.open: list[tuple[str, ExitStack]] = []
        self.busy = False

    def build(self) -> Program:
        with ExitStack() as self.everything, torch.set_grad_enabled(self.grad):
            for _ in range(self.rng.randint(1, 3)):
                self.new_input()
            for _ in range(self.rng.randint(1, 3)):
                with self.refusing():
                    self.rng.choice(MOTIFS)(self)
                with self.refusing():
                    self.disturb()
            while self.open:
                self.leave()
        return Program(tuple(self.inputs), tuple(self.steps), self.chosen_outputs(), self.batches, self.grad).used()

    # ------------------------------------------------------------------------------------------------- lines

    def call(self, target: str, *args: Any, **kwargs: Any) -> Name:
        """Writes a line, now and then after something that disturbs it."""
        if not self.busy and self.rng.random() < self.noise:
            with self.refusing():
                self.disturb()
        step = Step(f"v{len(self.steps)}", target, args, kwargs)
        results = []
        for world in self.worlds:
            try:
                results.append(world.perform(step))
            except Exception as error:
                writes = target in IN_PLACE or target == "[]=" or target.endswith("_") or "inplace" in kwargs
                for other in self.worlds:
                    other.variables.pop(step.result, None)
                raise Spoiled if results and writes else Refused from error
        if not self.fits(results):
            for world in self.worlds:
                world.variables.pop(step.result, None)
            raise Refused
        if target == "[]=":
            step = replace(step, result="")
        self.steps.append(step)
        return Name(f"v{len(self.steps) - 1}")

    def fits(self, results: list) -> bool:
        """Whether a value is of one form for all sizes of the batch, and not too large."""
        if isinstance(results[0], (list, tuple)):
            return len({len(r) for r in results}) == 1 and len(results[0]) < 9
        if not isinstance(results[0], torch.Tensor):
            return True
        return len({r.dim() for r in results}) == 1 and all(r.numel() <= LARGEST and r.dim() < 6 for r in results)

    def refusing(self) -> Any:
        """Goes on after a refusal; of no dimension, or of no element, nothing can be chosen."""
        return suppress(Refused, ValueError, IndexError)

    def enter(self, kind: str) -> None:
        stack = self.everything.enter_context(ExitStack())
        stack.enter_context(block(kind))
        self.open.append((kind, stack))
        self.steps.append(Step("", kind))

    def leave(self) -> None:
        self.open.pop()[1].close()
        self.steps.append(Step("", END))

    # ------------------------------------------------------------------------------------------------ values

    def value(self, name: Name) -> Any:
        return self.worlds[0].variables[name.text]

    def shape(self, name: Name) -> tuple:
        return tuple(self.value(name).shape)

    def depends_on_batch(self, name: Name, dim: int) -> bool:
        return len({w.variables[name.text].shape[dim] for w in self.worlds}) > 1

    def tensors(self, suits: Callable[[torch.Tensor], bool] = lambda t: True) -> list[Name]:
        found = self.worlds[0].variables.items()
        return [Name(n) for n, v in found if isinstance(v, torch.Tensor) and suits(v) and not n.startswith("w")]

    def pick(self, suits: Callable[[torch.Tensor], bool] = lambda t: True) -> Name:
        """A value, a recent one rather than an old one."""
        found = self.tensors(suits)
        if not found:
            raise Refused
        return found[max(self.rng.randrange(len(found)) for _ in range(2))]

    def source(self, rank: int | None = None) -> Name:
        """Something to take apart: a value, or a new input."""
        if self.rng.random() < 0.5:
            with self.refusing():
                return self.pick(lambda t: t.dim() >= 2 and (rank is None or t.dim() == rank) and t.numel() > 1)
        return self.new_input(rank)

    def new_input(self, rank: int | None = None, shape: tuple | None = None) -> Name:
        rng = self.rng
        rank = rank or rng.choice((2, 2, 3, 3, 4))
        shape = shape or (None, *(rng.choice((1, 2, 3, 4, 6, 8) if rank < 4 else (1, 2, 3)) for _ in range(rank - 1)))
        dtype = rng.choices((self.dtype, torch.int64, torch.float32, torch.float64), (10, 1, 1, 1))[0]
        needs_grad = self.grad and dtype.is_floating_point and rng.random() < 0.7
        layout = rng.choices(("contiguous", "transposed", "sliced"), (6, 1, 1))[0]
        return self.add_input(Input(f"x{len(self.inputs)}", shape, dtype, needs_grad, rng.random() < 0.5, layout))

    def weight(self, *shape: int, dtype: torch.dtype) -> Name:
        needs_grad = self.grad and self.rng.random() < 0.9
        return self.add_input(Input(f"w{len(self.inputs)}", shape, dtype, needs_grad, held=self.held))

    def add_input(self, given: Input) -> Name:
        if not self.dynamic:
            given = replace(given, shape=tuple(self.batches[0] if n is None else n for n in given.shape))
        for world, batch in zip(self.worlds, self.batches, strict=True):
            made = given.make(batch)
            with torch.enable_grad():
                world.variables[given.name] = made if given.is_leaf else made.clone()
        self.inputs.append(given)
        return Name(given.name)

    def chosen_outputs(self) -> tuple:
        """Values that nobody read, mostly; sometimes any others, inputs, and one of them twice."""
        read = {name for step in self.steps for name in step.names()}
        every = [n.text for n in self.tensors()]
        unread = [n for n in every if n not in read and n.startswith("v")]
        if not every:
            raise Spoiled
        chosen = unread[-4:] if self.rng.random() < 0.8 else []
        if not chosen or self.rng.random() < 0.3:
            chosen += self.rng.sample(every, min(len(every), self.rng.randint(1, 2)))
        if self.rng.random() < 0.05:
            chosen.append(self.rng.choice(chosen))
        return tuple(chosen)

    # ---------------------------------------------------------------------------------------------- spellings

    def either(self, name: str, x: Name, **bound: Any) -> Name:
        """A function or a method, with its first arguments by place and the others by name.

        A parameter that the function and the method call differently is spelled `function__method`.
        """
        method = self.rng.random() < 0.5
        places = self.rng.randint(0, len(bound))
        named = [(key.split("__")[-1 if method else 0], value) for key, value in bound.items()]
        args = [value for _, value in named[:places]]
        return self.call(f".{name}" if method else f"torch.{name}", x, *args, **dict(named[places:]))

    def dim_of(self, x: Name, extra: int = 0) -> int:
        """A dimension of a value, rather one that does not depend on the batch."""
        rank = len(self.shape(x)) + extra
        dims = [d for d in range(rank) if extra or not self.depends_on_batch(x, d)]
        if not dims:
            raise Refused
        return self.rng.choice(dims)

    def signed(self, dim: int, rank: int) -> int:
        return dim - rank if self.rng.random() < 0.3 else dim

    def joined(self, parts: list[Name], dim: int, rank: int) -> Name:
        target = self.rng.choice(("torch.cat", "torch.cat", "torch.concat", "torch.concatenate"))
        return self._join(target, parts, self.signed(dim, rank))

    def stacked(self, parts: list[Name], dim: int, rank: int) -> Name:
        return self._join("torch.stack", parts, self.signed(dim, rank + 1))

    def _join(self, target: str, parts: list[Name], dim: int) -> Name:
        given: Any = tuple(parts) if self.rng.random() < 0.4 else list(parts)
        form = self.rng.randrange(4)
        if form == 0:
            return self.call(target, given, dim)
        if form == 1:
            return self.call(target, tensors=given, dim=dim)
        return self.call(target, given, **{"axis" if form == 2 else "dim": dim})

    # ------------------------------------------------------------------------------------------- taking apart

    def pieces(self, x: Name, dim: int, kind: str = "") -> list[Name]:
        """Pieces of a value along a dimension."""
        rng, rank, size = self.rng, len(self.shape(x)), self.shape(x)[dim]
        at = self.signed(dim, rank)
        kind = kind or rng.choice(("split", "split", "sizes", "chunk", "tensor_split", "unbind", "select", "slices"))
        if kind in ("unbind", "select") and size > 6:
            kind = "split"
        if kind == "unbind":
            return self.picked(self.either("unbind", x, dim=at))
        if kind == "select":
            return [self.selected(x, dim, rank, i) for i in range(size)]
        if kind == "slices":
            return self.slices(x, dim, rank, self.sections(size))
        if kind == "sizes":
            name = rng.choice(("torch.split", ".split", "torch.split_with_sizes", ".split_with_sizes"))
            whole = self.call(name, x, self.sections(size), at)
        elif kind == "split":
            whole = self.either("split", x, split_size_or_sections__split_size=rng.randint(1, max(size, 1)), dim=at)
        elif kind == "chunk":
            whole = self.either("chunk", x, chunks=rng.randint(1, 4), dim=at)
        else:
            sections = rng.randint(1, 4) if rng.random() < 0.5 else sorted(rng.randint(0, size) for _ in range(2))
            whole = self.call(rng.choice(("torch.tensor_split", ".tensor_split")), x, sections, dim=at)
        return self.picked(whole)

    def sections(self, size: int) -> list[int]:
        """Sizes that add up; now and then one of them is zero."""
        cuts = sorted(
            self.rng.randint(0 if self.rng.random() < 0.1 else 1, size) for _ in range(self.rng.randint(1, 3))
        )
        ends = [0, *cuts, size]
        parts = [b - a for a, b in itertools.pairwise(ends)]
        return parts if self.rng.random() < 0.1 else [p for p in parts if p] or [size]

    def picked(self, whole: Name) -> list[Name]:
        """The elements of a sequence, one by one; sometimes counted from the end, sometimes one is left out."""
        count = len(self.value(whole))
        left_out = self.rng.randrange(count) if count > 2 and self.rng.random() < 0.1 else None
        kept = [i for i in range(count) if i != left_out]
        return [self.call("[]", whole, i - count if self.rng.random() < 0.1 else i) for i in kept]

    def selected(self, x: Name, dim: int, rank: int, index: int) -> Name:
        if self.rng.random() < 0.5:
            return self.either("select", x, dim=self.signed(dim, rank), index=index)
        return self.call("[]", x, (*[slice(None)] * dim, index))

    def slices(self, x: Name, dim: int, rank: int, sections: list[int]) -> list[Name]:
        found, start, size = [], 0, self.shape(x)[dim]
        narrow = self.rng.random() < 0.4
        for length in sections:
            if narrow:
                found.append(self.either("narrow", x, dim=self.signed(dim, rank), start=start, length=length))
            else:
                end = start + length
                first = start - size if start and self.rng.random() < 0.3 else start
                last = None if end == size and self.rng.random() < 0.5 else end
                found.append(self.call("[]", x, (*[slice(None)] * dim, slice(first, last))))
            start += length
        return found

    # --------------------------------------------------------------------------------------------- single lines

    def pointwise(self, x: Name, kind: str = "") -> Name:
        kind = kind or self.rng.choice((*POINTWISE, "scaled", "shifted", "clamp", "nan_to_num", "dropout"))
        if kind == "scaled":
            return self.call(self.rng.choice(("*", "torch.mul", ".mul")), x, self.rng.choice((2, 0.5, -1.0, 1)))
        if kind == "shifted":
            return self.call(self.rng.choice(("+", "torch.add", ".add")), x, self.rng.choice((1, 0.25, 0)))
        if kind == "clamp":
            return self.either("clamp", x, min=-1.0, max=0.5)
        if kind == "dropout":
            return self.call("F.dropout", x, p=0.5, training=False)
        homes = ["torch.", "."] + (["F."] if kind in ("relu", "tanh", "sigmoid") else [])
        return self.call(self.rng.choice(homes) + kind, x)

    def movement(self, x: Name) -> Name:
        """One line that moves or renames elements."""
        rng, shape = self.rng, self.shape(x)
        rank = len(shape)
        kind = rng.choice(
            (
                "reshape",
                "flatten",
                "unflatten",
                "permute",
                "transpose",
                "movedim",
                "squeeze",
                "unsqueeze",
                "mT",
                "expand",
                "slice",
                "contiguous",
                "clone",
                "size",
            )
        )
        if kind == "reshape":
            return self.reshaped(x)
        if kind == "flatten":
            first = rng.randrange(rank)
            return self.either("flatten", x, start_dim=first, end_dim=self.signed(rng.randrange(first, rank), rank))
        if kind == "unflatten":
            dim = self.dim_of(x)
            return self.either("unflatten", x, dim=self.signed(dim, rank), sizes=self.factors(shape[dim]))
        if kind == "permute":
            order = tuple(self.signed(d, rank) for d in rng.sample(range(rank), rank))
            return self.call("torch.permute", x, order) if rng.random() < 0.5 else self.call(".permute", x, *order)
        if kind in ("transpose", "movedim"):
            keys = ("dim0", "dim1") if kind == "transpose" else ("source", "destination")
            return self.either(kind, x, **{k: self.signed(rng.randrange(rank), rank) for k in keys})
        if kind == "squeeze":
            return self.call(rng.choice(("torch.squeeze", ".squeeze")), x, self.signed(rng.randrange(rank), rank))
        if kind == "unsqueeze":
            return self.either("unsqueeze", x, dim=self.signed(rng.randrange(rank + 1), rank + 1))
        if kind == "mT":
            return self.call("getattr", x, "mT")
        if kind == "expand":
            return self.call(".expand", x, *(3 if n == 1 else -1 for n in shape))
        if kind == "slice":
            dim = self.dim_of(x)
            start, stop = sorted((rng.randint(-shape[dim], -1), rng.randint(-2, shape[dim] + 2)))
            return self.call("[]", x, (*[slice(None)] * dim, slice(start, stop, rng.choice((None, 1, 2)))))
        if kind == "size":
            return self.call(".reshape", x, self.call(".size", x, 0), -1)
        return self.call(f".{kind}", x)

    def factors(self, size: int) -> list[int]:
        divisors = [d for d in range(1, size + 1) if size % d == 0] or [1]
        first = self.rng.choice(divisors)
        return [first, -1 if self.rng.random() < 0.3 else size // first]

    def reshaped(self, x: Name) -> Name:
        """Other sizes of the same volume; the batch, if it is among them, stays or is told by the others."""
        shape = self.shape(x)
        if self.dynamic and self.depends_on_batch(x, 0):
            rest = volume(shape[1:])
            sizes = self.rng.choice(([-1, *self.factors(rest)], [-1, rest]))
            sizes = [rest // sizes[1] if n == -1 and i else n for i, n in enumerate(sizes)]
        else:
            sizes = self.rng.choice((self.factors(volume(shape)), [-1], [shape[0], *self.factors(volume(shape[1:]))]))
        if self.rng.random() < 0.5:
            return self.call(self.rng.choice((".reshape", ".view")), x, *sizes)
        return self.call(self.rng.choice(("torch.reshape", ".reshape")), x, tuple(sizes))

    def linear(self, x: Name, width: int | None = None, bias: bool | None = None) -> Name:
        value = self.value(x)
        if not value.is_floating_point() or not value.dim():
            raise Refused
        width = width or self.rng.choice((1, 2, 3, 4))
        weight = self.weight(width, value.shape[-1], dtype=value.dtype)
        if self.rng.random() < 0.7 if bias is None else bias:
            offset = self.weight(width, dtype=value.dtype)
            if self.rng.random() < 0.3:
                return self.call("F.linear", x, weight=weight, bias=offset)
            return self.call("F.linear", x, weight, offset)
        return self.call("F.linear", x, weight)

    def layer_norm(self, x: Name) -> Name:
        value = self.value(x)
        if not value.is_floating_point() or not value.dim() or value.shape[-1] < 2:
            raise Refused
        size = value.shape[-1]
        if self.rng.random() < 0.3:
            return self.call("F.layer_norm", x, (size,))
        return self.call(
            "F.layer_norm", x, (size,), self.weight(size, dtype=value.dtype), self.weight(size, dtype=value.dtype), 1e-5
        )

    # ----------------------------------------------------------------------------------------------- disturbance

    def disturb(self) -> None:
        """A write, a block that begins or ends, or some other line."""
        self.busy = True
        try:
            kind = self.rng.choice(("write", "write", "block", "block", "line", "dtype"))
            if kind == "write":
                self.write(self.pick())
            elif kind == "block":
                if self.open and self.rng.random() < 0.6:
                    self.leave()
                elif len(self.open) < 2:
                    self.enter(self.rng.choice(("no_grad", "autocast")))
            elif kind == "line":
                self.rng.choice((self.pointwise, self.movement))(self.pick(lambda t: t.dim() > 0))
            else:
                dtype = self.rng.choice(FLOATS)
                self.call(".to", self.pick(lambda t: t.is_floating_point() and t.dtype != dtype), dtype)
        finally:
            self.busy = False

    def write(self, x: Name) -> None:
        kind = self.rng.choice(("add_", "mul_", "setitem", "relu", "copy_", "iadd", "fill"))
        if kind == "setitem":
            if not self.shape(x):
                raise Refused
            self.call("[]=", x, self.rng.choice((0, -1, slice(1, None), (Ellipsis, 0))), self.rng.choice((2, 0.5)))
        elif kind == "relu":
            self.call("F.relu", x, inplace=True)
        elif kind == "fill":
            self.call(self.rng.choice((".zero_", ".relu_", "torch.relu_")), x)
        elif kind == "iadd":
            self.call(self.rng.choice(tuple(IN_PLACE)), x, self.rng.choice((1, 2)))
        elif kind == "copy_" or self.rng.random() < 0.3:
            other = self.pick(lambda t: t.shape == self.value(x).shape and t is not self.value(x))
            self.call(f".{kind}", x, other)
        else:
            self.call(f".{kind}", x, self.rng.choice((1, 2)))


# ------------------------------------------------------------------------------------------------------------ motifs


def apart_and_together(b: Builder) -> None:
    """Take apart, do the same to each piece, put together."""
    x = b.source()
    dim = b.dim_of(x)
    parts = b.pieces(x, dim)
    parts = mapped_parts(b, parts, dim)
    parts = perturbed(b, parts)
    together(b, parts, dim)


def mapped_parts(b: Builder, parts: list[Name], dim: int) -> list[Name]:
    kind = b.rng.choice(
        ("nothing", "nothing", "squeeze", "unsqueeze", "pointwise", "reshape", "linear", "norm", "movement")
    )
    if kind == "squeeze":
        return [b.either("squeeze", p, dim=b.signed(dim, len(b.shape(p)))) for p in parts]
    if kind == "unsqueeze":
        at = b.rng.randint(0, len(b.shape(parts[0])))
        return [b.either("unsqueeze", p, dim=at) for p in parts]
    if kind == "pointwise":
        name = b.rng.choice((*POINTWISE, "scaled", "clamp", "nan_to_num", "dropout"))
        return [b.pointwise(p, name) for p in parts]
    if kind == "reshape":
        if dim and b.shape(parts[0])[dim:] and b.rng.random() < 0.7:
            return [b.call(".flatten", p, max(dim - 1, 1) if len(b.shape(p)) > 2 else 0) for p in parts]
        return [b.call(".reshape", p, -1, b.shape(p)[-1]) for p in parts]
    if kind == "linear":
        width = b.rng.choice((None, 3))
        return [b.linear(p, width) for p in parts]
    if kind == "norm":
        return [b.layer_norm(p) for p in parts]
    if kind == "movement":
        first, second = b.rng.randrange(len(b.shape(parts[0]))), b.rng.randrange(len(b.shape(parts[0])))
        return [b.either("transpose", p, dim0=first, dim1=second) for p in parts]
    return parts


def perturbed(b: Builder, parts: list[Name]) -> list[Name]:
    """In order mostly; shuffled, with one of them left out, twice, or with something else among them."""
    rng = b.rng
    parts = list(parts)
    chance = rng.random()
    if chance < 0.1:
        rng.shuffle(parts)
    elif chance < 0.2:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(parts))
    elif chance < 0.3 and len(parts) > 1:
        parts.pop(rng.randrange(len(parts)))
    elif chance < 0.4:
        like = b.value(parts[0])
        parts.insert(rng.randrange(len(parts) + 1), b.pick(lambda t: t.dim() == like.dim()))
    elif chance < 0.45:
        place = rng.randrange(len(parts))
        parts[place] = b.pointwise(parts[place])
    return parts


def together(b: Builder, parts: list[Name], dim: int) -> Name:
    rank = len(b.shape(parts[0]))
    at = dim if b.rng.random() < 0.6 and dim < rank else b.rng.randrange(max(rank, 1))
    kind = b.rng.choice(("cat", "cat", "cat", "stack", "stack", "add", "two"))
    if kind == "stack":
        return b.stacked(parts, min(at if b.rng.random() < 0.7 else rank, rank), rank)
    if kind == "add":
        total = parts[0]
        for p in parts[1:]:
            total = b.call("+", total, p)
        return total
    if kind == "two" and len(parts) > 2:
        cut = b.rng.randint(1, len(parts) - 1)
        return b.joined([b.joined(parts[:cut], at, rank), *parts[cut:]], at, rank)
    return b.joined(parts, at, rank)


def together_and_apart(b: Builder) -> None:
    """Put together, perhaps change, take apart at the same places or at others."""
    x = b.source()
    dim = b.dim_of(x)
    parts = [x, *(b.pick(lambda t: t.dim() == len(b.shape(x))) for _ in range(b.rng.randint(1, 2)))]
    sizes = [b.shape(p)[dim] for p in parts]
    stack = b.rng.random() < 0.4
    rank = len(b.shape(x))
    whole = b.stacked(parts, dim, rank) if stack else b.joined(parts, dim, rank)
    if b.rng.random() < 0.4:
        whole = b.pointwise(whole)
    if b.rng.random() < 0.6:
        b.picked(b.either("unbind", whole, dim=dim) if stack else b.call(".split", whole, sizes, dim))
    else:
        parts = b.pieces(whole, dim)
        if b.rng.random() < 0.5:
            together(b, mapped_parts(b, parts, dim), dim)


def nested_cats(b: Builder) -> None:
    x = b.source()
    dim, rank = b.dim_of(x), len(b.shape(x))
    for _ in range(b.rng.randint(2, 3)):
        others = [b.pick(lambda t: t.dim() == rank) for _ in range(b.rng.randint(0, 2))]
        parts = [x, *others]
        b.rng.shuffle(parts)
        x = b.joined(parts, dim, rank)
        if b.rng.random() < 0.2:
            x = b.pointwise(x)


def nested_splits(b: Builder) -> None:
    x = b.source()
    dim = b.dim_of(x)
    parts = b.pieces(x, dim, b.rng.choice(("split", "sizes", "chunk", "slices")))
    inner = b.pieces(b.rng.choice(parts), dim, b.rng.choice(("split", "sizes", "chunk", "slices")))
    if b.rng.random() < 0.7:
        together(b, perturbed(b, [*parts, *inner] if b.rng.random() < 0.5 else inner), dim)


def shared_linears(b: Builder) -> None:
    """Projections of one input: query, key, value; or of its pieces, added up."""
    x = b.source()
    if b.rng.random() < 0.6:
        width = b.rng.choice((None, 4))
        bias = b.rng.choice((None, True, False))
        found = [b.linear(x, width, bias) for _ in range(b.rng.randint(2, 4))]
    else:
        rank = len(b.shape(x))
        parts = b.pieces(x, rank - 1, b.rng.choice(("split", "sizes", "chunk", "slices")))
        found = [b.linear(p, 3) for p in parts]
    kind = b.rng.choice(("cat", "add", "split heads", "none", "gate"))
    if kind == "cat":
        together(b, found, len(b.shape(found[0])) - 1)
    elif kind == "add":
        total = found[0]
        for p in found[1:]:
            total = b.call("+", total, p)
    elif kind == "split heads":
        for p in found:
            b.call(".transpose", b.call(".unflatten", p, -1, (-1, 2)), 1, 2)
    elif kind == "gate":
        b.call("*", b.pointwise(found[0], "sigmoid"), found[-1])


def towers(b: Builder) -> None:
    """The same small network on several inputs, or on the pieces of one."""
    rng = b.rng
    count = rng.choice((2, 3, 5, 6))
    if rng.random() < 0.5:
        width = rng.choice((2, 3, 4))
        roots = [b.new_input(shape=(None, width)) for _ in range(count)]
    else:
        x = b.new_input(shape=(None, count, 3))
        roots = b.pieces(x, 1, rng.choice(("unbind", "select", "split")))
    layers = rng.sample(("linear", "tanh", "norm", "relu", "sigmoid", "clamp", "nan_to_num", "detach", "dropout"), 2)
    for layer in layers:
        apply = {"linear": lambda p: b.linear(p, 3), "norm": b.layer_norm}.get(
            layer, lambda p, layer=layer: b.pointwise(p, layer)
        )
        roots = [apply(p) for p in roots]
    if rng.random() < 0.8:
        together(b, roots, len(b.shape(roots[0])) - 1)


def movements(b: Builder) -> None:
    """Reshapes, permutes and squeezes one after the other, perhaps around a matrix product."""
    x = b.source()
    for _ in range(b.rng.randint(2, 4)):
        with b.refusing():
            x = b.movement(x)
    if b.rng.random() < 0.3:
        x = b.linear(x)
        b.movement(x)


def around_linear(b: Builder) -> None:
    """A linear over another dimension than the last, with permutes or transposes around it; products of permutes."""
    x = b.source(3)
    kind = b.rng.choice(("transpose", "permute", "bmm"))
    if kind == "transpose":
        y = b.linear(b.either("transpose", x, dim0=1, dim1=2))
        b.either("transpose", y, dim0=-1, dim1=-2)
    elif kind == "permute":
        y = b.linear(b.call(".permute", x, 0, 2, 1))
        b.call(b.rng.choice((".flatten", ".contiguous")), b.call(".permute", y, 0, 2, 1))
    else:
        b.call(b.rng.choice(("torch.bmm", "torch.matmul")), x, b.call(".permute", x, 0, 2, 1))


def chunk_reshape_cat(b: Builder) -> None:
    """Pieces of a matrix, each reshaped to rows, put under each other."""
    rng = b.rng
    count, rows, width = rng.randint(2, 4), rng.randint(1, 3), rng.randint(1, 3)
    x = b.new_input(shape=(None, count * rows * width))
    parts = b.picked(b.either("chunk", x, chunks=count, dim=rng.choice((1, -1))))
    if rng.random() < 0.7:
        parts = [b.call(rng.choice((".reshape", ".view")), p, -1, rows, width) for p in parts]
    if rng.random() < 0.4:
        parts = [b.either("unsqueeze", p, dim=1) for p in parts]
    parts = perturbed(b, parts)
    together(b, parts, 1)


def sequence_of_rows(b: Builder) -> None:
    """Rows of one element along a dimension, squeezed and put together."""
    rng = b.rng
    x = b.new_input(shape=(None, rng.randint(2, 5), rng.randint(1, 4)))
    if rng.random() < 0.3:
        parts = b.pieces(x, 1, rng.choice(("unbind", "select")))
    else:
        parts = b.picked(b.either("split", x, split_size_or_sections__split_size=1, dim=1))
        parts = [b.either("squeeze", p, dim=1) for p in parts] if rng.random() < 0.8 else parts
    parts = perturbed(b, parts)
    if rng.random() < 0.3:
        parts = [b.pointwise(p, "tanh") for p in parts]
    together(b, parts, 1)


MOTIFS: tuple[Callable[[Builder], Any], ...] = (
    apart_and_together,
    apart_and_together,
    apart_and_together,
    together_and_apart,
    nested_cats,
    nested_splits,
    shared_linears,
    towers,
    movements,
    around_linear,
    chunk_reshape_cat,
    sequence_of_rows,
)
