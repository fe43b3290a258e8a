"""Every option of a compile: its type, its default, and one line of why."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from eductor.errors import BadOption, UnknownName

Profile = Literal["fast", "exact"]
Verify = Literal["each"]
Solver = Literal["cuts", "greedy", "integer"]
Policy = Literal["priced", "compat"]
Launches = Literal["auto", "always", "never"]
BanName = Literal[
    "not_in_allowlist",
    "compute_heavy",
    "materialized_backward",
    "reductions",
    "used_far_apart",
    "long_fusible_chains",
]
Passes = Sequence[Any]
"""Of `Pass`, or of functions of a graph. The rooms that know these types check them: `Pipeline.of`, `plans_of`."""


def _why(text: str, default: Any) -> Any:
    return field(default=default, metadata={"why": text})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one compile. They hold for that compile alone."""

    profile: Profile = _why(
        "`fast` allows different rounding and different random draws; `exact` is bitwise equal to eager", "fast"
    )
    engine: str | Callable[..., Any] | None = _why(
        "what compiles graphs: a name or a function; default: inductor where it can compile, else aten", None
    )
    mode: str = _why("what the engine optimizes for; `reduce-overhead` is `launches='always'`", "default")
    launches: Launches = _why(
        "whether a GPU replays the launches of a graph as one, with CUDA graphs: `auto`, where measured calls say that it "
        "pays; `always`, where it is possible; `never`",
        "auto",
    )
    launches_memory: float = _why(
        "how much more memory a program may take for replayed launches, as a part of its peak without them", 0.05
    )
    decompositions: Mapping[Any, Any] | None = _why("decompositions used in the trace; default: the engine's", None)
    memory_budget: float | Mapping[str, float] = _why(
        "what may be saved for the backward: from 0 (inputs only) to 1 (no limit), or bytes, at least 1024; for all of "
        "the model, or a dictionary of modules",
        1,
    )
    budget_solver: Solver = _why(
        "how a budget is used: `cuts`, the nearest cheaper cut; `greedy`, filled up; `integer`, the best (with SciPy)",
        "greedy",
    )
    recompute: bool = _why(
        "recompute in the backward what is cheaper than saving; writes through `.data` until then are not seen",
        True,
    )
    partition_policy: Policy = _why(
        "what is saved: `priced`, as `recompute` and the budget say; `compat`, what torch's partitioner would, to compare",
        "priced",
    )
    bans: Sequence[BanName] = _why(
        "what `compat` does not recompute, by the names in its table of bans", get_args(BanName)
    )
    aggressive_recomputation: bool = _why("of the bans of `compat`, keep `compute_heavy` and `reductions` only", False)
    plans: Sequence[Any] = _why(
        "what to save and what to recompute, as plans of earlier compiles: each graph takes the one that fits",
        (),
    )
    double_backward: bool = _why("keep inputs until the backward, so that gradients can be differentiated", True)
    pipeline: Any = _why("the passes to run, as a value or as text; default: all that are on", None)
    passes: Passes = _why("your own passes, placed by their `after=` and `before=`", ())
    enable: Sequence[str] = _why("names of passes to switch on that are off by default", ())
    disable: Sequence[str] = _why("names of passes to switch off", ())
    pre_grad_custom_pass: Passes = _why("your passes for the slot at the end of the pre-grad stage", ())
    joint_custom_pre_pass: Passes = _why("your passes for the slots before and after remove_noop_ops", ())
    joint_custom_post_pass: Passes = _why("your passes for the slot at the end of the joint stage", ())
    post_grad_custom_pre_pass: Passes = _why("your passes for the slot at the start of the post-grad stage", ())
    post_grad_custom_post_pass: Passes = _why("your passes for the slot at the end of the post-grad stage", ())
    lower_custom_pass: Passes = _why("your passes for the slot at the start of the lower stage", ())
    fallback_random: bool = _why("draw random numbers as eager does, in program order", False)
    round_intermediates: bool = _why(
        "round each result in half precision, as eager does, where a kernel would go on in float32", False
    )
    pack_weights: bool = _why(
        "compute what depends on parameters alone once in inference, and again after a write to them", True
    )
    regions: bool | None = _why(
        "compile repeated layers once: by default where that costs no run time; True: all that repeats; False: none",
        None,
    )
    cache: bool = _why("cache the final graphs on disk: a later process that compiles the same runs no pass", True)
    strict: bool = _why(
        "raise an error instead of a warning if a pass or an engine fails or a construct is not supported", False
    )
    verify: Verify | None = _why(
        "`each` checks every pass against its contract, by running the graph before and after it", None
    )
    debug: bool = _why("check after each pass that the graph is legal for its stage", False)
    progress: bool = _why(
        "on a terminal, say what a compile of more than two seconds is doing; name its stages in the log", True
    )
    instruments: Sequence[Any] = _why("observers of the passes: timing, recording, your own", ())
    repro_dir: str | os.PathLike[str] | None = _why(
        "where reproducers of failing passes are written; default: a temporary folder", None
    )

    def __post_init__(self) -> None:
        for name, kind in _CHOICES.items():
            if getattr(self, name) not in get_args(kind):
                raise BadOption(
                    f"option {name}={getattr(self, name)!r}: it must be one of {', '.join(get_args(kind))}."
                )
        if self.verify not in (None, *get_args(Verify)):
            raise BadOption(f"option verify={self.verify!r}: it must be 'each', or None.")
        for name in (f.name for f in dataclasses.fields(self) if isinstance(f.default, bool)):
            if not isinstance(getattr(self, name), bool):
                raise BadOption(f"option {name}={getattr(self, name)!r}: it must be True or False.")
        if self.regions not in (None, True, False):
            raise BadOption(f"option regions={self.regions!r}: it must be True, False or None.")
        if isinstance(self.launches_memory, bool) or not self.launches_memory >= 0:
            raise BadOption(f"option launches_memory={self.launches_memory!r}: it must be a number, 0 or more.")
        if not _is_budget(self.memory_budget):
            raise BadOption(
                f"option memory_budget={self.memory_budget!r}: it must be a number from 0 (save inputs only) to 1 (save "
                "what is fastest), or a whole number of bytes above 1, at least 1024: for 2 GiB, 2 * 1024**3; or a "
                "dictionary of such numbers by the names of modules, as in {'layers.*': 0.5}."
            )
        self._check_policy()
        for name in ("enable", "disable"):
            object.__setattr__(self, name, _names(name, getattr(self, name), "passes"))
        for name in ("plans", "passes", "instruments", *SLOT_OPTIONS):
            object.__setattr__(self, name, _several(getattr(self, name)))
        if not isinstance(self.engine, (str, type(None))) and not callable(self.engine):
            raise BadOption(f"option engine={self.engine!r}: it must be the name of an engine or a function.")
        if not isinstance(self.decompositions, (Mapping, type(None))):
            raise BadOption(f"option decompositions={self.decompositions!r}: it must map operators to functions.")
        if not isinstance(self.repro_dir, (str, os.PathLike, type(None))):
            raise BadOption(f"option repro_dir={self.repro_dir!r}: it must be the path of a folder.")

    def _check_policy(self) -> None:
        policy, budget = self.partition_policy, self.memory_budget
        object.__setattr__(self, "bans", _names("bans", self.bans, "bans"))
        for name in self.bans:
            if name not in get_args(BanName):
                raise UnknownName("ban", name, get_args(BanName))
        if policy == "compat" and budget != 1:
            raise BadOption(
                f"option memory_budget={budget!r} with partition_policy='compat': where recomputing is free or banned, "
                "less memory needs fewer bans. Leave some out of bans, or use partition_policy='priced'."
            )
        if policy != "compat" and (self.aggressive_recomputation or self.bans != get_args(BanName)):
            raise BadOption(
                f"options bans={self.bans!r}, aggressive_recomputation={self.aggressive_recomputation!r}: they apply to "
                "partition_policy='compat', but this is partition_policy='priced'."
            )

    @property
    def always_replays(self) -> bool:
        """Whether launches are replayed wherever it is possible."""
        return self.launches == "always" or (self.mode == "reduce-overhead" and self.launches == "auto")

    @classmethod
    def of(cls, given: Mapping[str, Any] | Options | None) -> Options:
        """Options from a dictionary, as `torch.compile(..., options=...)` takes it."""
        if isinstance(given, Options):
            return given
        if not isinstance(given, (Mapping, type(None))):
            raise BadOption(f"options={given!r}: they must be a dictionary from the names of options to values.")
        known = {f.name for f in dataclasses.fields(cls)}
        for name in given or {}:
            if name not in known:
                raise UnknownName("option", name, known)
        return cls(**(given or {}))


