"""Bodies of higher-order operators, and constants, are part of a graph: seen, compared, hashed, brought back."""

from __future__ import annotations

import pytest
import torch

import eductor
from eductor import EductorWarning, PassFailed, Recorder
from eductor.graph import capture, from_python, is_equal, structural_hash, to_python, value_of
from eductor.observe.explain.why_not import Inquiry
from eductor.observe.manual.manual import run_pass
from eductor.observe.scripts.interception import CompiledFunction
from eductor.options import Options
from eductor.pipeline import Instrument, graph_pass, rule_pass
from eductor.verification.verifier import Verifier

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def branching(true):
    def program(x):
        return torch.cond(x.sum() > 0, true, lambda x: x.neg(), (x,))

    return capture(program, [torch.ones(3)], "torch")


def bodies(graph):
    owner = graph.owning_module
    modules = [getattr(owner, str(n.target)) for n in graph.find_nodes(op="get_attr")]
    return [m for m in modules if isinstance(m, torch.fx.GraphModule)]


def to_exp(graph):
    """Edits the bodies, and nothing else."""
    for body in bodies(graph):
        for node in body.graph.nodes:
            if node.name.startswith("sin"):
                node.op, node.target = "call_function", torch.exp
        body.recompile()


def to_exp_and_fail(graph):
    to_exp(graph)
    raise RuntimeError("afterwards")


def test_bodies_and_constants_count():
    sine, exponential = branching(lambda x: x.sin()), branching(lambda x: x.exp())
    assert structural_hash(sine.graph) != structural_hash(exponential.graph)
    assert structural_hash(sine.graph) == structural_hash(branching(lambda x: x.sin()).graph)
    assert not is_equal(sine.graph, exponential.graph)
    assert is_equal(sine.graph, branching(lambda x: x.sin()).graph)
    ones, twos = (
        capture(lambda x, c=c: x + torch.tensor(c), [torch.ones(2)], "aten") for c in ([1.0, 1.0], [2.0, 2.0])
    )
    assert structural_hash(ones.graph) != structural_hash(twos.graph)


def test_a_pass_that_edits_a_body_counts_as_changed():
    module, recorder = branching(lambda x: x.sin()), Recorder()
    eductor.pre_grad_passes(module, options={"pre_grad_custom_pass": to_exp, "instruments": [recorder]})
    assert "pre_grad/to_exp" in recorder.changed()
    assert torch.equal(module(torch.ones(3)), torch.ones(3).exp())


def test_a_body_is_brought_back(tmp_path):
    module = branching(lambda x: x.sin())
    with pytest.warns(EductorWarning, match="to_exp_and_fail failed: RuntimeError: afterwards"):
        eductor.pre_grad_passes(module, options={"pre_grad_custom_pass": to_exp_and_fail, "repro_dir": tmp_path})
    assert torch.equal(module(torch.ones(3)), torch.ones(3).sin())


def test_a_written_constant_cannot_be_undone_and_says_so(tmp_path):
    module = capture(lambda x: x + torch.tensor([1.0, 2.0]), [torch.ones(2)], "aten")

    def zero(graph):
        for node in graph.find_nodes(op="get_attr"):
            getattr(graph.owning_module, str(node.target)).mul_(0)

    with pytest.raises(PassFailed, match="cannot be undone"):
        eductor.joint_graph_passes(module, options={"joint_custom_pre_pass": zero, "repro_dir": tmp_path})


def test_what_follows_a_higher_order_operator_has_values_after_a_round_trip():
    module = capture(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.neg(), (x,)) + 1, [torch.ones(3)])
    back = from_python(to_python(module.graph), module)
    assert all(value_of(n).shape == (3,) for n in back.graph.nodes if n.name == "add")
    assert is_equal(module.graph, back.graph)


# ------------------------------------------------------------------------------- passes over bodies, inner ones first

aten = torch.ops.aten
X = torch.ones(3)


@rule_pass(stage="joint", numerics="exact")
def drops_clones():
    """Drops a copy of what nobody else has."""


