"""Every operator that torch tests, and random programs: what eager is seen to do, the effects allow for.

Sound is: a write, a draw, shared memory that eager shows are said. Nothing here asks that what is said also happens,
but that it does for what is surely a view, and that most operators are said to do nothing.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_bind_operators import DTYPES, OPERATORS, SAMPLES, copied, samples, targets
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from eductor.graph.effects.effect import Effect
from eductor.graph.effects.graph_effects import Effects
from eductor.graph.effects.node_effects import effect_of
from eductor.graph.reading.bind import Bound, bind_call
from operators.database import name_of

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

REFUSED = (RuntimeError, TypeError, IndexError, NotImplementedError, ValueError, AttributeError)


# ---------------------------------------------------------------------------------------------------- one call at a time


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def memory(value: Any) -> set[int]:
    """The storages on which tensors live; a sparse one lives on those of its parts."""
    found: set[int] = set()
    for t in tensors(value):
        parts = [t]
        if t.layout is torch.sparse_coo:
            parts = [t._indices(), t._values()]
        elif t.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = [t.crow_indices(), t.col_indices(), t.values()]
        elif t.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = [t.ccol_indices(), t.row_indices(), t.values()]
        found.update(p.untyped_storage()._cdata for p in parts if not p.is_mkldnn)
    return found


def looks(t: torch.Tensor) -> tuple[Any, ...]:
    """What a write would change: the version, the geometry, the contents."""
    if t.layout is not torch.strided or t.is_mkldnn:
        return (t._version,)
    contents = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    return t._version, t.shape, t.stride(), contents.detach().clone()


def is_unchanged(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    if before[:3] != after[:3]:
        return False
    return len(before) == 1 or bool(((before[3] == after[3]) | (before[3] != before[3])).all())


@dataclass
class Observed:
    """A call as a node of a graph, and what eager was seen to do in it."""

    node: Node
    effect: Effect
    result: Any
    written: list[Node]
    shared: list[Node]
    drew: bool

    def complaints(self) -> Iterator[str]:
        if self.effect.barrier:
            return
        listed = memory([n.meta["val"] for n in self.effect.shares])
        for n in self.written:
            if n not in self.effect.writes:
                yield f"writes {n.name}"
        for n in self.shared:
            if n not in self.effect.shares and not memory(n.meta["val"]) & listed:
                yield f"shares {n.name}"
        if self.effect.is_view and tensors(self.result):
            yield from (f"is no view of {n.name}" for n in self.effect.shares if n not in self.shared)
        if self.drew and not self.effect.random:
            yield "draws"


def observe(target: Any, args: Any, kwargs: Any, call: Callable[..., Any]) -> Observed | None:
    """Makes a call; None where eager refuses it, or where it cannot stand in a graph."""
    graph = Graph()
    inputs: list[Node] = []

    def as_input(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = value
        inputs.append(node)
        return node

    kind = "call_method" if isinstance(target, str) else "call_function"
    try:
        node = graph.create_node(kind, target, *tree_map(as_input, (tuple(args), dict(kwargs))))
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    before = {n: (looks(n.meta["val"]), memory(n.meta["val"])) for n in inputs}
    state = torch.get_rng_state()
    try:
        result = call(*args, **kwargs)
    except REFUSED:
        return None
    drew = not torch.equal(state, torch.get_rng_state())
    node.meta["val"] = result
    written = [n for n in inputs if not is_unchanged(before[n][0], looks(n.meta["val"]))]
    shared = [n for n in inputs if before[n][1] & memory(result)]
    return Observed(node, effect_of(node), result, written, shared, drew)


def method(name: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: getattr(self, name)(*args, **kwargs)


def spellings(op: Any) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """All targets by which the operator is called, with how eager calls them: also in place, and Python's operators."""
    for target in targets(op):
        yield target, method(target) if isinstance(target, str) else target
    inplace = op.get_inplace()
    name = getattr(inplace, "__name__", "")
    if inplace is not None and getattr(torch.Tensor, name, None) is inplace:
        yield name, method(name)
        yield inplace, inplace
    for python in (op.operator_variant, op.inplace_operator_variant):
        if python is not None:
            yield python, python


