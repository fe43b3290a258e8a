"""Patterns that were written for torch's matcher: the same source runs on both, with only the import changed."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.pattern_matcher as stock
from torch import nn
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from eductor import patterns as ours
from eductor.compat import FakeTensorMode
from eductor.errors import BadPattern
from eductor.graph.capture import capture
from eductor.graph.provenance import provenance_of
from eductor.graph.values.evaluate import propagate
from eductor.graph.view import GraphView
from eductor.patterns.torch_names import handler_edits as stock_edits
from eductor.patterns.torch_names import rules as stock_rules
from eductor.patterns.trace import store
from eductor.patterns.trace.search_function import Traced

aten = torch.ops.aten
Declared = Callable[[Any], Any]


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape)


def graph(fn: Callable[..., Any], *inputs: Any) -> GraphModule:
    """The ATen graph of a program, as torch's own tests make it."""
    return make_fx(fn, tracing_mode="fake")(*inputs)


def same(module: GraphModule, fn: Callable[..., Any], inputs: list[Any]) -> None:
    expected, got = fn(*inputs), module(*inputs)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def calls(module: GraphModule) -> Counter[str]:
    return Counter(str(n.target) for n in module.graph.nodes if n.op.startswith("call"))


def applied(fn: Callable[..., Any], inputs: list[Any], declare: Declared, count: int, api: Any = ours) -> Counter[str]:
    """Applies the patterns that are declared with one of the matchers to the ATen graph of a program."""
    module = graph(fn, *inputs)
    assert declare(api).apply(module.graph) == count
    module.graph.lint()
    module.recompile()
    same(module, fn, inputs)
    module.graph.eliminate_dead_code()
    return calls(module)


def both(fn: Callable[..., Any], inputs: list[Any], declare: Declared, count: int) -> Counter[str]:
    """The same with both matchers: the same number of matches, the same calls afterwards."""
    mine = applied(fn, inputs, declare, count)
    assert mine == applied(fn, inputs, declare, count, api=stock)
    return mine


# ---------------------------------------------------------------------------------------------------- register_replacement


def test_a_sum_of_products_is_fused() -> None:
    def declare(pm: Any) -> Any:
        def search(x: Any, y: Any, z: Any) -> Any:
            return x * y + z

        def replacement(x: Any, y: Any, z: Any) -> Any:
            return torch.addcmul(z, x, y)

        patterns = pm.PatternMatcherPass(pass_name="fuse")
        pm.register_replacement(search, replacement, [rand(4, 4) for _ in range(3)], pm.fwd_only, patterns)
        return patterns

    inputs = [rand(4, 4) for _ in range(3)]
    found = applied(lambda x, y, z: torch.relu(x * y + z), inputs, declare, 1)
    assert found == {"aten.addcmul.default": 1, "aten.relu.default": 1}
    applied(lambda x, y, z: torch.relu(x * y + z), inputs, declare, 1, api=stock)  # some versions take it apart again
    found = applied(lambda x, y, z: (x * y + z, y + x * z), inputs, declare, 2)  # a sum may stand the other way round
    assert found == {"aten.addcmul.default": 2}


def test_extra_check_decides() -> None:
    def declare(pm: Any, allowed: bool) -> Any:
        seen: list[Any] = []

        def check(match: Any) -> bool:
            seen.append((match.kwargs["x"].meta["val"].shape, match.output_node().target, match.output_nodes()))
            return allowed

        patterns = pm.PatternMatcherPass()
        pm.register_replacement(
            lambda x: torch.relu(torch.neg(x)), lambda x: torch.clamp_min(-x, 0), [rand(3, 3)], pm.fwd_only, patterns,
            extra_check=check,
        )  # fmt: skip
        patterns.seen_by_check = seen
        return patterns

    for pm in (ours, stock):
        for allowed in (True, False):
            module = graph(lambda x: torch.relu(torch.neg(x)), rand(5, 2))
            patterns = declare(pm, allowed)
            assert patterns.apply(module) == allowed
            assert patterns.seen_by_check[0][0] == (5, 2)
            assert patterns.seen_by_check[0][1] is aten.relu.default
            assert [n.target for n in patterns.seen_by_check[0][2]] == [aten.relu.default]


def test_arguments_of_a_replacement_go_by_position() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        pm.register_replacement(
            lambda a, b: torch.neg(a - b), lambda b, a: a - b, [rand(2, 3), rand(2, 3)], pm.fwd_only, patterns
        )
        return patterns

    both(lambda a, b: torch.neg(a - b), [rand(2, 3), rand(2, 3)], declare, 1)


def test_a_replacement_may_take_only_what_it_needs() -> None:
    patterns = ours.PatternMatcherPass()
    ours.register_replacement(
        lambda x, y: (x + y) - y, lambda x: x.clone(), [rand(2, 3), rand(2, 3)], ours.fwd_only, patterns
    )
    module = graph(lambda x, y: (x + y) - y, rand(2, 3), rand(2, 3))
    assert patterns.apply(module) == 1
    assert calls(module) == {"aten.clone.default": 1}


def test_a_dropout_with_any_probability() -> None:
    def declare(pm: Any) -> Any:
        def search(x: Any, p: Any) -> Any:
            return torch.nn.functional.dropout(x, p, True) * 1.5

        def replacement(x: Any, p: Any) -> Any:
            return (torch.rand_like(x) > p) * (x * (1.5 / (1 - p)))

        patterns = pm.PatternMatcherPass()
        pm.register_replacement(
            search, replacement, [rand(4, 4)], pm.fwd_only, patterns, scalar_workaround={"p": 0.113377}
        )
        return patterns

    for p in (0.113377, 0.25):
        program = functools.partial(torch.nn.functional.dropout, p=p)
        module = capture(lambda x: program(x) * 1.5, [rand(4, 4)], "aten")  # noqa: B023
        module.graph.eliminate_dead_code()  # the mask, which nobody wants
        assert declare(ours).apply(module) == 1
        (gt,) = (n for n in module.graph.nodes if n.target is aten.gt.Scalar)
        assert gt.args[1] == p


