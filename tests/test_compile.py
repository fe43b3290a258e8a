"""Compiling: through torch.compile by name, through eductor.compile, equal to eager in all that a caller sees."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import eductor
from eductor import BadOption, EductorWarning, Options, Recorder, UnknownName
from eductor.pipeline import graph_pass


class ConvNet(nn.Module):
    """Batch norm in training: buffers are written behind the scenes."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        return self.head(F.dropout(x.mean(dim=(2, 3)), 0.3, self.training))


class Attention(nn.Module):
    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, axis=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) / (w // self.heads) ** 0.5
        scores = scores.masked_fill(torch.ones(n, n).tril() == 0, float("-inf"))
        return x + self.out((scores.softmax(-1) @ v).permute(0, 2, 1, 3).flatten(2))


compile = functools.partial(eductor.compile, engine="aten")


def training(model, step, *inputs):
    """Three steps of an optimizer; everything that can differ afterwards."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = step(*inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *model.state_dict().values(), torch.get_rng_state()]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("make", "shape"), [(ConvNet, (4, 3, 8, 8)), (Attention, (2, 7, 32))])
def test_training_is_bitwise_eager(make, shape, dynamic):
    eager = make()
    compiled = copy.deepcopy(eager)
    x = torch.randn(shape)
    expected = training(eager, eager, x)
    got = training(compiled, compile(compiled, dynamic=dynamic, profile="exact"), x)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)


def aliases(x, y):
    return x, x.view(-1), y[0], y + 1, (y * 2).t()


def writes_an_input(x, y):
    x.add_(y)
    y[0] = 3
    return x.clone()


def under_switches(x, y):
    with torch.no_grad():
        a = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = x @ y.t()
    return a, b, (x * y).sum(axis=0)


@pytest.mark.parametrize("program", [aliases, writes_an_input, under_switches], ids=lambda p: p.__name__)
def test_values_strides_aliasing_and_mutation_are_eagers(program):
    def observed(fn):
        torch.manual_seed(0)
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        outputs = fn(x, y)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        everything = [x, y, *outputs]
        shared = [
            a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in everything for b in everything
        ]
        same = [a is b for a in everything for b in everything]
        return everything, [t.stride() for t in everything], [t.dtype for t in everything], shared, same

    expected, got = observed(program), observed(compile(program))
    assert all(map(torch.equal, expected[0], got[0]))
    assert expected[1:] == got[1:]


def test_errors_are_eagers():
    def program(x):
        return x.view(7)

    with pytest.raises(Exception, match="shape"):
        compile(program)(torch.randn(2, 3))


def test_the_backend_is_known_by_name_without_an_import():
    code = (
        "import torch\n"
        "f = torch.compile(lambda x: torch.cat([x, x], axis=0).sin(), backend='eductor', options={'profile': 'exact'})\n"
        "x = torch.randn(3)\n"
        "assert torch.equal(f(x), torch.cat([x, x]).sin())\n"
        "assert 'eductor' in torch._dynamo.list_backends()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")


def test_importing_needs_torch_alone():
    code = (
        "import sys, torch\n"
        "before = {m.partition('.')[0] for m in sys.modules}\n"
        "import eductor, eductor.cli, eductor.testing\n"
        "new = {m.partition('.')[0] for m in sys.modules} - before - set(sys.stdlib_module_names)\n"
        "assert new <= {'eductor', 'sympy', 'mpmath'}, new  # torch itself requires sympy\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_forbidden_is_imported():
    code = (
        "import sys, torch, torch._dynamo\n"
        "import eductor\n"
        "f = eductor.compile(lambda x: x.sin() + 1, engine='aten')\n"
        "f(torch.randn(3))\n"
        "bad = [m for m in sys.modules if m.startswith(('torch._inductor.fx_passes', 'torch._inductor.pattern_matcher'))]\n"
        "made_by_make_fx = {'torch._inductor.fx_passes', 'torch._inductor.fx_passes.dedupe_symint_uses'}\n"
        "assert set(bad) <= made_by_make_fx, bad\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_options_are_checked_at_once():
    with pytest.raises(UnknownName, match=r"unknown option 'profil'. Did you mean 'profile'\? Known: .*strict"):
        compile(torch.sin, profil="exact")
    with pytest.raises(BadOption, match="profile='quick': it must be one of fast, exact"):
        compile(torch.sin, profile="quick")
    with pytest.raises(UnknownName, match=r"unknown engine 'atn'. Did you mean 'aten'"):
        compile(torch.sin, engine="atn")
    with pytest.raises(UnknownName, match=r"unknown pass 'remove_noop'. Did you mean"):
        compile(torch.sin, disable=["remove_noop"])


def test_options_through_torch_compile_are_checked_too():
    with pytest.raises(Exception, match="Did you mean 'profile'"):
        torch.compile(lambda x: x + 1, backend="eductor", options={"profil": "exact"})(torch.randn(2))
    with pytest.raises(Exception, match="mode='max-autotune'"):
        torch.compile(lambda x: x + 1, backend="eductor", mode="max-autotune")(torch.randn(2))


def test_an_engine_of_ones_own():
    jobs = []

    def engine(job):
        jobs.append(job)
        return lambda inputs: job.module.forward(*inputs)

    x = torch.randn(3)
    assert torch.equal(compile(lambda x: x.sin() + 1, engine=engine)(x), x.sin() + 1)
    assert jobs[0].is_inference
    assert len(jobs[0].inputs) == 1


def test_an_engine_that_fails_falls_back_and_says_so():
    def broken(job):
        raise RuntimeError("out of cheese")

    x = torch.randn(3)
    said = r"(?s)failed on the forward graph.*so it runs with the engine 'aten'.*out of cheese.*eductor.explain"
    with pytest.warns(EductorWarning, match=said):
        assert torch.equal(compile(lambda x: x.sin(), engine=broken)(x), x.sin())
    with pytest.raises(Exception, match="out of cheese"):
        compile(lambda x: x.cos(), engine=broken, strict=True)(x)


def test_a_stage_that_fails_is_named_and_the_captured_graph_runs(monkeypatch):
    def broken(joint, **_):
        raise RuntimeError("no cut today")

    monkeypatch.setattr(eductor.compiler, "choose_saves", broken)
    x = torch.randn(3, requires_grad=True)
    said = (
        r"failed in the stage partition of the joint graph.*no cut today.*as in eager.*To see more: .*eductor.explain"
    )
    with pytest.warns(EductorWarning, match=said):
        compile(lambda x: x.sin())(x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    with pytest.raises(Exception, match="in the stage partition of the joint graph"):
        compile(lambda x: x.cos(), strict=True)(x)


def test_a_program_is_told_the_command_that_shows_more(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import eductor, torch\neductor.compile(torch.sin, engine=lambda job: 1 / 0)(torch.ones(2))\n")
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert f"To see more: `eductor explain {script}`" in ran.stderr
    assert ran.returncode == 0


def ran(recorder):
    """The passes of the pre-grad stage that ran."""
    return [r.name for r in recorder.records if r.status != "skipped" and r.stage == "pre_grad"]


def test_passes_of_ones_own_run_in_every_stage():
    seen = []
    slots = {
        "pre_grad_custom_pass": lambda graph: seen.append(("captured", len(graph.find_nodes(op="placeholder")))),
        "joint_custom_pre_pass": lambda graph: seen.append(("joint", len(graph.find_nodes(op="placeholder")))),
        "post_grad_custom_post_pass": lambda graph: seen.append(("part", len(graph.find_nodes(op="placeholder")))),
    }
    x = torch.randn(3, requires_grad=True)
    compile(torch.sin, **slots)(x).sum().backward()
    assert torch.equal(x.grad, x.detach().cos())
    assert dict.fromkeys(seen) == dict.fromkeys([("captured", 1), ("joint", 2), ("part", 1), ("part", 2)])


def test_stages_that_are_left_out_are_recorded_and_own_passes_warned_about():
    recorder = Recorder()

    def program(x):
        x.data = x.data * 2
        return x + 1

    x = torch.ones(3)
    with pytest.warns(EductorWarning) as warned:
        got = compile(program, joint_custom_pre_pass=look, instruments=[recorder])(x)
    texts = [str(w.message) for w in warned]
    assert any("does not support a new storage or shape for input 0" in text for text in texts)
    assert any("the pass joint/look did not run" in text for text in texts)
    assert torch.equal(got, torch.full((3,), 3.0))
    assert torch.equal(x, torch.full((3,), 2.0))
    assert {r.stage for r in recorder.records if r.status == "skipped"} >= {"joint", "post_grad"}
    with pytest.raises(Exception, match="does not support a new storage or shape"):
        compile(program, strict=True)(torch.ones(3))


def look(graph):
    """A plain function of a torch.fx.Graph."""


def test_a_pass_of_ones_own_at_a_named_place():
    @graph_pass(stage="pre_grad", numerics="reassociates", after="normalize_node_kwargs_pass")
    def double_sine(graph, rewrite):
        """Sines become cosines, for a test."""
        for node in graph.find(torch.ops.aten.sin):
            rewrite.replace(node, torch.ops.aten.cos, *node.args)

    recorder = Recorder()
    x = torch.randn(3)
    assert torch.equal(compile(lambda x: torch.sin(x), passes=[double_sine], instruments=[recorder])(x), x.cos())
    names = ran(recorder)
    assert names.index("double_sine") > names.index("normalize_node_kwargs_pass")
    assert torch.equal(compile(lambda x: torch.sin(x) + 0)(x), x.sin() + 0)


def test_a_failing_pass_of_ones_own_does_not_change_the_result(tmp_path):
    @graph_pass(stage="pre_grad", numerics="exact")
    def explode(graph, rewrite):
        """Edits, then raises."""
        for node in graph.find(torch.ops.aten.sin):
            rewrite.replace(node, torch.ops.aten.cos, *node.args)
        raise RuntimeError("halfway")

    x = torch.randn(3)
    with pytest.warns(
        EductorWarning, match=r"(?s)pre_grad/explode failed: RuntimeError: halfway.*cos_default.*continues without it"
    ):
        got = compile(lambda x: torch.sin(x), passes=[explode], repro_dir=str(tmp_path))(x)
    assert torch.equal(got, x.sin())
    assert len(list(tmp_path.glob("pre_grad-explode-*.py"))) == 1


def test_graph_breaks_and_recompiles_are_several_graphs():
    recorder = Recorder()

    def program(x):
        x = torch.cat([x, x], axis=0)
        torch._dynamo.graph_break()
        return x.sum(axis=0)

    compiled = compile(program, instruments=[recorder])
    for n in (3, 4, 5):
        x = torch.randn(n)
        assert torch.equal(compiled(x), program(x))
    assert {r.graph for r in recorder.records} >= {1, 2, 3}


def test_two_threads_do_not_see_each_other():
    results = {}

    def make(name, new):
        @graph_pass(stage="pre_grad", numerics="reassociates", name=name)
        def swap(graph, rewrite):
            """Swaps an operator."""
            for node in graph.find(torch.ops.aten.sin):
                rewrite.replace(node, new, *node.args)

        return swap

    def work(name, new):
        recorder = Recorder()
        compiled = compile(lambda x: torch.sin(x), passes=[make(name, new)], instruments=[recorder])
        results[name] = (compiled(torch.ones(3)), ran(recorder))

    threads = [
        threading.Thread(target=work, args=args)
        for args in (("to_cos", torch.ops.aten.cos), ("to_tan", torch.ops.aten.tan), ("to_exp", torch.ops.aten.exp))
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert torch.equal(results["to_cos"][0], torch.ones(3).cos())
    assert torch.equal(results["to_tan"][0], torch.ones(3).tan())
    assert torch.equal(results["to_exp"][0], torch.ones(3).exp())
    assert all(results.keys() & names == {name} for name, (_, names) in results.items())


def test_nothing_is_warned_about_in_an_ordinary_compile():
    with warnings.catch_warnings():
        warnings.simplefilter("error", EductorWarning)
        compile(Attention(), strict=True, debug=True)(torch.randn(2, 7, 32))


def test_options_are_a_value():
    options = Options(enable="a, b", joint_custom_pre_pass=print)
    assert options.enable == ("a", "b")
    assert options.joint_custom_pre_pass == (print,)
    assert Options.of(options) is options
    with pytest.raises(AttributeError):
        options.strict = True
