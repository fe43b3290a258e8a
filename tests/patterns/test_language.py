"""The pattern language: what each word of it matches, what it does not, and what cannot be said."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from pattern_tools import (
    aten,
    by_anchor,
    changed,
    count,
    graph_of,
    matches,
    misses,
    refused,
    replaced,
    rule_of,
    untouched,
)
from torch import nn

from eductor.errors import BadPattern, PassFailed
from eductor.graph import GraphView
from eductor.patterns import ANY, any_of, computed, const, list_of, op, optional, outputs, repeated, var
from eductor.patterns.compile.index import Index

x, y = var("x"), var("y")
X, Y, Z = (torch.linspace(-1, 2, 16).roll(i).reshape(4, 4).contiguous() for i in range(3))


# ---------------------------------------------------------------------------------------------------------- alternatives


def test_of_alternatives_the_first_that_matches_wins_though_the_other_stands_earlier():
    longer_first = any_of(op(aten.relu, op(aten.add, x, y)), op(aten.add, x, y))
    found = matches(longer_first, graph_of(lambda a, b: ((a + b).relu() * 2, (a + b) * 3), [X, Y]))
    assert {len(m.nodes) for m in found if m.output.name == "relu"} == {2}
    assert found[0].output.name == "relu"


def test_an_optional_call_is_taken_along_where_it_is_there():
    pattern = op(aten.mul, optional(lambda inner: op(aten.relu, inner), x), 2)
    with_relu, without = (matches(pattern, graph_of(fn, [X])) for fn in (lambda a: a.relu() * 2, lambda a: (a + 1) * 2))
    assert (len(with_relu[0].nodes), with_relu[0]["x"].name) == (2, "arg0_1")
    assert [(len(m.nodes), m["x"].name) for m in without] == [(1, "add")]


def test_an_alternative_within_an_alternative_is_tried_once():
    inner = any_of(op(aten.sin, x), op(aten.cos, x))
    pattern = op(aten.exp, any_of(inner, op(aten.tan, x)))
    module = graph_of(lambda a: (a.sin().exp(), a.cos().exp(), a.tan().exp(), a.exp()), [X])
    assert sorted(m.nodes[0].name for m in matches(pattern, module)) == ["cos", "sin", "tan"]


def test_an_alternative_may_be_used_twice_and_is_then_chosen_once():
    either = any_of(op(aten.sin, x), op(aten.cos, x))
    pattern = op(aten.add, either, op(aten.exp, either))
    one = lambda a: (lambda s: s + s.exp())(a.sin())  # noqa: E731
    assert len(matches(pattern, graph_of(one, [X]))) == 1
    assert not matches(pattern, graph_of(lambda a: a.sin() + a.cos().exp(), [X]))


def test_an_alternative_inside_of_a_list_and_outside_of_it_chooses_for_itself():
    either = any_of(op(aten.sin, var("inner")), op(aten.cos, var("inner")))
    pattern = op(aten.mul, op(aten.cat, list_of(either)), any_of(op(aten.exp, x), op(aten.tan, x)))
    module = graph_of(lambda a, b: torch.cat([a.sin(), b.cos()]) * torch.cat([a, b]).tan(), [X, Y])
    (found,) = matches(pattern, module)
    assert [n.name for n in found["inner"]] == ["arg0_1", "arg1_1"]


def test_too_many_alternatives_are_refused():
    either = [any_of(op(aten.sin, x), op(aten.cos, x)) for _ in range(9)]
    with pytest.raises(BadPattern, match="multiply to 512 forms, 256 are allowed"):
        matches(op(aten.cat, either), graph_of(lambda a: torch.cat([a]), [X]))


# ------------------------------------------------------------------------------------------------- lists and repetition


def test_lists_of_several_rules_are_told_apart_by_their_elements():
    rules = [rule_of(op(aten.cat, list_of(op(f, var("a"))))) for f in (aten.sin, aten.cos)]
    module = graph_of(lambda a, b: torch.cat([a.cos(), b.cos()]), [X, Y])
    assert [c.rule for c in Index([rule.parts for rule in rules]).candidates(GraphView(module))] == [1]


def test_a_list_of_any_length_is_replaced_by_a_function_of_lists():
    run = replaced(
        op(aten.cat, list_of(op(aten.sin, var("a")))),
        lambda a: torch.cat(a).sin(),
        lambda a, b, c: torch.cat([a.sin(), b.sin(), c.sin()]).cos(),
        [X, Y, Z],
    )
    assert count(changed(run), aten.sin) == 1
    assert torch.equal(run.module(X, Y, Z), torch.cat([X, Y, Z]).sin().cos())


def test_a_list_one_of_whose_elements_has_another_form_does_not_match():
    pattern = op(aten.cat, list_of(op(aten.sin, var("a"))))
    assert not matches(pattern, graph_of(lambda a, b: torch.cat([a.sin(), b.cos()]), [X, Y]))


def test_a_partial_list_takes_the_elements_that_match():
    pattern = op(aten.cat, list_of(op(aten.sin, var("a")), partial=True))
    (found,) = matches(pattern, graph_of(lambda a, b, c: torch.cat([a.sin(), b, c.sin()]), [X, Y, Z]))
    assert [n.name for n in found["a"]] == ["arg0_1", "arg2_1"]
    assert len(found.nodes) == 3
    assert not matches(pattern, graph_of(lambda a, b: torch.cat([a, b]), [X, Y]))


def test_elements_of_a_list_share_what_may_have_other_users():
    shared = op(aten.split, x, 1, 1, users=ANY)
    pattern = op(aten.cat, list_of(op(operator.getitem, shared, const("i"))), 1)
    same = graph_of(lambda a: torch.cat(list(a.split(1, 1))[::-1], 1), [X])
    (found,) = matches(pattern, same)
    assert found["i"] == [3, 2, 1, 0]
    other = graph_of(lambda a, b: torch.cat([a.split(1, 1)[0], b.split(1, 1)[1]], 1), [X, Y])
    assert not matches(pattern, other)


def test_elements_of_a_list_may_be_variables_with_conditions():
    pattern = op(aten.cat, list_of(var("a", where=lambda t: t.shape[0] == 4)))
    fits, not_all = (graph_of(lambda a, b: torch.cat([a, b]), given) for given in ([X, Y], [X, Y[:2]]))
    (found,) = matches(pattern, fits)
    assert [n.name for n in found["a"]] == ["arg0_1", "arg1_1"]
    assert not matches(pattern, not_all)
    assert misses(pattern, not_all) == ["a is arg1_1, for which its condition does not hold"]


def test_a_name_inside_of_a_list_cannot_stand_outside_of_it():
    pattern = op(aten.mul, op(aten.cat, list_of(op(aten.mul, var("a"), var("w")))), var("w"))
    with pytest.raises(BadPattern, match="w is inside of a list and outside of it"):
        replaced(pattern, lambda a, w: torch.cat(a) * w, lambda a, w: torch.cat([a * w]) * w, [X, Y])


def test_all_calls_on_what_they_share_are_repeated():
    pattern = repeated(op(operator.getitem, op(aten.split, x, const("size"), users=ANY), const("i")))
    module = graph_of(lambda a: (lambda p: p[0] + p[1].sin())(a.split(2)), [X])
    (found,) = matches(pattern, module)
    assert found["i"] == [0, 1]
    assert [o.name for o in found.outputs] == ["getitem", "getitem_1"]


def test_another_user_of_what_is_repeated_is_a_mismatch():
    halves = op(aten.sin, x, users=ANY)
    pattern = repeated(op(aten.mul, halves, const("c")))
    fits = graph_of(lambda a: (lambda s: (s * 2, s * 3))(a.sin()), [X])
    (found,) = matches(pattern, fits)
    assert found["c"] == [2, 3]
    other = graph_of(lambda a: (lambda s: (s * 2, s.exp()))(a.sin()), [X])
    assert not matches(pattern, other)
    assert misses(pattern, other) == ["exp uses sin, too, but not as aten.mul(aten.sin(x), c)"]


def test_nested_lists_are_matched_element_by_element():
    pattern = op(aten.index_put, x, [None, op(aten.neg, var("i"))], y)
    module = graph_of(
        lambda a, i, v: aten.index_put(a, [None, -i], v) * 2, [X, torch.tensor([-1, -2]), torch.zeros(4, 2)]
    )
    (found,) = matches(pattern, module)
    assert (found["x"].name, found["i"].name, found["y"].name) == ("arg0_1", "arg1_1", "arg2_1")
    longer = op(aten.index_put, x, [None, op(aten.neg, var("i")), None], y)
    assert not matches(longer, module)


# ------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("swap", [False, True])
def test_several_results_match_in_either_order(flip, swap):
    both = (op(aten.sin, x), op(aten.cos, x))
    pattern = outputs(*(both[::-1] if flip else both))

    def program(a):
        b = a * 2
        first, second = (b.cos(), b.sin()) if swap else (b.sin(), b.cos())
        return first + 1, second * 3

    def replacement(x):
        made = (torch.sin(x * 1), torch.cos(x * 1))
        return made[::-1] if flip else made

    module = changed(replaced(pattern, replacement, program, [X]))
    assert count(module, aten.mul) == 1 + 2 + 1
    assert all(torch.equal(a, b) for a, b in zip(module(X), program(X), strict=True))


def test_a_result_may_be_none():
    pattern = outputs(op(aten.sin, x), None)
    module = changed(replaced(pattern, lambda x: (aten.sin(x * 1), None), lambda a: (a + 2).sin() * 3, [X]))
    assert count(module, aten.mul) == 2


def test_a_result_that_is_an_input_of_the_pattern_stays_what_it_was():
    program = lambda a: (lambda b: (b.sin() * 2, b * 3))(a * 2)  # noqa: E731
    run = replaced(outputs(op(aten.sin, x), x), lambda x: (torch.sin(x * 1), x), program, [X])
    assert count(changed(run), aten.mul) == 4
    other = replaced(outputs(op(aten.sin, x), x), lambda x: (torch.sin(x), x * 2), program, [X])
    refused(other, "is an input of the pattern, and the replacement returns something else")


def test_two_results_that_have_nothing_in_common_are_refused():
    with pytest.raises(BadPattern, match=r"must have a call or a variable in common: aten\.cos\(y\) stands alone"):
        replaced(outputs(op(aten.sin, x), op(aten.cos, y)), lambda x, y: (x, y), lambda a: a, [X])


def test_two_results_are_two_nodes():
    pattern = outputs(op(aten.mul, x, const("a")), op(aten.mul, x, const("b")))
    assert not matches(pattern, graph_of(lambda a: a * 2, [X]))
    found = matches(pattern, graph_of(lambda a: (a * 2, a * 3), [X]))
    assert {(m["a"], m["b"]) for m in found} == {(2, 3), (3, 2)}


# ----------------------------------------------------------------------------------------------------- names and users


def test_exclusive_variables_are_different_nodes():
    pattern = op(aten.add, var("x", exclusive=True), var("y", exclusive=True))
    assert len(matches(pattern, graph_of(lambda a, b: a + b, [X, Y]))) >= 1
    doubled = graph_of(lambda a: a + a, [X])
    assert not matches(pattern, doubled)
    assert misses(pattern, doubled) == ["x and y are the same node, arg0_1"]
    assert matches(op(aten.add, x, y), doubled)


def test_a_name_used_twice_is_one_node():
    pattern = op(aten.add, op(aten.sin, x), op(aten.cos, x))
    assert matches(pattern, graph_of(lambda a: a.sin() + a.cos(), [X]))
    assert matches(pattern, graph_of(lambda a: a.cos() + a.sin(), [X]))
    assert not matches(pattern, graph_of(lambda a, b: a.sin() + b.cos(), [X, Y]))


def test_a_constant_used_twice_is_one_number():
    pattern = op(aten.add, op(aten.mul, x, const("c")), const("c"))
    (found, *_) = matches(pattern, graph_of(lambda a: a * 2.5 + 2.5, [X]))
    assert found["c"] == 2.5
    assert not matches(pattern, graph_of(lambda a: a * 2.5 + 2.0, [X]))


def test_one_expression_used_twice_is_one_node():
    once = op(aten.sin, x)
    shared, equal = op(aten.add, once, op(aten.exp, once)), op(aten.add, op(aten.sin, x), op(aten.exp, op(aten.sin, x)))
    one_node = graph_of(lambda a: (lambda s: s + s.exp())(a.sin()), [X])
    two_nodes = graph_of(lambda a: a.sin() + a.sin().exp(), [X])
    assert matches(shared, one_node)
    assert not matches(shared, two_nodes)
    assert matches(equal, two_nodes)


@pytest.mark.parametrize(("users", "fits"), [(None, False), (1, False), (2, True), (3, False), (ANY, True)])
def test_users_are_inside_by_default_or_counted_or_anybody(users, fits):
    pattern = op(aten.exp, op(aten.sin, x, users=users))
    module = graph_of(lambda a: (lambda s: (s.exp(), s + 1))(a.sin()), [X])
    assert bool(matches(pattern, module)) is fits
    if not fits:
        wanted = "also used by add" if users is None else f"sin has 2 users, the pattern wants {users}"
        assert any(wanted in reason for reason in misses(pattern, module))


def test_a_shared_node_with_other_users_stays_beside_the_replacement():
    pattern = op(aten.exp, op(aten.sin, x, users=ANY))
    program = lambda a: (lambda s: (s.exp() * 2, s + 1))(a.sin())  # noqa: E731
    module = changed(replaced(pattern, lambda x: aten.exp(aten.sin(x * 1)), program, [X], again=False))
    assert count(module, aten.sin) == 2
    assert all(torch.equal(a, b) for a, b in zip(module(X), program(X), strict=True))


def test_conditions_of_variables_and_constants_are_asked():
    pattern = op(aten.mul, var("x", where=lambda t: t.dim() == 2), const("c", where=lambda c: c > 1))
    assert matches(pattern, graph_of(lambda a: a * 2, [X]))
    assert misses(pattern, graph_of(lambda a: a * 0.5, [X])) == ["c is 0.5, for which its condition does not hold"]
    assert misses(pattern, graph_of(lambda a: a * 2, [X[0]])) == ["x is arg0_1, for which its condition does not hold"]
    worded = op(aten.mul, x, const("c", where=lambda c: c > 1 or f"{c} is too small"))
    assert misses(worded, graph_of(lambda a: a * 0.5, [X])) == ["0.5 is too small"]


def test_a_condition_on_an_unknown_size_is_no_and_installs_no_guard():
    pattern = op(aten.sin, var("x", where=lambda t: t.shape[0] == 4))
    module = graph_of(lambda a: a.sin(), [torch.randn(4, 6)], dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    before = len(env.guards)
    assert not matches(pattern, module)
    assert len(env.guards) == before


def test_a_computed_value_follows_from_names():
    pattern = op(aten.mul, op(aten.add, x, const("c")), computed("c * 2 + x.shape[-1] - 1"))
    assert matches(pattern, graph_of(lambda a: (a + 3.0) * 9.0, [X]))
    module = graph_of(lambda a: (a + 3.0) * 8.0, [X])
    assert misses(pattern, module) == [
        "other is 8.0, the pattern wants c * 2 + x.shape[-1] - 1, which is 9.0",
    ]


def test_a_computed_value_that_cannot_be_computed_is_a_mismatch():
    pattern = op(aten.mul, op(aten.add, x, const("p")), computed("1 / (1 - p)"))
    assert matches(pattern, graph_of(lambda a: (a + 0.5) * 2.0, [X]))
    assert not matches(pattern, graph_of(lambda a: (a + 1.0) * 2.0, [X]))
    beyond = op(aten.mul, x, computed("x.shape[5]"))
    assert not matches(beyond, graph_of(lambda a: a * 2.0, [X]))


def test_a_variable_is_a_tensor_unless_it_may_be_anything():
    module = graph_of(lambda a: a * 2, [X])
    assert not matches(op(aten.mul, x, y), module)
    (found, *_) = matches(op(aten.mul, x, var("y", anything=True)), module)
    assert {str(found["x"]), str(found["y"])} == {"arg0_1", "2"}


# ------------------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    "target", [aten.add, aten.add.Tensor, torch.add, operator.add, "add", [torch.sub, operator.add]]
)
@pytest.mark.parametrize(
    "program",
    [
        lambda a, b: a + b,
        torch.add,
        lambda a, b: a.add(b),
        lambda a, b: a.add(other=b),
        lambda a, b: torch.add(input=a, other=b),
        lambda a, b: aten.add.Tensor(a, b),
    ],
)
def test_a_target_means_all_spellings_of_its_operator(target, program):
    def twice(a, b):
        return program(a, b) * 2

    run = replaced(op(target, x, y), lambda x, y: torch.sub(x, -y), twice, [X, Y], stage="pre_grad")
    assert count(changed(run), aten.sub) == 1
    assert torch.equal(run.module(X, Y), (X + Y) * 2)


@pytest.mark.parametrize(
    ("pattern", "program"),
    [
        (op(F.softmax, x, -1), lambda a: a.softmax(1)),
        (op(F.softmax, x, dim=const("d")), lambda a: F.softmax(a, 0)),
        (op(torch.sum, x, axis=1), lambda a: a.sum(1)),
        (op(torch.sum, x, 1, True), lambda a: torch.sum(a, -1, keepdim=True)),
        (op("view", x, 2, 8), lambda a: a.reshape(2, -1)),
        (op(torch.permute, x, (1, 0)), lambda a: a.t()),
        (op(operator.matmul, x, y), lambda a: a.matmul(a)),
        (op([F.relu, torch.sigmoid], x), lambda a: a.relu()),
        (op(F.gelu, x, approximate="tanh"), lambda a: F.gelu(a, approximate="tanh")),
    ],
)
def test_functions_of_torch_are_read_as_their_operators(pattern, program):
    module = graph_of(lambda a: program(a) * 2, [X], "pre_grad")
    assert len(matches(pattern, module)) == 1, module.graph


def test_an_overload_means_itself():
    module = graph_of(lambda a: (a + 1).sum() + (a + a).sum(1).max(), [X])
    assert [m.output.name for m in matches(op(aten.sum.default, x), module)] == ["sum_1"]
    assert not matches(op(aten.sum.dim_IntList, x), module)


def test_modules_are_matched_by_their_class():
    net = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh()))
    with_values(net, X)
    found = matches(op(nn.ReLU, op(nn.Linear, x)), net)
    assert [[str(n.target) for n in m.nodes] for m in found] == [["0", "1"]]
    assert not matches(op(nn.ReLU, op(nn.Tanh, x)), net)


def test_a_method_that_is_no_operator_is_matched_by_its_name():
    graph = torch.fx.Graph()
    a = graph.placeholder("a")
    made = graph.call_method("no_such_operator", (a, 3), {"key": 1})
    graph.output(made)
    module = torch.fx.GraphModule({}, graph)
    a.meta["val"] = made.meta["val"] = X
    assert matches(op("no_such_operator", x, 3, key=1), module)
    assert not matches(op("no_such_operator", x, 3), module), "a keyword that is not mentioned"
    assert not matches(op("no_such_operator", x, 3, key=2), module)
    assert not matches(op("no_such_operator", x), module)


def test_an_unknown_function_is_matched_by_itself():
    module = graph_of(lambda a: a * 2, [X], "pre_grad")
    for node in module.graph.nodes:
        if node.target is operator.mul:
            node.target = halved
    assert matches(op(halved, x, 2), module)
    assert not matches(op(halved, x, 3), module)


def halved(a, by):
    return a / by


def with_values(module, *given):
    """The values of a traced module's nodes."""

    class Storing(torch.fx.Interpreter):
        def run_node(self, n):
            n.meta["val"] = super().run_node(n)
            return n.meta["val"]

    Storing(module).run(*given)


