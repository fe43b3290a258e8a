"""replace_random_passes: one seed tensor a device, the same distributions, and eager's draws where they are asked for."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

import eductor
from eductor import Recorder, graph_pass, joint_graph_passes
from eductor.engines import ATEN, Engine
from eductor.graph import capture, rewriter
from eductor.observe.manual.manual import run_pass
from eductor.ops.random import bits, integers, normal, uniform
from eductor.passes.joint.replace_random_passes import replace_random_passes
from eductor.testing import check_contract

aten, own = torch.ops.aten, torch.ops.eductor
MANY = 100_000
WHOLE = Engine("whole", ATEN.compile, seeded_random=True)
"""The engine `aten` with seeded draws: random operators come whole to the pass, and its result runs in eager."""


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def targets(module):
    return [n.target for n in module.graph.nodes if n.op == "call_function"]


def rewritten(program, *inputs, dynamic=False):
    module = capture(program, inputs, "aten", dynamic=dynamic)
    assert run_pass(replace_random_passes, "joint", module).record.changed
    return module


def reasons(program, *inputs, prepare=None):
    module = capture(program, inputs, "aten")
    if prepare is not None:
        prepare(module)
    record = run_pass(replace_random_passes, "joint", module).record
    assert not record.changed
    return " ".join(r.reason for r in record.rejects)


def draws_left(module):
    return [t for t in targets(module) if torch.Tag.nondeterministic_seeded in getattr(t, "tags", ())]


def bernoulli(p):
    return (p, p * (1 - p))


def empty(x):
    return torch.empty_like(x)


# Each draw: of a tensor of probabilities, and the mean and variance that its numbers have.
DRAWS = {
    "rand": (lambda x: torch.rand(x.shape), (1 / 2, 1 / 12)),
    "rand_like": (torch.rand_like, (1 / 2, 1 / 12)),
    "rand of another dtype": (lambda x: torch.rand_like(x, dtype=torch.float16), (1 / 2, 1 / 12)),
    "randn": (lambda x: torch.randn(x.shape), (0, 1)),
    "randn_like": (torch.randn_like, (0, 1)),
    "randint": (lambda x: torch.randint(9, x.shape), (4, 80 / 12)),
    "randint between": (lambda x: torch.randint(-3, 6, x.shape, dtype=torch.int32), (1, 80 / 12)),
    "randint_like": (lambda x: torch.randint_like(x, 9), (4, 80 / 12)),
    "randint_like between": (lambda x: torch.randint_like(x, -3, 6, dtype=torch.int8), (1, 80 / 12)),
    "randint of bool": (lambda x: torch.randint(0, 2, x.shape, dtype=torch.bool), bernoulli(0.5)),
    "bernoulli": (torch.bernoulli, bernoulli(0.3)),
    "bernoulli_": (lambda x: empty(x).bernoulli_(0.8), bernoulli(0.8)),
    "bernoulli_ of integers": (lambda x: torch.empty_like(x, dtype=torch.int64).bernoulli_(0.8), bernoulli(0.8)),
    "bernoulli_ of a tensor": (lambda x: empty(x).bernoulli_(x.double()), bernoulli(0.3)),
    "dropout": (lambda x: F.dropout(x / x, 0.2), (1, 0.25)),
    "alpha dropout": (lambda x: F.alpha_dropout(torch.randn_like(x), 0.2, training=True), (0, 1)),
    "uniform_": (lambda x: empty(x).uniform_(-1, 3), (1, 16 / 12)),
    "normal_": (lambda x: empty(x).normal_(2, 3), (2, 9)),
    "normal": (lambda x: torch.normal(2.0, 3.0, x.shape), (2, 9)),
    "normal of tensors": (lambda x: torch.normal(2 * x, 10 * x), (0.6, 9)),
    "exponential_": (lambda x: empty(x).exponential_(2.0), (1 / 2, 1 / 4)),
}


def p_of(*shape):
    return torch.full(shape, 0.3)


def check_distribution(name, drawn):
    mean, variance = DRAWS[name][1]
    drawn = drawn.double()
    assert abs(drawn.mean() - mean) < 6 * (variance / drawn.numel()) ** 0.5, name
    assert abs(drawn.var() - variance) < 0.05 * variance, name


@pytest.mark.parametrize("name", DRAWS)
def test_each_draw_is_seeded_and_keeps_its_form_and_distribution(name):
    draw, _ = DRAWS[name]
    module = rewritten(lambda x: draw(x), p_of(MANY))
    assert draws_left(module) == [own.seeds.default]
    eager, seeded = draw(p_of(MANY)), module(p_of(MANY))
    assert (seeded.shape, seeded.dtype, seeded.stride()) == (eager.shape, eager.dtype, eager.stride())
    check_distribution(name, seeded)


@pytest.mark.parametrize("name", DRAWS)
def test_dynamic_sizes(name):
    draw, _ = DRAWS[name]
    module = rewritten(lambda x: draw(x), p_of(4, 6), dynamic=True)
    assert draws_left(module) == [own.seeds.default]
    assert module(p_of(5, 3)).shape == (5, 3)
    assert aten.empty_like.default not in targets(module)


def test_the_contract_holds():
    check_contract(replace_random_passes, "joint")


def all_draws(x):
    return [draw(x) for draw, _ in DRAWS.values()]


def test_inductor_draws_all_of_them_and_new_ones_in_each_call():
    compiled = eductor.compile(all_draws, engine="inductor", strict=True, dynamic=True)
    first, second = compiled(p_of(MANY)), compiled(p_of(MANY))
    for name, a, b in zip(DRAWS, first, second, strict=True):
        check_distribution(name, a)
        assert not torch.equal(a, b), name
        assert abs(torch.corrcoef(torch.stack([a, b]).double())[0, 1]) < 0.03, name
    for name, got, eager in zip(DRAWS, compiled(p_of(50, 7)), all_draws(p_of(50, 7)), strict=True):
        assert (got.shape, got.dtype, got.stride()) == (eager.shape, eager.dtype, eager.stride()), name
    torch.manual_seed(5)
    one = compiled(p_of(100))
    torch.manual_seed(5)
    assert all(map(torch.equal, one, compiled(p_of(100))))


def generated(program, *inputs, **options):
    from torch._inductor.utils import run_and_get_code

    out, codes = run_and_get_code(lambda: eductor.compile(program, engine="inductor", strict=True, **options)(*inputs))
    return out, codes


def test_inductor_fuses_the_draws_into_their_consumers():
    def program(x):
        noise = torch.randint(0, 9, x.shape) + torch.rand_like(x) * torch.randn_like(x)
        return F.dropout(x, 0.3) + noise * empty(x).bernoulli_(0.5)

    _, (code,) = generated(program, torch.randn(64, 64))
    body = code.partition("def call")[2]
    assert re.findall(r"aten\.(\w+)\.\w+\(", body) == ["randint"], (
        "the seeds, and nothing else, are drawn by an operator"
    )
    assert len(re.findall(r"^ +cpp_fused\w*\(", body, re.MULTILINE)) == 1


# ------------------------------------------------------------------------------------------- ranges, dtypes, layouts


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def uniform_numbers(x):
    return [torch.rand_like(x, dtype=dtype) for dtype in FLOATS]


def test_uniform_numbers_are_less_than_1_in_each_dtype():
    x = torch.zeros(MANY)
    seed = own.seeds(1, device=torch.device("cpu"))[0]
    by_inductor = eductor.compile(uniform_numbers, engine="inductor", strict=True)(x)
    by_generator = rewritten(uniform_numbers, x)(x)
    by_bits = [uniform(bits(seed, MANY), dtype) for dtype in FLOATS]
    for drawn, dtype in zip([*by_inductor, *by_generator, *by_bits], FLOATS * 3, strict=True):
        assert drawn.dtype is dtype
        assert drawn.min() >= 0
        assert drawn.max() < 1
        assert abs(drawn.double().mean() - 0.5) < 0.01


WHOLE_NUMBERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16)


def whole_numbers(x):
    return [torch.randint(3, 60, x.shape, dtype=dtype) for dtype in WHOLE_NUMBERS]


def test_integers_fill_their_range():
    x = torch.zeros(MANY)
    by_inductor = eductor.compile(whole_numbers, engine="inductor", strict=True)(x)
    for drawn, dtype in zip([*by_inductor, *rewritten(whole_numbers, x)(x)], WHOLE_NUMBERS * 2, strict=True):
        assert drawn.dtype is dtype
        assert drawn.unique().tolist() == list(range(3, 60))


def test_probabilities_of_0_and_1_are_certain():
    x = torch.tensor([0.0, 1.0]).repeat(MANY)
    module = rewritten(lambda x: (torch.bernoulli(x), F.dropout(x, 1.0), empty(x).bernoulli_(1)), x)
    drawn, dropped, all_of_them = module(x)
    assert torch.equal(drawn, x)
    assert dropped.count_nonzero() == 0
    assert all_of_them.all()


def test_exponential_numbers_are_positive_and_finite():
    module = rewritten(lambda x: empty(x).exponential_(), torch.zeros(10 * MANY))
    drawn = module(torch.zeros(10 * MANY))
    assert drawn.min() > 0
    assert drawn.isfinite().all()


@pytest.mark.parametrize(
    "like",
    [
        torch.full((2, 3, 4, 5), 0.5).contiguous(memory_format=torch.channels_last),
        torch.full((2, 1, 4, 4), 0.5).contiguous(memory_format=torch.channels_last),
        torch.full((6, 4), 0.5).t(),
        torch.full((4, 1), 0.5).expand(4, 6),
        torch.full((0, 3), 0.5),
        torch.full((), 0.5),
    ],
    ids=["channels last", "one channel", "transposed", "expanded", "empty", "scalar"],
)
@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        lambda x: torch.randint_like(x, 5),
        torch.bernoulli,
        lambda x: torch.empty_like(x).bernoulli_(x),
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.normal(x, 2.0),
    ],
    ids=["rand_like", "randint_like", "bernoulli", "bernoulli_", "dropout", "normal"],
)
def test_strides_stay(draw, like):
    module = capture(lambda x: draw(x), [like], "aten")
    expected = module(like)
    run_pass(replace_random_passes, "joint", module)
    assert draws_left(module) in ([own.seeds.default], [])
    assert module(like).stride() == expected.stride()


# -------------------------------------------------------------------------------------------------- seeds and places


def test_several_draws_share_one_seed_tensor_and_are_independent():
    module = rewritten(lambda x: (torch.rand_like(x), torch.rand_like(x), torch.randn_like(x)), torch.zeros(MANY))
    assert targets(module).count(own.seeds.default) == 1
    (seeds,) = module.graph.find_nodes(op="call_function", target=own.seeds.default)
    assert seeds.args == (3,)
    assert seeds.meta["val"].shape == (3,)
    assert (torch.corrcoef(torch.stack(module(torch.zeros(MANY)))) - torch.eye(3)).abs().max() < 0.02


def test_a_draw_of_a_draw():
    module = rewritten(lambda x: torch.bernoulli(torch.rand_like(torch.bernoulli(x.t()))), p_of(300, 400), dynamic=True)
    drawn = module(p_of(400, 500))
    assert drawn.shape == (500, 400)
    assert abs(drawn.mean() - 0.5) < 0.02


def test_the_seed_of_torch_decides():
    module = rewritten(lambda x: torch.rand_like(x), torch.zeros(100))
    torch.manual_seed(5)
    first, second = module(torch.zeros(100)), module(torch.zeros(100))
    torch.manual_seed(5)
    again = module(torch.zeros(100))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_a_random_tensor_is_a_function_of_its_seed():
    seeds = own.seeds(2, device=torch.device("cpu"))

    def draw(i):
        return own.random(seeds, i, [100], "randn", dtype=torch.float32)

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    state = torch.get_rng_state()
    draw(0)
    own.random_integers(seeds, 0, [100], 0, 9, dtype=torch.int64)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(ValueError, match="must be one of rand, randn"):
        own.random(seeds, 0, [3], "poisson", dtype=torch.float32)


class _Called(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def test_numbers_without_a_look_at_the_seed():
    """What devices do: their seeds are not known to the host, and nobody waits for them."""
    seeds = torch.tensor([1, 2, 3, -(2**63), 2**63 - 1])
    with _Called() as called:
        rows = [bits(seed, MANY) for seed in seeds]
        numbers = torch.stack([uniform(row, torch.float32) for row in rows])
        normals = torch.stack([normal(row, torch.float32) for row in rows])
        dice = [integers(row, 1, 7) for row in rows]
    assert aten._local_scalar_dense.default not in called.ops
    assert all(row.unique().numel() == MANY for row in rows)
    bias = torch.stack(rows).unsqueeze(-1).bitwise_right_shift(torch.arange(64)).bitwise_and(1).double().mean(1) - 0.5
    assert bias.abs().max() < 5 * 0.5 / MANY**0.5
    for drawn, mean, variance in ((numbers, 1 / 2, 1 / 12), (normals, 0, 1)):
        assert (drawn.mean(1) - mean).abs().max() < 5 * (variance / MANY) ** 0.5
        assert (drawn.var(1) / variance - 1).abs().max() < 0.03
        assert (torch.corrcoef(drawn) - torch.eye(5)).abs().max() < 0.02
        assert all(abs(torch.corrcoef(torch.stack([row[:-1], row[1:]]))[0, 1]) < 0.02 for row in drawn)
    assert abs((normals.abs() > 3).double().mean() - 0.0027) < 0.0005
    assert all((die.bincount() / MANY - 1 / 6).abs()[1:].max() < 0.01 for die in dice)


def test_a_plain_draw_is_not_evaluated(monkeypatch):
    evaluated = []
    evaluate = rewriter.evaluate
    monkeypatch.setattr(rewriter, "evaluate", lambda *args: evaluated.append(args[1]) or evaluate(*args))

    def program(x):
        for _ in range(13):
            x = x * (torch.rand_like(x) > 0.1)
        return x

    rewritten(program, torch.zeros(8, 8))
    assert [n.target for n in evaluated] == [own.seeds.default]


# ------------------------------------------------------------------------------------------------ forward and backward


def graphs_of(program, x, engine, **options):
    """The result and gradient of a training step, and the operators of its forward and backward."""
    seen = []

    @graph_pass(stage="post_grad", numerics="exact")
    def look(graph, rewrite):
        """Looks."""
        seen.append([n.target for n in graph.graph.nodes if n.op == "call_function"])

    passes = [look, *options.pop("passes", ())]
    out = eductor.compile(program, engine=engine, strict=True, passes=passes, **options)(x)
    out.sum().backward()
    return out, x.grad, seen


@pytest.mark.parametrize("engine", [ATEN, WHOLE, "inductor"], ids=["aten", "whole", "inductor"])
@pytest.mark.parametrize("again", [False, True], ids=["saved", "again"])
def test_forward_and_backward_have_one_mask(engine, again):
    def block(x):
        return F.dropout(x.sin(), 0.25)

    def program(x):
        return checkpoint(block, x, use_reentrant=False) if again else block(x)

    x = torch.randn(64, 64, requires_grad=True)
    out, gradient, (forward, backward) = graphs_of(program, x, engine)
    torch.testing.assert_close(gradient, torch.where(out == 0, 0.0, x.cos() / 0.75))
    assert 0.7 < (out != 0).double().mean() < 0.8
    if engine is ATEN:
        assert own.seeds.default not in forward
    else:
        assert forward.count(own.random.default) == 1
        assert backward.count(own.random.default) == again
        assert own.seeds.default not in backward


def noise(x):
    return (
        torch.rand_like(x) + torch.randint_like(x, 5),
        empty(x).bernoulli_(0.4) - torch.bernoulli(x.detach().sigmoid()),
        F.dropout(x.detach() + 9, 0.4),
        empty(x).normal_(1, 2) * empty(x).exponential_(),
    )


@graph_pass(stage="joint", numerics="exact")
def recompute_all(graph, rewrite):
    """Asks that the backward compute everything again."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


