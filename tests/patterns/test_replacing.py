"""Replacing: where a replacement goes, what is refused rather than corrupted, and what new nodes know."""

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
    one_rule,
    passing,
    reasons,
    refused,
    replaced,
    targets,
    untouched,
)

from eductor.errors import BadPattern, PassFailed
from eductor.graph import from_python
from eductor.graph.provenance import provenance_of
from eductor.observe.manual.manual import run_pass
from eductor.patterns import const, list_of, op, outputs, pattern_pass, var
from eductor.pipeline import Recorder, f32
from eductor.verification.verifier import Verifier

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

x, y = var("x"), var("y")
X, Y = torch.linspace(-1, 2, 16).reshape(4, 4), torch.linspace(3, 5, 16).reshape(4, 4)

SUM = op(aten.exp, op(aten.sin, x))


def summed(x):
    return torch.exp(torch.sin(x * 1))


# --------------------------------------------------------------------------------------------------- where it may stand


def test_a_third_input_that_depends_on_the_first_result_is_refused_not_corrupted():
    pattern = outputs(op(aten.sin, x), op(aten.mul, op(aten.cos, x), y))

    def circular(a, b):
        first = a.sin()
        return first, a.cos() * (first + b)

    run = replaced(pattern, lambda x, y: (torch.sin(x + 0 * y), torch.cos(x) * y), circular, [X, Y])
    refused(run, "what replaces sin needs add, which is computed only after a user of sin")
    assert all(torch.equal(a, b) for a, b in zip(run.module(X, Y), circular(X, Y), strict=True))
    fine = replaced(pattern, lambda x, y: (torch.sin(x * 1), torch.cos(x * 1) * y), circular, [X, Y])
    assert count(changed(fine), aten.mul) >= 3  # each result needs only what there is


def test_a_replacement_waits_for_a_late_input():
    """The second factor is computed after the first result, but before anybody uses that."""
    pattern = outputs(op(aten.sin, x), op(aten.mul, op(aten.cos, x), y))

    def program(a, b):
        first = a.sin()
        late = b.exp()
        return first + 1, a.cos() * late

    def joined(x, y):
        both = torch.stack([x, y])[0]
        return torch.sin(both), torch.cos(both) * y

    module = changed(replaced(pattern, joined, program, [X, Y]))
    assert count(module, aten.stack, aten.cat) == 1
    assert all(torch.equal(a, b) for a, b in zip(module(X, Y), program(X, Y), strict=True))


@pytest.mark.parametrize("flip", [False, True])
def test_one_of_the_results_may_leave_the_graph(flip):
    def program(a):
        s, c = (a.cos(), a.sin())[::-1] if flip else (a.sin(), a.cos())
        return s, (c * 2).exp()

    pattern = outputs(op(aten.cos, x), op(aten.sin, x))
    module = changed(replaced(pattern, lambda x: (torch.cos(x * 1), torch.sin(x * 1)), program, [X]))
    assert all(torch.equal(a, b) for a, b in zip(module(X), program(X), strict=True))


def test_an_intermediate_that_is_returned_is_a_mismatch():
    run = replaced(SUM, summed, lambda a: (lambda s: (s, s.exp()))(a.sin()), [X])
    refused(run, "sin is also returned by the graph")


def test_an_intermediate_with_another_user_is_a_mismatch():
    run = replaced(SUM, summed, lambda a: (lambda s: s.exp() + s.cos())(a.sin()), [X])
    refused(run, "sin is also used by cos, outside of the pattern")


def test_a_user_that_takes_an_intermediate_twice_counts_once():
    pattern = op(aten.add, op(aten.sin, x, users=1), op(aten.sin, x, users=1))
    once = op(aten.sin, x, users=1)
    module = graph_of(lambda a: (lambda s: s + s)(a.sin()) * 3, [X])
    assert matches(op(aten.add, once, once), module)
    assert matches(pattern, module)


def test_of_two_matches_that_overlap_one_is_made():
    pattern = op(aten.neg, op(aten.neg, x))
    run = replaced(pattern, lambda x: torch.mul(x, 1), lambda a: a.sin().neg().neg().neg() * 2, [X])
    module = changed(run)
    assert (count(module, aten.neg), count(module, aten.mul)) == (1, 2)
    assert torch.equal(module(X), X.sin().neg() * 2)