class Dispatched(TorchDispatchMode):
    """Observes the operators in terms of which a call is written, each a few times."""

    seen: Counter[Any] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Observed] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.seen[func] >= 10:
            return func(*args, **kwargs)
        self.seen[func] += 1
        observed = observe(func, args, kwargs, func)
        if observed is None:
            return func(*args, **kwargs)
        self.found.append(observed)
        return observed.result


def observations(op: Any, dtypes: tuple[torch.dtype, ...], count: int) -> Iterator[Observed]:
    for args, kwargs in samples(op, dtypes, count):
        for target, call in spellings(op):
            observed = observe(target, *copied((args, kwargs)), call)
            if observed is not None:
                yield observed
            bound = bind_call(target, args, kwargs)
            if isinstance(bound, Bound):
                observed = observe(bound.op, *copied(bound.call()), bound.op)
                if observed is not None:
                    yield observed
        inner = Dispatched()
        try:
            with inner:
                op.op(*copied(args), **copied(kwargs))
        except REFUSED:
            pass
        yield from inner.found


def check(op: Any, dtypes: tuple[torch.dtype, ...], count: int) -> None:
    for observed in observations(op, dtypes, count):
        complaints = list(observed.complaints())
        assert not complaints, f"{observed.node.target}: {', '.join(complaints)}"


@pytest.mark.parametrize("op", OPERATORS)
def test_effects_say_what_eager_does(op: Any) -> None:
    check(op, (torch.float32,), SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPERATORS)
def test_effects_say_what_eager_does_in_all_dtypes(op: Any) -> None:
    check(op, DTYPES, 100)


def test_most_operators_are_known_to_do_nothing() -> None:
    """Without this, calling everything a barrier would pass."""
    pure: set[str] = set()
    harmless: set[str] = set()
    for (op,) in (p.values for p in OPERATORS):
        seen = [
            observed
            for call in samples(op, (torch.float32,), 2)
            for target in targets(op)
            if (observed := observe(target, *copied(call), method(target) if isinstance(target, str) else target))
        ]
        if seen and not any(o.written or o.shared or o.drew for o in seen):
            harmless.add(name_of(op))
            if all(o.effect.removable and not o.effect.shares for o in seen):
                pure.add(name_of(op))
    assert len(harmless) > 560
    assert len(pure) > 440


# ------------------------------------------------------------------------------------------------------ random programs

SEEN: list[torch.Tensor] = []


def meddle(x: torch.Tensor) -> torch.Tensor:
    """The worst that an unknown callable does: it keeps what it sees, writes it later, and hands it out again."""
    for t in SEEN:
        t.add_(1)
    SEEN.append(x)
    return SEEN[0]


def call(target: Any, *args: Any) -> Callable[[Graph, Node, Node], Node]:
    """A step: one call, in which A and B stand for two values of the program so far."""
    kind = "call_method" if isinstance(target, str) else "call_function"

    def step(graph: Graph, a: Node, b: Node) -> Node:
        named = {"A": a, "B": b}
        return graph.create_node(kind, target, tree_map(lambda v: named.get(v, v) if isinstance(v, str) else v, args))

    return step


def chain(*steps: Callable[[Graph, Node, Node], Node]) -> Callable[[Graph, Node, Node], Node]:
    """Steps of which each works on the result of the one before."""

    def step(graph: Graph, a: Node, b: Node) -> Node:
        for s in steps:
            a = s(graph, a, b)
        return a

    return step