@drops_clones.rule(aten.clone)
def clone(graph, rewrite, node):
    source = graph.bind(node)["self"]
    verdict = graph.effects.may_alias(node, source)
    rewrite.replace(node, source) if verdict else rewrite.reject(verdict.reason, node)


def nested(x):
    def inner(x):
        return torch.cond(x.mean() > 5, lambda x: x.exp().clone().cos(), lambda x: x.cos(), (x.sin().clone().tan(),))

    return torch.cond(x.sum() > 0, inner, lambda x: x.neg(), (x.sin().clone().abs(),))


def joint(program, *inputs, dynamic=False):
    return capture(program, list(inputs), "aten", dynamic=dynamic)


def bodies_of(module):
    found = bodies(module.graph)
    return [b for body in found for b in (body, *bodies_of(body))]


def test_inner_bodies_come_first_and_names_tell_where():
    module = joint(nested, X)
    run = run_pass(drops_clones, "joint", module)
    path = "true_graph_0.true_graph_0.clone", "true_graph_0.clone", "clone"
    assert tuple(match.node for match in run.record.matches) == path
    assert [match.address for match in run.record.matches] == [f"joint/drops_clones:clone@{i}" for i in range(3)]
    assert not any("clone" in str(n.target) for m in (module, *bodies_of(module)) for n in m.graph.nodes)
    for x in (X, -X):
        assert torch.equal(module(x), nested(x))
    assert not run_pass(drops_clones, "joint", module).record.changed


def test_a_body_never_returns_its_input():
    module = joint(lambda x: torch.cond(x.sum() > 0, lambda x: x.clone(), lambda x: x.neg(), (x,)), X)
    run = run_pass(drops_clones, "joint", module)
    assert not run.record.changed
    (reject,) = run.record.rejects
    assert reject.nodes == ("true_graph_0.clone",)
    assert "a separate output" in reject.reason


def test_a_shared_body_is_visited_once():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin().clone().exp(), lambda x: x.neg(), (x,))

    module = joint(program, X)
    (call,) = (n for n in module.graph.nodes if "cond" in str(n.target))
    predicate, true, _, operands = call.args
    module.again = getattr(module, str(true.target))
    with module.graph.inserting_before(call):
        again = module.graph.get_attr("again")
        again.meta["val"] = true.meta.get("val")
    call.args = (predicate, true, again, operands)
    module.recompile()
    assert len(run_pass(drops_clones, "joint", module).record.matches) == 1


def test_control_flow_and_regions():
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    @torch.compiler.nested_compile_region
    def region(x):
        return (x.sin() * torch.ones(3)).clone().cos()

    def program(x):
        _, total = while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, (x * torch.ones(3)).clone().cos()), (torch.zeros(()), x)
        )
        last, each = scan(lambda a, b: ((a + b).clone().sin(), (a * torch.ones(3)).clone().neg()), x, x.expand(4, 3))
        return region(total) + region(x), last, each

    recorder = Recorder()
    compiled = eductor.compile(
        program,
        passes=[drops_clones],
        engine="aten",
        instruments=[recorder],
        verify="each",
        strict=True,
    )
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), program(x))
    kept = [r for r in recorder.records if r.stage == "joint" and r.changed]
    inside = {match.node.partition(".")[0].rstrip("0123456789_") for r in kept for match in r.matches}
    assert len({name for name in inside if "graph" in name or "body" in name or "region" in name}) >= 3, inside


def test_training_through_a_branch():
    def program(x):
        return torch.cond(
            x.sum() > 0, lambda x: (x.clone().sin() * torch.ones(3)).exp(), lambda x: x.clone().neg(), (x,)
        )

    recorder = Recorder()
    compiled = eductor.compile(program, passes=[drops_clones], instruments=[recorder], verify="each", strict=True)
    for start in (X, -X):
        x, other = start.clone().requires_grad_(), start.clone().requires_grad_()
        compiled(x).sum().backward()
        program(other).sum().backward()
        torch.testing.assert_close(x.grad, other.grad)
    assert any("graph" in match.node for r in recorder.records for match in r.matches)


