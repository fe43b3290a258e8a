"""Verification: each kind of fault of a pass is seen, undone and reported; right programs raise no alarm."""

from __future__ import annotations

import gc
import inspect
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor import BadOption, EductorWarning, NotVerified, PassFailed, graph_pass
from eductor.graph import capture
from eductor.observe.verify.reachable_state import ReachableState
from eductor.verification.verifier import Verifier

aten = torch.ops.aten
convert = torch.ops.prims.convert_element_type.default


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EductorWarning)
        yield


def edited(op, edit, *, stage="post_grad", numerics="exact", name="planted", **more):
    """A pass that makes one edit of each call of an operator."""

    def fn(graph, rewrite):
        for node in list(graph.find(op)):
            edit(rewrite, node)

    fn.__doc__ = "A planted pass."
    return graph_pass(stage=stage, numerics=numerics, name=name, **more)(fn)


def swapped(op, other, **more):
    """A pass that puts another operator of the same arguments in place of one."""
    return edited(op, lambda rewrite, node: rewrite.replace(node, other, *node.args, **node.kwargs), **more)


def verified(fn, *args, **options):
    return eductor.verify(fn, *args, options={"engine": "aten", **options})


def each(fn, *args, dynamic=None, **options):
    """What a function gives that is compiled with verify="each", and what was found."""
    verifier = Verifier()
    compiled = eductor.compile(fn, engine="aten", instruments=[verifier], dynamic=dynamic, **options)
    return compiled(*args), verifier


def only_finding(report):
    assert len(report.findings) == 1, str(report)
    assert not report.ok
    return report.findings[0]


WRONG = swapped(aten.sin, aten.cos)
RIGHT_SIN = edited(aten.sin, lambda r, n: r.update(n, args=(r.insert(aten.clone, n.args[0], before=n),)))


# ------------------------------------------------------------------------------------------- the option verify="each"


def test_a_wrong_pass_is_undone_and_told():
    x = torch.randn(5)
    compiled = eductor.compile(lambda x: x.sin() * 2, engine="aten", verify="each", passes=[WRONG])
    with pytest.warns(EductorWarning, match=r"the pass post_grad/planted failed: output 0 differs") as caught:
        assert torch.equal(compiled(x), x.sin() * 2)
    assert "python " in str(caught[0].message)


def test_it_is_an_option_of_torch_compile_too():
    compiled = torch.compile(
        lambda x: x.sin(), backend="eductor", options={"engine": "aten", "verify": "each", "passes": [WRONG]}
    )
    with pytest.warns(EductorWarning, match="post_grad/planted failed"):
        assert torch.equal(compiled(torch.ones(3)), torch.ones(3).sin())


def test_without_it_the_wrong_pass_works():
    compiled = eductor.compile(lambda x: x.sin(), engine="aten", passes=[WRONG])
    assert torch.equal(compiled(torch.ones(3)), torch.ones(3).cos())


def test_strict_raises():
    compiled = eductor.compile(lambda x: x.sin(), engine="aten", verify="each", strict=True, passes=[WRONG])
    with pytest.raises(Exception, match="post_grad/planted failed") as raised:
        compiled(torch.ones(3))
    assert isinstance(getattr(raised.value, "inner_exception", raised.value), PassFailed)


@pytest.mark.parametrize("value", ["all", "", True, 1, ("each",)])
def test_another_value_is_a_bad_option(value):
    with pytest.raises(BadOption, match="it must be 'each', or None"):
        eductor.compile(lambda x: x, verify=value)


def test_a_finding_names_address_graph_check_node_and_line():
    def program(x):
        y = x + 1
        return y.sin() * 2  # the line

    finding = only_finding(verified(program, torch.randn(4), passes=[WRONG]))
    assert finding.address == "post_grad/planted"
    assert finding.check == "numbers"
    assert (finding.graph.role, finding.graph.compile_id) == ("forward", "0/0")
    assert "the first node that differs is cos" in finding.text
    assert "test_verify.py" in finding.text
    assert "return y.sin() * 2  # the line" in finding.text
    assert str(finding).startswith("post_grad/planted on the forward graph")


def test_the_report_says_what_it_cost_and_what_was_checked():
    report = verified(lambda x: x.sin(), torch.randn(4), passes=[RIGHT_SIN])
    assert report.ok
    assert 0 < report.seconds <= report.total_seconds
    assert 1 <= report.changes <= report.passes
    assert "Every pass kept its contract" in str(report)