def test_two_matches_that_share_an_input_are_both_made():
    run = replaced(SUM, summed, lambda a: (a.sin().exp() + 1, a.sin().exp() * 2), [X])
    assert count(changed(run), aten.mul) == 3


def test_what_one_match_makes_another_rule_may_use():
    made = passing()
    made.replace(op(aten.sin, op(aten.neg, x)), lambda x: torch.neg(torch.sin(x)), name="odd")
    made.replace(op(aten.neg, op(aten.neg, x)), lambda x: torch.mul(x, 1), name="twice")
    module = graph_of(lambda a: (-((-a).sin())) * 3, [X])
    run = run_pass(made, "joint", module, Verifier([X]))
    assert count(changed(run), aten.neg) == 0
    assert torch.equal(module(X), X.sin() * 3)


def test_rules_that_undo_each_other_settle():
    made = passing()
    made.replace(op(aten.sin, x), lambda x: torch.cos(x), name="there")
    made.replace(op(aten.cos, x), lambda x: torch.sin(x), name="back")
    assert len(run_pass(made, "joint", graph_of(lambda a: a.sin() * 2, [X])).record.matches) <= 2


def test_rules_that_never_settle_are_stopped():
    made = passing()

    @made.rule(op(aten.exp, op(aten.sin, x)))
    def again(match, graph, rewrite):
        rewrite.replace(match.output, aten.exp.default, match.nodes[0])

    with pytest.raises(PassFailed, match="the rules do not settle"):
        run_pass(made, "joint", graph_of(lambda a: a.sin().exp() * 2, [X]))


def test_a_replacement_may_contain_what_it_replaces():
    run = replaced(op(aten.sin, x), lambda x: torch.sin(x * 1), lambda a: a.sin() * 2, [X])
    assert count(changed(run), aten.sin) == 1


def test_where_several_rules_match_the_first_has_its_way():
    for order in (("by_two", "by_four"), ("by_four", "by_two")):
        made = passing()
        for name in order:
            made.replace(op(aten.neg, op(aten.neg, x)), {"by_two": halved, "by_four": quartered}[name], name=name)
        run = run_pass(made, "joint", graph_of(lambda a: a.sin().neg().neg() * 3, [X]))
        new = [n for n in run.module.graph.nodes if provenance_of(n) is not None]
        assert {provenance_of(n).address for n in new} == {f"joint/made:{order[0]}@0"}


def halved(x):
    return x * 2 / 2


def quartered(x):
    return x * 4 / 4


def test_a_check_refuses_with_its_reason():
    run = replaced(SUM, summed, lambda a: a.sin().exp() * 2, [X], check=lambda m: f"{m['x'].name} is no good")
    refused(run, "arg0_1 is no good")
    silent = replaced(SUM, summed, lambda a: a.sin().exp() * 2, [X], check=lambda m: False)
    refused(silent, "the check of rule does not hold")


def test_a_replacement_that_cannot_be_traced_is_a_reject():
    run = replaced(SUM, lambda x: x.reshape(3, 5), lambda a: a.sin().exp() * 2, [X])
    refused(run, "the replacement cannot be traced here")


@pytest.mark.parametrize(
    ("replacement", "because"),
    [
        (lambda x: torch.exp(x)[0], "shape (4, 4) and (4,)"),
        (lambda x: torch.exp(x).double(), "dtype torch.float32 and torch.float64"),
        (lambda x: None, "the replacement does not compute it"),
        (lambda x: 3, "differs from it"),
    ],
)
def test_a_replacement_of_another_kind_is_refused(replacement, because):
    refused(replaced(SUM, replacement, lambda a: a.sin().exp() * 2, [X]), because)


# --------------------------------------------------------------------------------- higher-order operators, sizes, ranks


def test_a_match_in_the_body_of_a_higher_order_operator():
    def program(a):
        return torch.cond(a.sum() > 0, lambda a: a.sin().exp() * 2, lambda a: a.cos(), (a,))

    run = replaced(SUM, summed, program, [X], stage="pre_grad")
    module = changed(run)
    bodies = [getattr(module, str(n.target)) for n in module.graph.find_nodes(op="get_attr")]
    assert sorted(count(body, aten.exp) for body in bodies) == [0, 1]
    assert all("exp_default" in body.code for body in bodies if count(body, aten.exp))
    for given in (X, -X - 2):
        assert torch.equal(module(given), program(given))


