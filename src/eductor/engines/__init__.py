"""Engines compile final graphs: an engine takes a `Job` and returns a function of a list of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any

from eductor.engines.aten import aten, calls
from eductor.engines.inductor import engine as inductor  # which imports torch's code generator when it is used
from eductor.errors import BadOption, EductorError, UnknownName
from eductor.graph.decomposition_tables import add_table
from eductor.graph.values.meta import output_of
from eductor.options import Options
from eductor.passes import lower
from eductor.pipeline import Pass, Row
from eductor.program.job import Compiled as Compiled
from eductor.program.job import Job as Job
from eductor.program.job import Kernel as Kernel
from eductor.program.job import Run as Run

WarmedUp = Callable[[Sequence[Any], bool], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Engine:
    """A compiler of final graphs: a function of a job, with the decompositions that its graphs are traced with."""

    name: str
    compile: Callable[[Job], Compiled | Run]
    decompositions: Callable[[Options], Mapping[Any, Any]] = lambda options: {}
    modes: tuple[str, ...] = ("default",)
    fuses: bool = False
    """Whether it fuses pointwise operators into the kernels that read them; the cost model depends on it."""
    seeded_random: bool = False
    """Whether it fuses seeded random operators; otherwise random numbers are drawn as in eager."""
    state: Callable[[], str] = lambda: ""
    """Text that changes with everything besides the options that its decompositions depend on."""
    takes_numbers: bool = True
    """Whether it runs graphs that read Python floats from tensors; if not, these become tensors or constants."""
    lower: Sequence[Row | Pass | str] = ()
    """The passes that prepare its graphs, in order: rows, passes, or names of built-in ones. They run on a copy of each
    graph, which it may edit."""
    load: Callable[[], None] = lambda: None
    """Imports what its compiles need: `eductor.compile` calls it, so that the first call of the function need not."""
    warmed_up: WarmedUp = lambda inputs, is_cached: nullcontext()
    """A context around the compile of a captured graph, entered before its passes: it starts what the engine will wait for.
    It gets the graph's inputs, and whether the final graphs are on disk, so that no pass runs."""

    def __call__(self, job: Job) -> Compiled:
        made = self.compile(job)
        if not isinstance(made, Compiled) and not callable(made):
            raise TypeError(f"it returned {made!r}, not a function of a list of inputs")
        compiled = made if isinstance(made, Compiled) else Compiled(made)
        is_own = any(self is engine for engine in BUILT_IN.values())
        return compiled if is_own else replace(compiled, run=self._counted(compiled.run, job))

    def _counted(self, run: Run, job: Job) -> Run:
        """Raises if a call returns another number of outputs than the graph has."""
        graph, count = "backward graph" if job.is_backward else "forward graph", len(output_of(job.module))

        def call(inputs: list[Any]) -> Sequence[Any]:
            outputs = run(inputs)
            if not isinstance(outputs, (list, tuple)) or len(outputs) != count:
                given = (
                    f"{len(outputs)} values" if isinstance(outputs, (list, tuple)) else f"a {type(outputs).__name__}"
                )
                raise EductorError(
                    f"the engine {self.name!r} returned {given} for a {graph} with {count} outputs. Its function must return "
                    "a list or a tuple with one value for each output of the job's graph, in order."
                )
            return outputs

        return call


def _aten(job: Job) -> Compiled:
    return Compiled(aten(job.module), counts_writes=True, kernels=calls(job.module) if job.wants_kernels else ())


ATEN = Engine("aten", _aten)
"""The engine that calls ATen's operators one by one."""
INDUCTOR = Engine(
    "inductor",
    inductor.compile,
    lambda options: inductor.decompositions(fallback_random=options.fallback_random),
    ("default", "reduce-overhead"),
    fuses=True,
    seeded_random=True,
    state=inductor.settings,
    takes_numbers=False,
    lower=lower.ORDER,
    load=inductor.load,
    warmed_up=inductor.warmed_up,
)
"""The engine that compiles with torch's code generator."""
add_table(lambda fallback_random: INDUCTOR.decompositions(Options(fallback_random=fallback_random)))
BUILT_IN = {"aten": ATEN, "inductor": INDUCTOR}
GROUP = "eductor.engines"
"""The group of entry points through which packages provide engines."""


def has_code_generator() -> bool:
    """Whether Inductor can compile here."""
    return inductor.can_compile()


def choose_engine(options: Options) -> Engine:
    """The engine that the options name, or the best available one."""
    chosen = options.engine
    if chosen is None:
        chosen = "inductor" if options.profile == "fast" and has_code_generator() else "aten"
    found = find_engine(chosen)
    if options.mode not in found.modes:
        raise BadOption(f"mode={options.mode!r}: the engine {found.name!r} has {', '.join(found.modes)}.")
    if options.profile == "exact" and found is INDUCTOR:
        raise BadOption(
            "option engine='inductor' with profile='exact': its kernels round differently from eager's. "
            "Use the engine 'aten', or the profile 'fast'."
        )
    return found


def find_engine(engine: str | Callable[..., Any] | Engine) -> Engine:
    """An engine by its name, built in or from a package; a function is an engine without decompositions."""
    if isinstance(engine, Engine):
        return engine
    if not isinstance(engine, str):
        return Engine(getattr(engine, "__name__", type(engine).__name__), engine)
    if engine in BUILT_IN:
        return BUILT_IN[engine]
    provided = {point.name: point for point in entry_points(group=GROUP)}
    if engine not in provided:
        raise UnknownName("engine", engine, [*BUILT_IN, *provided])
    found = provided[engine].load()
    if not isinstance(found, Engine) and not callable(found):
        raise BadOption(
            f"the engine {engine!r} is {found!r}: an entry point of {GROUP} must name a function or an Engine."
        )
    return found if isinstance(found, Engine) else Engine(engine, found)