def test_whole_numbers_of_the_workaround_are_free() -> None:
    patterns = ours.PatternMatcherPass()
    ours.register_replacement(
        lambda x, dim: torch.softmax(x, dim).log(),
        lambda x, dim: torch.log_softmax(x, dim),
        [rand(3, 5)],
        ours.fwd_only,
        patterns,
        scalar_workaround={"dim": -1},
    )
    for dim in (0, 1):
        module = graph(lambda x: torch.softmax(x, dim).log(), rand(3, 5))  # noqa: B023
        assert patterns.apply(module) == 1
        same(module, lambda x: torch.log_softmax(x, dim), [rand(3, 5)])  # noqa: B023


def test_exclusive_arguments_are_different_nodes() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        pm.register_replacement(
            lambda a, b: torch.relu(torch.mm(a, b)),
            lambda a, b: torch.clamp_min(torch.mm(a, b), 0),
            [rand(3, 3), rand(3, 3)],
            pm.fwd_only,
            patterns,
            exclusive_arg_names=("a", "b"),
        )
        return patterns

    both(lambda a, b: torch.relu(a @ b), [rand(3, 3), rand(3, 3)], declare, 1)
    both(lambda a: torch.relu(a @ a), [rand(3, 3)], declare, 0)


def test_forward_and_backward_are_replaced_together() -> None:
    def search(x: Any) -> Any:
        return torch.sin(x) * 2

    def replacement(x: Any) -> Any:
        return torch.sin(x) + torch.sin(x)

    patterns = ours.PatternMatcherPass("joint")
    ours.register_replacement(search, replacement, [rand(4, 4).requires_grad_()], ours.joint_fwd_bwd, patterns)
    module = ours.joint_fwd_bwd(lambda x: torch.sin(x) * 2, [rand(4, 4).requires_grad_()])
    before = GraphModule(module, torch.fx.Graph())
    before.graph.output(before.graph.graph_copy(module.graph, {}))
    before.recompile()
    assert calls(module) == {"aten.sin.default": 1, "aten.cos.default": 1, "aten.mul.Tensor": 3}
    assert patterns.apply(module) == 1
    assert "aten.add.Tensor" in calls(module)
    x, tangent = rand(4, 4), rand(4, 4)
    torch.testing.assert_close(module(x, tangent), before(x, tangent))


def test_a_joint_pattern_is_not_found_in_a_forward() -> None:
    patterns = ours.PatternMatcherPass()
    ours.register_replacement(
        lambda x: torch.sin(x) * 2, lambda x: torch.sin(x) + torch.sin(x), [rand(2, 2)], ours.joint_fwd_bwd, patterns
    )
    assert patterns.apply(capture(lambda x: torch.sin(x) * 2, [rand(2, 2)], "aten")) == 0


def test_what_is_registered_twice() -> None:
    def search(x: Any) -> Any:
        return torch.neg(torch.neg(x))

    def replacement(x: Any) -> Any:
        return x.clone()

    for pm in (ours, stock):
        patterns = pm.PatternMatcherPass("twice")
        declare = functools.partial(pm.register_replacement, search, replacement, [rand(2)], pm.fwd_only)
        declare(patterns)
        with pytest.raises((BadPattern, RuntimeError), match=r"(?i)duplicate"):
            declare(patterns)
        assert not declare(patterns, skip_duplicates=True)
        module = graph(lambda x: torch.neg(torch.neg(x)), rand(3))
        assert patterns.apply(module) == 1


def test_functions_that_close_over_different_things_are_no_duplicates() -> None:
    patterns = ours.PatternMatcherPass()
    for op in (torch.sin, torch.cos):
        ours.register_replacement(*closed_over(op), [rand(2)], ours.fwd_only, patterns)
    assert [r.name for r in patterns.rules.rules] == ["replacement", "replacement_2"]


def closed_over(op: Any) -> tuple[Any, Any]:
    def search(x: Any) -> Any:
        return op(op(x))

    def replacement(x: Any) -> Any:
        return op(x)

    return search, replacement


def test_several_passes_share_a_rule() -> None:
    for pm in (ours, stock):
        passes = [pm.PatternMatcherPass(), pm.PatternMatcherPass()]
        pm.register_replacement(lambda x: torch.neg(torch.neg(x)), lambda x: x.clone(), [rand(2)], pm.fwd_only, passes)
        for patterns in passes:
            module = graph(lambda x: torch.neg(torch.neg(x)), rand(3))
            assert patterns.apply(module.graph) == 1
            assert calls(module) == {"aten.clone.default": 1}


def test_a_pattern_may_be_given_in_place_of_a_trace() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        pattern = pm.CallFunction(aten.relu.default, pm.CallFunction(aten.neg.default, pm.KeywordArg("x")))
        pm.register_replacement(
            lambda x: torch.relu(-x), lambda x: torch.clamp_min(-x, 0), [rand(2)], pm.fwd_only, patterns,
            search_fn_pattern=pattern,
        )  # fmt: skip
        return patterns

    found = both(lambda x: torch.relu(torch.neg(x)), [rand(3, 3)], declare, 1)
    assert "aten.relu.default" not in found


