"""A match: the nodes that a pattern was found in and the values of its names; or what was missing."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.fx import Graph, Node

from eductor.compat import sort_key
from eductor.errors import BadPattern
from eductor.graph import No, known_equal, tensor_of
from eductor.graph.values.meta import nodes_in
from eductor.patterns.compile.forms import Call, PatternForm
from eductor.patterns.compile.program import MatchProgram, compiled, is_shared
from eductor.patterns.compile.steps import Slots
from eductor.patterns.language.pattern import ANY, Op, Var, spelled
from eductor.patterns.match.call_reading import Reading
from eductor.patterns.match.constants import evaluated, name_of, nearly, plain, same_constant, shown
from eductor.patterns.match.node_readings import Readings


@dataclass(eq=False, slots=True)
class Match:
    """A pattern found in a graph."""

    form: PatternForm
    anchor: Node
    nodes: tuple[Node, ...]
    """All nodes of the match, in the order of the graph."""
    outputs: tuple[Node | None, ...]
    bindings: dict[str, Any]
    """What each name stands for: a node, a constant, or a list of them for names inside of repetitions."""
    by_call: dict[int, Node] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        if name not in self.bindings:
            raise BadPattern(f"the pattern has no name {name!r}: it has {', '.join(self.bindings) or 'none'}.")
        return self.bindings[name]

    def node_of(self, expression: Op) -> Node:
        """The node that an expression of the pattern was found in."""
        return self.by_call[id(expression)]

    @property
    def output(self) -> Node:
        """The only result, or the first one."""
        return next(o for o in self.outputs if o is not None)

    @property
    def graph(self) -> Graph:
        return self.output.graph

    def named(self) -> set[Node]:
        """The nodes that names stand for."""
        return set(nodes_in(list(self.bindings.values())))

    def fake(self, name: str) -> Any:
        """The fake value of what a name stands for."""
        return plain(self[name])

    def __str__(self) -> str:
        return f"a match of {len(self.nodes)} nodes at {self.output.name}"


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def completed(program: MatchProgram, slots: Slots, readings: Readings, anchor: Node) -> Match | No:
    """The match that a solution is, once everything holds that concerns it as a whole."""
    found = _Found(program, slots, readings)
    if not (holds := found.holds()):
        return holds
    nodes = tuple(sorted(found.nodes, key=sort_key))
    return Match(program.form, anchor, nodes, found.outputs, found.bindings, found.by_call)


class _Found:
    """A solution of a program, with all its repetitions, being checked as a whole."""

    def __init__(self, program: MatchProgram, slots: Slots, readings: Readings) -> None:
        self.program = program
        self.slots = slots
        self.readings = readings
        self.parts: list[tuple[MatchProgram, Slots]] = list(_solutions_in(program, slots))
        self.bindings: dict[str, Any] = {}
        self.by_call: dict[int, Node] = {}
        self.outputs: tuple[Node | None, ...] = ()
        self.nodes: dict[Node, None] = {}

    def holds(self) -> Literal[True] | No:
        """Whether everything holds that concerns the match as a whole."""
        self.bindings = _bindings(self.program, self.slots)
        repetitions = self._repetitions()
        if not repetitions:
            return repetitions
        for program, slots in self.parts:
            for call, slot in program.calls.items():
                reading: Reading = slots[slot]
                self.by_call.setdefault(id(call.said), reading.node)
                self.nodes.update(dict.fromkeys((reading.node, *reading.through)))
        self.outputs = tuple(self._outputs())
        return self._names() and self._computed() and self._users() and self._results()

    def _repetitions(self) -> Literal[True] | No:
        """All calls of the repeated form on what they share; a user of it that has another form is a miss."""
        if not self.program.form.repeated:
            return True
        form = self.program.form
        for shared, slot in list(self.program.calls.items()):
            touching = next((c for c in form.calls if shared in c.places.values()), None)
            if not is_shared(shared) or touching is None:
                continue
            node = self.slots[slot].node
            program = compiled(form, touching)
            self.parts, self.bindings = [], {}
            for user in node.users:
                one = self._once(program, user, shared, node)
                if one is None:
                    return No(f"{user.name} uses {node.name}, too, but not as {spelled(touching.said)}", user)
                self.parts.extend(_solutions_in(program, one))
                _extend(self.bindings, _bindings(program, one))
            return True
        return No("nothing in the pattern is shared by the repetitions: give what they share users=ANY")

    def _once(self, program: MatchProgram, user: Node, shared: Call, node: Node) -> Slots | None:
        for start in program.starts(self.readings, user):
            for slots in program.solutions(self.readings, start):
                if slots[program.calls[shared]].node is node:
                    return slots
        return None

    def _outputs(self) -> Iterator[Node | None]:
        for output in self.program.form.outputs:
            if isinstance(output, Call) and output in self.program.form.repeated:
                for program, slots in self.parts:
                    if output in program.calls:
                        yield slots[program.calls[output]].node
            elif isinstance(output, Call):
                yield self.slots[self.program.calls[output]].node
            else:
                yield self.bindings.get(output.name) if isinstance(output, Var) else None

    def _names(self) -> Literal[True] | No:
        if not any(program.conditions for program, _ in self.parts):
            return True
        exclusive: dict[Any, str] = {}
        for program, slots in self.parts:  # each element of a list, and each repetition, by itself
            if not (holds := _conditions(program, slots, _bindings(program, slots), exclusive)):
                return holds
        return True

    def _computed(self) -> Literal[True] | No:
        values: dict[str, Any] = {}  # the same few sizes stand in many places
        for program, slots in self.parts:
            for slot, holder, place, wanted in program.computed:
                got = plain(slots[slot])
                if wanted.expression not in values:
                    values[wanted.expression] = evaluated(wanted.expression, self.bindings)
                expected = values[wanted.expression]
                if wanted.inverted and isinstance(expected, _NUMBERS) and not known_equal(expected, 0):
                    expected = 1 / expected
                if not (same_constant(got, expected, mixed=True) or nearly(got, expected)):
                    text = f"1/({wanted.expression})" if wanted.inverted else wanted.expression
                    name = name_of(slots[holder], place)
                    return No(
                        f"{name} is {shown(got)}, the pattern wants {text}, which is {shown(expected)}",
                        slots[holder].node,
                    )
        return True

    def _users(self) -> Literal[True] | No:
        results = {o for o in self.outputs if o is not None}
        for program, slots in self.parts:
            for call, slot in program.calls.items():
                reading: Reading = slots[slot]
                if call.users is ANY:
                    continue
                if type(call.users) is int and reading.node not in results:
                    if len(reading.node.users) != call.users:
                        return No(
                            f"{reading.node.name} has {len(reading.node.users)} users, the pattern wants {call.users}",
                            reading.node,
                        )
                    continue
                inside = reading.through if reading.node in results else (reading.node, *reading.through)
                for node in inside:
                    outside = next((u for u in node.users if u not in self.nodes and not is_spare(u)), None)
                    if outside is not None:
                        return No(_also(node, outside), node)
        return True

    def _results(self) -> Literal[True] | No:
        """Whether each result is another node."""
        calls = [o for o, p in zip(self.outputs, self.program.form.outputs, strict=False) if isinstance(p, Call)]
        twice = next((o for o in calls if o is not None and calls.count(o) > 1), None)
        return True if twice is None else No(f"two results of the pattern are the same node, {twice.name}", twice)


def _bindings(program: MatchProgram, slots: Slots) -> dict[str, Any]:
    """What the names of a program stand for; those within its lists stand for lists."""
    found: dict[str, Any] = {}
    for name, slot in program.names.items():
        value = slots[slot]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        found[name] = 1.0 / value if name in program.inverses and is_number and value != 0 else value
    for slot in program.lists:
        for inner, once in slots[slot]:
            _extend(found, _bindings(inner, once))
    return found


def _extend(bindings: dict[str, Any], once: dict[str, Any]) -> None:
    for name, value in once.items():
        bindings.setdefault(name, []).append(value)


def _conditions(
    program: MatchProgram, slots: Slots, bindings: dict[str, Any], exclusive: dict[Any, str]
) -> Literal[True] | No:
    for leaf in program.conditions:
        value = bindings.get(leaf.name)
        node = value if isinstance(value, Node) else _holder(leaf, program, slots)
        if leaf.where is not None:
            answer = leaf.where(plain(value))
            if not is_true(answer):
                default = f"{leaf.name} is {shown(value)}, for which its condition does not hold"
                return refusal(answer, default, node)
        if isinstance(leaf, Var) and not (fits := _has_shape(leaf, node, bindings)):
            return fits
        if isinstance(leaf, Var) and leaf.exclusive and isinstance(value, Node):
            other = exclusive.setdefault(value, leaf.name)
            if other != leaf.name:
                return No(f"{other} and {leaf.name} are the same node, {value.name}", value)
    return True


def _holder(leaf: Any, program: MatchProgram, slots: Slots) -> Node:
    """The node that has a constant as its argument."""
    calls = program.calls.items()
    found = (slots[at] for call, at in calls if any(p is leaf for p in call.places.values()))
    return next(found, slots[0]).node  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What determines a match: the calls of its nodes, and their users."""

    calls: tuple[tuple[Node, Any, Any, Any, tuple[Node, ...]], ...]

    @staticmethod
    def of(match: Match) -> Surroundings | None:
        """None where a name stands for what no node of the match reads: what is passed over may change, too."""
        read = {operand for node in match.nodes for operand in node.all_input_nodes}
        if not match.named() <= read:
            return None
        return Surroundings(tuple((n, n.target, n.args, n.kwargs, tuple(n.users)) for n in match.nodes))

    def are_the_same(self) -> bool:
        """Whether no edit touched them since."""
        return all(
            n.target is target and n.args is args and n.kwargs is kwargs and tuple(n.users) == users
            for n, target, args, kwargs, users in self.calls
        )


