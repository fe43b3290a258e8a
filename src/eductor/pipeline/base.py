"""Declares passes: a function, a contract, examples of what it rewrites and of what it must refuse."""

from __future__ import annotations

import ast
import functools
import inspect
import keyword
import sys
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch.fx import Graph, GraphModule

from eductor.errors import BadPass, UnknownName
from eductor.graph import GraphView, No, Rewriter
from eductor.options import Options
from eductor.pipeline.versions import is_ours, source_hash

Stage = Literal["pre_grad", "joint", "partition", "post_grad", "lower"]
"""The name of a stage."""
STAGES: tuple[Stage, ...] = get_args(Stage)
"""All stages in the order in which they run."""

Numerics = Literal["exact", "reassociates", "redraws", "changes"]
NUMERICS: dict[Numerics, str] = {
    "exact": "bitwise the same result",
    "reassociates": "the same mathematics with other roundings",
    "redraws": "other random numbers of the same distribution",
    "changes": "other semantics; never on by default",
}


@dataclass(frozen=True, slots=True)
class Contract:
    """What a pass may change, and where it applies."""

    numerics: Numerics
    devices: tuple[str, ...] = ()
    inference_only: bool = False
    finite_only: bool = False
    """Whether its numerics hold for finite inputs only, as those of the kernel that it calls."""
    in_place: bool = False
    """Whether it inserts writes into a functional graph: it runs last, and never in bodies, which must stay functional."""
    restrides: bool = False
    """Whether it may give outputs of the graph other strides, or another storage offset: no caller depends on them."""
    enters_bodies: bool = True
    """Whether it also runs on the bodies of higher-order operators."""

    def __str__(self) -> str:
        parts = [f"{self.numerics} ({NUMERICS[self.numerics]})"]
        parts += [f"only on {', '.join(self.devices)}"] if self.devices else []
        parts += ["only for inference"] if self.inference_only else []
        parts += ["for finite numbers"] if self.finite_only else []
        parts += ["the graph writes in place afterwards"] if self.in_place else []
        parts += ["it may change the strides of outputs"] if self.restrides else []
        parts += [] if self.enters_bodies else ["not in bodies of operators"]
        return "; ".join(parts)


Role = Literal["captured", "joint", "forward", "backward"]


@dataclass(frozen=True, slots=True)
class GraphName:
    """Identifies a graph of a program: the number of the captured graph, and the role of this one."""

    number: int = 0
    """Counts the captured graphs of this process; 0 for a graph that is passed to a stage by hand."""
    compile_id: str = ""
    """Dynamo's `frame/compile`: each part of a function with graph breaks is a frame, a recompile increments `compile`."""
    role: Role = "captured"
    variant: str = ""
    """The tangents that a backward lacks, as `without tangents_2`; empty for a graph that has all of its inputs."""

    def __str__(self) -> str:
        name = f"[{self.compile_id}]" if self.compile_id else str(self.number)
        return f"{self.role} graph {name}" + (f" {self.variant}" if self.variant else "")


@dataclass(frozen=True, slots=True)
class Context:
    """What a pass may depend on besides the graph."""

    stage: Stage
    options: Options = field(default_factory=Options)
    is_inference: bool = False
    graph: GraphName = GraphName()
    packs: bool = False
    """Whether values that depend on parameters alone are computed once and kept, if a pass marks them with `pack`."""
    fuses: bool = False
    """Whether the engine fuses pointwise operators into the kernels that read them."""
    takes_numbers: bool = True
    """Whether the engine runs graphs that read Python floats from tensors."""
    gradients: tuple[int, ...] = ()
    """In a joint graph, whose last outputs are the gradients: the index of the input of each gradient."""
    parameters: frozenset[int] = frozenset()
    """In a joint graph: the indices of the inputs that are parameters of a module, into which gradients accumulate."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """The nodes saved for the backward, by name, each with the form in which it is saved; empty if unchanged."""

    def facts(self) -> dict[str, Any]:
        """All fields but the stage, the options and the graph: plain values, which a reproducer prints."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("stage", "options", "graph")}


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
"""An input of an example with this dtype, by its shape: `f32(2, 3)`."""
i64, b8 = map(_spec, (torch.int64, torch.bool))
"""An input of an example with this dtype, by its shape: `f32(2, 3)`."""


