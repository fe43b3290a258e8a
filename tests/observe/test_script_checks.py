"""`eductor verify` and `eductor bisect` of scripts: exit codes, and one line for each mistake."""

from __future__ import annotations

import textwrap

import pytest
import torch

from eductor import cli

HEAD = """
import sys, torch, eductor
from eductor import graph_pass

aten = torch.ops.aten

@graph_pass(stage="post_grad", numerics="exact")
def wrong(graph, rewrite):
    "Takes a cosine for a sine."
    for node in graph.find(aten.sin):
        rewrite.update(node, target=aten.cos.default)

@graph_pass(stage="post_grad", numerics="exact")
def crashes(graph, rewrite):
    "Raises."
    raise ValueError("planted")

def program(x):
    return (x.sin() * 2).sum()

x = torch.ones(3, requires_grad=True)
"""
RIGHT = 'eductor.compile(program, engine="aten")(x).backward()'
WRONG = 'eductor.compile(program, engine="aten", passes=[wrong])(x).backward()'
CRASHES = 'eductor.compile(program, engine="aten", passes=[crashes])(x)'
ASSERTS = """
got = eductor.compile(program, engine="aten", passes=[wrong])(x)
assert torch.allclose(got, program(x)), "not close"
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Runs a command on a script; gives its exit code, what it printed and its errors."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def run(command, text, *more, function=""):
        path = tmp_path / "script.py"
        path.write_text(HEAD + textwrap.dedent(text))
        code = cli.main([command, f"{path}{function}", *more])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def errors(err):
    return [line for line in err.splitlines() if line.startswith("eductor: ")]


# ------------------------------------------------------------------------------------------------------------ verify


def test_verify_right(run):
    code, out, _ = run("verify", RIGHT)
    assert code == 0
    assert "program: " in out
    assert "Every pass kept its contract" in out


def test_verify_wrong(run):
    code, out, _ = run("verify", WRONG)
    assert code == 1
    assert "wrong: post_grad/wrong on the forward graph" in out
    assert "script.py" in out


def test_verify_strict(run):
    code, out, err = run("verify", WRONG, "--strict")
    assert (code, errors(err)) == (1, [])
    assert "post_grad/wrong" in out


def test_verify_a_pass_that_crashes(run):
    code, out, _ = run("verify", CRASHES)
    assert code == 1
    assert "post_grad/crashes" in out


def test_verify_a_script_that_fails_because_of_what_is_found(run):
    _, out, _ = run("verify", ASSERTS)
    assert "post_grad/wrong" in out


def test_each_kind_of_call_is_looked_at_once(run):
    text = """
        f = eductor.compile(program, engine="aten")
        for size in (3, 3, 4):
            f(torch.ones(size))
        f(torch.ones(3, dtype=torch.float64))
    """
    code, out, _ = run("verify", text)
    assert (code, out.count("program: ")) == (0, 3)


def test_the_script_goes_on_as_it_would(run):
    text = """
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = torch.compile(model, backend="eductor", options={"engine": "aten"}) if sys.argv[1:] else model
        torch.manual_seed(1)
        for _ in range(3):
            optimizer.zero_grad()
            loss = step(torch.randn(4, 3)).square().sum()
            loss.backward()
            optimizer.step()
            print(f"loss {loss.item():.5f}")
        if not sys.argv[1:]:
            eductor.compile(program, engine="aten")(x)
    """
    _, eager, _ = run("verify", text)
    code, compiled, _ = run("verify", text, "--", "compiled")
    assert code == 0
    losses = [[line for line in out.splitlines() if line.startswith("loss")] for out in (eager, compiled)]
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]


@pytest.mark.parametrize("command", ["verify", "bisect"])
def test_arguments_of_the_script(run, command):
    _, out, _ = run(command, "print(sys.argv[1:])\n" + RIGHT, "--", "a", "--strict", "-x")
    assert "['a', '--strict', '-x']" in out


@pytest.mark.parametrize("command", ["verify", "bisect"])
def test_a_function_of_a_script(run, command):
    text = "def main(x=eductor.pipeline.f32(3)):\n    return eductor.compile(program, engine='aten', passes=[wrong])(x)"
    code, out, _ = run(command, text, function=":main")
    assert code == (1 if command == "verify" else 0)
    assert "post_grad/wrong" in out


BAD = {
    "nothing compiled": ("print(1)", "", "compiled nothing with Eductor"),
    "another backend": ('torch.compile(program, backend="eager")(x)', "", "but with eager"),
    "arguments": ("def main(a, b): pass", ":main", "needs the arguments a, b"),
    "no function": (RIGHT, ":nain", "'nain' does not exist"),
    "syntax": ("def (", "", "SyntaxError"),
}


@pytest.mark.parametrize("command", ["verify", "bisect"])
@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_one_line(run, command, name):
    text, function, said = BAD[name]
    if command == "bisect" and name == "syntax":
        pytest.skip("see test_bisect_a_script_that_is_broken_by_itself")
    code, _, err = run(command, text, function=function)
    assert code == 2
    (line,) = errors(err)
    assert said in line


@pytest.mark.parametrize("command", ["verify", "bisect"])
def test_no_script(tmp_path, capsys, command):
    assert cli.main([command, str(tmp_path / "none.py")]) == 2
    assert len(errors(capsys.readouterr().err)) == 1
    assert cli.main([command, str(tmp_path)]) == 2


def test_verify_a_script_that_raises(run):
    code, _, err = run("verify", RIGHT + '\nraise KeyError("own mistake")')
    assert code == 2
    (line,) = errors(err)
    assert "own mistake" in line
    assert "script.py:" in line


UNCALLED = "f = eductor.compile(program)"


def test_verify_what_is_never_called(run):
    code, _, err = run("verify", UNCALLED)
    assert code == 2
    assert "call what you want to inspect" in err


def test_bisect_what_is_never_called(run):
    assert run("bisect", UNCALLED)[0] == 2


# ------------------------------------------------------------------------------------------------------------ bisect


def test_bisect_right(run):
    code, out, _ = run("bisect", RIGHT)
    assert code == 1
    assert "nothing to bisect" in out


def test_bisect_wrong(run):
    code, out, _ = run("bisect", WRONG)
    assert code == 0
    assert out.startswith("post_grad/wrong@0 on the forward graph 1")
    assert "reproduce it: python " in out


def test_bisect_a_script_that_checks_itself(run):
    code, out, _ = run("bisect", ASSERTS)
    assert code == 0
    assert "post_grad/wrong@0" in out
    assert "not close" in out


def test_bisect_a_pass_that_crashes(run):
    code, out, _ = run("bisect", CRASHES)
    assert code == 0
    assert out.startswith("post_grad/crashes")


def test_bisect_a_strict_compile_that_crashes(run):
    code, out, _ = run("bisect", CRASHES.replace("passes", "strict=True, passes"))
    assert code == 0
    assert out.startswith("post_grad/crashes")


@pytest.mark.parametrize("text", ['raise KeyError("own mistake")', RIGHT + '\nraise KeyError("own mistake")', "def ("])
def test_bisect_a_script_that_is_broken_by_itself(run, text):
    code, _, err = run("bisect", text)
    assert code == 2
    assert len(errors(err)) == 1


def test_bisect_leaves_nothing_behind(run):
    import sys

    argv, path, compile_ = list(sys.argv), list(sys.path), torch.compile
    run("bisect", ASSERTS)
    run("verify", WRONG)
    assert (sys.argv, sys.path) == (argv, path)
    assert torch.compile is compile_


def test_bisect_with_repeats(run):
    code, out, _ = run("bisect", WRONG, "--repeats", "2")
    assert code == 0
    assert "post_grad/wrong@0" in out


def test_bisect_with_no_repeats(run):
    with pytest.raises(SystemExit) as stopped:  # argparse's own way
        run("bisect", WRONG, "--repeats", "0")
    assert stopped.value.code == 2


ONLY_DYNAMIC = """
@graph_pass(stage="joint", numerics="exact")
def only_dynamic(graph, rewrite):
    "Wrong where a size is a symbol."
    for node in graph.find(aten.mul.Tensor):
        if any(isinstance(size, torch.SymInt) for size in node.meta["val"].shape):
            rewrite.replace(node, node.args[0])

