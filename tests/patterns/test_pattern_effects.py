"""Effects: a match spans no write to what it reads and no barrier, and what shares memory goes on sharing it."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from pattern_tools import aten, changed, count, graph_of, matches, passing, reasons, refused, replaced

from eductor.graph import from_python
from eductor.observe.manual.manual import run_pass
from eductor.patterns import ANY, const, op, outputs, var
from eductor.pipeline import f32

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

x, y = var("x"), var("y")
X, Y = torch.linspace(-1, 2, 16).reshape(4, 4), torch.linspace(3, 5, 16).reshape(4, 4)
PRODUCT = op(aten.mul, op(aten.sin, x), y)


def product(x, y):
    return torch.mul(torch.sin(x * 1), y)


def before_autograd(program, given=(X, Y), pattern=PRODUCT, replacement=product, **more):
    return replaced(pattern, replacement, program, list(given), stage="pre_grad", **more)


# --------------------------------------------------------------------------------------------------------------- writes


def test_a_write_between_the_nodes_to_what_the_first_reads():
    def program(a, b):
        c = a * 2
        s = c.sin()
        c.add_(1)
        return s * b, c

    refused(before_autograd(program), "writes, between the nodes of the match, what s reads")


def test_a_write_through_a_view_counts():
    def program(a, b):
        c = a * 2
        s = c.sin()
        c[0].zero_()
        return s * b, c

    refused(before_autograd(program), "writes, between the nodes of the match, what s reads")


def test_an_assignment_to_an_index_counts():
    def program(a, b):
        c = a * 2
        s = c.sin()
        c[0] = 0
        return s * b, c

    refused(before_autograd(program), "between the nodes of the match")


def test_a_write_to_something_else_is_passed():
    def program(a, b):
        c, d = a * 2, b * 2
        s = c.sin()
        d.add_(1)
        return s * b, d

    module = changed(before_autograd(program))
    assert all(torch.equal(p, q) for p, q in zip(module(X, Y), program(X, Y), strict=True))


@pytest.mark.parametrize("after", [False, True])
def test_a_write_in_front_of_a_match_or_behind_it_is_none_of_its_business(after):
    def program(a, b):
        c = a * 2
        if not after:
            c.add_(1)
        d = c.sin() * b
        if after:
            c.add_(1)
        return d, c

    module = changed(before_autograd(program))
    assert all(torch.equal(p, q) for p, q in zip(module(X, Y), program(X, Y), strict=True))


def test_a_copy_that_was_made_before_a_write_is_not_passed_over():
    module = from_python(
        """
def forward(x):
    # x: f32[2, 3]
    clone = torch.ops.aten.clone.default(x)
    add_ = torch.ops.aten.add_.Tensor(x, 1)
    add = torch.ops.aten.add.Tensor(clone, x)
    return (add,)