# -------------------------------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("said", "because"),
    [
        (lambda: op(3, x), "a target is an operator, a function, a module class or a method's name"),
        (lambda: op([], x), "give at least one target"),
        (lambda: op(aten.sin, x, users=0), "a number of 1 or more, or ANY"),
        (lambda: op(aten.sin, x, users=True), "a number of 1 or more, or ANY"),
        (lambda: var("a b"), "a name must be an identifier"),
        (lambda: const(3), "a name must be an identifier"),
        (lambda: any_of(), "give at least one choice"),
        (lambda: repeated(x), "it repeats a call"),
        (lambda: outputs(x, None), "at least one result must be a call"),
        (lambda: computed("x.shape["), "it is no expression"),
    ],
)
def test_what_cannot_be_said_is_an_error_with_a_reason(said, because):
    with pytest.raises(BadPattern, match=because):
        said()


@pytest.mark.parametrize(
    ("pattern", "because"),
    [
        (op(aten.mul, x, computed("z.shape[0]")), "the pattern has no name 'z'"),
        (op(aten.sin, outputs(op(aten.cos, x))), "must be the outermost expression"),
        (op(aten.sin, repeated(op(aten.cos, x))), "must be the outermost expression"),
        (any_of(op(aten.sin, x), x), "has no call to look for"),
        (
            op(aten.sin, x, foo=2),
            r"no overload takes 1 positional argument and foo=. There is aten.sin.default\(self\)",
        ),
        (op(aten.sin.default, x, x), "no overload takes 2 positional arguments"),
        (op([aten.sin, aten.cos], x, foo=2), r"aten.sin.default\(self\); aten.cos.default\(self\)"),
        (op(aten.add, x, x, 2, 2), r"aten.add.Tensor\(self, other, \*, alpha\)"),
        (op(aten.sum, x, self=x), "no overload takes 1 positional argument and self="),
        (op(aten.add, x, torch.ones(2)), "a tensor cannot be a constant of aten.add.*: make it a var"),
        (op(aten.cat, [x, torch.ones(2)]), "make it a var"),
    ],
)
def test_a_pattern_that_makes_no_sense_is_refused_where_it_is_declared(pattern, because):
    with pytest.raises(BadPattern, match=because):
        replaced(pattern, lambda x: x.cos(), lambda a: a.sin(), [X])