def test_passes_behind_a_wrong_one_still_run():
    after = edited(aten.add, lambda r, n: r.replace(n, aten.sub, n.args[0], -1), name="after")
    value, verifier = each(lambda x: x.sin() + 1, torch.ones(3), passes=[WRONG, after])
    assert torch.equal(value, torch.ones(3).sin() + 1)
    assert [f.address for f in verifier.findings] == ["post_grad/planted"]
    assert verifier.checked >= 2


def test_two_graphs_of_a_break_are_told_apart():
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.sin()

    _, verifier = each(broken, torch.randn(3), passes=[WRONG])
    assert len({f.graph.number for f in verifier.findings}) == 2
    assert len({f.graph.compile_id for f in verifier.findings}) == 2


# ----------------------------------------------------------------------------------------------- each kind of check


def test_legality():
    pass_ = edited(aten.relu, lambda r, n: r.replace(n, torch.relu, *n.args))
    assert only_finding(verified(lambda x: x.relu() + 1, torch.randn(3), passes=[pass_])).check == "legality"


def test_metadata():
    def edit(rewrite, node):
        new = rewrite.replace(node, aten.clamp_min, node.args[0], 0)
        new.meta["val"] = new.meta["val"].to(torch.float64)

    report = verified(lambda x: (x.relu() + 1).sum(), torch.randn(3), passes=[edited(aten.relu, edit)])
    finding = only_finding(report)
    assert finding.check == "metadata"
    assert "stale" in finding.text


def test_metadata_of_a_node_whose_call_is_as_before():
    def edit(rewrite, node):
        rewrite.replace(node, aten.relu, node.args[0]).meta["val"] = node.meta["val"].to(torch.float64)

    report = verified(lambda x: (x.relu() + 1).sum(), torch.randn(3), passes=[edited(aten.relu, edit)])
    assert not report.ok


def test_effects_of_a_read_moved_past_a_write():
    def program(x):
        y = x.clone()
        z = y * 2
        y.add_(1)
        return z, y

    def edit(rewrite, node):
        (write,) = (n for n in node.graph.nodes if "add_" in n.name)
        rewrite.move(node, before=write.next)

    finding = only_finding(verified(program, torch.randn(3), passes=[edited(aten.mul, edit, stage="pre_grad")]))
    assert finding.check == "effects"
    assert "was moved past" in finding.text


def test_effects_of_a_draw_made_twice():
    def edit(rewrite, node):
        again = rewrite.insert(node.target, *node.args, before=node, **node.kwargs)
        users = list(node.users)
        rewrite.update(users[-1], args=(again, *users[-1].args[1:]))

    def program(x):
        mask = torch.rand_like(x)
        return mask + x, mask * 2

    report = verified(program, torch.randn(3), passes=[edited(aten.rand_like, edit, stage="pre_grad")])
    finding = only_finding(report)
    assert finding.check == "effects"
    assert "draws again" in finding.text


def crashing(graph, rewrite):
    raise ValueError("planted")


def behind_the_back(graph, rewrite):
    for node in graph.find(aten.sin):
        node.target = aten.cos.default


def one_more_output(graph):
    (output,) = graph.find_nodes(op="output")
    output.args = ((*output.args[0], output.args[0][0]),)


@pytest.mark.parametrize(
    "options",
    [
        {"passes": [graph_pass(stage="post_grad", numerics="exact")(crashing)]},
        {"passes": [graph_pass(stage="post_grad", numerics="exact")(behind_the_back)]},
        {"post_grad_custom_post_pass": [one_more_output]},
    ],
    ids=["crash", "unreported edit", "interface"],
)
def test_a_pass_that_fails_without_verification_is_a_finding_too(options):
    report = verified(lambda x: x.sin(), torch.randn(3), **options)
    assert not report.ok
    assert report.findings[0].address.startswith("post_grad/")


@pytest.mark.parametrize("role", ["forward", "backward"])
def test_numbers_of_forward_and_backward(role):
    def fn(graph, rewrite, context):
        if context.graph.role == role:
            for node in list(graph.find(aten.sin, aten.cos)):
                rewrite.replace(node, aten.tan, *node.args)

    pass_ = graph_pass(stage="post_grad", numerics="exact", name="planted")(fn)
    finding = only_finding(verified(lambda x: x.sin(), torch.randn(3).requires_grad_(), passes=[pass_]))
    assert (finding.check, finding.graph.role) == ("numbers", role)