def test_a_pattern_does_not_reach_into_a_body():
    def program(a):
        return torch.cond(a.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (a,)).exp()

    untouched(replaced(SUM, summed, program, [X], stage="pre_grad"))


def test_sizes_need_not_be_known():
    pattern = op(aten.view, op(aten.sin, x), [const("n")])
    program = lambda a: a.sin().view(a.shape[0] * a.shape[1]) * 2  # noqa: E731
    module = changed(replaced(pattern, lambda x, n: torch.sin(x.reshape(n) * 1), program, [X], dynamic=True))
    for shape in ((4, 4), (2, 7)):
        a = torch.randn(shape)
        assert torch.equal(module(a), program(a))


def test_a_list_of_sizes_may_be_free():
    pattern = op(aten.view, op(aten.sin, x), const("shape"))
    program = lambda a: a.sin().view(a.shape[1], a.shape[0]) * 2  # noqa: E731
    module = changed(
        replaced(
            pattern, lambda x, shape: torch.sin(x.reshape(shape) * 1), program, [X[:, :3].contiguous()], dynamic=True
        )
    )
    a = torch.randn(5, 2)
    assert torch.equal(module(a), program(a))


def test_nothing_is_guarded_by_matching():
    module = graph_of(lambda a: a.sin().exp() + a.view(a.shape[0], -1), [torch.randn(4, 6)], dynamic=True)
    env = next(iter(module.graph.nodes)).meta["val"].fake_mode.shape_env
    before = len(env.guards)
    assert run_pass(one_rule(SUM, summed), "joint", module).record.changed
    assert len(env.guards) == before
    a = torch.randn(3, 5)
    assert torch.equal(module(a), a.sin().exp() + a)


def test_tensors_without_dimensions():
    module = changed(replaced(SUM, summed, lambda a: a.sin().exp() * 2, [torch.tensor(0.5)]))
    assert module(torch.tensor(0.25)).shape == ()
    reduced = op(aten.sum, x, [-1])
    assert matches(reduced, graph_of(lambda a: a.sum(0) * 2, [torch.tensor(0.5)]))
    assert matches(op(aten._softmax, x, 0, False), graph_of(lambda a: a.softmax(-1) * 2, [torch.tensor(0.5)]))


def test_lists_of_lists_and_results_of_splits():
    import operator

    parts = op(aten.split, x, 2)
    pattern = op(aten.cat, [op(operator.getitem, parts, 1), op(operator.getitem, parts, 0)])
    program = lambda a: torch.cat(a.split(2)[::-1]) * 2  # noqa: E731
    module = changed(replaced(pattern, lambda x: torch.roll(x, 2, 0), program, [X]))
    assert count(module, aten.roll) == 1
    assert torch.equal(module(X), program(X))
    untouched(replaced(pattern, lambda x: torch.roll(x, 2, 0), lambda a: torch.cat(a.split(2)) * 2, [X]))


# ------------------------------------------------------------------------------------------------------------ what is new


def test_new_nodes_carry_values_lines_modules_tags_and_their_address():
    module = graph_of(lambda a: (a.sin().exp() * 2, (a + 1).sin().exp() * 3), [X])
    tags = {
        "stack_trace": 'File "model.py", line 7, in forward\n    return x.sin().exp()',
        "nn_module_stack": {"": ("", torch.nn.Module)},
        "recompute": "must",
        "ac_graph_id": 3,
        "partitioner_tag": "is_forward",
    }
    for node in module.graph.nodes:
        if node.op == "call_function":
            node.meta.update(tags)
    before = set(module.graph.nodes)
    run = run_pass(one_rule(SUM, summed), "joint", module)
    new = [n for n in module.graph.nodes if n not in before]
    assert len(new) == 6
    for node in new:
        assert node.meta["val"].shape == (4, 4)
        assert {key: node.meta.get(key) for key in tags} == tags, node
        assert provenance_of(node).line == "model.py:7: return x.sin().exp()"
    assert [provenance_of(n).address for n in new] == ["joint/made:rule@0"] * 3 + ["joint/made:rule@1"] * 3
    assert changed(run)


