"""Running scripts: every way to compile is taken hold of, and each mistake is told in one line."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

import eductor
from eductor.errors import BadScript
from eductor.observe.scripts.run_script import run_script


@pytest.fixture
def script(tmp_path):
    """Writes a script, and gives its path."""

    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text("import torch, eductor, sys\n" + textwrap.dedent(text))
        return str(path)

    return write


class Watch:
    """A wrapper that compiles as asked, and remembers what was compiled and how often it was called."""

    def __init__(self):
        self.found = []
        self.calls = 0

    def __call__(self, found):
        self.found.append(found)
        compiled = found.compile(engine="aten")

        def called(*args, **kwargs):
            self.calls += 1
            return compiled(*args, **kwargs)

        return called

    @property
    def names(self):
        return [f.name for f in self.found]


def run(where, *arguments):
    watch = Watch()
    assert run_script(where, watch, arguments) == len(watch.found)
    return watch


FORMS = {
    "direct": 'f = torch.compile(f, backend="eductor")',
    "model=": 'f = torch.compile(model=f, backend="eductor")',
    "decorator": 'f = torch.compile(backend="eductor")(f)',
    "backend": "from eductor.compiler import backend\nf = torch.compile(f, backend=backend)",
    "eductor": "f = eductor.compile(f)",
    "imported": "from eductor import compile\nf = compile(f)",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_taken(script, form):
    text = f"def f(x):\n    return x + 1\n{FORMS[form]}\nassert f(torch.ones(2)).tolist() == [2, 2]"
    watch = run(script(text))
    assert (watch.names, watch.calls) == (["f"], 1)


def test_a_default_backend_is_taken(script):
    if not hasattr(torch.compiler, "set_default_backend"):
        pytest.skip("this torch cannot choose one")
    text = """
        torch.compiler.set_default_backend("eductor")
        try:
            torch.compile(lambda x: x + 1)(torch.ones(2))
        finally:
            torch.compiler.set_default_backend("inductor")
        """
    assert run(script(text)).calls == 1


def test_options_and_keywords_come_along(script):
    text = """
        torch.compile(torch.sin, backend="eductor", options={"strict": True}, dynamic=True, fullgraph=True)
        torch.compile(torch.cos, backend="eductor", mode="default")
        eductor.compile(torch.tan, debug=True)
        """
    sin, cos, tan = run(script(text)).found
    assert sin.options == eductor.Options(strict=True)
    assert sin.keywords == {"dynamic": True, "fullgraph": True}
    assert (cos.options.mode, cos.keywords) == ("default", {})
    assert tan.options.debug


def test_compiling_again_changes_only_what_is_asked():
    found = eductor.observe.scripts.interception.CompiledFunction(
        lambda x: x * 2, eductor.Options(strict=True), {"dynamic": True}, "f"
    )
    recorder = eductor.Recorder()
    compiled = found.compile(engine="aten", instruments=[recorder])
    for size in (3, 4, 5):
        assert compiled(torch.ones(size)).tolist() == [2] * size
    assert recorder.graphs == 1


MODULE = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(x) if self.training else x

        def extra(self):
            return 7
    model = Net()
    """


def test_a_compiled_module_behaves_like_what_torch_gives(script):
    text = """
        net = torch.compile(model, backend="eductor")
        x = torch.ones(2, 3)
        assert isinstance(net, nn.Module)
        assert torch.equal(net(x), model(x))
        assert net._orig_mod is model
        assert list(net.state_dict()) == ["_orig_mod." + k for k in model.state_dict()]
        assert [id(p) for p in net.parameters()] == [id(p) for p in model.parameters()]
        net.note = 3
        assert model.note == 3 and net.extra() == 7
        net.eval()
        assert not model.training and torch.equal(net(x), x)
        net.train()
        net(x).sum().backward()
        assert model.layer.weight.grad is not None
        seen = []
        model.register_forward_hook(lambda *a: seen.append(1))
        net(x)
        assert seen == [1]
        """
    watch = run(script(textwrap.dedent(MODULE) + textwrap.dedent(text)))
    assert (watch.names, watch.calls) == (["Net"], 4)


def test_a_module_that_compiles_itself(script):
    text = textwrap.dedent(MODULE) + 'model.compile(backend="eductor")\nassert model(torch.ones(2, 3)).shape == (2, 3)'
    watch = run(script(text))
    assert (watch.names, watch.calls) == (["Net"], 1)


def test_a_decorated_method_gets_its_self(script):
    text = """
        class Thing:
            @torch.compile(backend="eductor")
            def add(self, x):
                return x + self.by
        thing = Thing()
        thing.by = 2
        assert thing.add(torch.ones(1)).item() == 3
        """
    assert run(script(text)).names == ["Thing.add"]


def test_other_backends_go_to_torch(script):
    text = """
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2
        torch.compile(lambda x: x, backend="eductor", disable=True)(torch.ones(1))
        torch.compile(lambda x: x + 2, backend="eductor")(torch.ones(1))
        """
    assert run(script(text)).calls == 1