COMPUTING = [
    call("sin", "A"),
    call(operator.add, "A", "B"),
    call(torch.matmul, "A", "B"),
    call(operator.truediv, 1.0, "A"),
]
COPIES = [
    call("clone", "A"),
    call("contiguous", "A"),
    call("float", "A"),
    call("to", "A", torch.float32),
    call("reshape", "A", 3, 3),
    chain(call("reshape", "A", -1), call("view", "A", 3, 3)),
    chain(call("t", "A"), call("contiguous", "A")),
    call(F.dropout, "A", 0.5, False),
    call(F.pad, "A", (0, 0)),
    call(torch.cat, ["A"]),
]
VIEWS = [
    call("t", "A"),
    call("view_as", "A", "A"),
    call("expand_as", "A", "B"),
    call("detach", "A"),
    call(operator.getitem, "A", slice(None)),
    call(operator.getitem, "A", ...),
    call(torch.atleast_2d, "A"),
    chain(call(torch.chunk, "A", 1), call(operator.getitem, "A", 0)),
    chain(call(torch.broadcast_tensors, "A", "B"), call(operator.getitem, "A", 0)),
    chain(call(torch.ops.aten.unsafe_split.Tensor, "A", 3), call(operator.getitem, "A", 0)),
]
WRITING = [
    call("add_", "A", 1),
    call("mul_", "A", "B"),
    call("copy_", "A", "B"),
    call(operator.iadd, "A", "B"),
    call(F.relu, "A", True),
    call(torch._foreach_add_, ["A"], 1),
    chain(call("t", "A"), call("add_", "A", 1)),
    call(operator.setitem, "A", 0, 2.0),
]
RANDOM = [call("bernoulli", "A", 0.5), call(torch.rand_like, "A"), call(F.dropout, "A")]
OPAQUE = [call(meddle, "A")]
KINDS = [COMPUTING, COPIES, VIEWS, WRITING, RANDOM, OPAQUE]


def random_program(seed: int) -> GraphModule:
    rng = random.Random(seed)
    graph = Graph()
    values = [graph.placeholder("x"), graph.placeholder("y")]
    weights = [3, 5, 4, 3, 1, rng.choice([0, 0, 0.5])]
    for _ in range(rng.randint(4, 9)):
        step = rng.choice(rng.choices(KINDS, weights)[0])
        # Recent values more often than old ones: programs hang together.
        a, b = (values[-1 - min(int(rng.expovariate(0.5)), len(values) - 1)] for _ in range(2))
        node = step(graph, a, b)
        if node.target not in (operator.setitem, torch._foreach_add_):
            values.append(node)
    graph.output(tuple(rng.sample(values, rng.randint(1, min(3, len(values))))))
    return GraphModule(torch.nn.Module(), graph)


INPUTS: dict[str, Callable[[], tuple[torch.Tensor, torch.Tensor]]] = {
    "distinct": lambda: (torch.linspace(-1, 1, 9).view(3, 3), torch.linspace(0, 1, 9).view(3, 3)),
    "same": lambda: (x := torch.linspace(-1, 1, 9).view(3, 3), x.view(3, 3)),
    "transposed": lambda: (x := torch.linspace(-1, 1, 9).view(3, 3), x.t()),
}


