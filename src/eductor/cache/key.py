"""The cache key: all that the result of a compile depends on, as text. Equal keys give equal graphs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from eductor import compat
from eductor.autograd.captured import Captured, Fakes
from eductor.cache.graphs import belongs_to_torch
from eductor.cache.values import NotKept, Symbols, constant_to_data
from eductor.compat import ShapeEnv
from eductor.cost import device_of
from eductor.engines import Engine
from eductor.errors import Unsupported
from eductor.graph.text.printer import path_of, to_function, type_of
from eductor.graph.text.structure import structural_hash
from eductor.graph.text.symbolic_sizes import spell_size
from eductor.graph.values.meta import hint_of
from eductor.graph.values.module_tensors import attribute_at
from eductor.ops.versions import stated_versions
from eductor.options import SLOT_OPTIONS, Options
from eductor.pipeline.pipeline import Pipeline
from eductor.pipeline.versions import is_ours, spelled, unwrapped
from eductor.version import HOME, __version__

_ELSEWHERE = (
    "cache",
    "instruments",
    "launches",  # its price is part of the device
    "launches_memory",
    "progress",
    "repro_dir",
    "strict",
    "engine",
    "decompositions",
    "pipeline",
    "passes",
    "enable",
    "disable",
    *SLOT_OPTIONS,
)
"""Options that change no graph, or that the keys of the pipeline and the engine cover."""


@dataclass(frozen=True, slots=True)
class Question:
    """A lookup of a compile in the cache: its key, and its inputs as fake tensors."""

    key: str
    fakes: Fakes
    symbols: Symbols
    assumed: int
    """How many guards on sizes there were before."""

    @staticmethod
    def of(
        module: GraphModule, inputs: Sequence[Any], options: Options, pipeline: Pipeline, engine: Engine
    ) -> Question:
        """Raises `NotKept` for a graph that text cannot fully describe, and for passes and tables without a version."""
        # Graphs are cached as they are before the stage lower.
        pipeline = Pipeline(tuple(s for s in pipeline.steps if s.stage != "lower"))
        _check_passes(pipeline)
        captured = Captured(module)
        given = [*captured.held, *inputs]
        try:
            fakes = Fakes.of(given, captured.sources())
        except Unsupported as construct:
            raise NotKept(str(construct)) from None
        symbols, env = Symbols.of(fakes.values), fakes.mode.shape_env
        facts = {
            "versions": [*_versions(), pipeline.cache_key()],
            "machine": [platform.machine(), torch.backends.cpu.get_cpu_capability(), *_devices(given, options)],
            "torch": compat.global_state(),
            "options": _options(options),
            "engine": _engine(engine, options),
            "operators": stated_versions(),
            "graph": list(_graph(module)),
            "inputs": [_input(x, fake, symbols) for x, fake in zip(given, fakes.values, strict=True)],
            "static": sorted(captured.static_inputs()),
            "sizes": _sizes(env, symbols),
        }
        return Question(json.dumps(facts), fakes, symbols, len(env.guards) if env is not None else 0)

    def of_backward(self, whole: GraphModule, defined: Sequence[bool]) -> str:
        """The key of a backward that takes only these tangents. It includes the whole one, whose saved values it takes."""
        return f"{self.key} {structural_hash(whole.graph)} cut to {list(defined)}"

    def guards(self) -> tuple[Any, ...]:
        """The guards on sizes that the compile added."""
        env = self.fakes.mode.shape_env
        if env is None:
            return ()
        if env.deferred_runtime_asserts:
            raise NotKept("a check of sizes while it runs")
        return tuple(guard.expr for guard in env.guards[self.assumed :])


@functools.cache
def _versions() -> tuple[str, ...]:
    """The versions of Python, torch and Eductor, with a hash of Eductor's whole source."""
    torchs = torch.__version__, str(torch.version.git_version)
    return platform.python_version(), *torchs, __version__, _source()


def is_source_unchanged() -> bool:
    """Whether Eductor's files are still those of the keys: a pass is imported when it first runs."""
    return _versions()[-1] == _source()