def test_examples_may_be_fake() -> None:
    for pm in (ours, stock):
        patterns = pm.PatternMatcherPass()
        with FakeTensorMode():
            examples = [torch.empty(4, 4), torch.empty(4, 4)]
            pm.register_replacement(
                lambda x, y: torch.relu(x - y), lambda x, y: torch.clamp_min(x - y, 0), examples, pm.fwd_only, patterns
            )
        assert patterns.apply(graph(lambda x, y: torch.relu(x - y), rand(3, 5), rand(3, 5))) == 1


def test_a_call_that_writes_in_its_functional_form(scratch: Any) -> None:
    def search(x: Any, out: Any) -> Any:
        return torch.neg(auto_functionalized(scratch.silu_into.default, out=out, x=x)[1])

    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        pm.register_replacement(
            search, lambda x, out: -torch.nn.functional.silu(x), [rand(4, 4), rand(4, 4)], pm.fwd_only, patterns
        )
        return patterns

    for pm in (ours, stock):
        module = graph(search, rand(2, 3), rand(2, 3))
        module.graph.eliminate_dead_code()
        assert declare(pm).apply(module) == 1
        module.recompile()
        x = rand(2, 3)
        torch.testing.assert_close(module(x, x), -torch.nn.functional.silu(x))
        assert not module.graph.find_nodes(op="call_function", target=auto_functionalized)


@pytest.fixture
def scratch() -> Iterator[Any]:
    with torch.library._scoped_library("eductor_stock_names", "FRAGMENT") as library:
        library.define("silu_into(Tensor(a!) out, Tensor x) -> ()")
        library.impl("silu_into", lambda out, x: None, "Meta")
        library.impl("silu_into", lambda out, x: None, "CPU")
        yield torch.ops.eductor_stock_names


def test_ranks_are_those_of_the_examples() -> None:
    """Else a dimension of the replacement, counted from the front, could be another one."""
    patterns = ours.PatternMatcherPass()
    ours.register_replacement(
        lambda x: torch.exp(x.sum(1)), lambda x: x.exp().prod(1), [rand(2, 3)], ours.fwd_only, patterns
    )
    assert patterns.apply(graph(lambda x: torch.exp(x.sum(1)), rand(4, 5))) == 1
    assert patterns.apply(graph(lambda x: torch.exp(x.sum(2)), rand(4, 4, 4))) == 0


def test_a_generated_pattern_is_traced_when_it_is_wanted() -> None:
    runs: list[int] = []

    def search(x: Any) -> Any:
        runs.append(1)
        return torch.tanh(torch.tanh(x))

    patterns = ours.PatternMatcherPass()
    ours.gen_register_replacement(
        "twice_tanh", search, lambda x: torch.tanh(x) * 1.0, [rand(2, 2)], ours.fwd_only, patterns
    )
    assert not runs
    module = graph(lambda x: torch.tanh(torch.tanh(x)), rand(2, 2))
    assert patterns.apply(module) == 1
    assert runs


def test_a_generated_pattern_that_is_stored_is_not_traced(tmp_path: Path) -> None:
    def search(x: Any) -> Any:
        raise AssertionError("it is stored")

    pattern = ours.op(aten.tanh, ours.op(aten.tanh, ours.var("x")))
    (tmp_path / "user.json").write_text(store.dumps({"twice": pattern}))
    patterns = ours.PatternMatcherPass()
    ours.gen_register_replacement("twice", search, torch.tanh, [rand(2, 2)], ours.fwd_only, patterns)
    (rule,) = patterns.rules.rules
    assert isinstance(rule.source, Traced)
    rule.source.home = tmp_path
    assert patterns.apply(graph(lambda x: torch.tanh(torch.tanh(x)), rand(2, 2))) == 1


# -------------------------------------------------------------------------------------------------- register_graph_pattern


def test_permutations_are_composed() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()

        @pm.register_graph_pattern(
            pm.CallFunction(aten.permute, pm.CallFunction(aten.permute, pm.Arg(), pm.Arg()), pm.Arg()),
            pass_dict=patterns,
        )
        def composed(match: Any, x: Any, inner: Any, outer: Any) -> None:
            node = match.output_node()
            with match.graph.inserting_before(node):
                new = match.graph.call_function(aten.permute.default, (x, [inner[i] for i in outer]))
                new.meta.update(node.meta)
            node.replace_all_uses_with(new)
            match.erase_nodes()

        return patterns

    found = both(lambda x: x.permute(2, 0, 1).permute(1, 2, 0).exp(), [rand(2, 3, 4)], declare, 1)
    assert found["aten.permute.default"] == 1
    # Ours goes on until nothing is left to do: three permutations are one.
    found = applied(lambda x: x.permute(2, 0, 1).permute(1, 2, 0).permute(1, 0, 2), [rand(2, 3, 4)], declare, 2)
    assert found["aten.permute.default"] == 1


def test_replace_by_example() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()

        @pm.register_graph_pattern(
            pm.CallFunction(aten.cat, pm.ListOf(pm.CallFunction(aten.relu, pm.Arg())), pm.Arg()), pass_dict=patterns
        )
        def after(match: Any, inputs: Any, dim: Any) -> None:
            def replacement(tensors: Any) -> Any:
                return torch.relu(torch.cat(tensors, dim))

            match.replace_by_example(replacement, [[x for (x,) in inputs]])

        return patterns

    found = both(lambda x, y: torch.cat([torch.relu(x), torch.relu(y)], 1) + 1, [rand(2, 3), rand(2, 4)], declare, 1)
    assert found == {"aten.cat.default": 1, "aten.relu.default": 1, "aten.add.Tensor": 1}
    both(lambda x, y: torch.cat([torch.relu(x), y], 1) + 1, [rand(2, 3), rand(2, 4)], declare, 0)