@pytest.mark.parametrize("engine", [WHOLE, "inductor"], ids=["whole", "inductor"])
def test_what_is_drawn_is_drawn_again_alike(engine):
    def program(x):
        return sum((k + 1) * x * drawn for k, drawn in enumerate(noise(x)))

    x = torch.randn(64, 64, requires_grad=True)
    out, gradient, (_, backward) = graphs_of(program, x, engine, passes=[recompute_all])
    assert own.seeds.default not in backward
    assert backward.count(own.random.default) == 6
    assert backward.count(own.random_integers.default) == 1
    torch.testing.assert_close(x * gradient, out)


class NoisyBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand_like(gradient)


def test_a_backward_that_draws_has_seeds_of_its_own():
    x = torch.randn(100, requires_grad=True)
    out = eductor.compile(NoisyBackward.apply, engine="inductor", strict=True)(x)
    first, second = (torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert not torch.equal(first, second)


# ---------------------------------------------------------------------------------------------------- eager's draws


def eager_draws(x):
    return (
        torch.randint(0, 9, (8,)),
        torch.bernoulli(x),
        empty(x).bernoulli_(0.5),
        F.dropout(x, 0.5),
        torch.rand_like(x),
    )


@pytest.mark.parametrize(
    ("option", "why"),
    [({"fallback_random": True}, "fallback_random"), ({"profile": "exact"}, "exact allows only exact passes")],
)
def test_eager_draws_where_they_are_asked_for(option, why):
    recorder = Recorder()
    module = capture(lambda x: eager_draws(x), [p_of(8)], "aten")
    joint_graph_passes(module, options={**option, "instruments": [recorder]})
    record = next(r for r in recorder.records if r.name == "replace_random_passes")
    assert record.status == "skipped"
    assert why in record.reason
    torch.manual_seed(3)
    expected = eager_draws(p_of(8))
    torch.manual_seed(3)
    assert all(map(torch.equal, module(p_of(8)), expected))


@pytest.mark.parametrize(
    "options",
    [{"profile": "exact"}, {"engine": "inductor", "fallback_random": True}, {"engine": "aten"}],
    ids=["exact", "fallback", "aten"],
)
def test_compiled_programs_draw_what_eager_draws(options):
    torch.manual_seed(3)
    expected = eager_draws(p_of(8))
    compiled = eductor.compile(eager_draws, strict=True, **options)
    torch.manual_seed(3)
    for a, b in zip(compiled(p_of(8)), expected, strict=True):
        torch.testing.assert_close(a, b)


# ------------------------------------------------------------------------------------------------------------ refusals


def give_keyword(**kwargs):
    def prepare(module: GraphModule) -> None:
        node = next(n for n in module.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()))
        node.kwargs = {**node.kwargs, **kwargs}

    return prepare