def test_a_gradient_cut_before_autograd():
    def edit(rewrite, node):
        (x,) = node.all_input_nodes
        rewrite.update(node, args=(rewrite.insert(torch.Tensor.detach, x, before=node),))

    # The other operand keeps the output differentiable, so that its type says nothing.
    report = verified(
        lambda x, y: x.sin() + y,
        torch.randn(3).requires_grad_(),
        torch.randn(3).requires_grad_(),
        passes=[edited(aten.sin, edit, stage="pre_grad")],
    )
    finding = only_finding(report)
    assert finding.graph.role == "captured"
    assert finding.check in ("numbers", "metadata")


def test_a_copy_that_became_an_alias_before_autograd():
    pass_ = edited(aten.clone, lambda r, n: r.replace(n, n.args[0]), stage="pre_grad")

    def program(x):
        y = x.clone()
        return y, y + 1

    assert not verified(program, torch.randn(3), passes=[pass_]).ok


def test_strides_before_autograd():
    def edit(rewrite, node):
        (x,) = node.all_input_nodes
        rewrite.replace(node, torch.Tensor.contiguous, rewrite.insert(torch.sin, x, before=node))

    pass_ = edited(aten.sin, edit, stage="pre_grad")
    assert not verified(lambda x: x.sin(), torch.randn(3, 4).t(), passes=[pass_]).ok


def test_a_dropped_write_to_an_input():
    pass_ = edited(aten.copy_, lambda r, n: r.erase(n))

    def program(x):
        x.mul_(2)
        return x.sum()

    x = torch.randn(3)
    report = verified(program, x, passes=[pass_])
    assert not report.ok
    assert report.findings[0].address == "post_grad/planted"
    assert not report.differences  # it was undone


@pytest.mark.parametrize(
    ("before", "pass_", "sample"),
    [
        (lambda x: -x, edited(aten.neg, lambda r, n: r.replace(n, aten.rsub, n.args[0], 0.0)), "minus zero"),
        (lambda x: x * 0.0, edited(aten.mul, lambda r, n: r.replace(n, aten.mul, n.args[0], -0.0)), "zero"),
        (lambda x: x.abs() * 0.0, edited(aten.mul, lambda r, n: r.replace(n, aten.zeros_like, n.args[0])), "nan"),
        (
            lambda x: x.clamp(min=-1e38, max=1e38),
            edited(aten.clamp, lambda r, n: r.replace(n, aten.clone, n.args[0])),
            "inf",
        ),
    ],
    ids=["-0.0", "0.0", "nan", "inf"],
)
def test_differences_in_special_values_alone(before, pass_, sample):
    finding = only_finding(verified(before, torch.rand(30) + 0.5, passes=[pass_]))
    assert finding.check == "numbers"


@pytest.mark.parametrize("role", ["captured", "joint", "forward", "backward"])
def test_inputs_of_the_user_reach_every_graph(role):
    def fn(graph, rewrite, context):
        if context.graph.role != role:
            return
        for node in list(graph.nodes):
            if "sin" in str(node.target) or (role == "backward" and "cos" in str(node.target)):
                high = rewrite.insert(torch.eq if role == "captured" else aten.eq, node.args[0], 3e6, before=node)
                zeros = torch.zeros_like if role == "captured" else aten.zeros_like
                zero = rewrite.insert(zeros, node.args[0], before=node)
                where = torch.where if role == "captured" else aten.where
                kept = rewrite.insert(where, high, zero, node.args[0], before=node)
                rewrite.update(node, args=(kept,))

    stage = {"captured": "pre_grad", "joint": "joint"}.get(role, "post_grad")
    pass_ = graph_pass(stage=stage, numerics="exact", name="planted")(fn)
    x = torch.tensor([1.0, 2e6], requires_grad=True)
    assert only_finding(verified(lambda x: torch.sin(x * 1.5), x, passes=[pass_])).graph.role == role
    assert verified(lambda x: torch.sin(x * 1.5), (x.detach() / 1e6).requires_grad_(), passes=[pass_]).ok


# ----------------------------------------------------------------------------------------------- other promises