def test_a_part_of_a_list_is_enough_if_the_pattern_says_so() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()

        @pm.register_graph_pattern(
            pm.CallFunction(aten.cat.default, pm.ListOf(pm.CallFunction(aten.neg.default, pm.Arg()), partial=True), 1),
            pass_dict=patterns,
        )
        def count(match: Any, found: Any) -> None:
            assert [x.name for (x,) in found] == ["x_1", "y_1"]
            match.replace_by_example(lambda *x: torch.hstack(x), match.output_node().args[0])

        return patterns

    applied(lambda x, y: torch.cat([-x, y, -y], 1), [rand(2, 3), rand(2, 3)], declare, 1)


def test_the_pieces_of_a_split_that_are_put_together_again() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        split = pm.CallFunction(
            aten.split.Tensor, pm.KeywordArg("x"), pm.Ignored(), pm.KeywordArg("dim"), _users=pm.MULTIPLE
        )
        piece = pm.CallFunction(operator.getitem, split, pm.Ignored())

        @pm.register_graph_pattern(
            pm.CallFunction(aten.cat.default, pm.ListOf(piece), pm.KeywordArg("to")),
            extra_check=lambda match: match.kwargs["dim"] == match.kwargs["to"],
            pass_dict=patterns,
        )
        def undone(match: Any, x: Any, dim: Any, to: Any) -> None:
            match.replace_by_example(torch.clone, [x])

        return patterns

    found = both(lambda x: torch.cat(torch.split(x, 2, 1), 1), [rand(2, 6)], declare, 1)
    assert found == {"aten.clone.default": 1}
    both(lambda x: torch.cat(torch.split(x, 2, 1), 0), [rand(2, 6)], declare, 0)


def test_every_piece_of_a_split() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        split = pm.CallFunction(aten.split.Tensor, pm.KeywordArg("x"), pm.KeywordArg("size"), 1, _users=pm.MULTIPLE)
        piece = pm.CallFunction(operator.getitem, split, pm.Arg(), _users=pm.MULTIPLE)

        @pm.register_graph_pattern(pm.RepeatedExpr(piece), pass_dict=patterns)
        def narrow(match: Any, *indices: int, x: Any, size: int) -> None:
            assert sorted(indices) == [0, 1, 2]
            for node in [n for n in match.nodes if n.target is operator.getitem]:
                i = node.args[1]
                with match.graph.inserting_before(node):
                    new = match.graph.call_function(aten.slice.Tensor, (x, 1, i * size, (i + 1) * size))
                    new.meta.update(node.meta)
                node.replace_all_uses_with(new)
            match.erase_nodes()

        return patterns

    found = both(lambda x: [p.exp() for p in torch.split(x, 2, 1)], [rand(2, 6)], declare, 1)
    assert found == {"aten.slice.Tensor": 3, "aten.exp.default": 3}


def test_several_results_one_of_which_is_missing() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        norm = pm.CallFunction(aten.exp.default, pm.KeywordArg("x"), _users=pm.MULTIPLE)
        results = [pm.CallFunction(aten.neg.default, norm), None, pm.CallFunction(aten.sqrt.default, norm)]

        @pm.register_graph_pattern(pm.MultiOutputPattern(results), pass_dict=patterns)
        def handler(match: Any, x: Any) -> None:
            neg, nothing, sqrt = match.output_nodes()
            assert [neg.target, nothing, sqrt.target] == [aten.neg.default, None, aten.sqrt.default]
            match.replace_by_example(lambda x: (-x.exp(), None, (x * 0.5).exp()), [x])

        return patterns

    def program(x: torch.Tensor) -> Any:
        y = x.exp()
        return y.sqrt() + 1, y.neg() + 1

    found = applied(program, [rand(2, 3)], declare, 1)
    assert found == {"aten.exp.default": 2, "aten.neg.default": 1, "aten.mul.Tensor": 1, "aten.add.Tensor": 2}


def test_a_name_that_is_there_twice_is_one_value() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        x = pm.KeywordArg("x")

        @pm.register_graph_pattern(
            pm.CallFunction(
                aten.sub.Tensor, pm.CallFunction(aten.add.Tensor, x, pm.KeywordArg("y")), pm.KeywordArg("x")
            ),
            pass_dict=patterns,
        )
        def difference(match: Any, x: Any, y: Any) -> None:
            match.output_node().replace_all_uses_with(y)
            match.erase_nodes()

        return patterns

    inputs = [rand(2, 3), rand(2, 3)]
    assert both(lambda x, y: ((x + y) - x).exp(), inputs, declare, 1) == {"aten.exp.default": 1}
    applied(lambda x, y: ((y + x) - x).exp(), inputs, declare, 1)  # a sum may stand the other way round
    both(lambda x, y: ((x + x) - y).exp(), inputs, declare, 0)


def test_exclusive_names() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()

        @pm.register_graph_pattern(
            pm.CallFunction(aten.mm, pm.ExclusiveKeywordArg("a"), pm.ExclusiveKeywordArg("b")), pass_dict=patterns
        )
        def product(match: Any, a: Any, b: Any) -> None:
            match.replace_by_example(lambda a, b: torch.bmm(a[None], b[None])[0], [a, b])

        return patterns

    assert both(lambda a, b: a @ b + 1, [rand(3, 3), rand(3, 3)], declare, 1)["aten.bmm.default"] == 1
    both(lambda a: a @ a + 1, [rand(3, 3)], declare, 0)