@dataclass(frozen=True, slots=True)
class Example:
    """A small program that the pass changes, or (with `because`) one that it must refuse, and why."""

    name: str
    fn: Callable[..., Any]
    inputs: tuple[TensorSpec, ...]
    because: str = ""
    prepare: Callable[[GraphModule], None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the pass in this example."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """Values for fields of `Context`."""

    def make_inputs(self) -> list[torch.Tensor]:
        return [spec.make(seed) for seed, spec in enumerate(self.inputs)]


class Setup(TypedDict, total=False):
    """How an example is run, beyond its program."""

    prepare: Callable[[GraphModule], None]
    """First edits the captured graph, for graphs that Dynamo never captures."""
    options: Mapping[str, Any]
    """Options of the pass."""
    context: Mapping[str, Any]
    """Values for fields of `Context`."""


When = Callable[[Context], bool | No]
"""Whether a pass runs at all; a No gives the reason why not."""


class Pass:
    """A graph pass; its address is `stage/name`, its purpose the first line of its docstring."""

    foreign = False
    """Whether it edits the graph directly, without the rewriter."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        stages: tuple[Stage, ...],
        contract: Contract,
        name: str | None = None,
        on: bool = True,
        after: str | Iterable[str] = (),
        before: str | Iterable[str] = (),
        slot: str | None = None,
        when: When | None = None,
        version: str | None = None,
    ) -> None:
        self.fn = fn
        self.name = name_of(fn) if name is None else name
        self.stages = stages
        self.contract = contract
        self.on = on
        self.after = words(after)
        self.before = words(before)
        self.slot = slot
        self.when = when
        self.examples: list[Example] = []
        self.refusals: list[Example] = []
        self.options: dict[str, Any] = {}
        self._version = version
        # Hashed now: the file may be edited while this process still runs its old contents.
        self._source = source_hash(fn) if version is None else ""
        self._check()

    def _check(self) -> None:
        if not is_name(self.name):
            raise BadPass(f"a pass needs a name that is an identifier, not {self.name!r}: give `name=`.")
        unknown = [s for s in self.stages if s not in STAGES]
        if unknown or not self.stages:
            given = ", ".join(map(repr, unknown)) or "()"
            raise BadPass(f"pass {self.name!r}: stage {given} is unknown. Stages: {', '.join(STAGES)}.")
        if self.contract.numerics not in list(NUMERICS):
            raise BadPass(
                f"pass {self.name!r}: numerics {self.contract.numerics!r} is unknown. Known: {', '.join(NUMERICS)}."
            )
        if self.on and self.contract.numerics == "changes":
            raise BadPass(f"pass {self.name!r} changes semantics, so it cannot be on by default: declare `on=False`.")
        if self.slot and (self.after or self.before):
            raise BadPass(f"pass {self.name!r} asks for a slot and for a neighbour: give slot=, or after= and before=.")
        for other in (*self.after, *self.before):
            stage = other.rpartition("/")[0]
            if stage and stage not in self.stages:
                raise BadPass(f"pass {self.name!r} asks for {other!r}, but it runs in {', '.join(self.stages)}.")
        self._check_function()

    def _check_function(self) -> None:
        if not callable(self.fn):
            raise BadPass(f"{self.fn!r} is not a pass: @graph_pass decorates a function of the graph and the rewriter.")
        unset = [n for n, p in self.parameters.items() if p.default is p.empty]
        if unset:
            raise BadPass(f"pass {self.name!r}: its option {unset[0]!r} needs a default.")
        try:
            inspect.signature(self.fn).bind(None, None, **self._wanted(None))
        except TypeError:
            raise BadPass(
                f"pass {self.name!r}: its function takes the graph and the rewriter, and may take `context`; its other "
                f"parameters are options, and keyword-only. It takes {inspect.signature(self.fn)}."
            ) from None

    @property
    def purpose(self) -> str:
        """The first line of the docstring."""
        doc = inspect.getdoc(self.fn) or ""
        module = sys.modules.get(getattr(self.fn, "__module__", ""), None)
        return (doc or (module and module.__doc__) or "").strip().split("\n")[0]

    @property
    def version(self) -> str:
        """Changes when the pass does: stated by its author, or a hash of its source."""
        return self._version or self._source

    @property
    def unversioned(self) -> str:
        """Why its version does not identify its behaviour, so that graphs are not cached; empty if it does.

        A version stated by the author does, and so does the source of a pass of this package. The hash of any other source
        misses helpers in other files, and globals.
        """
        is_versioned = self._version is not None or is_ours(self.fn)
        return "" if is_versioned else "which is not Eductor's and states no `version=`"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The options of the pass: the keyword-only parameters of its function."""
        found = inspect.signature(self.fn).parameters
        return {n: p for n, p in found.items() if p.kind is p.KEYWORD_ONLY and n != "context"}

    def configured(self, **options: Any) -> Pass:
        """The same pass with other options; they are literals, so that the text form of a pipeline can hold them."""
        for name, value in options.items():
            if name not in self.parameters:
                raise UnknownName(f"option of the pass {self.name}", name, self.parameters)
            if not _is_literal(value):
                raise BadPass(
                    f"pass {self.name!r}: the option {name}={value!r} is not a literal, such as 2, 'a' or [1, 2]."
                )
        return self._with(options={**self.options, **options})

    def placed(
        self, *, after: str | Iterable[str] = (), before: str | Iterable[str] = (), slot: str | None = None
    ) -> Pass:
        """The same pass with other constraints on its place in the order."""
        return self._with(after=words(after), before=words(before), slot=slot)

    def staged(self, *stages: Stage) -> Pass:
        """The same pass, in only these of its stages."""
        missing = next((s for s in stages if s not in self.stages), None)
        if missing:
            raise BadPass(f"the pass {self.name!r} is declared for {', '.join(self.stages)}, not for {missing}.")
        return self._with(stages=stages)

    def anywhere(self) -> Pass:
        """The same pass on any device, as its examples are on the CPU."""
        return self._with(contract=replace(self.contract, devices=()))

    def constraints(self, what: Literal["after", "before"], stage: Stage) -> list[str]:
        """The names that the pass must run after, or before, in a stage; `joint/name` applies to the joint stage only."""
        asked = self.after if what == "after" else self.before
        return [name for name in asked if name.rpartition("/")[0] in ("", stage)]

    def enters_bodies(self, stage: Stage) -> bool:
        """Whether it also runs on the bodies of higher-order operators, which are functional; inner ones first."""
        return stage != "pre_grad" and self.contract.enters_bodies and not self.contract.in_place

    def run(self, view: GraphView, rewriter: Rewriter, context: Context) -> None:
        """Calls the function with the graph and the rewriter, and with the context if it takes one."""
        _check_result(view, self.fn(view, rewriter, **self._wanted(context), **self.options))

    def _wanted(self, context: Context | None) -> dict[str, Any]:
        return {"context": context} if takes_context(self.fn) else {}

    def _with(self, **changed: Any) -> Pass:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changed)
        copy._check()
        return copy

    def example(
        self,
        fn: Callable[..., Any] | None = None,
        **setup: Unpack[Setup],
    ) -> Callable[..., Any]:
        """Declares a program that the pass changes; its inputs are the defaults of its parameters."""

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.examples.append(_example(self, fn, "", setup))
            return fn

        return declare if fn is None else declare(fn)

    def refuses(self, because: str, **setup: Unpack[Setup]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Declares a program that the pass must refuse, with (a part of) the reason that it gives."""
        if not isinstance(because, str) or not because.strip():
            raise BadPass(f"pass {self.name!r}: a refusal states its reason: @{self.name}.refuses('the reason').")

        def declare(fn: Callable[..., Any]) -> Callable[..., Any]:
            self.refusals.append(_example(self, fn, because, setup))
            return fn

        return declare

    def __repr__(self) -> str:
        return f"<pass {'|'.join(self.stages)}/{self.name}>"