def test_a_script_runs_as_a_program_and_leaves_no_trace(script, tmp_path):
    (tmp_path / "helper_of_script.py").write_text("import eductor\nf = eductor.compile(lambda x: x + 1)")
    text = f"""
        assert __name__ == "__main__"
        assert sys.argv[1:] == ["--lr", "3"]
        assert sys.path[0] == {str(tmp_path)!r}
        import helper_of_script
        helper_of_script.f(torch.ones(1))
        sys.exit(0)
        """
    before = sys.argv, list(sys.path), sys.modules["__main__"], torch.compile, eductor.compile
    where = script(text)
    for _ in range(2):  # the helper is imported anew
        assert run(where, "--lr", "3").calls == 1
    assert (sys.argv, list(sys.path), sys.modules["__main__"], torch.compile, eductor.compile) == before
    assert "helper_of_script" not in sys.modules


# ----------------------------------------------------------------------------------------------------------- functions


def test_a_function_that_compiles_is_called(script):
    text = """
        assert __name__ != "__main__"
        f = torch.compile(lambda x: x + 1, backend="eductor")

        def main(times=2):
            for _ in range(times):
                f(torch.ones(2))
        """
    watch = run(script(text) + ":main")
    assert watch.calls == 2


def test_a_compiled_function_keeps_its_signature(script):
    text = """
        from eductor.pipeline import f32

        @torch.compile(backend="eductor")
        def step(x=f32(2)):
            return x + 1

        @torch.compile(backend="eductor")
        def other(x):
            return x + 1
        """
    where = script(text)
    assert run(where + ":step").calls == 1
    with pytest.raises(BadScript, match="'other' needs the arguments x"):
        run(where + ":other")


def test_a_function_that_compiles_nothing_is_compiled_itself(script):
    text = """
        from eductor.pipeline import f32, i64
        seen = []

        def step(x=f32(2, 3), n=4, *, index=i64(3)):
            assert (x.shape, x.dtype, index.dtype, n) == ((2, 3), torch.float32, torch.int64, 4)
            return x * n + index
        """
    watch = run(script(text) + ":step")
    assert (watch.names, watch.calls) == (["step"], 1)


# ------------------------------------------------------------------------------------------------------------ mistakes

MISTAKES = {
    "raises": ("\nraise ValueError('two\\nlines')", "", "script.py:3 raised ValueError: two. Run it with python"),
    "raises below": ("def f():\n    {}['key']\nf()", "", "script.py:3 raised KeyError: 'key'"),
    "says nothing": ("assert False", "", "script.py:2 raised AssertionError. Run"),
    "no python": ("x = = 1", "", "script.py:2 raised SyntaxError: invalid syntax"),
    "exits": ("sys.exit(3)", "", "script.py exited with status 3: it must succeed to be inspected"),
    "exits with words": ("sys.exit('no data')", "", "script.py exited with the message 'no data'"),
    "nothing": ("", "", r"compiled nothing with Eductor: .*backend=\"eductor\"\) or eductor.compile"),
    "others": (
        "torch.compile(abs, backend='eager')\ntorch.compile(abs)",
        "",
        r"nothing with Eductor \(but with eager, inductor\)",
    ),
    "no function": ("def step(): 0", ":stop", "'stop' does not exist in script.py. Did you mean 'step'"),
    "no function, none near": (
        "def step(): 0",
        ":other",
        "'other' does not exist in script.py. Its functions: step.",
    ),
    "no function but a value": ("stop = 3", ":stop", "'stop' is not a function, but of type int, in script.py"),
    "arguments": ("def step(x, y, z=1): 0", ":step", "'step' needs the arguments x, y: give them defaults.*or wrap it"),
    "function raises": ("def step():\n    1 / 0", ":step", "script.py:3 raised ZeroDivisionError"),
    "import raises": ("import nothing_of_this_name", ":step", "script.py:2 raised ModuleNotFoundError"),
    "bad option": (
        "eductor.compile(abs, engin=1)",
        "",
        "script.py:2 raised UnknownName: unknown option 'engin'. Did you",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_told_in_one_line(script, mistake):
    text, function, message = MISTAKES[mistake]
    with pytest.raises(BadScript, match=message) as caught:
        run(script(text) + function)
    assert "\n" not in str(caught.value)
    if "raised" in message or "exited" in message:
        assert caught.value.__cause__ is not None


def test_files_that_are_not_there(script, tmp_path):
    script("", "train.py")
    with pytest.raises(BadScript, match=r"no such file: '.*trian.py'. Did you mean 'train.py'\?"):
        run(str(tmp_path / "trian.py"))
    with pytest.raises(BadScript, match=r"no such file: .*Give the path of a script"):
        run(str(tmp_path / "nowhere" / "x.py") + ":main")
    for where in ("model.onnx", str(tmp_path), "script"):
        with pytest.raises(
            BadScript, match=r"is not a Python script: give path/to/script.py or path/to/script.py:function"
        ):
            run(where)


def test_errors_of_a_compile_say_what_failed(script):
    text = """
        def broken(graph):
            raise ValueError("bad pass")
        f = eductor.compile(lambda x: x + 1, strict=True, pre_grad_custom_pass=[broken])
        f(torch.ones(2))
        """
    with pytest.raises(
        BadScript, match=r"script.py:6 raised PassFailed: the pass pre_grad/broken failed: ValueError: bad pass"
    ):
        run(script(text))
