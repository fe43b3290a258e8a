"""`after=` and `before=`: an order that satisfies all of them, whoever came first, or an error that names both sides."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import named, toy_registry

from eductor.errors import BadPass, OrderConflict, UnknownName
from eductor.pipeline import Pipeline, Registry
from eductor.pipeline.registry import Step


@dataclass(frozen=True)
class Wish:
    """A pass of a test."""

    name: str
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    slot: str = ""

    def declare(self):
        return named(self.name, after=self.after, before=self.before, slot=self.slot or None)


@dataclass(frozen=True)
class Problem:
    """Rows in their order (capitals are slots), and passes that want a place among them."""

    rows: tuple[str, ...]
    wishes: tuple[Wish, ...]

    def solve(self, shuffle: random.Random | None = None) -> list[Step]:
        wishes = list(self.wishes)
        if shuffle is not None:
            shuffle.shuffle(wishes)
        registry = toy_registry(*self.rows)
        for wish in wishes:
            registry = registry.with_passes([wish.declare()], f"package-of-{wish.name}")
        return registry.order("joint")

    def base(self) -> list[str]:
        """The rows with their slots filled, which are in a fixed order."""
        filled: list[str] = []
        for row in self.rows:
            filled.append(row)
            filled += sorted(w.name for w in self.wishes if w.slot == row)
        return filled


def tagged(names: list[str]) -> list[str]:
    """`a, b, a` as `a#1, b#1, a#2`: each step by a name of its own."""
    return [f"{name}#{names[: i + 1].count(name)}" for i, name in enumerate(names)]


def pairs(problem: Problem) -> list[tuple[str, str]]:
    """All that must hold, as pairs of steps: the first runs before the second."""
    base = tagged(problem.base())
    steps = [*base, *(f"{w.name}#1" for w in problem.wishes if not w.slot)]
    fills = {w.name: w.slot for w in problem.wishes}

    def called(name: str) -> list[str]:
        return [s for s in steps if s == name] if "#" in name else [s for s in steps if s.split("#")[0] == name]

    found = list(itertools.pairwise(base))

    def filling(slot: str) -> list[str]:
        """What stands between a step that is a slot and the next row."""
        after = base[base.index(slot) + 1 :] if slot in base else []
        return list(itertools.takewhile(lambda s: fills.get(s.split("#")[0]) == slot.split("#")[0], after))

    for wish in problem.wishes:
        for name in wish.after:
            found += [(other, f"{wish.name}#1") for step in called(name) for other in [step, *filling(step)]]
        found += [(f"{wish.name}#1", other) for name in wish.before for other in called(name)]
    return found


def has_order(problem: Problem) -> bool:
    """Takes away whatever nothing must precede, until nothing is left or nothing can be taken."""
    edges = set(pairs(problem))
    left = {x for edge in edges for x in edge}
    while left:
        free = {x for x in left if not any(b == x and a in left for a, b in edges)}
        if not free:
            return False
        left -= free
    return True


ROWS = st.lists(st.sampled_from(["a", "b", "c", "d", "S", "T"]), min_size=1, max_size=7).map(tuple)
NAMES = ("p", "q", "r", "s", "t")


@st.composite
def problems(draw) -> Problem:
    rows = draw(ROWS)
    count = draw(st.integers(1, len(NAMES)))
    known = [*sorted(set(rows)), *NAMES[:count], *(n for n in tagged(list(rows)) if n.endswith("#2"))]
    slots = [r for r in set(rows) if r.isupper()]
    wishes = []
    for name in NAMES[:count]:
        if slots and draw(st.integers(0, 4)) == 0:
            wishes.append(Wish(name, slot=draw(st.sampled_from(sorted(slots)))))
            continue
        others = [n for n in known if n != name]
        after, before = (
            draw(st.lists(st.sampled_from(others), max_size=2)),
            draw(st.lists(st.sampled_from(others), max_size=2)),
        )
        if not after and not before:
            after = [rows[0]]
        wishes.append(Wish(name, tuple(after), tuple(before)))
    return Problem(rows, tuple(wishes))


@given(problem=problems(), seed=st.integers(0, 1 << 16))
@settings(max_examples=400, deadline=None)
def test_the_order_satisfies_everything_or_there_is_none(problem, seed):
    if not has_order(problem):
        with pytest.raises(OrderConflict) as first:
            problem.solve()
        with pytest.raises(OrderConflict) as again:
            problem.solve(random.Random(seed))
        assert str(again.value) == str(first.value)
        return
    steps = problem.solve()
    names = tagged([s.name for s in steps])
    at = {name: i for i, name in enumerate(names)}
    for first, second in pairs(problem):
        assert at[first] < at[second], f"{first} must run before {second}: {names}"
    assert sorted(names) == sorted([*tagged(problem.base()), *(f"{w.name}#1" for w in problem.wishes if not w.slot)])
    assert [s.address for s in problem.solve(random.Random(seed))] == [s.address for s in steps]


@given(problem=problems())
@settings(max_examples=200, deadline=None)
def test_one_by_one_added_passes_obey_too(problem):
    """Pipeline.with_pass knows only what stands already; each step it makes obeys all constraints known by then."""
    if any(set(w.after + w.before) & set(NAMES) for w in problem.wishes):
        return
    pipeline = Pipeline(tuple(toy_registry(*problem.rows).order("joint")))
    try:
        for wish in problem.wishes:
            pipeline = pipeline.with_pass(wish.declare())
    except OrderConflict:
        assert not has_order(problem)
        return
    at = {name: i for i, name in enumerate(tagged([s.name for s in pipeline.steps]))}
    in_slots = {f"{w.name}#{n}" for w in problem.wishes if w.slot for n in range(1, 9)}
    for first, second in pairs(problem):
        if not {first, second} & in_slots:
            assert at[first] < at[second]


@given(rows=ROWS, target=st.data())
@settings(max_examples=100, deadline=None)
def test_a_single_wish_makes_direct_neighbours(rows, target):
    name = target.draw(st.sampled_from(sorted(set(rows))))
    after = [s.name for s in Problem(rows, (Wish("p", after=(name,)),)).solve()]
    assert after[after.index("p") - 1] == name
    assert name not in after[after.index("p") :]
    before = [s.name for s in Problem(rows, (Wish("p", before=(name,)),)).solve()]
    assert before[before.index("p") + 1] == name
    assert name not in before[: before.index("p")]


# -------------------------------------------------------------------------------------------------- readable examples


def order(rows: str, *wishes: Wish) -> str:
    return " ".join(s.name for s in Problem(tuple(rows.split()), wishes).solve())


def test_equals_stand_in_alphabetical_order():
    assert order("a b", Wish("q", after=("a",)), Wish("p", after=("a",)), Wish("r", after=("a",))) == "a p q r b"
    assert order("a b", Wish("q", before=("b",)), Wish("p", before=("b",)), Wish("r", before=("b",))) == "a p q r b"


def test_a_chain_hangs_together():
    assert order("a b c", Wish("p", after=("q",)), Wish("q", after=("r",)), Wish("r", after=("a",))) == "a r q p b c"
    assert order("a b c", Wish("p", before=("q",)), Wish("q", before=("r",)), Wish("r", before=("c",))) == "a b p q r c"
    assert order("a b c", Wish("p", before=("q",)), Wish("q", after=("a",))) == "a p q b c"


def test_between_two_is_directly_after_the_first():
    assert order("a b c d", Wish("p", after=("a",), before=("d",))) == "a p b c d"


def test_who_asks_for_the_end_stays_there_though_others_come_before_it():
    assert order("a b c", Wish("p", before=("c",)), Wish("q", after=("a",), before=("p",))) == "a q b p c"


def test_a_repeated_row():
    assert order("a b a", Wish("p", after=("a",))) == "a b a p"
    assert order("a b a", Wish("p", before=("a",))) == "p a b a"
    assert order("a b a", Wish("p", after=("a#1",))) == "a p b a"
    assert order("a b a", Wish("p", before=("a#2",))) == "a b p a"


def test_passes_in_slots_are_neighbours_too():
    in_slot = Wish("q", slot="S")
    assert order("a S b", in_slot, Wish("p", before=("q",))) == "a S p q b"
    assert order("a S b", in_slot, Wish("p", after=("q",))) == "a S q p b"
    assert order("a S b", in_slot, Wish("p", after=("S",))) == "a S q p b"
    assert order("a S b", in_slot, Wish("p", before=("S",))) == "a p S q b"
    assert order("S a S", in_slot, Wish("p", after=("q",)), Wish("r", before=("q",))) == "S r q a S q p"


def test_passes_that_ask_only_for_each_other_stand_at_the_end():
    assert order("a b", Wish("p", after=("q",)), Wish("q", before=("p",))) == "a b q p"


def test_a_wish_for_one_stage_counts_there_alone():
    both = named("mine", stage=("joint", "post_grad"), after=("joint/remove_noop_ops",))
    registry = Registry.default().with_passes([both])
    joint = [s.name for s in registry.order("joint")]
    assert joint[joint.index("mine") - 1] == "remove_noop_ops"
    post = [s.name for s in registry.order("post_grad")]
    assert post[post.index("mine") - 1] == "post_grad_custom_post_pass"


# ------------------------------------------------------------------------------------------------------------- errors


def test_a_conflict_names_both_sides_and_nothing_else():
    with pytest.raises(OrderConflict) as caught:
        order("a b", Wish("p", after=("q",)), Wish("q", after=("p",)), Wish("bystander", after=("a",)))
    assert "'p' (from package-of-p) wants to run after 'q'" in str(caught.value)
    assert "'q' (from package-of-q) wants to run after 'p'" in str(caught.value)
    assert "bystander" not in str(caught.value)


def test_a_conflict_with_the_rows_names_them():
    with pytest.raises(OrderConflict) as caught:
        order("a b c d", Wish("p", after=("c",), before=("b",)))
    assert "'p' (from package-of-p) wants to run after 'c'" in str(caught.value)
    assert "'p' (from package-of-p) wants to run before 'b'" in str(caught.value)
    assert "'b' (from eductor) runs before 'c'" in str(caught.value)


def test_a_conflict_through_several_rows_names_the_ends_alone():
    with pytest.raises(OrderConflict, match=r"'a' \(from eductor\) runs before 'd'") as caught:
        order("a b c d", Wish("p", after=("d",), before=("q",)), Wish("q", before=("a",)))
    assert "'b'" not in str(caught.value)


def test_a_conflict_about_what_fills_a_slot_says_so():
    with pytest.raises(OrderConflict) as caught:
        order("a S b", Wish("p", slot="S"), Wish("q", after=("S",), before=("p",)))
    assert "'q' (from package-of-q) wants to run before 'p'" in str(caught.value)
    assert "'q' (from package-of-q) wants to run after 'S', which 'p' fills" in str(caught.value)


def test_a_pass_that_wants_to_run_after_itself():
    with pytest.raises(OrderConflict, match=r"'p'.*after 'p'"):
        order("a", Wish("p", after=("p",)))


@pytest.mark.parametrize("name", ["aa", "a#3", "a#0", "a#", "a#x", "#1", "A"])
def test_an_unknown_neighbour_is_an_error_with_its_origin(name):
    with pytest.raises(UnknownName, match=r"in the constraints of 'p', from package-of-p.*Known: a, b, p"):
        order("a b a", Wish("p", after=(name,)))


def test_a_neighbour_in_a_stage_of_others_is_an_error():
    with pytest.raises(BadPass, match="'post_grad/x', but it runs in joint"):
        named("mine", after="post_grad/x")


def test_an_unknown_slot_is_an_error():
    with pytest.raises(UnknownName, match=r"slot of the stage joint 'T'.*Known: S"):
        order("a S", Wish("p", slot="T"))


def test_two_passes_of_one_name_are_an_error_that_names_both_sources():
    registry = toy_registry("a").with_passes([named("x", after="a")], "one").with_passes([named("x")], "two")
    with pytest.raises(BadPass, match=r"called 'x': one from one, one from two"):
        registry.order("joint")
    with pytest.raises(BadPass, match=r"called 'a': one from eductor, one from three"):
        toy_registry("a").with_passes([named("a")], "three").order("joint")
    same = named("x", after="a")
    with pytest.raises(BadPass, match="two passes"):
        toy_registry("a").with_passes([same, same], "four").order("joint")
