"""A warm start: no pass runs, everything is as after a cold one; what must be compiled anew is."""

import os
import subprocess
import sys
import threading
import warnings
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import eductor
from eductor.cache.store import Store
from eductor.cost import device_of
from eductor.errors import BadGraph
from eductor.graph.text.symbolic_sizes import read_size
from eductor.pipeline.base import graph_pass


def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def step(model, x, **options):
    """A step in a process that has compiled nothing before."""
    torch._dynamo.reset()
    model.zero_grad()
    out = eductor.compile(model, **options)(x)
    out.square().mean().backward()
    return [out.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("options", [{"profile": "exact"}, {"engine": "aten"}, {"engine": "inductor"}], ids=str)
def test_a_training_step_runs_no_pass(store, resumed, no_pass, options):
    model, x = block(), torch.randn(3, 8)
    cold = step(model, x, **options)
    assert len(store.entries()) == 1
    assert not resumed()
    no_pass()
    assert_same(step(model, x, **options), cold)
    assert resumed() == 1


def test_a_device_is_the_same_in_each_process(resumed, store, monkeypatch):
    """The order of a set of dtypes changes from process to process, as that of 0 and 8 with the order they were added in."""
    device = device_of(torch.device("cpu"))
    kinds = [frozenset(given) for given in ((0, 8), (8, 0))]
    assert str(kinds[0]) != str(kinds[1])
    for kind in kinds:
        torch._dynamo.reset()
        monkeypatch.setattr("eductor.cache.key.device_of", lambda *_, kind=kind: replace(device, aligned=kind))
        eductor.compile(torch.sin, engine="aten")(torch.ones(3))
    assert resumed() == 1


def test_packed_weights(store, resumed, no_pass):
    """Convolution and norm are folded; the warm start folds them, too, and anew when a parameter was written."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    model[1].running_mean.normal_()
    x = torch.randn(2, 3, 6, 6)

    def run(fn):
        with torch.no_grad():
            first = fn(x)
            model[0].weight.mul_(2)
            second = fn(x)
            model[0].weight.div_(2)
        return [first, second]

    eager = run(model)
    cold = run(eductor.compile(model, engine="aten"))
    torch._dynamo.reset()
    no_pass()
    warm = run(eductor.compile(model, engine="aten"))
    assert resumed()
    assert_same(cold, warm)
    for a, b in zip(eager, warm, strict=True):
        torch.testing.assert_close(a, b)


def test_sizes_that_change_are_guarded_as_before(store, resumed, no_pass):
    def fn(x):
        return x * 2 if x.shape[0] > 6 else F.softmax(x.view(-1, 2), -1)

    def run():
        torch._dynamo.reset()
        compiled = eductor.compile(fn, engine="aten", dynamic=True)
        return [compiled(torch.arange(2.0 * n).view(n, 2)) for n in (3, 5, 8, 4)]

    expected = [fn(torch.arange(2.0 * n).view(n, 2)) for n in (3, 5, 8, 4)]
    cold = run()
    no_pass()
    warm = run()
    assert_same(cold, expected)
    assert_same(warm, expected)
    assert resumed() == 2


def test_guards_of_the_trace_hold_in_a_warm_start(store, resumed):
    """What the trace assumed of sizes, and no code said: a product of two that broadcast."""

    def fn(x, y):
        return (x + y).sum(0)

    def run(sizes):
        torch._dynamo.reset()
        compiled = eductor.compile(fn, engine="aten", dynamic=True)
        return [compiled(torch.ones(n, 3), torch.ones(m, 3)) for n, m in sizes]

    sizes = [(4, 4), (5, 5), (1, 6), (7, 1)]
    for _ in range(2):
        assert_same(run(sizes), [fn(torch.ones(n, 3), torch.ones(m, 3)) for n, m in sizes])
    assert resumed()


def test_double_backward(store, resumed, no_pass):
    def penalty(fn):
        torch._dynamo.reset()
        x = torch.linspace(-1, 1, 6).requires_grad_()
        (g,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        (gg,) = torch.autograd.grad(g.square().sum(), x)
        return [g.detach(), gg]

    def fn(x):
        return torch.sin(x) * x

    compiled = eductor.compile(fn, profile="exact")
    expected, cold = penalty(fn), penalty(compiled)
    no_pass()
    assert_same(cold, expected)
    assert_same(penalty(compiled), expected)
    assert resumed() == 1


@pytest.mark.parametrize("cut_before", [False, True], ids=["cut now", "cut before"])
def test_undefined_gradients(store, resumed, no_pass, cut_before):
    """The backward that some gradients do not reach is kept, too, or cut from the graph that was kept."""

    def fn(x):
        return x.sin(), x.cos() * 2

    def run(both):
        torch._dynamo.reset()
        x = torch.linspace(0, 1, 5).requires_grad_()
        first, second = eductor.compile(fn, profile="exact")(x)
        (first + second if both else first).sum().backward()
        return [x.grad]

    run(both=not cut_before)
    if cut_before:
        no_pass()
    x = torch.linspace(0, 1, 5)
    assert_same(run(both=False), [x.cos()])
    assert resumed() == 1


def test_checkpointed_regions_are_kept(store, resumed, no_pass):
    model, x = block(), torch.randn(3, 8)

    def run():
        torch._dynamo.reset()
        model.zero_grad()
        compiled = eductor.compile(lambda x: checkpoint(model, x, use_reentrant=False), profile="exact")
        compiled(x).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    cold = run()
    no_pass()
    assert_same(run(), cold)
    assert resumed() == 1


def test_inputs_that_overlap_are_compiled_anew(store, resumed):
    def fn(x, y):
        x.add_(1)
        return y * 2

    def run(overlap):
        torch._dynamo.reset()
        base = torch.arange(6.0)
        x, y = (base[:4], base[2:]) if overlap else (base[:4].clone(), base[2:].clone())
        return [eductor.compile(fn, profile="exact")(x, y), x]

    apart, together = [torch.arange(2.0, 6) * 2], [torch.tensor([6.0, 8, 8, 10])]
    assert_same(run(overlap=False)[:1], apart)
    assert_same(run(overlap=True)[:1], together)
    assert_same(run(overlap=False)[:1], apart)
    assert resumed() == 1


CHANGES = {
    "options": lambda run: run(memory_budget=0.5),
    "profile": lambda run: run(profile="exact"),
    "passes": lambda run: run(disable="remove_noop_ops"),
    "no gradients": lambda run: torch.no_grad()(run)(),
    "autocast": lambda run: torch.autocast("cpu", torch.bfloat16)(run)(),
    "another dtype": lambda run: run(dtype=torch.float64),
    "another shape": lambda run: run(rows=4),
    "other strides": lambda run: run(transposed=True),
    "a gradient of the input": lambda run: run(requires_grad=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_key_for_whatever_the_graphs_depend_on(store, resumed, change):
    def run(dtype=torch.float32, rows=3, transposed=False, requires_grad=False, **options):
        torch._dynamo.reset()
        x = torch.randn(rows, rows, dtype=dtype)
        x = (x.t() if transposed else x).requires_grad_(requires_grad)
        w = torch.randn(rows, rows, dtype=dtype, requires_grad=True)
        eductor.compile(lambda x, w: (x @ w).relu() + 0, engine="aten", **options)(x, w)

    run()
    CHANGES[change](run)
    assert not resumed()
    assert len(store.entries()) == 2
    run()
    assert resumed() == 1


def test_what_is_shown_is_no_part_of_the_key(store, resumed):
    for progress in (True, False):
        torch._dynamo.reset()
        eductor.compile(lambda x: x.relu() + 0, engine="aten", progress=progress)(torch.randn(3))
    assert resumed() == 1


def test_constants_of_a_graph_count(store, resumed):
    def run(number):
        torch._dynamo.reset()
        return eductor.compile(lambda x: x + torch.tensor([number, 2.0]), profile="exact")(torch.zeros(2))

    for _ in range(2):
        assert run(1.0).tolist() == [1, 2]
        assert run(5.0).tolist() == [5, 2]
    assert resumed() == 2


def test_a_users_pass_is_part_of_the_key(store, resumed):
    def with_number(number):
        @graph_pass(stage="joint", numerics="changes", name="other_number", on=False, version=str(number))
        def other_number(graph, rewrite):
            """Multiplies by another number."""
            for node in graph.find(torch.ops.aten.mul):
                if node.args[1] != number:
                    rewrite.replace(node, torch.ops.aten.mul.Tensor, node.args[0], number)

        return other_number

    def run(number):
        torch._dynamo.reset()
        return eductor.compile(lambda x: x * 2, engine="aten", passes=[with_number(number)])(torch.ones(1)).item()

    assert (run(3), run(4), run(3)) == (3, 4, 3)
    assert resumed() == 1


def test_a_compile_that_warned_is_not_kept(store):
    @graph_pass(stage="joint", numerics="exact")
    def broken(graph, rewrite):
        """Fails."""
        raise ValueError("on purpose")

    for _ in range(2):
        torch._dynamo.reset()
        with pytest.warns(eductor.EductorWarning, match="on purpose"):
            eductor.compile(torch.sin, engine="aten", passes=[broken])(torch.ones(2))
    assert store.entries() == []


def test_who_looks_on_sees_all_passes(store, resumed):
    for _ in range(2):
        torch._dynamo.reset()
        recorder = eductor.Recorder()
        eductor.compile(block(), engine="aten", instruments=[recorder])(torch.randn(3, 8))
        assert recorder.records
    assert not resumed()


@pytest.mark.parametrize("switched", [{"cache": False}, {"verify": "each"}], ids=str)
def test_switched_off(store, switched):
    eductor.compile(torch.sin, engine="aten", **switched)(torch.ones(2))
    assert store.entries() == []


def test_no_limit_no_entries(store, monkeypatch):
    monkeypatch.setenv("EDUCTOR_CACHE_MIB", "0")
    eductor.compile(torch.sin, engine="aten")(torch.ones(2))
    assert store.entries() == []


CALLS = {
    "a function of another module": ("torch.ops.aten.sin.default", "os.system"),
    "a function of torch that is no operator": ("torch.ops.aten.sin.default", "torch.hub.load"),
    "an operator that is not there": ("torch.ops.aten.sin.default", "torch.ops.aten.no_such.default"),
    "a function that calls another": ("torch.ops.aten.sin.default(", "operator.call(torch.sin, "),
    "a function as an argument": ("torch.ops.aten.sin.default(", "operator.getitem(torch.sin, "),
    "a file": ("torch.ops.aten.sin.default(", "torch.ops.aten.from_file.default('/tmp/eductor_test', True, "),
    "no code": ("def forward", "dif forward"),
}


@pytest.mark.parametrize("edit", CALLS)
def test_what_an_entry_calls_is_known_or_it_is_left_alone(store, resumed, edit):
    """Whoever can write the file can also write its checksum: no text of it is executed."""
    x = torch.linspace(0, 1, 3)
    eductor.compile(torch.sin, engine="aten")(x)
    before, after = CALLS[edit]
    [(path, _)] = store.entries()
    key = asked_key()
    data = store.get(key)
    code = data["parts"]["forward"]["code"]
    assert before in code
    data["parts"]["forward"]["code"] = code.replace(before, after)
    store.put(key, data)
    torch._dynamo.reset()
    with pytest.warns(eductor.EductorWarning, match=f"ignores {path}: it cannot be read"):
        assert torch.equal(eductor.compile(torch.sin, engine="aten")(x), x.sin())
    assert resumed() == 1  # when it was asked for the key


def test_an_entry_that_cannot_be_run_is_given_up(store, resumed):
    """Made for other inputs than its key says: the next compile is a cold one, and keeps another in its place."""
    x = torch.linspace(0, 1, 3)
    eductor.compile(torch.sin, engine="aten")(x)
    key = asked_key()
    data = store.get(key)
    data["signature"]["analysis"]["inputs"] *= 2
    store.put(key, data)
    torch._dynamo.reset()
    with pytest.warns(eductor.EductorWarning, match="it cannot be run: BadGraph: it was made for 2 inputs, not for 1"):
        assert torch.equal(eductor.compile(torch.sin, engine="aten")(x), x.sin())
    before = resumed()
    torch._dynamo.reset()
    assert torch.equal(eductor.compile(torch.sin, engine="aten")(x), x.sin())
    assert resumed() == before + 1


def asked_key():
    """The key under which a compile of the sine is looked for."""
    asked = []
    get = Store.get

    def listening(self, key):
        asked.append(key)
        return get(self, key)

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "get", listening)
        eductor.compile(torch.sin, engine="aten")(torch.linspace(0, 1, 3))
    [key] = asked
    return key


@pytest.mark.parametrize("text", ["__import__('os')", "s0.node", "open", "(lambda: 1)()", "[1]", "'a' * 9", "s1"])
def test_sizes_are_arithmetic_alone(text):
    with pytest.raises(BadGraph):
        read_size(text, {"s0": 3})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-4", -4),
        ("s0*(s0 + 1)//2", 6),
        ("Mod(s0, 2)", 1),
        ("Max(1, s0, 7)", 7),
        ("Eq(s0, 3)", True),
        ("s0 < 2", False),
    ],
)
def test_sizes_are_read(text, value):
    assert read_size(text, {"s0": 3}) == value


SCRIPT = """
import logging, sys, torch, eductor
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
if len(sys.argv) > 1:
    eductor.Pipeline.run = None
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
x = torch.randn(4, 8)
eductor.compile(model, profile="exact")(x).sum().backward()
print([p.grad.tolist() for p in model.parameters()])
"""


def test_another_process_runs_no_pass(store):
    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT, *arguments],
            env=os.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    cold, warm = run(), run("no passes")
    assert "is loaded from disk" in warm
    assert cold.splitlines()[-1] == warm.splitlines()[-1]


def test_threads_that_compile_at_once(store):
    def work(n, results):
        with warnings.catch_warnings():
            results[n] = eductor.compile(lambda x: x.sin() * (n % 2), profile="exact")(torch.ones(3))

    results = {}
    threads = [threading.Thread(target=work, args=(n, results)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(6):
        assert torch.equal(results[n], torch.ones(3).sin() * (n % 2))