f = eductor.compile(lambda x: x.cos() * 2, engine="aten", passes=[only_dynamic])
for n in (3, 4, 5):
    f(torch.zeros(n))
"""


@pytest.mark.parametrize(("command", "code"), [("verify", 1), ("bisect", 0)])
def test_a_fault_of_a_recompile(run, command, code):
    """The compile that is looked at is the one that the script calls again and again."""
    found, out, _ = run(command, ONLY_DYNAMIC)
    assert found == code, out
    assert "joint/only_dynamic" in out


def test_verify_calls_that_differ_in_a_value(run):
    text = """
    def two(x, which):
        return x.sin() if which == "b" else x.exp()

    f = eductor.compile(two, engine="aten", passes=[wrong])
    f(x, "a"), f(x, "b")
    """
    code, out, _ = run("verify", text)
    assert code == 1
    assert "post_grad/wrong" in out


def test_verify_says_that_it_did_not_look_at_all_calls(run):
    text = 'f = eductor.compile(program, engine="aten", dynamic=False)\nfor n in range(2, 12): f(torch.ones(n))'
    code, out, _ = run("verify", text)
    assert code == 0
    assert "more than 8 kinds of calls were made" in out


def test_verify_a_finding_that_the_script_swallows(run):
    code, out, _ = run("verify", f"try:\n    {WRONG}\nexcept Exception:\n    pass", "--strict")
    assert code == 1
    assert "post_grad/wrong" in out


TRAINING = """
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())

def step(x):
    optimizer.zero_grad()
    loss = model(x).sin().sum()
    loss.backward()
    optimizer.step()
    return loss

eductor.compile(step, engine="aten"{passes})(torch.ones(4, 3))
"""


@pytest.mark.parametrize(("passes", "code"), [("", 0), (", passes=[wrong]", 1)])
def test_verify_a_training_step(run, passes, code):
    found, out, _ = run("verify", TRAINING.format(passes=passes))
    assert found == code, out
    assert "eager raises" not in out
    assert "no gradients are compared" in out


def test_bisect_a_training_step(run):
    code, out, _ = run("bisect", TRAINING.format(passes=", passes=[wrong]"))
    assert code == 0
    assert out.startswith("post_grad/wrong@0")