def test_forward_and_backward_parts_keep_their_tags():
    pattern = outputs(op(aten.sin, x), op(aten.mul, y, op(aten.cos, x)))
    module = graph_of(lambda a, t: (a.sin() * 2, (t * a.cos()) * 3), [X, Y])
    for node in module.graph.nodes:
        if node.op == "call_function":
            backward = node.name in ("cos", "mul_1", "mul_2")
            node.meta["partitioner_tag"] = "is_backward" if backward else "is_forward"
            node.meta["recompute"] = "prefer" if backward else "must"
    before = set(module.graph.nodes)
    run_pass(one_rule(pattern, lambda x, y: (torch.sin(x * 1), torch.cos(x * 1) * y)), "joint", module)
    found = {n.target: (n.meta["partitioner_tag"], n.meta["recompute"]) for n in module.graph.nodes if n not in before}
    assert found[aten.sin.default] == ("is_forward", "must")
    assert found[aten.cos.default] == ("is_backward", "prefer")


# --------------------------------------------------------------------------------------------------------- end to end


def gelu_like(x):
    return x * torch.sigmoid(x * 1.702)


def trained(program, made, given, **options):
    given = [t.detach().clone().requires_grad_(t.dtype.is_floating_point) for t in given]
    options = {"engine": "aten", "passes": [made], "strict": True, "verify": "each", **options}
    out = torch.compile(program, backend="eductor", options=options)(*given)
    out.sum().backward()
    return out.detach(), [t.grad for t in given]


def eager(program, given):
    given = [t.detach().clone().requires_grad_() for t in given]
    out = program(*given)
    out.sum().backward()
    return out.detach(), [t.grad for t in given]


def assert_trains_alike(program, made, given, **options):
    from eductor import Recorder

    recorder = Recorder()
    got = trained(program, made, given, instruments=[recorder], **options)
    torch.testing.assert_close(got, eager(program, given))
    assert any("/made" in address for address in recorder.changed()), recorder.changed()


def attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v


def test_a_function_is_found_with_its_backward_in_a_joint_graph():
    # Before views are merged, which autograd made on both sides of the products.
    made = passing("joint", "reassociates").placed(slot="joint_custom_pre_pass")

    def faster(q, k, v):
        return torch.softmax((q * 0.25) @ k.transpose(-2, -1), -1) @ v

    made.replace(attention, faster, inputs=[f32(2, 6, 16)] * 3, joint=True, tolerate="scale", name="attention")
    given = [torch.randn(2, 6, 16) for _ in range(3)]
    assert_trains_alike(lambda q, k, v: attention(q * 2, k, v).neg(), made, given)


def test_a_norm_is_replaced_in_training():
    made = passing("joint", "reassociates")

    def norm(x, w, eps):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w

    def other(x, w, eps):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * w

    made.replace(norm, other, inputs=[f32(4, 8), f32(8), 1e-6], joint=True, tolerate="scale", name="norm")
    assert_trains_alike(lambda x, w: norm(x, w, 0.01).neg(), made, [torch.randn(4, 8), torch.randn(8)])


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_each_stage_is_reached_by_torch_compile(stage):
    made = passing(stage, "reassociates")
    made.replace(gelu_like, lambda x: torch.sigmoid(1.702 * x) * x, inputs=[f32(4, 4)], name="gelu")
    program = lambda x: gelu_like(x + 1).neg()  # noqa: E731
    got, wanted = trained(program, made, [X]), eager(program, [X])
    torch.testing.assert_close(got, wanted)


def test_an_operator_of_torch_is_replaced_before_autograd_and_has_a_gradient():
    made = passing("pre_grad", "reassociates")
    made.replace(gelu_like, lambda x: F.silu(x * 1.702) / 1.702, inputs=[f32(4, 4)], name="gelu")
    assert_trains_alike(lambda x: gelu_like(x + 1).neg(), made, [X])


# ------------------------------------------------------------------------------------------------------------ again


def test_a_second_run_changes_nothing_and_says_nothing_new():
    made = one_rule(SUM, summed)
    module = graph_of(lambda a: (a.sin().exp() * 2, (a.cos().sin(), a.sin().cos().exp())), [X])
    assert run_pass(made, "joint", module).record.changed
    first = targets(module)
    assert not run_pass(made, "joint", module).record.changed
    assert targets(module) == first


def test_a_graph_without_the_operators_is_not_looked_at():
    made = one_rule(op(aten.exp, op(aten.sin, x)), summed)
    run = run_pass(made, "joint", graph_of(lambda a: a.sin().cos(), [X]))
    assert not run.record.changed
    assert reasons(run) == []