_CHOICES = {"profile": Profile, "budget_solver": Solver, "partition_policy": Policy, "launches": Launches}


def _is_budget(given: Any) -> bool:
    """Whether this is a memory budget: a fraction, a number of bytes, or a dictionary of these by module."""
    if isinstance(given, Mapping):
        return all(isinstance(name, str) and not isinstance(b, Mapping) and _is_budget(b) for name, b in given.items())
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        return False
    return 0 <= given <= 1 or (isinstance(given, int) and given >= 1024)  # a small number is meant in another unit


SLOT_OPTIONS = (
    "pre_grad_custom_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
    "lower_custom_pass",
)


def _names(option: str, given: Any, of: str) -> tuple[str, ...]:
    """Names from an iterable or from one string with commas."""
    names = given.split(",") if isinstance(given, str) else _several(given)
    if not all(isinstance(n, str) for n in names):
        raise BadOption(f"option {option}={given!r}: it must be names of {of}.")
    return tuple(n.strip() for n in names if n.strip())


def _several(given: Any) -> tuple[Any, ...]:
    """A value or an iterable of values as a tuple; None is empty."""
    if given is None:
        return ()
    alone = callable(given) or isinstance(given, str) or not isinstance(given, Iterable)
    return (given,) if alone else tuple(given)