def give_a_sparse_value(module: GraphModule) -> None:
    (node,) = module.graph.find_nodes(op="call_function", target=aten.rand.default)
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(8, layout=torch.sparse_coo)


@pytest.mark.parametrize(
    ("program", "prepare", "why"),
    [
        (lambda x: torch.rand(8) + x, give_keyword(pin_memory=True), "pinned memory"),
        (lambda x: torch.randint(0, 5, (8,)) + x, give_keyword(pin_memory=True), "pinned memory"),
        (lambda x: torch.rand(8) + x, give_a_sparse_value, "its layout is torch.sparse_coo"),
        (lambda x: torch.randn(8, dtype=torch.complex64) + x, None, "its numbers are complex"),
        (lambda x: torch.randint_like(x, torch.tensor(7)), None, "a bound of its range is a tensor"),
        (lambda x: torch.randint(-(2**40), 2**40, (8,)) + x, None, "wider than 32 bits"),
        (lambda x: torch.native_dropout(x, 0.5, False)[0], None, "it drops nothing"),
    ],
)
def test_what_is_left_alone(program, prepare, why):
    assert why in reasons(program, torch.randn(8), prepare=prepare)


@pytest.mark.parametrize(
    ("low", "high", "dtype", "why"),
    [
        (5, 5, torch.int64, "range may be empty"),
        (0, 300, torch.uint8, "may not fit torch.uint8"),
        (0, 3, torch.bool, "may not fit torch.bool"),
        (0, 4000, torch.float16, "may not fit torch.float16"),
    ],
)
def test_ranges_for_which_eager_raises_or_warns(low, high, dtype, why):
    def prepare(module: GraphModule) -> None:
        (node,) = module.graph.find_nodes(op="call_function", target=aten.randint.low)
        node.args = (low, high, [8])
        node.meta["val"] = node.meta["val"].to(dtype)

    assert why in reasons(lambda x: torch.randint(1, 2, (8,)) + x, torch.randn(8), prepare=prepare)


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan")])
def test_a_probability_that_is_none(p):
    def prepare(module: GraphModule) -> None:
        (node,) = module.graph.find_nodes(op="call_function", target=aten.bernoulli.p)
        node.args = (node.args[0], p)

    assert "probability" in reasons(lambda x: empty(x).bernoulli_(0.5), torch.randn(8), prepare=prepare)
