"""The file that a failing pass leaves behind runs alone, and shows the failure."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from toys import aten, graph_of, run

from eductor.errors import BadPass, EductorWarning, PassFailed
from eductor.graph import from_python
from eductor.pipeline import graph_pass, replay
from eductor.pipeline.replay import load_pass
from eductor.pipeline.reproducer import where_is

MODULE = '''
"""Passes of a user, in a package with a helper."""

import torch

from eductor.pipeline import graph_pass

from .helper import SINE


@graph_pass(stage=("joint", "post_grad"), numerics="exact")
def broken(graph, rewrite, *, message="C:\\\\Users\\\\new"):
    """Raises in the middle of an edit."""
    for node in graph.find(SINE):
        rewrite.insert(torch.ops.aten.cos, node.args[0], before=node)
        raise ValueError(f"""broken: {message} "quoted" \'\'\'twice\'\'\' """)


@graph_pass(stage="joint", numerics="exact", name="another_name")
def liar(graph, rewrite, context):
    """Changes the dtype of the result; only in the profile exact."""
    for node in graph.find(SINE):
        if context.options.profile == "exact" and context.is_inference:
            rewrite.replace(node, torch.ops.aten._to_copy, node.args[0], dtype=torch.float64)


@graph_pass(stage="joint", numerics="exact")
def writes(graph, rewrite):
    """Writes in a functional stage, which only debug mode forbids."""
    for node in graph.find(SINE):
        rewrite.insert(torch.ops.aten.add_.Tensor, node, 1, before=node.next)


@graph_pass(stage="pre_grad", numerics="exact")
def early(graph, rewrite):
    """Raises before autograd."""
    raise ValueError("early")


def plain(graph):
    """A plain function that raises."""
    raise KeyError("plain")


class Custom:
    def __call__(self, graph):
        raise KeyError("custom")