def test_a_call_with_all_its_arguments() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()

        @pm.register_graph_pattern(
            pm.CallFunctionVarArgs([aten.addmm.default, aten.reshape.default]), pass_dict=patterns
        )
        def taken_apart(match: Any, bias: Any, a: Any, b: Any, *, alpha: int = 1, beta: int = 1) -> None:
            match.replace_by_example(lambda c, a, b: beta * c + alpha * torch.mm(a, b), [bias, a, b])

        return patterns

    inputs = [rand(3), rand(2, 4), rand(4, 3)]
    assert "aten.addmm.default" not in both(lambda c, a, b: torch.addmm(c, a, b, beta=2) + 1, inputs, declare, 1)


def test_a_handler_that_makes_what_it_looks_for_ends() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()

        @pm.register_graph_pattern(pm.CallFunctionVarArgs(aten.mm.default), pass_dict=patterns)
        def again(match: Any, a: Any, b: Any) -> None:
            node = match.output_node()
            new = match.graph.call_function(aten.mm.default, (a, b))
            new.meta.update(node.meta)
            node.replace_all_uses_with(new)
            match.graph.erase_node(node)

        @pm.register_graph_pattern(pm.CallFunction(aten.relu.default, pm.Arg()), pass_dict=patterns)
        def in_place(match: Any, x: Any) -> None:
            match.output_node().args = (x,)

        return patterns

    both(lambda a, b: torch.relu(torch.mm(a, b)), [rand(2, 2), rand(2, 2)], declare, 2)


def test_who_else_uses_an_intermediate() -> None:
    def declare(pm: Any, **users: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        pattern = pm.CallFunction(aten.relu, pm.CallFunction(aten.neg, pm.Arg(), **users))

        @pm.register_graph_pattern(pattern, pass_dict=patterns)
        def clamped(match: Any, x: Any) -> None:
            match.replace_by_example(lambda x: torch.clamp_min(-x, 0), [x])

        return patterns

    def program(x: torch.Tensor) -> Any:
        y = x.neg()
        return y.relu(), y.exp()

    both(program, [rand(2, 3)], declare, 0)
    both(program, [rand(2, 3)], functools.partial(declare, _users=2), 1)
    both(program, [rand(2, 3)], lambda pm: declare(pm, _users=pm.MULTIPLE), 1)
    both(lambda x: x.neg().relu(), [rand(2, 3)], functools.partial(declare, _users=2), 0)


def test_a_keyword_of_the_elements_of_a_list_is_one_value() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        element = pm.CallFunction(aten.mul.Tensor, pm.Arg(), pm.KeywordArg("by"))

        @pm.register_graph_pattern(
            pm.CallFunction(
                aten.add.Tensor, pm.CallFunction(aten.cat.default, pm.ListOf(element), 1), pm.KeywordArg("by")
            ),
            pass_dict=patterns,
        )
        def common(match: Any, pieces: Any, by: Any) -> None:
            match.replace_by_example(lambda xs: torch.cat(xs, 1) * by + by, [[x for (x,) in pieces]])

        return patterns

    inputs = [rand(2, 3), rand(2, 3)]
    found = both(lambda x, y: torch.cat([x * 2, y * 2], 1) + 2, inputs, declare, 1)
    assert found["aten.mul.Tensor"] == 1
    both(lambda x, y: torch.cat([x * 2, y * 3], 1) + 2, inputs, declare, 0)
    both(lambda x, y: torch.cat([x * 2, y * 2], 1) + 3, inputs, declare, 0)


def test_the_items_of_a_call_with_several_results() -> None:
    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()

        @pm.register_graph_pattern(pm.CallFunction(aten.split.Tensor, pm.Arg(), pm.Arg(), 1), pass_dict=patterns)
        def sliced(match: Any, x: Any, size: int) -> None:
            match.replace_by_example(lambda x: (x[:, :size], x[:, size:]), [x])

        return patterns

    found = both(lambda x: [p.exp() for p in torch.split(x, 2, 1)], [rand(2, 4)], declare, 1)
    assert "aten.split.Tensor" not in found


def test_a_rule_that_comes_first() -> None:
    called: list[str] = []
    patterns = ours.PatternMatcherPass()
    for name, prepend in (("second", False), ("first", True)):

        @ours.register_graph_pattern(ours.CallFunction(aten.relu, ours.Arg()), pass_dict=patterns, prepend=prepend)
        def handler(match: Any, x: Any, name: str = name) -> None:
            called.append(name)

    assert patterns.apply(graph(torch.relu, rand(2))) == 0  # nothing changed
    assert called == ["first", "second"]


def test_operands_come_as_they_stand() -> None:
    for pm in (ours, stock):
        patterns, seen = pm.PatternMatcherPass(), []
        pattern = pm.CallFunction(aten.add, pm.CallFunction(aten.mul, pm.KeywordArg("x"), pm.Arg()), pm.Arg())
        pm.register_graph_pattern(pattern, pass_dict=patterns)(lambda match, *args, x: seen.append((*args, x.name)))  # noqa: B023
        patterns.apply(graph(lambda x: x * 2 + 3, rand(2)))
        assert seen == [(2, 3, "x_1")]


def test_new_nodes_know_their_values_and_their_rule() -> None:
    patterns = ours.PatternMatcherPass("mine")

    @ours.register_graph_pattern(ours.CallFunction(aten.relu, ours.Arg()), pass_dict=patterns)
    def clamped(match: Any, x: Any) -> None:
        match.output_node().replace_all_uses_with(match.graph.call_function(aten.clamp_min.default, (x, 0)))
        match.erase_nodes()

    module = graph(lambda x: torch.relu(x) + 1, rand(2, 3))
    assert patterns.apply(module) == 1
    (new,) = module.graph.find_nodes(op="call_function", target=aten.clamp_min.default)
    assert new.meta["val"].shape == (2, 3)
    assert getattr(provenance_of(new), "address", "") == "mine:clamped@0"


# ------------------------------------------------------------------------------------------------------ Torch-level graphs


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)).float() + 1


