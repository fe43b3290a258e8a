"""What a pass is: a function, a contract, examples of what it does and of what it must refuse."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch.fx import GraphModule, Node

from eductor.errors import BadPass, UnknownName
from eductor.graph.rewriter import Rewriter
from eductor.graph.view import GraphView
from eductor.options import Options

Stage = Literal["pre_grad", "joint", "post_grad"]
STAGES: tuple[Stage, ...] = get_args(Stage)

Numerics = Literal["exact", "reassociates", "redraws", "changes"]
NUMERICS: dict[Numerics, str] = {
    "exact": "bitwise the same result",
    "reassociates": "the same mathematics with other roundings",
    "redraws": "other random numbers of the same distribution",
    "changes": "other semantics; never on by default",
}


@dataclass(frozen=True, slots=True)
class Contract:
    """What a pass may do, and where it applies."""

    numerics: Numerics
    devices: tuple[str, ...] = ()
    inference_only: bool = False

    def __str__(self) -> str:
        parts = [f"{self.numerics} ({NUMERICS[self.numerics]})"]
        parts += [f"only on {', '.join(self.devices)}"] if self.devices else []
        parts += ["only for inference"] if self.inference_only else []
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Context:
    """What a pass may know besides the graph."""

    stage: Stage
    options: Options = field(default_factory=Options)
    is_inference: bool = False


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input of an example: a tensor of this dtype and shape, with random contents."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def make(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return torch.randn(self.shape, generator=generator).to(self.dtype)
        return torch.randint(0, 2 if self.dtype is torch.bool else 5, self.shape, generator=generator).to(self.dtype)


def _spec(dtype: torch.dtype) -> Callable[..., Any]:
    return lambda *shape: TensorSpec(dtype, shape)


f32, f64, f16, bf16 = map(_spec, (torch.float32, torch.float64, torch.float16, torch.bfloat16))
i64, b8 = map(_spec, (torch.int64, torch.bool))


@dataclass(frozen=True, slots=True)
class Example:
    """A small program: one that the pass changes, or (with `because`) one that it must leave, and why."""

    name: str
    fn: Callable[..., Any]
    inputs: tuple[TensorSpec, ...]
    because: str = ""
    prepare: Callable[[GraphModule], None] | None = None

    def make_inputs(self) -> list[torch.Tensor]:
        return [spec.make(seed) for seed, spec in enumerate(self.inputs)]


When = Callable[[Context], bool | str]


class Pass:
    """A graph pass: `stage/name` is its address, the first line of its docstring is its purpose."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        stages: tuple[Stage, ...],
        contract: Contract,
        name: str | None = None,
        on: bool = True,
        after: Iterable[str] = (),
        before: Iterable[str] = (),
        slot: str | None = None,
        when: When | None = None,
        version: str | None = None,
        foreign: bool = False,
    ) -> None:
        self.fn = fn
        self.name: str = name or str(getattr(fn, "__name__", type(fn).__name__))
        self.stages = stages
        self.contract = contract
        self.on = on
        self.after = tuple([after] if isinstance(after, str) else after)
        self.before = tuple([before] if isinstance(before, str) else before)
        self.slot = slot
        self.when = when
        self.foreign = foreign
        self.examples: list[Example] = []
        self.refusals: list[Example] = []
        self.options: dict[str, Any] = {}
        self._version = version
        self._check()

    def _check(self) -> None:
        if not self.name.isidentifier():
            raise BadPass(f"a pass needs a name that is an identifier, not {self.name!r}: give `name=`.")
        unknown = [s for s in self.stages if s not in STAGES]
        if unknown or not self.stages:
            raise BadPass(
                f"pass {self.name!r}: stage {unknown or self.stages!r} is unknown. Stages: {', '.join(STAGES)}."
            )
        if self.contract.numerics not in NUMERICS:
            raise BadPass(
                f"pass {self.name!r}: numerics {self.contract.numerics!r} is unknown. Known: {', '.join(NUMERICS)}."
            )
        if self.on and self.contract.numerics == "changes":
            raise BadPass(f"pass {self.name!r} changes semantics, so it cannot be on by default: declare `on=False`.")

    @property
    def purpose(self) -> str:
        """The first line of the docstring."""
        doc = inspect.getdoc(self.fn) or ""
        module = sys.modules.get(getattr(self.fn, "__module__", ""), None)
        return (doc or (module and module.__doc__) or "").strip().split("\n")[0]

    @property
    def version(self) -> str:
        """Changes when the pass does: given by its author, or a hash of the source it is written in."""
        return self._version or _source_hash(self.fn)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The options of the pass: the keyword-only parameters of its function."""
        return {n: p for n, p in inspect.signature(self.fn).parameters.items() if p.kind is p.KEYWORD_ONLY}

    def configured(self, **options: Any) -> Pass:
        """The same pass with other options."""
        for name in options:
            if name not in self.parameters:
                raise UnknownName(f"option of the pass {self.name}", name, self.parameters)
        copy = _copy(self)
        copy.options = {**self.options, **options}
        return copy

    def placed(self, *, after: Iterable[str] = (), before: Iterable[str] = (), slot: str | None = None) -> Pass:
        """The same pass with another place in the order."""
        copy = _copy(self)
        copy.after = tuple([after] if isinstance(after, str) else after)
        copy.before = tuple([before] if isinstance(before, str) else before)
        copy.slot = slot
        return copy

    def run(self, view: GraphView, rewriter: Rewriter, context: Context) -> None:
        """Runs the function: with the graph and the rewriter, and with the context if it asks for it."""
        wanted = inspect.signature(self.fn).parameters
        extra = {"context": context} if "context" in wanted else {}
        self.fn(view, rewriter, **extra, **self.options)

    def example(
        self, fn: Callable[..., Any] | None = None, *, prepare: Callable[[GraphModule], None] | None = None
    ) -> Callable[..., Any]:
        """Declares a program that the pass changes; its inputs are the defaults of its parameters.

        `prepare` edits the captured graph first, for what no program is captured as.
        """

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.examples.append(_example(fn, prepare=prepare))
            return fn

        return declare if fn is None else declare(fn)

    def refuses(
        self, because: str, *, prepare: Callable[[GraphModule], None] | None = None
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares a program that the pass must leave, with (a part of) the reason that it gives."""
        if not isinstance(because, str) or not because:
            raise BadPass(f"pass {self.name!r}: a refusal states its reason: @{self.name}.refuses('the reason').")

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.refusals.append(_example(fn, because, prepare))
            return fn

        return declare

    def __repr__(self) -> str:
        return f"<pass {'|'.join(self.stages)}/{self.name}>"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a rule pass: called for each call of one of its operators."""

    name: str
    operators: tuple[Any, ...]
    fn: Callable[[GraphView, Rewriter, Node], Any]


class RulePass(Pass):
    """A pass made of rules, each tried on the calls of its operators: `stage/pass:rule@match`."""

    def __init__(self, fn: Callable[..., Any], **declared: Any) -> None:
        super().__init__(fn, **declared)
        self.rules: list[Rule] = []

    def rule(self, *operators: Any, name: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares a rule for the calls of the operators: a function of the graph, the rewriter and the node."""

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.rules.append(Rule(name or fn.__name__, operators, fn))
            return fn

        return declare

    def run(self, view: GraphView, rewriter: Rewriter, context: Context) -> None:
        operators = [op for rule in self.rules for op in rule.operators]
        for node in view.find(*operators):
            for rule in self.rules:
                edits = len(rewriter.matches)
                if view.is_call(node, *rule.operators):
                    with rewriter.rule(rule.name):
                        rule.fn(view, rewriter, node)
                if len(rewriter.matches) > edits:
                    break