def test_every_anchor_of_a_pattern_with_lists_finds_the_same():
    pattern = op(aten.mul, op(aten.cat, list_of(op(aten.sin, var("a")))), op(aten.cos, y))
    module = graph_of(lambda a, b: torch.cat([a.sin(), b.sin()]) * torch.cat([a, b]).cos(), [X, Y])
    for found in by_anchor(pattern, module):
        assert all(len(f) == 1 for f in found)
        assert len({frozenset(f) for f in found}) == 1


def test_a_graph_that_was_read_from_text_is_matched():
    module = from_python(
        """
def forward(x):
    # x: f32[4, 4]
    sin = torch.ops.aten.sin.default(x)
    exp = torch.ops.aten.exp.default(sin)
    return (exp,)
"""
    )
    run = replaced(SUM, summed, module, [X])
    assert torch.equal(changed(run)(X)[0], X.sin().exp())


def test_two_rules_that_both_contain_what_they_replace_settle():
    made = passing()
    pattern = op(aten.exp, op(aten.sin, var("x")))
    made.replace(pattern, lambda x: torch.exp(torch.sin(x * 2 / 2)), name="first")
    made.replace(pattern, lambda x: torch.exp(torch.sin(x * 4 / 4)), name="second")
    run = run_pass(made, "joint", graph_of(lambda a: a.sin().exp() * 3, [X]))
    assert 1 <= len(run.record.matches) <= 2


def test_what_two_matches_made_can_be_a_match():
    made = passing()
    made.replace(op(aten.add, op(aten.neg, var("x")), op(aten.neg, var("y"))), lambda x, y: -(x + y), name="outward")
    program = lambda a, b, c, d: ((-a + -b) + (-c + -d)) * 2  # noqa: E731
    run = run_pass(made, "joint", graph_of(program, [X] * 4))
    assert len(run.record.matches) == 3
    assert count(run.module, aten.neg) == 1


def test_a_view_of_an_input_that_does_not_leave_the_graph_can_be_replaced_by_a_copy():
    pattern = op(aten.view, var("x"), const("shape"))
    copy = lambda x, shape: torch.mul(x, 1).reshape(shape)  # noqa: E731
    changed(replaced(pattern, copy, lambda a: a.view(16).sin(), [X], again=False))


def test_a_captured_graph_of_nothing_but_aten_overloads_is_replaced_in_training():
    pattern = op(aten.exp, op(aten.sin, var("x")))
    program = lambda a: aten.exp.default(aten.sin.default(a))  # noqa: E731
    again = lambda x: torch.exp(torch.sin(x * 1))  # noqa: E731
    changed(replaced(pattern, again, program, [X.clone().requires_grad_()], stage="pre_grad"))


def test_a_size_of_what_goes_is_asked_of_what_stays():
    text = """
import torch
def forward(x, y):
    # x: f32[s0, 4]
    # y: f32[4, 4]
    mm = torch.ops.aten.mm.default(x, y)
    size = torch.ops.aten.sym_size.int(mm, 0)
    relu = torch.ops.aten.relu.default(mm)
    return torch.ops.aten.mul.Tensor(relu, size)
""".replace(
        "    return torch.ops.aten.mul.Tensor(relu, size)",
        "    mul = torch.ops.aten.mul.Tensor(relu, size)\n    return mul",
    )
    module = from_python("# s0 = 6\n" + text)
    made = one_rule(op(aten.relu, op(aten.mm, var("x"), var("y"))), lambda x, y: torch.relu(torch.mm(x, y)).clone())
    run = run_pass(made, "joint", module)
    assert len(run.record.matches) == 1
    assert count(run.module, aten.mm) == 1, run.after


def test_a_result_that_nobody_takes_is_no_user():
    split = op(aten.split, var("x"), 2)
    pattern = op(aten.sin, op(operator.getitem, split, 0))
    module = graph_of(lambda a: a.split(2)[0].sin() * 1, [X])
    node = next(n for n in module.graph.nodes if n.target is aten.split.Tensor)
    with module.graph.inserting_after(node):
        module.graph.call_function(operator.getitem, (node, 1)).meta["val"] = node.meta["val"][1]
    run = run_pass(one_rule(pattern, lambda x: torch.sin(x[:2])), "joint", module)
    assert len(run.record.matches) == 1
    assert count(run.module, aten.split) == 0