def split_sum(rewrite, node):
    x, size = node.args[0], node.args[0].meta["val"].shape[0]
    parts = [rewrite.insert(aten.slice, x, 0, a, b, before=node) for a, b in ((0, size // 2), (size // 2, size))]
    rewrite.replace(node, aten.add, *(rewrite.insert(aten.sum, p, before=node) for p in parts))


def test_other_roundings_are_allowed_where_promised():
    x = torch.randn(999)
    reassociating = edited(aten.sum, split_sum, numerics="reassociates")
    assert verified(lambda x: x.sum(), x, passes=[reassociating]).ok
    assert not verified(lambda x: x.sum(), x, passes=[edited(aten.sum, split_sum)]).ok


def narrow(rewrite, node):
    a, b = (rewrite.insert(convert, x, torch.bfloat16, before=node) for x in node.args)
    rewrite.replace(node, convert, rewrite.insert(aten.mm, a, b, before=node), torch.float32)


@pytest.mark.parametrize(
    ("program", "op", "edit"),
    [
        (lambda x: x @ x, aten.mm, narrow),
        (lambda x: x * 3, aten.mul, lambda r, n: r.replace(n, aten.mul, n.args[0], 3.00001)),
    ],
    ids=["narrower", "a constant"],
)
def test_larger_errors_are_not(program, op, edit):
    finding = only_finding(verified(program, torch.randn(8, 8), passes=[edited(op, edit, numerics="reassociates")]))
    assert "its error against float64 grew" in finding.text


def test_no_number_that_became_a_number_is_not_a_rounding():
    pass_ = edited(aten.mul, lambda r, n: r.replace(n, aten.zeros_like, n.args[0]), numerics="reassociates")
    assert not verified(lambda x: x * 0.0, torch.randn(30), passes=[pass_]).ok


def test_infinity_that_became_a_number_is_not_a_rounding():
    pass_ = edited(
        aten.abs,
        lambda r, n: r.replace(n, aten.clamp_max, r.insert(aten.abs, n.args[0], before=n), 3e38),
        numerics="reassociates",
    )
    assert not verified(lambda x: x.abs(), torch.randn(30), passes=[pass_]).ok


def test_a_softmax_without_its_maximum_is_not_a_rounding():
    def edit(rewrite, node):
        e = rewrite.insert(aten.exp, node.args[0], before=node)
        rewrite.replace(node, aten.div, e, rewrite.insert(aten.sum, e, [node.args[1]], True, before=node))

    pass_ = edited(aten._softmax, edit, numerics="reassociates")
    assert not verified(lambda x: x.softmax(-1), torch.randn(4, 5), passes=[pass_]).ok


def test_redrawing_is_allowed_and_another_distribution_is_not():
    def fresh(rewrite, node):
        rewrite.replace(node, aten.rand_like, *node.args, **node.kwargs)

    def normal(rewrite, node):
        rewrite.replace(node, aten.randn_like, *node.args, **node.kwargs)

    x = torch.randn(100)
    for edit, right in ((fresh, True), (normal, False)):
        pass_ = edited(aten.rand_like, edit, numerics="redraws")
        assert each(lambda x: x + torch.rand_like(x), x, passes=[pass_])[1].findings == [] or not right
        assert verified(lambda x: x + torch.rand_like(x), x, passes=[pass_]).ok is right


def test_what_changes_results_is_noted():
    pass_ = swapped(aten.sin, aten.cos, numerics="changes", on=False)
    report = verified(lambda x: x.sin(), torch.ones(3), passes=[pass_], enable=["planted"])
    assert not report.findings
    assert any("post_grad/planted" in note and "it may change results" in note for note in report.limits)
    assert report.differences  # from eager


# ------------------------------------------------------------------------------------ graphs that cannot be executed

CALLS = []


@torch.library.custom_op("eductor_test_verify::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    """Its second call is far from the others, which are near each other, but not alike."""
    CALLS.append(1)
    return x + (1.0 if len(CALLS) == 2 else len(CALLS) * 1e-6)


@noisy.register_fake
def _(x):
    return torch.empty_like(x)


def test_a_print_is_not_executed_twice(capsys):
    def program(x):
        torch._higher_order_ops.print("printed {}", x.sum())
        return x.sin() + 1

    pass_ = edited(aten.sin, lambda r, n: r.replace(n, torch.cos, *n.args), stage="pre_grad")
    _, verifier = each(program, torch.ones(3), passes=[pass_])
    assert capsys.readouterr().out.count("printed") == 1
    assert any("may do more than compute" in note and "pre_grad/planted" in note for note in verifier.notes)


def test_a_dropped_print_is_seen_though_it_is_not_executed():
    def program(x):
        torch._higher_order_ops.print("printed {}", x.sum())
        return x.sin() + 1

    def drop(graph, rewrite):
        """Drops a print."""
        for node in list(graph.nodes):
            if node.name.startswith("print"):
                rewrite.erase(node)

    pass_ = graph_pass(stage="pre_grad", numerics="exact")(drop)
    assert not verified(program, torch.ones(3), passes=[pass_]).ok


def test_a_dropped_assertion_is_seen():
    def program(x):
        torch._assert_async(x.sum() != 5, "bad")
        return x.sin()

    def drop(graph, rewrite):
        """Drops an assertion."""
        for node in list(graph.nodes):
            if "assert" in str(node.target):
                rewrite.erase(node)

    pass_ = graph_pass(stage="pre_grad", numerics="exact")(drop)
    assert not verified(program, torch.ones(3), passes=[pass_]).ok


def test_sizes_that_depend_on_data_are_noted():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        value, verifier = each(lambda x: x.nonzero().sin() * 2, torch.tensor([0.0, 1.0, 2.0]), passes=[WRONG])
        assert [f.address for f in verifier.findings] == ["post_grad/planted"]
        assert torch.equal(value, torch.tensor([[1], [2]]).sin() * 2)

        def program(x):
            n = int(x.sum().item())
            torch._check(n > 0)
            return torch.ones(n).sin()

        assert verified(program, torch.tensor([1, 2])).ok


@pytest.mark.parametrize(
    "numerics",
    [
        "exact",
        pytest.param("reassociates"),
    ],
)
def test_a_graph_that_gives_another_result_each_time_is_noted(numerics):
    def edit(rewrite, node):
        CALLS.clear()
        rewrite.update(node, args=(rewrite.insert(aten.clone, node.args[0], before=node),))

    pass_ = edited(aten.sin, edit, numerics=numerics)
    _, verifier = each(lambda x: torch.ops.eductor_test_verify.noisy(x).sin(), torch.ones(3), passes=[pass_])
    assert not verifier.findings
    assert any("planted" in note and "another result each time" in note for note in verifier.notes)


def test_sizes_that_are_not_the_example_s():
    pass_ = edited(
        aten.mean, lambda r, n: r.replace(n, aten.div, r.insert(aten.sum, n.args[0], before=n), 4)
    )  # right for four elements only
    _, verifier = each(lambda x: x.mean(), torch.ones(4), dynamic=True, passes=[pass_])
    assert verifier.findings


def test_negative_integers_are_tried():
    pass_ = edited(aten.div, lambda r, n: r.replace(n, aten.div, *n.args, rounding_mode="trunc"))
    program = lambda x: torch.div(x, 2, rounding_mode="floor")  # noqa: E731
    assert not verified(program, torch.arange(5), passes=[pass_]).ok


# ------------------------------------------------------------------------------------------------- nothing is touched


def test_nothing_of_the_user_is_touched():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(torch.randn(4, 3))
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    state = {k: v.clone() for k, v in optimizer.state_dict()["state"][0].items()}
    gradients = [(p, p.grad, p.grad.clone()) for p in model.parameters()]
    x = torch.randn(4, 3)
    x_before, rng = x.clone(), torch.get_rng_state()
    assert verified(step, x, passes=[WRONG]).ok
    assert all(torch.equal(kept[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(state[k], v) for k, v in optimizer.state_dict()["state"][0].items())
    assert all(p.grad is grad and torch.equal(grad, value) for p, grad, value in gradients)
    assert torch.equal(x, x_before)
    assert torch.equal(rng, torch.get_rng_state())
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_inputs_keep_contents_versions_and_gradients():
    x, y = torch.randn(3), torch.randn(3, requires_grad=True)

    def program(x, y):
        x.mul_(2)
        return x * y

    before, version = x.clone(), x._version
    assert verified(program, x, y).ok
    assert torch.equal(x, before)
    assert (x._version, y.grad) == (version, None)


def leaves_modes_on(x):
    torch._C._set_grad_enabled(False)
    return x * 2


def test_grad_mode_is_kept():
    verified(leaves_modes_on, torch.randn(3, requires_grad=True))
    assert torch.is_grad_enabled()


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def test_what_an_object_of_the_user_holds_is_not_touched():
    trainer = Trainer()
    kept = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    verified(trainer.step, torch.randn(4, 3))
    assert all(torch.equal(kept[k], v) for k, v in trainer.model.state_dict().items())


NORM = nn.BatchNorm1d(3)


def in_a_comprehension(x):
    return [NORM(y) for y in (x, x + 1)]


def test_what_an_inner_function_holds_is_not_touched():
    kept = NORM.running_mean.clone()
    verified(in_a_comprehension, torch.randn(4, 3))
    assert torch.equal(kept, NORM.running_mean)


class Caching(nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = torch.zeros(3)

    def forward(self, x):
        self.cache.add_(1)
        return x + self.cache


def test_a_tensor_that_is_no_buffer_is_not_touched():
    model = Caching()
    verified(model, torch.randn(3))
    assert torch.equal(model.cache, torch.zeros(3))


def test_state_of_an_optimizer_keeps_its_identity():
    weight = nn.Parameter(torch.randn(3))
    optimizer = torch.optim.Adam([weight])

    def step(x):
        (weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step(torch.randn(3))
    held, group = optimizer.state[weight]["exp_avg"], optimizer.param_groups[0]
    verified(step, torch.randn(3))
    assert optimizer.param_groups[0] is group
    assert optimizer.state[weight]["exp_avg"] is held


def test_nothing_is_kept_alive():
    x, model = torch.randn(10), nn.Linear(10, 10)
    known = [weakref.ref(x), weakref.ref(model)]
    eductor.compile(lambda x: x.sin() * 1 + 0, engine="aten", verify="each", passes=[WRONG])(x)
    verified(model, x)
    del x, model
    gc.collect()
    assert [r() for r in known] == [None, None]


@pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(torch.compile).parameters,
    reason="what was compiled is forgotten there",
)
def test_the_user_s_own_compiles_are_not_used_up():
    def fn(x):
        return x.sin()

    compiled = eductor.compile(fn, engine="aten", fullgraph=True)
    compiled(torch.ones(3))
    for _ in range(10):
        assert verified(fn, torch.ones(3)).ok
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(torch.ones(3))


# --------------------------------------------------------------------------------------------------- no false alarms


def under_autocast(x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ y).float().sum(0)


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    return y + x


def inference(x):
    with torch.inference_mode():
        return x * 2 + 1


def two_views(x):
    y = x * 2
    y[0].add_(1)
    return y.t(), y[1:]


def transposed(x):
    return x.sin().t()


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].exp()


def grad(*shape, **kinds):
    return torch.randn(*shape, **kinds).requires_grad_()


RIGHT = {
    "autocast": (under_autocast, lambda: [grad(4, 4), grad(4, 4)]),
    "no_grad": (without_gradients, lambda: [grad(3)]),
    "inference_mode": (inference, lambda: [torch.randn(3)]),
    "views": (two_views, lambda: [grad(3, 4)]),
    "complex": (lambda x: (x * x.conj()).abs(), lambda: [grad(3, dtype=torch.complex64)]),
    "conjugate": (lambda x: (x.conj(), x.conj().imag), lambda: [torch.randn(3, dtype=torch.complex64)]),
    "sparse": (torch.sparse.mm, lambda: [torch.eye(4).to_sparse(), torch.randn(4, 3)]),
    "empty": (lambda x: x.sum(0) + x.relu().sum(), lambda: [torch.randn(0, 3)]),
    "no dimension": (lambda x: x * 2, lambda: [grad(())]),
    "expanded": (lambda x: x * 2, lambda: [torch.randn(1, 4).expand(3, 4)]),
    "overlapping": (lambda x: x + 1, lambda: [torch.randn(10).as_strided((3, 4), (2, 1))]),
    "nested": (lambda d: {"a": [d["a"][0] + 1, None], "b": (3, "s", 2.5)}, lambda: [{"a": [torch.randn(3)]}]),
    "numbers": (lambda x, n, s, f: x * n + f, lambda: [torch.randn(3), 3, "s", 1.5]),
    "module": (lambda m, x: m(x), lambda: [nn.Linear(3, 3), torch.randn(2, 3)]),
    "item": (lambda x: x * x.sum().item(), lambda: [torch.randn(3)]),
    "mask": (lambda x: x[x > 0].sum(), lambda: [grad(5)]),
    "dropout": (lambda x: F.dropout(x, 0.5) + F.dropout(x, 0.3), lambda: [grad(50)]),
    "lstm": (nn.LSTM(3, 4, 2), lambda: [grad(2, 5, 3)]),
    "embedding bag": (nn.EmbeddingBag(9, 3), lambda: [torch.tensor([1, 2, 3]), torch.tensor([0, 2])]),
    "sparse gradient": (nn.Embedding(9, 3, sparse=True), lambda: [torch.tensor([1, 2])]),
    "int8": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(), lambda: [torch.randn(5)]),
    "shared memory": (lambda a, b: a.add_(1) + b, lambda: list(torch.randn(6).unfold(0, 4, 1)[:2])),
    "twice": (lambda a, b: a * b, lambda: [grad(3)] * 2),
    "Function": (Exp.apply, lambda: [grad(3)]),
    "shape": (lambda x: (x.shape, x.dtype, x + 1), lambda: [torch.randn(3)]),
    "nothing": (lambda x: x / x, lambda: [torch.zeros(3)]),
    "ties": (lambda x: (x.sort(stable=True), x.argmax(), x.round()), lambda: [torch.tensor([0.5, 1.5, 0.5])]),
    "raises": (lambda x: x.view(7), lambda: [torch.randn(3)]),
    "transposed output": (transposed, lambda: [grad(3, 4)]),
}
FINE = [name for name in RIGHT if name != "transposed output"]


@pytest.mark.parametrize("profile", ["fast", "exact"])
@pytest.mark.parametrize("name", FINE)
def test_no_alarm(name, profile):
    fn, make = RIGHT[name]
    report = verified(fn, *make(), profile=profile)
    assert report.ok, str(report)


def test_no_alarm_for_the_strides_of_a_gradient():
    report = verified(transposed, grad(3, 4))
    assert report.ok, str(report)


def test_no_alarm_for_sums_over_a_gradient_of_another_layout():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    report = verified(model, x, profile="exact")
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: x.numpy() + 1,
        lambda x: [x, Holder(x + 1)],
    ],
    ids=["float8", "numpy", "an object"],
)
def test_outputs_that_are_hard_to_compare(fn):
    report = verified(fn, torch.randn(3))
    assert report.ok, str(report)


class Holder:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return self.value == other.value

    __hash__ = None


def test_an_input_without_contents():
    assert verified(lambda x: x + 1, torch.empty(3, device="meta")).ok


def test_no_alarm_for_integers_that_come_of_roundings():
    pass_ = edited(aten.sum, split_sum, numerics="reassociates")
    report = verified(lambda x: (x.sum() * 1e7).long(), torch.randn(999), passes=[pass_])
    assert report.ok, str(report)


def test_graphs_of_dynamic_sizes_are_executed():
    _, verifier = each(lambda x: (x * 2).sum(0) + x.shape[0], torch.randn(5, 3), dynamic=True)
    assert not verifier.findings
    assert not verifier.notes


@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_a_wrong_pass_on_a_graph_of_dynamic_sizes(stage):
    pass_ = swapped(aten.sin, torch.cos if stage == "pre_grad" else aten.cos, stage=stage)
    _, verifier = each(lambda x: x.sin().sum(0) + x.shape[0], torch.randn(5, 3), dynamic=True, passes=[pass_])
    assert [f.check for f in verifier.findings] == ["numbers"]


def test_verification_installs_no_guards():
    compiled = []

    def counting(job):
        compiled.append(job)
        return torch.fx.Interpreter(job.module).boxed_run

    def program(x):
        return x.view(x.shape[0] * 2, -1).sin() * x.shape[0]

    right = edited(
        aten.sin, lambda r, n: r.update(n, args=(r.insert(torch.clone, n.args[0], before=n),)), stage="pre_grad"
    )
    fn = eductor.compile(program, engine=counting, verify="each", dynamic=True, passes=[right])
    for size in (6, 8, 10):
        fn(torch.randn(size, 4))
    assert len(compiled) == 1


def test_a_difference_is_one_line():
    def nothing(job):
        run = torch.fx.Interpreter(job.module).boxed_run
        return lambda inputs: [None if job.is_backward else x for x in run(inputs)]

    report = verified(lambda x: x.sin(), grad(100, 100), engine=nothing)
    assert report.differences
    assert all("\n" not in difference for difference in report.differences)


def test_strict_verification_raises_the_report():
    with pytest.raises(NotVerified, match="post_grad/planted"):
        verified(lambda x: x.sin(), torch.ones(3), passes=[WRONG], strict=True)
    assert verified(lambda x: x.sin(), torch.ones(3), strict=True).ok


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.eye(3).to_sparse())

    def forward(self, x):
        return torch.sparse.mm(self.table, x)


@pytest.mark.parametrize("make", [Sparse, lambda: nn.LazyLinear(3)], ids=["sparse", "lazy"])
def test_modules_that_are_hard_to_copy(make):
    report = verified(make(), torch.randn(3, 2))
    assert report.ok, str(report)


def test_a_generator_of_the_user_is_not_touched():
    generator = torch.Generator().manual_seed(0)
    state = generator.get_state()
    verified(lambda x: x + torch.rand(3, generator=generator), torch.randn(3))
    assert torch.equal(state, generator.get_state())


def test_an_error_that_both_raise_is_noted():
    report = verified(lambda x, y: x + y, torch.randn(3))
    assert any("TypeError" in note for note in report.limits)
    assert "Every pass kept its contract" not in str(report)


HISTORY = {"losses": [], "best": {}}


def remembers(x):
    HISTORY["losses"].append(x.sum())
    HISTORY["best"]["loss"] = x.max()
    return x * 2


def test_lists_and_dictionaries_of_the_user_are_not_touched():
    losses = HISTORY["losses"]
    assert verified(remembers, torch.ones(3)).ok
    assert HISTORY["losses"] is losses
    assert HISTORY == {"losses": [], "best": {}}


def test_deep_structures_are_looked_into_no_further():
    chain = []
    for _ in range(5000):
        chain = [chain]
    assert verified(lambda x: x * len(chain), torch.ones(3)).ok


def test_a_check_that_fails_itself_blames_no_pass(monkeypatch):
    def broken(*_):
        raise KeyError("a fault of the check")

    monkeypatch.setattr("eductor.verification.verifier.check_effects", broken)
    report = verified(lambda x: x.clone().sin(), torch.ones(3))
    assert report.ok, str(report)
    assert any("its effects could not be checked: KeyError" in note for note in report.limits)


@eductor.graph_pass(stage="joint", numerics="exact")
def breaks_shapes(graph, rewrite):
    """Multiplies what cannot be multiplied, and hides it with old metadata."""
    for node in graph.find(torch.ops.aten.mm):
        value = node.meta["val"]
        rewrite.update(node, args=(node.args[1], node.args[0]))
        node.meta["val"] = value


def test_a_graph_that_cannot_be_evaluated_any_more_is_the_fault_of_the_pass():
    report = verified(lambda x, y: x @ y, torch.ones(2, 3), torch.ones(3, 4), passes=[breaks_shapes])
    assert [f.address for f in report.findings] == ["joint/breaks_shapes"], str(report)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ones", torch.ones(3))

    def forward(self, x):
        return (x * self.ones).sin()


@eductor.graph_pass(stage="joint", numerics="exact")
def drops_ones(graph, rewrite):
    """x * ones is x."""
    for node in graph.find(torch.ops.aten.mul):
        if node.args[1].op == "get_attr":
            rewrite.replace(node, node.args[0])


def test_a_constant_may_go():
    module = capture(Scaled(), [torch.randn(3)], "aten")
    verifier = Verifier([torch.randn(3)])
    options = eductor.Options(strict=True, passes=[drops_ones], instruments=[verifier])
    eductor.joint_graph_passes(module, options=options)
    assert not module.graph.find_nodes(op="get_attr")
    assert not verifier.findings


COUNT = 0


def counts(x):
    global COUNT
    COUNT += 1
    return x * COUNT


def test_variables_of_the_user_are_bound_as_they_were():
    calls = 0

    def counted(x):
        nonlocal calls
        calls += 1
        return x * calls

    for fn in (counts, counted):
        report = verified(fn, torch.ones(3))
        assert report.ok, str(report)
        assert not report.limits, str(report)
    assert (COUNT, calls) == (0, 0)


def test_the_state_of_an_optimizer_is_compared():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    step(torch.ones(3, 2))
    names = ReachableState(step).tensors
    assert sum("exp_avg_sq" in name for name in names) == 2, list(names)
    assert verified(step, torch.ones(3, 2)).ok