def test_modules_and_methods() -> None:
    for pm in (ours, stock):
        patterns = pm.PatternMatcherPass()
        module = pm.CallModule(nn.Linear, pm.KeywordArg("x"))

        @pm.register_graph_pattern(pm.CallMethod("float", pm.CallFunction(torch.relu, module)), pass_dict=patterns)
        def fused(match: Any, x: Any) -> None:
            node = match.output_node()
            name = next(n.target for n in match.nodes if n.op == "call_module")
            new = match.graph.call_module(name, (x,))
            new = match.graph.call_function(torch.clamp_min, (new, 0))
            node.replace_all_uses_with(new)
            match.erase_nodes()

        small, x = Small(), rand(2, 3)
        traced = symbolic_trace(small)
        propagate(traced, [x])
        assert patterns.apply(traced.graph) == 1
        traced.recompile()
        same(traced, small, [x])
        assert not traced.graph.find_nodes(op="call_method")


def test_modules_with_all_their_arguments() -> None:
    patterns = ours.PatternMatcherPass()
    seen = []
    ours.register_graph_pattern(ours.CallModuleVarArgs(nn.Linear), pass_dict=patterns)(
        lambda match, *args: seen.append(args)
    )
    ours.register_graph_pattern(ours.CallMethodVarArgs("float"), pass_dict=patterns)(
        lambda match, *args: seen.append(args)
    )
    traced = symbolic_trace(Small())
    propagate(traced, [rand(2, 3)])
    assert patterns.apply(traced) == 0
    assert [a.name for (a,) in seen] == ["x", "relu"]


@pytest.mark.parametrize("sizes", [2, [1, 5]])
def test_functions_by_what_they_spell(sizes: Any) -> None:
    patterns = ours.PatternMatcherPass()
    pattern = ours.CallFunction(
        operator.mul,
        ours.CallFunction(
            operator.getitem,
            ours.CallFunction(torch.split, ours.Arg(), ours.KeywordArg("size"), dim=1, _users=ours.MULTIPLE),
            0,
        ),
        ours.KeywordArg("by"),
    )
    found: list[Any] = []
    ours.register_graph_pattern(pattern, pass_dict=patterns)(
        lambda match, x, size, by: found.append((x.name, size, by))
    )
    module = capture(lambda x: torch.split(x, sizes, dim=1)[0] * 3, [rand(2, 6)])
    assert patterns.apply(module) == 0
    assert {repr(f) for f in found} == {repr(("l_x_", sizes, 3))}


# ---------------------------------------------------------------------------------------------------------- in the pipeline


def declare_relu(pm: Any) -> Any:
    patterns = pm.PatternMatcherPass("my_relu")
    pm.register_replacement(
        lambda x: torch.relu(torch.neg(x)), lambda x: torch.clamp_min(-x, 0.0), [rand(2, 3)], pm.fwd_only, patterns
    )

    @pm.register_graph_pattern(pm.CallFunction(aten.exp.default, pm.Arg()), pass_dict=patterns)
    def exp(match: Any, x: Any) -> None:
        new = match.graph.call_function(aten.exp2.default, (match.graph.call_function(aten.mul.Tensor, (x, LOG2E)),))
        match.output_node().replace_all_uses_with(new)
        match.erase_nodes()

    return patterns


LOG2E = 1.4426950408889634


@pytest.mark.parametrize("as_function", [False, True])
def test_a_compile_with_a_custom_pass(as_function: bool) -> None:
    patterns = declare_relu(ours)
    seen: list[Counter[str]] = []

    def look(graph: torch.fx.Graph) -> None:
        seen.append(Counter(str(n.target) for n in graph.nodes if n.op == "call_function"))

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.neg(x)).exp()

    mine = (lambda graph: patterns(graph)) if as_function else patterns
    compiled = torch.compile(
        program, backend="eductor", options={"engine": "aten", "post_grad_custom_post_pass": [mine, look]}
    )
    x = rand(4, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), program(x))
    assert seen[-1]["aten.exp2.default"] == 1
    assert seen[-1]["aten.relu.default"] == seen[-1]["aten.exp.default"] == 0
    assert seen[-1]["aten.clamp_min.default"] == 1


def test_training_through_a_custom_pass() -> None:
    patterns = declare_relu(ours)

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.neg(x)).exp().sum()

    compiled = torch.compile(
        program, backend="eductor", options={"engine": "aten", "post_grad_custom_post_pass": patterns}
    )
    x, y = (torch.linspace(-1, 1, 6).requires_grad_() for _ in range(2))
    compiled(x).backward()
    program(y).backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_the_version_of_a_pass_follows_its_rules() -> None:
    patterns = ours.PatternMatcherPass("mine")
    empty = patterns.version
    ours.register_graph_pattern(ours.CallFunction(aten.exp, ours.Arg()), pass_dict=patterns)(lambda match, x: None)
    assert patterns.version != empty
    patterns.clear()
    assert patterns.version == empty


def test_a_graph_of_nobody() -> None:
    patterns = declare_relu(ours)
    module = graph(lambda x: torch.relu(torch.neg(x)), rand(2, 3))
    alone = torch.fx.Graph()
    alone.output(alone.graph_copy(module.graph, {}))
    for old, new in zip(module.graph.nodes, alone.nodes, strict=True):
        new.meta.update(old.meta)
    assert alone.owning_module is None
    assert patterns.apply(alone) == 1