custom = Custom()
'''


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A package of a user, which is not installed anywhere."""
    package = tmp_path / "src" / "users_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("import torch\n\nSINE = torch.ops.aten.sin\n")
    (package / "passes.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield importlib.import_module("users_package.passes")
    forget("users_package")


@dataclass
class Done:
    """A script that ran to its end."""

    code: int
    output: str


def execute(*files: Path) -> list[Done]:
    """Runs scripts at the same time, each alone in a process that knows nothing of this one."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    jobs = [
        subprocess.Popen(
            [sys.executable, file.name],
            cwd=file.parent,
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for file in files
    ]
    outputs = [job.communicate(timeout=120)[0] for job in jobs]
    return [Done(job.returncode, output) for job, output in zip(jobs, outputs, strict=True)]


def fail(folder: Path, module: torch.fx.GraphModule, pass_, **options) -> Path:
    """Runs a pass that fails, and returns its reproducer."""
    with pytest.warns(EductorWarning):
        (record,) = run(module, pass_, repro_dir=folder, **options)
    assert record.status == "failed"
    (file,) = folder.glob("*.py")
    return file


def test_it_runs_alone_with_tensors_and_dynamic_sizes(user, tmp_path):
    """In a process of its own, which was told nothing but the file."""
    weight = torch.randn(3, 5)
    module = graph_of(lambda x, y: ((x @ weight).sin(), x.t() @ y), torch.randn(4, 3), torch.randn(4, 7), dynamic=True)
    assert module.graph.find_nodes(op="get_attr")
    file = fail(tmp_path, module, user.broken, stage="post_grad")
    assert file.with_suffix(".pt").exists()
    moved = tmp_path / "elsewhere" / file.name
    moved.parent.mkdir()
    file.rename(moved)
    file.with_suffix(".pt").rename(moved.with_suffix(".pt"))
    (done,) = execute(moved)
    assert done.code == 1, done.output
    assert 'PassFailed: the pass post_grad/broken failed: ValueError: broken: C:\\Users\\new "quoted"' in done.output
    assert re.search(r"-> +sin = torch.ops.aten.sin.default\(mm\)  # f32\[s\d, 5\]", done.output), done.output


def test_a_pass_of_a_script_is_found_by_its_file(tmp_path):
    """Such a pass lives in `__main__`, which is another one in the process of the reproducer."""
    script = tmp_path / "train.py"
    (tmp_path / "sibling.py").write_text("WORD = 'sibling'\n")
    script.write_text(
        "import torch\n"
        "from eductor.graph import capture\n"
        "from eductor.pipeline import graph_pass\n"
        "from sibling import WORD\n"
        "import eductor\n\n"
        "@graph_pass(stage='joint', numerics='exact')\n"
        "def mine(graph, rewrite):\n"
        "    'Raises.'\n"
        "    raise ValueError(WORD)\n\n"
        "if __name__ == '__main__':\n"
        "    module = capture(lambda x: x.sin(), [torch.ones(2)], 'aten')\n"
        "    eductor.joint_graph_passes(module, options={'passes': [mine], 'repro_dir': 'here'})\n"
    )
    (ran,) = execute(script)
    assert (ran.code, "joint/mine failed: ValueError: sibling" in ran.output) == (0, True), ran.output
    (file,) = (tmp_path / "here").glob("*.py")
    (again,) = execute(file)
    assert (again.code, "joint/mine failed: ValueError: sibling" in again.output) == (1, True), again.output


# ------------------------------------------------------------------------------------------------ without a subprocess


def forget(package: str) -> None:
    for name in [n for n in sys.modules if n.startswith(package)]:
        del sys.modules[name]


class Net(torch.nn.Module):
    """Has modules and a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.linear(x) * self.weight


CASES = {
    "options": (graph_of, "broken", {}, "joint/broken failed: ValueError: broken: C:"),
    "contract": (
        *(graph_of, "liar", {"profile": "exact", "is_inference": True}),
        "joint/another_name failed: the output 0 was f32",
    ),
    "debug": (graph_of, "writes", {"debug": True}, "joint/writes failed: add__tensor breaks the law"),
    "modules": (lambda: torch.fx.symbolic_trace(Net()), "early", {"stage": "pre_grad"}, "pre_grad/early failed"),
    "function": (graph_of, "plain", {}, "joint/plain failed: KeyError: 'plain'"),
    "object": (graph_of, "custom", {}, "joint/Custom failed: KeyError: 'custom'"),
}


@pytest.mark.parametrize("case", CASES)
def test_it_fails_as_the_pass_did(user, tmp_path, case):
    make, name, options, says = CASES[case]
    file = fail(tmp_path, make(), getattr(user, name), **options)
    forget("users_package")
    with pytest.raises(PassFailed) as caught:
        runpy.run_path(str(file), run_name="__main__")
    assert says in str(caught.value)


def test_options_of_the_pass_are_kept(user, tmp_path):
    file = fail(tmp_path, graph_of(), user.broken.configured(message="mine"))
    with pytest.raises(PassFailed, match="broken: mine"):
        runpy.run_path(str(file), run_name="__main__")


def test_once_the_pass_is_mended_it_says_so(user, tmp_path, capsys):
    file = fail(tmp_path, graph_of(), user.broken)
    Path(user.__file__).write_text(MODULE.replace("raise ValueError(f", "str(f"))
    forget("users_package")
    importlib.invalidate_caches()
    runpy.run_path(str(file), run_name="__main__")
    out = capsys.readouterr().out
    assert "# joint/broken did not fail here." in out
    assert "cos_default = torch.ops.aten.cos.default(arg0_1)" in out


def test_a_pass_that_cannot_be_imported_says_so(tmp_path):
    @graph_pass(stage="joint", numerics="exact")
    def inner(graph, rewrite):
        """Raises."""
        raise ValueError("inner")

    file = fail(tmp_path, graph_of(), inner)
    scope: dict = {"__name__": "not_main"}
    exec(compile(file.read_text(), file, "exec"), scope)
    where, home = where_is(inner)
    with pytest.raises(BadPass, match=r"defines no pass called 'inner' at its top level.*move the pass"):
        replay(scope["GRAPH"], stage="joint", pass_=where, home=home)
    with pytest.raises(BadPass, match="what was typed into a console"):
        load_pass(":inner")


def test_the_file_holds_the_graph_as_it_was(tmp_path):
    @graph_pass(stage="joint", numerics="exact")
    def wrong(graph, rewrite):
        """Replaces all sines, and raises."""
        for node in graph.find(aten.sin):
            rewrite.replace(node, aten.cos, node.args[0])
        raise ValueError("a line\nand another one\\N")

    module = graph_of()
    file = fail(tmp_path, module, wrong)
    text = file.read_text()
    assert text.startswith("# joint/wrong failed: ValueError: a line\n#\n")
    scope: dict = {"__name__": "not_main"}
    exec(compile(text, file, "exec"), scope)
    again = from_python(scope["GRAPH"])
    x = torch.randn(2, 3)
    assert torch.equal(again(x), module(x))


@pytest.mark.parametrize("text", ["a\\N\n\t \u00fc", "\"\"\" ''' \\n"], ids=["backslashes", "quotes"])
def test_strings_in_the_graph_survive(tmp_path, text):
    """Backslashes, quotes and line breaks in an argument of a call."""
    module = torch.fx.symbolic_trace(lambda x: torch._assert(x, "no"))
    next(n for n in module.graph.nodes if n.op == "call_function").kwargs = {"message": text}

    @graph_pass(stage="pre_grad", numerics="exact")
    def wrong(graph, rewrite):
        """Raises."""
        raise ValueError("no")

    file = fail(tmp_path, module, wrong, stage="pre_grad")
    scope: dict = {"__name__": "not_main"}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), scope)
    assert text in [n.kwargs.get("message") for n in from_python(scope["GRAPH"]).graph.nodes]


def test_one_failure_has_one_file(tmp_path):
    """The same pass on the same graph writes the same file; on another graph, another one."""

    @graph_pass(stage="joint", numerics="exact")
    def wrong(graph, rewrite):
        """Raises."""
        raise ValueError("no")

    for program in (torch.sin, torch.sin, torch.cos):
        with pytest.warns(EductorWarning):
            run(graph_of(lambda x, program=program: program(x)), wrong, repro_dir=tmp_path / "new" / "folder")
    assert len(list((tmp_path / "new" / "folder").glob("joint-wrong-*.py"))) == 2


def test_where_things_are(user):
    src = str(Path(user.__file__).parents[1])
    assert where_is(user.broken) == ("users_package.passes:broken", src)
    assert where_is(user.broken.configured(message="x")) == ("users_package.passes:broken", src)
    assert where_is(user.liar) == ("users_package.passes:liar", src)
    assert load_pass("users_package.passes:liar") is user.liar
    assert load_pass("users_package.passes:custom").name == "Custom"
    assert load_pass(f"{Path(user.__file__).parent / 'helper.py'}:SINE").foreign