def _source() -> str:
    digest = hashlib.sha256()
    for path in sorted(HOME.rglob("*.py")):
        digest.update(str(path.relative_to(HOME)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _check_passes(pipeline: Pipeline) -> None:
    """Raises `NotKept` for passes of other packages that have no version, as they may depend on anything.

    Before autograd a version is not enough: a warm start computes gradients of gradients from the captured graph without
    running those passes, so they must not change what it computes.
    """
    for step in pipeline.steps:
        if step.is_slot or step.is_as_shipped:
            continue
        pass_ = step.load()
        if pass_.unversioned:
            raise NotKept(f"the pass {step.address}, {pass_.unversioned}")
        if step.stage == "pre_grad" and (not is_ours(pass_.fn) or pass_.contract.numerics == "changes"):
            raise NotKept(f"the pass {step.address}, which may change what the captured graph computes")


def _devices(values: Sequence[Any], options: Options) -> Iterator[str]:
    devices = sorted({str(x.device) for x in values if isinstance(x, torch.Tensor)} | {"cpu"})
    for name in devices:
        yield f"{name}: {spelled(device_of(torch.device(name), options))}"
        if name.startswith("cuda"):
            yield str(torch.cuda.get_device_capability(name))


def _options(options: Options) -> dict[str, str]:
    fields = [f.name for f in dataclasses.fields(options) if f.name not in _ELSEWHERE]
    return {name: spelled(getattr(options, name)) for name in fields}


def _engine(engine: Engine, options: Options) -> list[str]:
    given: Mapping[Any, Any] | None = options.decompositions
    if given is None:
        if not is_ours(engine.decompositions):
            raise NotKept(f"the decompositions of the engine {engine.name}, which are not Eductor's")
        table = spelled(engine.decompositions)
    else:
        foreign = next((op for op, fn in given.items() if not (is_ours(fn) or belongs_to_torch(unwrapped(fn)))), None)
        if foreign is not None:
            raise NotKept(f"a decomposition of {foreign}, which is not torch's")
        table = " ".join(sorted(f"{path_of(op)} {_named(fn)}" for op, fn in given.items()))
    facts = (engine.fuses, engine.seeded_random, engine.takes_numbers)
    return [engine.name, table, str(facts), engine.state()]


def _named(fn: Any) -> str:
    if isinstance(fn, functools.partial):
        return f"{_named(fn.func)} {fn.args} {fn.keywords}"
    return f"{fn.__module__}.{fn.__qualname__}"


def _graph(module: GraphModule) -> Iterator[str]:
    """The text of a captured graph and its subgraphs, with the contents of constants."""
    text = to_function(module.graph)
    if "unprintable(" in text:
        raise NotKept("an argument or a function that has no text")
    yield text
    for node in module.graph.nodes:
        if node.op == "call_module" or (node.op == "call_function" and not belongs_to_torch(node.target)):
            raise NotKept(f"a call of {node.target}")
        if node.op == "get_attr":
            yield from _attribute(module, node)


def _attribute(module: GraphModule, node: Node) -> Iterator[str]:
    value = attribute_at(module, str(node.target))
    yield str(node.target)
    if isinstance(value, GraphModule):
        if compat.has_checkpoint_policy(value):
            raise NotKept("a checkpointed region with its own policy")
        yield from _graph(value)
    elif isinstance(value, torch.nn.Parameter):
        yield type_of(value)
    elif isinstance(value, torch.Tensor):
        yield json.dumps(constant_to_data(value))
    else:
        raise NotKept(f"the attribute {node.target} of a graph")


def _input(value: Any, fake: Any, symbols: Symbols) -> list[Any]:
    if not isinstance(value, torch.Tensor):
        return [type(value).__name__, spell_size(fake, symbols.names)]
    flags = (
        isinstance(value, torch.nn.Parameter),
        value.is_leaf,
        value._is_view(),
        value.is_inference(),
        value.is_conj(),
        value.is_neg(),
        compat.made_without_grad_mode(value),
    )
    return [type_of(fake, symbols.names), *map(int, flags)]


def _sizes(env: ShapeEnv | None, symbols: Symbols) -> list[str]:
    """The ranges, guards and hints of symbolic sizes; costs depend on the hints."""
    if env is None:
        return []
    ranges = [
        f"{name}: {hint_of(size)} of {env.var_to_range.get(size.node.expr)}" for name, size in symbols.known.items()
    ]
    return [*ranges, *(spell_size(guard.expr, symbols.names) for guard in env.guards)]