class ForeignPass(Pass):
    """A pass that wraps a plain callable, which edits a `torch.fx.Graph` directly."""

    foreign = True

    def _check_function(self) -> None:
        if not callable(self.fn):
            raise BadPass(
                f"{self.fn!r} is not a pass: give a function of a torch.fx.Graph, or one declared with @graph_pass."
            )

    @property
    def purpose(self) -> str:
        return (inspect.getdoc(self.fn) or f"The custom pass {self.name}.").split("\n")[0]

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        return {}

    def enters_bodies(self, stage: Stage) -> bool:
        """Never: the function receives the graph, and may visit its bodies itself."""
        return False

    def run(self, view: GraphView, rewriter: Rewriter, context: Context) -> None:
        """Calls the function with the graph, and with `is_inference` if it takes it."""
        try:
            wants = "is_inference" in inspect.signature(self.fn).parameters
        except ValueError:  # a builtin
            wants = False
        _check_result(view, self.fn(view.graph, **({"is_inference": context.is_inference} if wants else {})))


def graph_pass(
    *,
    stage: Stage | Iterable[Stage],
    numerics: Numerics,
    devices: str | Iterable[str] = (),
    inference_only: bool = False,
    finite_only: bool = False,
    in_place: bool = False,
    restrides: bool = False,
    enters_bodies: bool = True,
    **declared: Any,
) -> Callable[[Callable[..., Any]], Pass]:
    """Turns a function of the graph and the rewriter into a pass; keyword-only parameters are its options."""
    contract = Contract(numerics, words(devices), inference_only, finite_only, in_place, restrides, enters_bodies)
    return lambda fn: Pass(fn, stages=words(stage), contract=contract, **declared)