class Recorder(Interpreter):
    """Runs a program and keeps all its values, and what they were before anybody wrote them."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.snapshots: dict[Node, torch.Tensor] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            self.snapshots[n] = copied(value)
        return value

    def observe(self, inputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
        """All that a caller can see of a run: values, geometry, who shares memory with whom, the next random number."""
        SEEN.clear()
        torch.manual_seed(0)
        outputs = self.run(*inputs)
        seen = [*inputs, *outputs]
        storages = [t.untyped_storage()._cdata for t in seen]
        return (
            [t.tolist() for t in seen],
            [(t.shape, t.stride(), t.storage_offset()) for t in seen],
            [[a == b for a in storages] for b in storages],
            [[a is b for a in seen] for b in seen],
            torch.rand(1).item(),
        )


def observable(module: GraphModule, kind: str) -> str:
    return repr(Recorder(module).observe(INPUTS[kind]()))


@dataclass
class Case:
    """A program with the values it has on one kind of inputs, what a caller sees of it, and its effects."""

    seed: int
    kind: str
    module: GraphModule
    effects: Effects
    values: dict[Node, Any]
    snapshots: dict[Node, torch.Tensor]
    wanted: str

    def check(self, changed: GraphModule, what: str) -> None:
        same = observable(changed, self.kind) == self.wanted
        assert same, f"program {self.seed} on {self.kind} inputs: {what}\n{self.module.graph}"


def cases(count: int) -> Iterator[Case]:
    """Random programs on each kind of inputs; on distinct ones also with the promise that they are."""
    for seed, kind in itertools.product(range(count), INPUTS):
        module = random_program(seed)
        recorder = Recorder(module)
        try:
            wanted = repr(recorder.observe(INPUTS[kind]()))
        except RuntimeError:
            continue  # eager refuses to write what overlaps
        values = dict(recorder.env)
        for node, value in values.items():
            node.meta["val"] = value
        for distinct in (False, True) if kind == "distinct" else (False,):
            yield Case(
                seed, kind, module, Effects(module.graph, inputs_distinct=distinct), values, recorder.snapshots, wanted
            )


def copy_of(module: GraphModule) -> tuple[GraphModule, dict[Node, Node]]:
    graph = Graph()
    known: dict[Node, Node] = {}
    for node in module.graph.nodes:
        known[node] = graph.node_copy(node, known.__getitem__)
    return GraphModule(torch.nn.Module(), graph), known


def check_moves(count: int) -> Counter[bool]:
    answers: Counter[bool] = Counter()
    for case in cases(count):
        pairs = [(n, b) for n, b in itertools.permutations(case.module.graph.nodes, 2) if n.next is not b]
        for node, before in random.Random(case.seed).sample(pairs, min(25, len(pairs))):
            verdict = case.effects.may_move(node, before)
            answers[bool(verdict)] += 1
            if verdict:
                moved, known = copy_of(case.module)
                known[before].prepend(known[node])
                moved.graph.lint()
                case.check(moved, f"{node} before {before}")
    return answers


def check_aliases(count: int) -> Counter[bool]:
    answers: Counter[bool] = Counter()
    for case in cases(count):
        for old in case.module.graph.nodes:
            for new in _equals(case, old):
                verdict = case.effects.may_alias(old, new)
                answers[bool(verdict)] += 1
                if verdict:
                    changed, known = copy_of(case.module)
                    known[old].replace_all_uses_with(known[new])
                    changed.graph.erase_node(known[old])
                    case.check(changed, f"{new} for {old}")
    return answers


def _equals(case: Case, old: Node) -> Iterator[Node]:
    """Earlier values that equal a node where it stands, strides included: as copy, as view, computed twice, by chance."""
    mine = case.snapshots.get(old)
    if mine is None or not effect_of(old).removable:
        return
    for new in itertools.takewhile(lambda n: n is not old, case.module.graph.nodes):
        theirs = case.snapshots.get(new)
        if theirs is not None and theirs.stride() == mine.stride() and torch.equal(theirs, mine):
            if not _is_written_between(new, old):
                yield new


def _is_written_between(new: Node, old: Node) -> bool:
    """Whether the program writes anything at all from one node to the other, so that they may be unequal."""
    node = new.next
    while node is not old:
        effect = effect_of(node)
        if effect.writes or effect.barrier:
            return True
        node = node.next
    return False


def test_what_may_move_may_be_moved() -> None:
    answers = check_moves(100)
    assert answers[True] > 0.1 * answers.total()


def test_what_may_alias_may_be_replaced() -> None:
    answers = check_aliases(100)
    assert answers[True] > 0.1 * answers.total()


@pytest.mark.slow
def test_what_may_move_and_alias_on_many_programs() -> None:
    check_moves(500)
    check_aliases(1000)


def test_values_that_share_memory_share_a_place() -> None:
    for case in cases(200):
        effects = case.effects
        where = {n: memory(v) for n, v in case.values.items() if tensors(v) and n.op != "output"}
        for a, b in itertools.combinations(where, 2):
            if where[a] & where[b]:
                assert effects.place(a) is effects.place(b), f"{case.seed}: {a} and {b}\n{case.module.graph}"
        held = memory([v for n, v in case.values.items() if n.op in ("placeholder", "output")])
        for n in where:
            assert effects.escapes(n) or not where[n] & held, f"{case.seed}: {n} escapes\n{case.module.graph}"


def test_what_is_removable_may_be_removed() -> None:
    removed = 0
    for case in cases(100):
        shorter, _ = copy_of(case.module)
        for node in reversed(shorter.graph.nodes):
            if node.op.startswith("call") and not node.users and effect_of(node).removable:
                shorter.graph.erase_node(node)
                removed += 1
        case.check(shorter, "without what nobody uses")
    assert removed > 100