def test_a_replacement_that_takes_some_inputs_in_another_order_has_its_gradients_in_place():
    @pattern_pass(stage="joint", numerics="reassociates")
    def reordered():
        """Multiplies the other way round."""

    def search(x, y, z):
        return torch.sin(x) * y.exp() + z

    def other(z, y, x):
        return z + y.exp() * torch.sin(x)

    reordered.replace(search, other, inputs=[f32(4, 4)] * 3, joint=True)
    reordered.check_rules()
    inputs = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    recorder = Recorder()
    options = {"engine": "aten", "passes": [reordered], "strict": True, "instruments": [recorder]}
    got = torch.compile(lambda x, y, z: search(x, y, z).cos(), backend="eductor", options=options)(*inputs)
    expected = search(*inputs).cos()
    assert "joint/reordered" in recorder.changed()
    for a, b in zip(*(torch.autograd.grad(r.sum(), inputs) for r in (expected, got)), strict=True):
        torch.testing.assert_close(a, b)


# ------------------------------------------------------------------------------------------------------------ self-test


def _wrong(numerics="reassociates"):
    @pattern_pass(stage="joint", numerics=numerics)
    def wrong():
        """Leaves the scale out."""

    return wrong


def test_a_replacement_that_computes_something_else_is_refused_by_name():
    wrong = _wrong()
    wrong.replace(lambda x: x.sin() * 2, lambda x: x.sin() * 2.001, inputs=[f32(4)], name="nearly_right")
    with pytest.raises(BadPattern, match=r"joint/wrong:nearly_right is refused.*something else"):
        wrong.check_rules()
    with pytest.raises(PassFailed, match="nearly_right is refused"):
        run_pass(wrong, "joint", graph_of(lambda a: a.sin() * 2, [X]))


def test_in_debug_mode_it_is_refused_where_it_is_declared(monkeypatch):
    monkeypatch.setenv("EDUCTOR_DEBUG", "1")
    with pytest.raises(BadPattern, match="worse is refused"):
        _wrong().replace(lambda x: x + 1, lambda x: x + 2, inputs=[f32(4)], name="worse")
    _wrong().replace(lambda x: x + 1, lambda x: 1 + x, inputs=[f32(4)], name="right")


def test_an_exact_pass_may_not_round_otherwise_and_one_that_reassociates_may():
    search, other = (lambda x: x.sum(), lambda x: x.sum(0).sum())
    exact, loose = _wrong("exact"), _wrong()
    for made in (exact, loose):
        made.replace(search, other, inputs=[f32(64, 64)], name="sums")
    with pytest.raises(BadPattern, match="sums is refused"):
        exact.check_rules()
    loose.check_rules()


def test_a_gradient_that_is_something_else_is_refused():
    wrong = _wrong()
    wrong.replace(lambda x: x * 2, lambda x: x * 1 + x.detach(), inputs=[f32(4)], joint=True, name="half_a_gradient")
    with pytest.raises(BadPattern, match="half_a_gradient is refused"):
        wrong.check_rules()


def _overwrites(x):
    found = x * 2.0
    x.add_(1.0)
    return found


@pytest.mark.parametrize(
    ("search", "replacement", "inputs"),
    [
        (lambda x, c: (x * c).sin(), lambda x, c: torch.sin(x * 0.5), [f32(4, 8), 0.5]),
        (lambda x: x * 2.0, _overwrites, [f32(4, 8)]),
        (lambda x: x.sum(-1, keepdim=True) / x.shape[-1], lambda x: x.sum(-1, keepdim=True) / 8, [f32(4, 8)]),
        (lambda x: x * 2.0, lambda x: x.detach() * 2.0, [f32(4, 8)]),
        (lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True), [f32(4, 8)]),
        (lambda x: x.sin(), lambda x: x[:, :4].sin(), [f32(4, 4)]),
    ],
    ids=["number", "write", "size", "gradient", "large_values", "shape"],
)
def test_the_self_test_tries_other(search, replacement, inputs):
    @pattern_pass(stage="pre_grad", numerics="reassociates")
    def wrong():
        """Computes something else, but not on the examples."""

    wrong.replace(search, replacement, inputs=inputs, name="other")
    with pytest.raises(BadPattern, match="pre_grad/wrong:other is refused"):
        wrong.check_rules()