def _solutions_in(program: MatchProgram, slots: Slots) -> Iterator[tuple[MatchProgram, Slots]]:
    """A solution, and those of the elements of its lists."""
    yield program, slots
    for slot in program.lists:
        for inner, found in slots[slot]:
            yield from _solutions_in(inner, found)


def _has_shape(leaf: Var, node: Node, bindings: dict[str, Any]) -> Literal[True] | No:
    """Whether a tensor has the shape of the examples."""
    tensor = tensor_of(bindings.get(leaf.name)) if leaf.shape is not None else None
    if leaf.shape is None or tensor is None:
        return True
    if len(leaf.shape) != tensor.dim():
        return No(f"{leaf.name} has {tensor.dim()} dimensions, the pattern wants {len(leaf.shape)}", node)
    for i, wanted in enumerate(leaf.shape):
        if wanted is None:
            continue
        size = evaluated(wanted, bindings) if isinstance(wanted, str) else wanted
        if size is None or not known_equal(tensor.shape[i], size):
            text = f"{wanted}, which is {shown(size)}" if isinstance(wanted, str) else str(wanted)
            return No(f"{leaf.name}.shape[{i}] is {shown(tensor.shape[i])}, the pattern wants {text}", node)
    return True


def is_spare(user: Node) -> bool:
    """Whether a user of a value does not need it: it asks for a size, or takes one of several results for nobody."""
    return is_size(user) or (user.target is operator.getitem and not user.users)


def is_size(node: Node) -> bool:
    """Whether a node only asks for a size of its operand, which can be had elsewhere."""
    return node.target is torch.ops.aten.sym_size.int


def _also(node: Node, user: Node) -> str:
    if user.op == "output":
        return f"{node.name} is also returned by the graph"
    return f"{node.name} is also used by {user.name}, outside of the pattern"


def is_true(answer: Any) -> bool:
    """Whether a condition holds: a string is a reason why not. Unknown sizes count as no, and install no guard."""
    if isinstance(answer, torch.SymBool):
        return known_equal(answer, True)
    return not answer if isinstance(answer, str) else bool(answer)


def refusal(answer: Any, default: str, *nodes: Node) -> No:
    """What a condition that does not hold answered, as a refusal: it may have given the reason."""
    if isinstance(answer, No):
        return No(answer.reason, *nodes, *answer.nodes)
    return No(answer if isinstance(answer, str) and answer else default, *nodes)