def test_limits_count_the_matches_in_bodies():
    class AtMost(Instrument):
        def most_matches(self, run):
            return 2

    module, recorder = joint(nested, X), Recorder()
    run_pass(drops_clones, "joint", module, recorder, AtMost())
    assert [match.node for match in recorder.records[0].matches] == [
        "true_graph_0.true_graph_0.clone",
        "true_graph_0.clone",
    ]
    assert "clone" in str(module.code)
    assert torch.equal(module(X), nested(X))


def faulty(what):
    """A pass that does something wrong wherever there is a `tan`, which is in a body alone."""

    @graph_pass(stage="joint", numerics="exact", name="faulty")
    def faulty(graph, rewrite):
        """Does it."""
        for node in graph.find(aten.tan):
            what(graph, rewrite, node)

    return faulty


def raises(graph, rewrite, node):
    rewrite.replace(node, aten.cos, graph.bind(node)["self"])
    raise RuntimeError("halfway")


def changes_the_result(graph, rewrite, node):
    rewrite.replace(node, aten.cos, graph.bind(node)["self"])


def changes_the_type(graph, rewrite, node):
    with rewrite.rule("type"):
        new = rewrite.insert(torch.ops.prims.convert_element_type, node, torch.float64, before=graph.output)
        rewrite.update(graph.output, args=((new,),))


def goes_behind_the_back(graph, rewrite, node):
    later = node.next.next
    rewrite.replace(node, aten.cos, graph.bind(node)["self"])
    later.target = aten.exp.default


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (raises, "RuntimeError: halfway"),
        (changes_the_result, "differs|is not"),
        (changes_the_type, "in true_graph_0: the output 0 was f32"),
        (goes_behind_the_back, "behind the rewriter's back"),
    ],
)
def test_what_goes_wrong_in_a_body_is_seen_and_undone(what, said, tmp_path):
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.tan().sin().abs(), lambda x: x.neg(), (x,))

    module = joint(program, X)
    before = structural_hash(module.graph)
    with pytest.raises(PassFailed, match=said):
        run_pass(faulty(what), "joint", module, Verifier([X]))
    assert structural_hash(module.graph) == before
    assert torch.equal(module(X), program(X))


def test_a_body_that_a_pass_makes_is_for_the_next_pass():
    @graph_pass(stage="joint", numerics="exact")
    def makes(graph, rewrite):
        """Puts another body into the place of one."""
        for node in graph.candidates(list(graph.calls(torch.ops.higher_order.cond))):
            predicate, _, other, operands = node.args
            new = rewrite.attribute(joint(lambda x: (x.sin().clone().exp(),), X), before=node)
            rewrite.update(node, args=(predicate, new, other, operands))

    module = joint(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin().exp(), lambda x: x.neg(), (x,)), X)
    recorder = Recorder()
    options = {"passes": [makes, drops_clones], "pipeline": "joint(makes, drops_clones)", "instruments": [recorder]}
    eductor.joint_graph_passes(module, options={**options, "strict": True})
    assert [match.node for match in recorder.records[1].matches] == ["_eductor_0.clone"]
    assert torch.equal(module(X), X.sin().exp())


def test_before_autograd_bodies_are_for_patterns_alone():
    met = []

    @graph_pass(stage=("pre_grad", "joint"), numerics="exact")
    def looks(graph, rewrite):
        """Looks at each graph that it gets."""
        met.append(len(graph.graph.nodes))

    run_pass(looks, "pre_grad", branching(lambda x: x.sin()))
    assert len(met) == 1
    run_pass(looks, "joint", joint(nested, X))
    assert len(met) == 1 + 5  # two in the inner branch, two in the outer one, and the graph


def test_why_not_says_where_in_the_program_a_body_stands():
    inquiry = Inquiry("drops_clones")

    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.clone(), lambda x: x.neg(), (x,))

    compiled = inquiry.compile(CompiledFunction(program, Options(passes=(drops_clones,), engine="aten"), {}, "program"))
    compiled(X)
    (left,) = (left for answer in inquiry.answers for rule in answer.rules for left in rule.left)
    assert left.reject.nodes == ("true_graph_0.clone",)
    assert "lambda x: x.clone()" in left.source