def graph_pass(
    *,
    stage: Stage | tuple[Stage, ...],
    numerics: Numerics,
    devices: tuple[str, ...] = (),
    inference_only: bool = False,
    **declared: Any,
) -> Callable[[Callable[..., Any]], Pass]:
    """Makes a pass of a function of the graph and the rewriter; keyword-only parameters are its options."""
    contract = Contract(numerics, devices, inference_only)
    return lambda fn: Pass(fn, stages=_stages(stage), contract=contract, **declared)


def rule_pass(
    *,
    stage: Stage | tuple[Stage, ...],
    numerics: Numerics,
    devices: tuple[str, ...] = (),
    inference_only: bool = False,
    **declared: Any,
) -> Callable[[Callable[..., Any]], RulePass]:
    """Makes a pass of rules; the decorated function only names and documents it."""
    contract = Contract(numerics, devices, inference_only)
    return lambda fn: RulePass(fn, stages=_stages(stage), contract=contract, **declared)


def foreign_pass(fn: Callable[..., Any] | Pass, stage: Stage, slot: str | None = None) -> Pass:
    """A pass of a plain callable that edits a `torch.fx.Graph` as it likes, as the documents' custom passes do."""
    if isinstance(fn, Pass):
        return fn if slot is None else fn.placed(slot=slot)
    if not callable(fn):
        raise BadPass(f"{fn!r} is not a pass: give a function of a torch.fx.Graph, or one declared with @graph_pass.")
    wants_inference = "is_inference" in inspect.signature(fn).parameters

    def run(graph: GraphView, rewrite: Rewriter, context: Context) -> None:
        fn(graph.graph, is_inference=context.is_inference) if wants_inference else fn(graph.graph)

    run.__doc__ = inspect.getdoc(fn) or f"The custom pass {getattr(fn, '__name__', type(fn).__name__)}."
    raw = getattr(fn, "__name__", type(fn).__name__)
    name = raw if raw.isidentifier() else "custom_pass"
    contract = Contract("reassociates")
    return Pass(run, stages=(stage,), contract=contract, name=name, slot=slot, foreign=True, version=_source_hash(fn))


def _stages(stage: Any) -> tuple[Stage, ...]:
    return stage if isinstance(stage, tuple) else (stage,)


def _copy(original: Pass) -> Pass:
    copy = object.__new__(type(original))
    copy.__dict__.update(original.__dict__)
    return copy


def _example(
    fn: Callable[..., Any], because: str = "", prepare: Callable[[GraphModule], None] | None = None
) -> Example:
    params = inspect.signature(fn).parameters.values()
    inputs = [p.default for p in params]
    if not all(isinstance(spec, TensorSpec) for spec in inputs):
        raise BadPass(f"example {fn.__name__!r}: give each parameter a default such as f32(2, 3), its dtype and shape.")
    return Example(fn.__name__, fn, tuple(inputs), because, prepare)


def _source_hash(fn: Any) -> str:
    """Of the file the function is written in, so that an edited helper counts; of its code where there is no file."""
    fn = inspect.unwrap(fn) if inspect.isfunction(fn) else fn
    code = getattr(fn, "__code__", None)
    try:
        source = inspect.getsource(inspect.getmodule(fn) or fn)
    except (OSError, TypeError):
        source = _code_text(code) if code is not None else repr(type(fn))
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return hashlib.blake2b(f"{name}\0{source}".encode(), digest_size=8).hexdigest()


def _code_text(code: Any) -> str:
    consts = [_code_text(c) if inspect.iscode(c) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {consts}"


def describe_options(options: Mapping[str, Any]) -> str:
    """Options as they stand in the text form of a pipeline."""
    return f"({', '.join(f'{k}={v!r}' for k, v in options.items())})" if options else ""