"""
    )
    run = before_autograd(module, [torch.randn(2, 3)], op(aten.add, x, x), lambda x: x * 2)
    refused(run, "add_ writes x between the nodes of the match")


def test_a_detached_value_is_another_one():
    def program(a):
        b = torch.sin(a)
        return aten.add.Tensor(b, aten.detach.default(b)) * 2

    module = graph_of(program, [X.clone().requires_grad_()], "pre_grad")
    assert not matches(op(aten.add, x, x), module)
    assert matches(op(aten.add, x, y), module)


def test_a_handler_is_not_shown_a_match_that_spans_a_write():
    def program(a, b):
        c = a * 2
        s = c.sin()
        c.add_(1)
        return s * b, (c * 3).sin() * b

    made, seen = passing("pre_grad"), []

    @made.rule(PRODUCT)
    def look(match, graph, rewrite):
        seen.append(match["x"].name)

    run = run_pass(made, "pre_grad", graph_of(program, [X, Y], "pre_grad"))
    assert len(seen) == 1
    assert any("writes, between the nodes of the match" in r for r in reasons(run))


# ------------------------------------------------------------------------------------------------- barriers and randomness


def test_a_switch_of_grad_mode_between_the_nodes():
    def program(a, b):
        s = a.sin()
        with torch.no_grad():
            return s * b

    refused(before_autograd(program), "a switch of grad mode, inference mode or autocast")


def test_a_switch_of_autocast_between_the_nodes():
    def program(a, b):
        s = a.sin()
        with torch.autocast("cpu", torch.bfloat16):
            return s * b

    refused(before_autograd(program), "a switch of grad mode, inference mode or autocast")


def test_a_match_within_a_region_stays_within_it():
    def program(a, b):
        with torch.no_grad():
            c = a.sin() * b
        return c + a

    module = changed(before_autograd(program))
    names = [n.name for n in module.graph.nodes]
    switches = [n for n in module.graph.nodes if n.target is torch._C._set_grad_enabled]
    (sine,) = (n for n in module.graph.nodes if n.target is aten.sin.default)
    assert switches[0] < sine < switches[1], names


def test_a_callable_that_nobody_knows_between_the_nodes():
    module = graph_of(lambda a, b: (lambda s: (torch.neg(a), s * b))(a.sin()), [X, Y], "pre_grad")
    for node in module.graph.nodes:
        if node.target is torch.neg:
            node.target = mystery
    made = passing("pre_grad")
    made.replace(PRODUCT, product, name="rule")
    refused(run_pass(made, "pre_grad", module), "is between the nodes of the match")


def mystery(a):
    return -a


def test_another_draw_between_the_nodes_of_a_match_that_draws():
    pattern = op(aten.mul, op(aten.dropout, x, const("p"), True), y)

    def program(a, b, between):
        d = F.dropout(a, 0.5)
        r = torch.rand_like(b) if between else b
        return d * b, r

    def new(x, y, p):
        return torch.mul(F.dropout(x * 1, p), y)

    run = before_autograd(lambda a, b: program(a, b, True), pattern=pattern, replacement=new)
    refused(run, "draws random numbers as")
    module = changed(before_autograd(lambda a, b: program(a, b, False), pattern=pattern, replacement=new))
    torch.manual_seed(3)
    got = module(X, Y)[0]
    torch.manual_seed(3)
    assert torch.equal(got, program(X, Y, False)[0])


def test_a_draw_between_the_nodes_of_a_match_that_draws_nothing_is_passed():
    def program(a, b):
        s = a.sin()
        r = torch.rand_like(b)
        return s * b, r

    assert count(changed(before_autograd(program)), aten.sin) == 1


# --------------------------------------------------------------------------------------------- writes within the pattern


def test_a_mutating_operator_can_be_in_a_pattern():
    pattern = op(aten.mul, op(aten.add_, x, y), const("c"))

    def program(a, b):
        c = a * 3
        return c.add_(b) * 2, c

    run = before_autograd(program, pattern=pattern, replacement=lambda x, y, c: torch.mul(x.add_(y), c) / 1)
    module = changed(run)
    assert count(module, aten.add_) == 1
    assert all(torch.equal(p, q) for p, q in zip(module(X, Y), program(X, Y), strict=True))


def test_a_read_between_a_write_of_the_pattern_and_its_end():
    pattern = op(aten.mul, op(aten.add_, x, y), const("c"))

    def program(a, b):
        c = a * 3
        d = c.add_(b)
        e = c.sin()
        return d * 2, e

    run = before_autograd(program, pattern=pattern, replacement=lambda x, y, c: torch.mul(x.add_(y), c) / 1)
    refused(run, "between the nodes of the match")


def test_a_replacement_that_forgets_a_write_is_refused():
    def forgets(x, y):
        y.zero_()
        return torch.sin(x)

    def program(a, b):
        c = b * 1
        return a.sin() * c, c + 1

    for stage in ("pre_grad", "joint"):
        run = replaced(PRODUCT, forgets, program, [X, Y], stage=stage)
        refused(run, "of the replacement has an effect, and none of the results comes from it")


def test_auto_functionalized_calls_can_be_in_a_pattern():
    from torch._higher_order_ops.auto_functionalize import auto_functionalized

    with torch.library._scoped_library("eductor_writes", "DEF") as library:
        library.define("bump(Tensor(a!) x, float by) -> ()", tags=())
        library.impl("bump", lambda x, by: x.add_(by) and None, "CPU")
        library.impl("bump", lambda x, by: None, "Meta")
        bump = torch.ops.eductor_writes.bump.default
        graph = torch.fx.Graph()
        a = graph.placeholder("a")
        wide = graph.call_function(aten.mul.Tensor, (a, 2))
        call = graph.call_function(auto_functionalized, (bump,), {"x": wide, "by": 1.0})
        got = graph.call_function(operator.getitem, (call, 1))
        graph.output((graph.call_function(aten.sin.default, (got,)),))
        fake = torch._subclasses.FakeTensorMode().from_tensor(X)
        for node in graph.nodes:
            node.meta["val"] = (None, fake) if node is call else fake
        module = torch.fx.GraphModule({}, graph)
        pattern = op(operator.getitem, op(auto_functionalized, bump, x=x, by=const("by")), 1)
        (found,) = matches(pattern, module)
        assert found["by"] == 1.0
        assert found["x"] is wide
        assert not matches(op(operator.getitem, op(auto_functionalized, bump, x=x), 1), module)
        made = passing("joint")
        made.replace(pattern, lambda x, by: x + by, name="rule")
        run = run_pass(made, "joint", module)
        assert torch.equal(changed(run)(X)[0], (X * 2 + 1).sin())


# --------------------------------------------------------------------------------------------------------- shared memory


def test_a_replacement_that_returns_its_input_cannot_stand_for_a_result_of_the_graph():
    pattern = op(aten.mul, x, 1)
    run = replaced(pattern, lambda x: x, lambda a: a * 1, [X])
    refused(run, "a separate output")
    inside = changed(replaced(pattern, lambda x: x, lambda a: (a * 1).sin(), [X]))
    assert count(inside, aten.mul) == 0


def test_a_result_that_shares_memory_with_what_is_written_later():
    def program(a):
        b = a + 1
        c = b * 1
        b.add_(1)
        return c.sin(), b

    run = before_autograd(program, [X], op(aten.mul, x, 1), lambda x: x)
    refused(run, "while c is in use")


def test_a_view_that_leaves_the_graph_stays_a_view():
    pattern = op(aten.view, x, const("shape"))
    new = lambda x, shape: torch.mul(x, 1).reshape(shape)  # noqa: E731
    refused(replaced(pattern, new, lambda a: a.view(16), [X]), "is a view, its replacement would not be")
    refused(replaced(pattern, new, lambda a: (lambda b: (b, b.view(16)))(a + 1), [X]), "is a view, its replacement")
    assert changed(replaced(pattern, new, lambda a: (a + 1).view(16).sin(), [X], again=False))


def test_a_view_that_is_written_stays_a_view():
    def program(a):
        b = a + 1
        v = b.view(16)
        v.add_(1)
        return b

    pattern = op(aten.view, x, const("shape"))
    run = before_autograd(program, [X], pattern, lambda x, shape: torch.mul(x, 1).reshape(shape))
    refused(run, "is a view, its replacement would not be")


def test_a_copy_may_not_become_a_view_of_what_leaves_the_graph():
    pattern = op(aten.mul, op(aten.permute, x, [1, 0]), 1)

    def program(a):
        b = a + 1
        return b, b.t() * 1

    refused(
        replaced(pattern, lambda x: x.t(), program, [X]),
        "mul is a separate output, add is an input or another output",
    )


def test_several_results_one_of_which_is_used_between_the_others():
    pattern = outputs(op(aten.sin, x), op(aten.mul, op(aten.cos, x), y))

    def program(a, b):
        s = a.sin()
        c = torch.add(s, b)
        return s, a.cos() * c

    run = replaced(pattern, lambda x, y: (torch.sin(x + 0 * y), torch.cos(x) * y), program, [X, Y])
    refused(run, "is computed only after a user of sin")


def test_what_anybody_may_use_stays_though_it_writes():
    """Nobody writes twice: the write within the pattern is not made again by a replacement beside it."""
    pattern = op(aten.mul, op(aten.sin, x, users=ANY), y)

    def program(a, b):
        s = a.sin()
        d = s * b
        s.add_(1)
        return d, s

    module = changed(before_autograd(program, pattern=pattern, replacement=product, again=False))
    assert all(torch.equal(p, q) for p, q in zip(module(X, Y), program(X, Y), strict=True))


# --------------------------------------------------------------------------------------------------- what is written


def _scaled(x):
    return (x * 2).sin()


@pytest.mark.parametrize("tolerate", [(), ("scale", "casts")])
@pytest.mark.parametrize("how", ["add_", "setitem", "through_a_view"])
@pytest.mark.parametrize("copy", [torch.clone, lambda a: a * 1, lambda a: a.double().float()])
def test_a_copy_that_is_written_is_not_what_it_was_copied_from(copy, how, tolerate):
    def program(a):
        y = copy(a)
        if how == "add_":
            y.add_(1.0)
        elif how == "setitem":
            y[0] = 0.0
        else:
            y.view(-1).add_(1.0)
        return _scaled(y)

    given = [torch.linspace(-1, 2, 16).reshape(4, 4).requires_grad_()]
    again = lambda x: torch.sin(x + x)  # noqa: E731
    replaced(_scaled, again, program, given, stage="pre_grad", inputs=[f32(4, 4)], tolerate=tolerate)


def test_a_handler_is_given_the_copy_that_was_written():
    made, seen = passing("pre_grad"), []

    @made.rule(op(aten.tanh, var("x")))
    def look(match, graph, rewrite):
        seen.append(match["x"].name)

    def program(a):
        y = a.clone()
        y.add_(1.0)
        return y.tanh()

    module = graph_of(program, [torch.randn(4)], "pre_grad")
    run_pass(made, "pre_grad", module)
    assert seen == [next(n.name for n in module.graph.nodes if n.target == "clone")]


def test_a_value_inside_of_a_match_that_somebody_writes_is_refused():
    def program(a):
        y = a * 2
        view = y.view(-1)
        view.add_(1.0)
        return y.sin()

    pattern = op(aten.sin, op(aten.mul, var("x"), 2, users=ANY))
    run = replaced(pattern, lambda x: torch.sin(x + x), program, [torch.randn(4, 4)], stage="pre_grad")
    refused(run, "before")


def test_a_replacement_writes_what_the_match_wrote():
    program = lambda a: a.clone().add_(1.0) * 2.0  # noqa: E731
    pattern = op(aten.mul, op(aten.add_, var("x"), 1.0), 2.0)
    given = [torch.randn(4, 4)]

    def without(x):
        return (x + 1.0) * 2.0

    def within(x):
        return torch.mul(x.add_(1.0), 2.0)

    refused(replaced(pattern, without, program, given, stage="pre_grad"), "the replacement does not")
    changed(replaced(pattern, within, program, given, stage="pre_grad", again=False))


def test_a_replacement_writes_nothing_that_the_match_did_not_write():
    def writing(x):
        x.add_(1.0)
        return torch.sin(x * 2)

    pattern = op(aten.sin, op(aten.mul, var("x"), 2))
    run = replaced(pattern, writing, lambda a: _scaled(a), [torch.randn(4, 4)], stage="pre_grad")
    refused(run, "and the match does not")