def test_of_several_targets_one_may_take_other_arguments():
    changed(replaced(op([aten.sin, aten.add], x, x), lambda x: 2 * x, lambda a: (a + a).exp(), [X]))


def test_a_replacement_takes_names_of_the_pattern():
    with pytest.raises(BadPattern, match="takes x, z; the pattern has x"):
        replaced(op(aten.sin, x), lambda x, z: x, lambda a: a.sin(), [X])
    with pytest.raises(PassFailed, match="returns 2 values, the pattern has 1"):
        replaced(op(aten.sin, x), lambda x: (x.cos(), x.sin()), lambda a: a.sin() * 2, [X])


def test_an_unknown_tolerance_is_an_error():
    with pytest.raises(BadPattern, match="tolerate='scales': known are scale, casts"):
        replaced(op(aten.sin, x), lambda x: x, lambda a: a.sin(), [X], tolerate="scales")


def test_a_pattern_reads_as_one_would_write_it():
    said = op(aten.mul, op([aten.sin, aten.cos], x), any_of(const("c"), 2), users=1)
    assert str(said) == "aten.mul(aten.sin | aten.cos(x), (c or 2))"


def test_a_handler_gets_the_match_and_edits_through_the_rewriter():
    from pattern_tools import passing

    from eductor.observe.manual.manual import run_pass

    inner = op(aten.sin, x)
    made = passing()

    @made.rule(op(aten.exp, inner), check=lambda m: m.fake("x").dim() == 2 or "not a matrix")
    def as_cosine(match, graph, rewrite):
        assert match.node_of(inner).name == "sin"
        rewrite.replace(match.output, aten.cos.default, match["x"])

    run = run_pass(made, "joint", graph_of(lambda a: a.sin().exp() * 2, [X]))
    assert torch.equal(changed(run)(X), X.cos() * 2)
    refused(run_pass(made, "joint", graph_of(lambda a: a.sin().exp() * 2, [X[0]])), "not a matrix")


def test_what_does_not_fit_is_left():
    untouched(replaced(op(aten.exp, op(aten.sin, x)), lambda x: x, lambda a: a.cos().exp(), [X]))
    assert list(by_anchor(op(aten.exp, op(aten.sin, x)), graph_of(lambda a: a.cos().exp(), [X]))) == [[set(), set()]]
