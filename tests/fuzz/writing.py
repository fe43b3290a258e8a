"""Writes random programs line by line; each line runs in eager at once, and one that eager refuses is left out."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from .program import PLACES, Line, Random

LARGEST = 1024
"""How many elements a value may have."""
DTYPES = ("torch.float32", "torch.float64", "torch.bfloat16")


class Refused(Exception):
    """A line that eager does not run, or whose operands are not there."""


def written(seed: str) -> Random:
    """The random program of a seed; it may still fail in its backward."""
    return Writer(seed).program()


class Writer:
    """One program, as it is written."""

    def __init__(self, seed: str) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        choice = self.rng.random
        self.dtype = self.rng.choices(DTYPES, (8, 2, 1))[0]
        self.training, self.gradients = choice() < 0.6, choice() < 0.7
        self.autocast = choice() < 0.08
        self.inputs: list[Line] = []
        self.lines: list[Line] = []
        self.modules: list[tuple[str, str]] = []
        self.places: dict[str, Any] = dict(PLACES)
        self.held = torch.nn.Module()
        self.values: dict[str, torch.Tensor] = {}

    def program(self) -> Random:
        rng = self.rng
        with torch.random.fork_rng(), torch.set_grad_enabled(self.gradients):
            torch.manual_seed(0)
            for _ in range(rng.randint(1, 3)):
                with suppress(Refused):
                    self.new_input()
            if not self.inputs:
                self.add(self.inputs, Line("x0", f"tensor(0, 4, 6, dtype={self.dtype})"))
            wanted = rng.randint(2, 8)
            for _ in range(40):
                if len(self.lines) >= wanted:
                    break
                try:
                    rng.choices(MOTIFS, WEIGHTS)[0](self)
                except (Refused, IndexError, ValueError):
                    continue
        names = [line.result for line in self.lines if line.result] or [line.result for line in self.inputs]
        outputs = dict.fromkeys((names[-1], *rng.sample(names, rng.randint(0, min(2, len(names))))))
        if rng.random() < 0.1:
            outputs[rng.choice(self.inputs).result] = None
        return Random(
            self.seed,
            tuple(self.inputs),
            tuple(self.modules),
            tuple(self.lines),
            tuple(outputs),
            self.dtype,
            self.training,
            self.gradients,
            self.autocast,
            self.options(),
        ).used()

    def options(self) -> tuple[tuple[str, Any], ...]:
        rng, found = self.rng, {}
        found["profile"] = rng.choices(("fast", "exact"), (2, 1))[0]
        if rng.random() < 0.2:
            found["dynamic"] = True
        if self.gradients and rng.random() < 0.2:
            found["memory_budget"] = rng.choice((0.0, 0.3, 0.7))
        return tuple(found.items())

    # ------------------------------------------------------------------------------------------------- lines

    def new_input(self) -> None:
        """A tensor, a view of another input, or one with other strides."""
        rng, name = self.rng, f"x{len(self.inputs)}"
        floating = [n for n, v in self.values.items() if v.is_floating_point() and v.dim()]
        shape = rng.choice(((4, 6), (2, 4, 6), (2, 3, 4, 4), (4, 8), (3, 5), (8,), (2, 1, 6), (2, 16, 8)))
        made = f"tensor({len(self.inputs)}, {', '.join(map(str, shape))}, dtype={self.dtype})"
        kind = rng.random()
        if floating and kind < 0.2:
            base = rng.choice(floating)
            view = rng.choice(("{}.detach()", "{}.detach()[1:]", "{}.detach().t()", "{}", "{}.detach()[..., :2]"))
            made = view.format(base)
        elif kind < 0.35:
            made += rng.choice((".transpose(0, -1)", "[..., ::2]", ".flip(0).transpose(-1, 0)", ".unsqueeze(0)[0]"))
        elif kind < 0.45 and len(shape) == 4:
            made += ".to(memory_format=torch.channels_last)"
        elif kind < 0.5:
            made = f"integers({len(self.inputs)}, 4, {', '.join(map(str, shape[:2]))})"
        elif kind < 0.53:
            made = made.replace(str(shape[0]), "0", 1) if len(shape) > 1 else made
        if self.gradients and rng.random() < 0.6 and made.startswith("tensor("):
            made += ".requires_grad_()"
        self.add(self.inputs, Line(name, made))

    def add(self, lines: list[Line], line: Line) -> str:
        places = {**self.places, **self.values, "self": self.held}
        try:
            if line.result:
                value = eval(line.expression, places)
            else:
                exec(line.expression, places)
                value = None
        except Exception as error:
            raise Refused from error
        found = value if isinstance(value, torch.Tensor) else None
        if line.result and (found is None or found.numel() > LARGEST or found.dim() > 5):
            raise Refused
        if found is not None:
            self.values[line.result] = found
        lines.append(line)
        return line.result

    def say(self, expression: str) -> str:
        """A line that computes a value."""
        return self.add(self.lines, Line(f"v{len(self.lines)}", expression))

    def do(self, statement: str) -> None:
        """A line that writes."""
        self.add(self.lines, Line("", statement))

    def hold(self, made: str) -> str:
        """A module."""
        name = f"m{len(self.modules)}"
        module = eval(made, dict(self.places)).to(eval(self.dtype, dict(self.places)))
        setattr(self.held, name, module.train(self.training).requires_grad_(self.gradients))
        self.modules.append((name, made))
        return f"self.{name}"

    # ------------------------------------------------------------------------------------------------ choices

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda v: True) -> str:
        """A floating value, the last ones more often."""
        names = [n for n, v in self.values.items() if v.is_floating_point() and fits(v)]
        if not names:
            raise Refused
        return names[-1] if self.rng.random() < 0.5 else self.rng.choice(names)

    def like(self, name: str) -> str:
        """A value that broadcasts with another one."""
        shape = self.values[name].shape

        def fits(other: torch.Tensor) -> bool:
            pairs = zip(reversed(shape), reversed(other.shape), strict=False)
            return all(a == b or 1 in (a, b) for a, b in pairs)

        return self.pick(fits)

    def dim(self, name: str) -> int:
        rank = self.values[name].dim()
        return self.rng.randrange(-rank, rank)

    def size(self, name: str, dim: int) -> int:
        return self.values[name].shape[dim]


# ------------------------------------------------------------------------------------------------------- motifs

Motif = Callable[[Writer], Any]
TABLE: list[tuple[Motif, int]] = []


def motif(weight: int = 2) -> Callable[[Motif], Motif]:
    def register(fn: Motif) -> Motif:
        TABLE.append((fn, weight))
        return fn

    return register


def rank(*wanted: int) -> Callable[[torch.Tensor], bool]:
    return lambda v: v.dim() in wanted and v.numel() > 0


POINTWISE = (
    "torch.relu({0})",
    "torch.tanh({0})",
    "torch.sigmoid({0})",
    "F.gelu({0})",
    "F.silu({0})",
    "{0} * 2 + 1",
    "{0} / 3",
    "{0}.abs()",
    "{0}.clamp(-1, 1)",
    "{0}.clamp(min=0)",
    "-{0}",
    "{0}.clone()",
    "{0}.detach() * {0}",
    "{0}.square()",
    "torch.where({0} > 0, {0}, 0.1)",
    "F.leaky_relu({0}, 0.2)",
    "{0}.exp().clamp(max=3)",
    "F.hardtanh({0})",
    "{0}.round()",
    "{0} - {0}.mean()",
    "{0}.sin() + {0}.cos()",
    "{0}.sign() * {0}",
    "1 - {0}",
    "0 * {0}",
    "{0} ** 2",
    "{0} ** 3",
    "{0} + 0",
    "{0} * 1",
    "{0}.nan_to_num()",
    "{0}.masked_fill({0} > 0.5, 2.0)",
    "torch.rsqrt({0}.abs() + 1)",
    "{0}.floor()",
    "F.softplus({0})",
    "F.dropout({0}, 0.0, True)",
)
BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "torch.maximum({0}, {1})",
    "torch.add({0}, {1}, alpha=0.5)",
    "torch.where({0} > {1}, {0}, {1})",
    "{0} / ({1}.abs() + 1)",
    "torch.addcmul({0}, {0}, {1}, value=0.5)",
    "torch.lerp({0}, {1}, 0.3)",
    "({0} > {1}).to({0}.dtype)",
)
REDUCTIONS = (
    "{0}.sum({1})",
    "{0}.mean({1}, keepdim=True)",
    "{0}.amax({1})",
    "{0}.sum()",
    "{0}.std({1}, correction=0)",
    "torch.softmax({0}, {1})",
    "torch.log_softmax({0}, {1})",
    "{0}.cumsum({1})",
    "torch.logsumexp({0}, {1})",
    "{0}.max({1}).values",
    "{0}.sort({1}).values",
    "{0}.norm(dim={1})",
    "{0}.var({1})",
    "{0}.prod({1})",
    "F.normalize({0}, dim={1})",
    "{0}.min({1}, keepdim=True)[0]",
)
VIEWS = (
    "{0}.reshape(-1)",
    "{0}.flatten(1)",
    "{0}.transpose({1}, {2})",
    "{0}.unsqueeze({1})",
    "{0}.squeeze({1})",
    "{0}[..., None]",
    "{0}[1:]",
    "{0}[..., ::2]",
    "{0}.flip({1})",
    "{0}.narrow({1}, 0, 1)",
    "{0}.select({1}, 0)",
    "{0}.contiguous()",
    "{0}.movedim({1}, {2})",
    "{0}.transpose({1}, {2}).contiguous()",
    "{0}.expand(2, *{0}.shape)",
    "{0}.roll(1, {1})",
    "{0}.view({0}.shape[0], -1)",
    "{0}.mT",
    "{0}.unfold({1}, 2, 1)",
    "{0}.diagonal(0, {1}, {2})",
    "{0}.repeat_interleave(2, {1})",
    "{0}.tile(2)",
)
WRITES = (
    "{0}.add_(1)",
    "{0}.mul_(2)",
    "{0}[0] = 1",
    "{0}[..., 0] = {0}[..., -1]",
    "{0}.relu_()",
    "{0}[..., 0].add_(3)",
    "{0}.copy_({1})",
    "{0}.add_({1})",
    "{0}.zero_()",
    "{0}.masked_fill_({0} > 0, -1)",
    "{0}.clamp_(min=0)",
    "{0}.transpose(0, -1).mul_(2)",
    "{0}.index_put_((torch.tensor([0, 0]),), {0}[0] * 2, accumulate=True)",
    "{0}.flatten()[0] = 2",
    "{0}.add_({0}.flip(0))",
    "{0}.fill_(0.5)",
)


@motif(12)
def pointwise(w: Writer) -> None:
    w.say(w.rng.choice(POINTWISE).format(w.pick()))


@motif(6)
def binary(w: Writer) -> None:
    a = w.pick()
    w.say(w.rng.choice(BINARY).format(a, w.like(a)))


@motif(4)
def reduction(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0 and v.numel() > 0)
    w.say(w.rng.choice(REDUCTIONS).format(a, w.dim(a)))


@motif(7)
def view(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0)
    w.say(w.rng.choice(VIEWS).format(a, w.dim(a), w.dim(a)))


@motif(4)
def write(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0 and not (v.requires_grad and v.is_leaf))
    w.do(w.rng.choice(WRITES).format(a, w.like(a)))


@motif(4)
def linear(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0)
    bias = w.rng.choice(("", ", bias=False"))
    w.say(f"{w.hold(f'nn.Linear({w.size(a, -1)}, {w.rng.choice((4, 6, 8))}{bias})')}({a})")


@motif(1)
def parallel_linears(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0)
    held = [w.hold(f"nn.Linear({w.size(a, -1)}, 4)") for _ in range(3)]
    w.say(f"torch.cat([{', '.join(f'{m}({a})' for m in held)}], -1)")


@motif(2)
def convolution(w: Writer) -> None:
    a = w.pick(rank(4))
    kernel = w.rng.choice(("1", "3, padding=1", "2, stride=2", "3, padding=1, groups=1, bias=False"))
    out = f"{w.hold(f'nn.Conv2d({w.size(a, 1)}, 4, {kernel})')}({a})"
    if w.rng.random() < 0.5:
        out = f"{w.hold('nn.BatchNorm2d(4)')}({out})"
    w.say(out if w.rng.random() < 0.6 else f"F.relu({out})")


@motif(1)
def convolution_1d(w: Writer) -> None:
    a = w.pick(rank(3))
    w.say(f"{w.hold(f'nn.Conv1d({w.size(a, 1)}, 4, 3, padding=1)')}({a})")


@motif(3)
def norm(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 1)
    made = [f"nn.LayerNorm({w.size(a, -1)})", f"nn.LayerNorm({w.size(a, -1)}, elementwise_affine=False)"]
    made.append(f"nn.RMSNorm({w.size(a, -1)})")
    if w.values[a].dim() == 4:
        made += [f"nn.BatchNorm2d({w.size(a, 1)})", f"nn.GroupNorm(1, {w.size(a, 1)})"]
    if w.values[a].dim() == 2:
        made.append(f"nn.BatchNorm1d({w.size(a, 1)})")
    w.say(f"{w.hold(w.rng.choice(made))}({a})")


@motif(2)
def attention(w: Writer) -> None:
    a = w.pick(rank(3, 4))
    b = w.pick(lambda v: v.shape == w.values[a].shape)
    scale = w.rng.choice(("", " * 0.5", " / math.sqrt(8)"))
    scores = f"{a} @ {b}.transpose(-2, -1){scale}"
    mask = w.rng.random()
    rows, keys = w.size(a, -2), w.size(b, -2)
    if mask < 0.25:
        scores = f"({scores}).masked_fill(torch.ones({rows}, {keys}, dtype=torch.bool).triu(1), -math.inf)"
    elif mask < 0.4:
        scores = f"({scores}).masked_fill(torch.ones({rows}, {keys}, dtype=torch.bool).triu(), -math.inf)"
    elif mask < 0.5:
        scores = f"{scores} + torch.zeros({rows}, {keys}).triu(1).to({w.dtype})"
    w.say(f"torch.softmax({scores}, -1) @ {w.rng.choice((a, b))}")


@motif(1)
def fused_attention(w: Writer) -> None:
    a = w.pick(rank(4))
    w.say(f"F.scaled_dot_product_attention({a}, {a}, {a}, is_causal={w.rng.random() < 0.5})")


@motif(3)
def split_and_cat(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0)
    d = w.dim(a)
    parts = w.rng.choice((f"{a}.chunk(2, {d})", f"torch.split({a}, 2, {d})", f"{a}.unbind({d})"))
    joined = w.rng.choice(("torch.cat", "torch.stack"))
    kept = w.rng.choice(("", "[::-1]", "[:2]", "[1:]"))
    w.say(f"{joined}([torch.relu(p) for p in {parts}{kept}], {d})")


@motif(3)
def cat(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0)
    b = w.pick(lambda v: v.shape == w.values[a].shape)
    w.say(f"{w.rng.choice(('torch.cat', 'torch.stack'))}([{a}, {b}, {a}], {w.dim(a)})")


@motif(1)
def sum_of_parts(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0)
    w.say(f"sum(torch.tanh(p) for p in {a}.split(1, {w.dim(a)}))")


@motif(2)
def product(w: Writer) -> None:
    a = w.pick(rank(2, 3))
    b = w.pick(rank(2, 3))
    forms = (
        "{0} @ {1}",
        "{0} @ {1}.mT",
        "torch.einsum('...ij,...kj->...ik', {0}, {1})",
        "torch.einsum('...ij,...ij->...j', {0}, {1})",
        "torch.matmul({0}.mT, {1})",
        "torch.addmm({0}[:, :1], {0}, {1}.t())",
        "torch.baddbmm({0}[..., :1], {0}, {1}.mT)",
        "F.linear({0}, {1})",
        "torch.bmm({0}, {1}.mT)",
        "torch.einsum('bij,bkj->bik', {0}, {1})",
        "torch.tensordot({0}, {1}, ([-1], [-1]))",
    )
    w.say(w.rng.choice(forms).format(a, b))


@motif(2)
def index(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0 and v.shape[0] > 1)
    forms = (
        "{0}[torch.tensor([1, 0, 1])]",
        "{0}.index_select({1}, torch.tensor([0, 0]))",
        "{0}.gather({1}, torch.zeros_like({0}, dtype=torch.int64))",
        "torch.zeros_like({0}).scatter_add({1}, torch.zeros_like({0}, dtype=torch.int64), {0})",
        "{0}.index_add(0, torch.tensor([0, 1]), {0}[:2])",
        "{0}.index_fill({1}, torch.tensor([0]), 2.0)",
        "torch.take_along_dim({0}, {0}.argsort({1}), {1})",
        "{0}.slice_scatter({0}[:1] * 2, 0, 0, 1)",
        "{0}.select_scatter({0}[0] * 2, 0, 1)",
        "{0}.tril()",
        "{0}.topk(1, {1}).values",
        "{0}[torch.arange({0}.shape[0]).flip(0)]",
    )
    w.say(w.rng.choice(forms).format(a, w.dim(a)))


@motif(2)
def embedding(w: Writer) -> None:
    names = [n for n, v in w.values.items() if not v.is_floating_point() and v.dtype is torch.int64]
    given = w.rng.choice(names) if names else "torch.arange(4)"
    w.say(f"{w.hold('nn.Embedding(4, 6)')}({given})")


@motif(2)
def residual_loop(w: Writer) -> None:
    a = w.pick(lambda v: v.dim() > 0)
    wide = w.size(a, -1)
    layer = w.hold(f"nn.ModuleList([nn.Linear({wide}, {wide}) for _ in range(2)])")
    name = w.say(a + " + 0.5")
    for i in range(2):
        name = w.say(f"{name} + torch.relu({layer}[{i}]({name}))")


@motif(2)
def checkpointed(w: Writer) -> None:
    a = w.pick()
    body = w.rng.choice(POINTWISE).format("a")
    w.say(f"checkpoint(lambda a: torch.tanh({body}) * a, {a}, use_reentrant=False)")


@motif(2)
def cast(w: Writer) -> None:
    a = w.pick()
    forms = (
        "{0}.double().mul(2).to({1})",
        "{0}.to(torch.float32).to({1})",
        "{0}.to({1}, copy=True)",
        "{0}.half().to({1})",
    )
    w.say(w.rng.choice(forms).format(a, w.dtype))


@motif(1)
def created(w: Writer) -> None:
    a = w.pick()
    forms = (
        "{0} + torch.ones_like({0})",
        "{0} * torch.zeros({0}.shape[-1], dtype={1})",
        "torch.full_like({0}, 2.0) * {0}",
        "{0} + torch.arange({0}.shape[-1]).to({1})",
        "{0}.new_zeros({0}.shape) + {0}",
        "F.pad({0}, (1, 1))",
        "F.one_hot(torch.arange(3), 4).to({1}) + {0}.sum()",
    )
    w.say(w.rng.choice(forms).format(a, w.dtype))


@motif(1)
def pool(w: Writer) -> None:
    a = w.pick(rank(4))
    forms = (
        "F.avg_pool2d({0}, 2)",
        "F.max_pool2d({0}, 2)",
        "F.adaptive_avg_pool2d({0}, 1)",
        "F.interpolate({0}, scale_factor=2)",
        "F.pixel_shuffle({0}.repeat(1, 4, 1, 1), 2)",
    )
    w.say(w.rng.choice(forms).format(a))


@motif(1)
def detached(w: Writer) -> None:
    w.say(f"{w.pick()}.detach()")


MOTIFS, WEIGHTS = [m for m, _ in TABLE], [weight for _, weight in TABLE]