def as_pass(given: Pass | Callable[..., Any]) -> Pass:
    """A pass unchanged; a plain callable as a pass of any stage, which is assumed to round differently."""
    if isinstance(given, Pass):
        return given
    name = name_of(given)
    return ForeignPass(
        given, stages=STAGES, contract=Contract("reassociates"), name=name if is_name(name) else "custom_pass"
    )


def describe_options(options: Mapping[str, Any]) -> str:
    """Options in the text form of a pipeline."""
    return f"({', '.join(f'{k}={v!r}' for k, v in options.items())})" if options else ""


# -------------------------------------------------------------------------------------------------------- declarations


@functools.lru_cache(maxsize=1 << 10)
def takes_context(fn: Callable[..., Any]) -> bool:
    return "context" in inspect.signature(fn).parameters


def _check_result(view: GraphView, result: Any) -> None:
    """Raises BadPass if a pass returns a graph or a generator, as return values are ignored."""
    if isinstance(result, (Graph, GraphModule, Generator, Coroutine)) and result not in (view.graph, view.module):
        raise BadPass(f"it returned a {type(result).__name__}, which is ignored: a pass edits the graph in place.")


def words(given: Any) -> tuple[Any, ...]:
    """One or several values as a tuple without duplicates."""
    return (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(dict.fromkeys(given))


def name_of(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def is_name(name: Any) -> bool:
    """Whether a value is a valid name of a pass or of a rule."""
    return isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


_VARIADIC = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def _example(pass_: Pass, fn: Callable[..., Any], because: str, setup: Setup) -> Example:
    program = inspect.unwrap(fn)  # `inspect.signature` of each example would take a tenth of loading the passes
    inputs: tuple[Any, ...] = program.__defaults__ or ()
    code = program.__code__
    is_plain = len(inputs) == code.co_argcount + code.co_kwonlyargcount and not code.co_flags & _VARIADIC
    if not is_plain or not all(isinstance(spec, TensorSpec) for spec in inputs):
        raise BadPass(
            f"pass {pass_.name!r}, example {name_of(fn)!r}: give each parameter a default such as f32(2, 3), its dtype "
            "and shape."
        )
    return Example(name_of(fn), fn, inputs, because, **setup)