def test_sizes_that_are_symbols_are_captured_as_nodes() -> None:
    patterns = ours.PatternMatcherPass()

    @ours.register_graph_pattern(ours.CallFunction(aten.view, ours.Arg(), ours.Arg()), pass_dict=patterns)
    def reshaped(match: Any, x: Any, size: Any) -> None:
        new = match.graph.call_function(aten.reshape.default, (x, size))
        match.output_node().replace_all_uses_with(new)
        match.erase_nodes()

    module = make_fx(lambda x: x.view(x.shape[1], x.shape[0]).exp(), tracing_mode="symbolic")(rand(4, 3))
    assert patterns.apply(module) == 1
    x = rand(5, 2)
    torch.testing.assert_close(module(x), x.view(2, 5).exp())


# -------------------------------------------------------------------------------------------------------------- the tracers


def test_tracers_give_graphs() -> None:
    x = rand(2, 3)
    module = ours.fwd_only(lambda x, y: torch.relu(x) * y, [x, 2.0])
    assert calls(module) == {"aten.relu.default": 1, "aten.mul.Tensor": 1}
    torch.testing.assert_close(module(x), torch.relu(x) * 2)
    with FakeTensorMode():
        assert calls(ours.fwd_only(torch.relu, [torch.empty(2)])) == {"aten.relu.default": 1}
    joint = ours.joint_fwd_bwd(torch.sin, [x])
    out, grad = joint(x, torch.ones(2, 3))
    torch.testing.assert_close((out, grad), (x.sin(), x.cos()))


# ------------------------------------------------------------------------------------------------ what handlers change


def addmm_by(edit: Declared) -> Any:
    """A pass whose handler makes an `addmm` of a product and a sum."""
    patterns = ours.PatternMatcherPass()
    product = ours.CallFunction(aten.mm.default, ours.KeywordArg("a"), ours.KeywordArg("b"))
    pattern = ours.CallFunction(aten.add.Tensor, product, ours.KeywordArg("c"))

    @ours.register_graph_pattern(pattern, pass_dict=patterns)
    def fuse(match: Any, a: Any, b: Any, c: Any) -> None:
        new = match.graph.call_function(aten.addmm.default, (c, a, b))
        match.output_node().replace_all_uses_with(new)
        match.erase_nodes()
        edit(match)

    return patterns


def chain(count: int) -> Callable[..., Any]:
    def fn(x: Any, y: Any) -> Any:
        for _ in range(count):
            x = torch.add(torch.mm(x, y), x)
        return x

    return fn


@pytest.mark.parametrize("by_example", [False, True])
def test_the_graph_is_looked_at_once_for_each_match(by_example: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing that is derived from the whole graph is made again: the views, the effects, the order."""
    looks: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            looks[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, counting)

    counted(GraphView, "forget")
    counted(stock_rules, "sort_in_place")
    counted(stock_edits.Seen, "__init__")
    counted(stock_edits.Snapshot, "__init__")
    module = graph(chain(30), rand(4, 4), rand(4, 4))
    edited = addmm_by(lambda match: None)
    if by_example:
        edited = ours.PatternMatcherPass()
        product = ours.CallFunction(aten.mm.default, ours.Arg(), ours.Arg())
        pattern = ours.CallFunction(aten.add.Tensor, product, ours.Arg())
        register = ours.register_graph_pattern(pattern, pass_dict=edited)
        register(lambda match, a, b, c: match.replace_by_example(lambda a, b, c: torch.addmm(c, a, b), [a, b, c]))
    assert edited.apply(module) == 30
    assert calls(module) == {"aten.addmm.default": 30}
    assert looks == {"__init__": 31}


def test_what_a_handler_changes_far_from_the_match_is_noticed() -> None:
    def relus_too(match: Any) -> None:
        for node in match.graph.find_nodes(op="call_function", target=aten.relu.default):
            node.target = aten.sigmoid.default

    patterns = addmm_by(relus_too)
    sigmoid = ours.CallFunction(aten.sigmoid.default, ours.KeywordArg("x"))
    register = ours.register_graph_pattern(sigmoid, pass_dict=patterns)
    register(lambda match, x: match.replace_by_example(torch.tanh, [x]))
    x, y = rand(3, 3), rand(3, 3)
    module = graph(lambda x, y: (torch.relu(y), torch.mm(x, y) + x), x, y)
    assert patterns.apply(module) == 2
    torch.testing.assert_close(module(x, y), (torch.tanh(y), torch.mm(x, y) + x))


def test_what_a_handler_leaves_out_of_order_is_sorted() -> None:
    def at_the_end(match: Any) -> None:
        made = match.graph.find_nodes(op="call_function", target=aten.addmm.default)[-1]
        match.graph.output_node().prepend(made)

    x, y = rand(3, 3), rand(3, 3)
    module = graph(lambda x, y: chain(3)(x, y).exp(), x, y)
    assert addmm_by(at_the_end).apply(module) == 3
    torch.testing.assert_close(module(x, y), chain(3)(x, y).exp())


def test_what_a_handler_makes_and_erases_is_forgotten() -> None:
    def example_and_back(match: Any, x: Any) -> None:
        (made,) = match.replace_by_example(torch.cos, [x])
        made.replace_all_uses_with(x)
        match.graph.erase_node(made)

    patterns = ours.PatternMatcherPass()
    ours.register_graph_pattern(ours.CallFunction(aten.sin, ours.KeywordArg("x")), pass_dict=patterns)(example_and_back)
    cosine = ours.CallFunction(aten.cos, ours.KeywordArg("x"))
    ours.register_graph_pattern(cosine, pass_dict=patterns)(lambda match, x: pytest.fail("it is not there"))
    x = rand(3)
    module = graph(lambda x: x.exp().sin().neg().sin(), x)
    assert patterns.apply(module) == 2
    torch.testing.assert_close(module(x), x.exp().neg())


@pytest.mark.parametrize("view", [False, True])
def test_a_graph_that_was_traced_with_tensors(view: bool) -> None:
    def fn(x: Any, y: Any) -> Any:
        return torch.add(torch.mm(x[1:] if view else x, y), y)

    x, y = rand(4 if view else 3, 3), rand(3, 3)
    module = make_fx(fn)(x, y)
    modes = {id(n.meta["val"].fake_mode) for n in module.graph.nodes if "val" in n.meta and n.op != "output"}
    assert len(modes) > 1
    assert addmm_by(lambda match: None).apply(module.graph) == 1
    torch.testing.assert_close(module(x, y), fn(x, y))
    modes = {id(n.meta["val"].fake_mode) for n in module.graph.nodes if n.op == "call_function"}
    assert len(modes) == 1


# ------------------------------------------------------------------------------------------------------------- mistakes


def test_mistakes_are_named() -> None:
    patterns = ours.PatternMatcherPass()
    declare = functools.partial(ours.register_replacement, trace_fn=ours.fwd_only, pass_dicts=patterns)
    two = lambda x, y: x + y  # noqa: E731
    with pytest.raises(BadPattern, match=r"takes 2 inputs \(x, y\), 1 examples were given"):
        declare(two, two, [rand(2)])
    with pytest.raises(BadPattern, match=r"takes 1 inputs \(x\), 2 examples were given"):
        declare(two, two, [rand(2), rand(2)], scalar_workaround={"y": 0.5})
    with pytest.raises(BadPattern, match="has no parameter 'z'"):
        declare(two, two, [rand(2), rand(2)], exclusive_arg_names=("z",))
    with pytest.raises(BadPattern, match="takes x, y, z; the pattern has x, y"):
        declare(two, lambda x, y, z: x, [rand(2), rand(2)])
    with pytest.raises(BadPattern, match="trace_fn="):
        declare(two, two, [rand(2), rand(2)], trace_fn=torch.fx.symbolic_trace)
    with pytest.raises(BadPattern, match="an example is a tensor or a number"):
        declare(lambda xs: xs[0], lambda xs: xs[0], [[rand(2)]])
    with pytest.raises(BadPattern, match="a rule goes to a PatternMatcherPass"):
        declare(two, two, [rand(2), rand(2)], pass_dicts={})
    pattern = ours.CallFunction(aten.add, ours.KeywordArg("x"), ours.Arg())
    with pytest.raises(BadPattern, match="does not capture its parameter 'y'"):
        declare(two, two, [rand(2), rand(2)], search_fn_pattern=pattern)
    with pytest.raises(BadPattern, match="an identifier"):
        ours.gen_register_replacement("a b", two, two, [rand(2), rand(2)], ours.fwd_only, patterns)
    with pytest.raises(BadPattern, match="first result must be a call"):
        ours.MultiOutputPattern([None, ours.CallFunction(aten.add)])
    with pytest.raises(BadPattern, match="it repeats a call"):
        ours.RepeatedExpr(ours.Arg())
    with pytest.raises(BadPattern, match="users=0"):
        ours.CallFunction(aten.add, ours.Arg(), _users=0)
    with pytest.raises(BadPattern, match="a target is"):
        ours.CallFunction(3, ours.Arg())
    for pattern in (ours.Arg(), 3):
        with pytest.raises(BadPattern, match="no pattern to look for"):
            ours.register_graph_pattern(pattern, pass_dict=patterns)
    inner = ours.RepeatedExpr(ours.CallFunction(aten.neg, ours.Arg()))
    with pytest.raises(BadPattern, match="must be the outermost expression"):
        ours.register_graph_pattern(ours.CallFunction(aten.exp, inner), pass_dict=patterns)
    inner = ours.ListOf(ours.CallFunctionVarArgs(aten.neg))
    with pytest.raises(BadPattern, match="cannot be repeated"):
        ours.register_graph_pattern(ours.CallFunction(aten.cat, inner), pass_dict=patterns)
    with pytest.raises(BadPattern, match=r"give a torch\.fx\.Graph"):
        patterns.apply(3)
    with pytest.raises(BadPattern, match="no overload takes 1 positional argument and foo="):
        ours.register_graph_pattern(ours.CallFunction(aten.sin, ours.Arg(), foo=2), pass_dict=patterns)
    assert not patterns.rules.rules


def test_a_check_cannot_replace() -> None:
    patterns = ours.PatternMatcherPass()

    def check(match: Any) -> bool:
        return bool(match.replace_by_example(torch.relu, [match.kwargs["x"]]))

    pattern = ours.CallFunction(aten.exp, ours.KeywordArg("x"))
    ours.register_graph_pattern(pattern, check, pass_dict=patterns)(lambda match, x: None)
    with pytest.raises(BadPattern, match="a check looks at a match"):
        patterns.apply(graph(torch.exp, rand(2)))


def test_an_argument_that_is_not_mentioned_has_its_default() -> None:
    """Where torch ignores it, and replaces a sum by what it is not."""

    def declare(pm: Any) -> Any:
        patterns = pm.PatternMatcherPass()
        pattern = pm.CallFunction(aten.add.Tensor, pm.Arg(), pm.Arg())

        @pm.register_graph_pattern(pattern, pass_dict=patterns)
        def plus(match: Any, x: Any, y: Any) -> None:
            match.replace_by_example(lambda x, y: x - (-y), [x, y])

        return patterns

    inputs = [rand(2, 3), rand(2, 3)]
    both(lambda x, y: torch.add(x, y), inputs, declare, 1)
    applied(lambda x, y: torch.add(x, y, alpha=2), inputs, declare, 0)
    with pytest.raises(AssertionError):
        applied(lambda x, y: torch.add(x, y, alpha=2), inputs, declare, 1, api=stock)
