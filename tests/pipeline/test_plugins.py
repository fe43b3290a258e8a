"""Packages that add passes by the entry point group `eductor.passes`: real ones, installed into a folder."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from toys import graph_of, named

from eductor.errors import BadPass, EductorWarning, OrderConflict, UnknownName
from eductor.options import Options
from eductor.pipeline import Context, Pipeline, Recorder, Registry, registry

HEADER = "from eductor.pipeline import graph_pass\n"


def declaration(name: str, **declared: object) -> str:
    """The source of a pass that does nothing."""
    given = ", ".join(f"{k}={v!r}" for k, v in {"stage": "joint", "numerics": "exact", **declared}.items())
    return f'@graph_pass({given})\ndef {name}(graph, rewrite):\n    """The pass {name} of a package."""\n\n'


def install(folder: Path, package: str, source: str, *points: str) -> None:
    """Installs a package of one module, with the entry points given as `name = module:attribute`."""
    (folder / f"{package}.py").write_text(textwrap.dedent(source))
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[eductor.passes]\n" + "\n".join(points) + "\n")


@pytest.fixture
def load(monkeypatch):
    """Loads the registry as a fresh process would, with folders on the path; forgets the packages afterwards."""
    before = set(sys.modules)

    def load(*folders: Path) -> Registry:
        with monkeypatch.context() as context:
            context.setattr(sys, "path", [*map(str, folders), *sys.path])
            importlib.invalidate_caches()
            return registry._default.__wrapped__()

    yield load
    for name in set(sys.modules) - before:
        if name.startswith("plug"):
            del sys.modules[name]


def order(registry: Registry) -> list[tuple[str, str]]:
    return [(s.name, s.source) for s in registry.order("joint")]


@pytest.fixture
def two(tmp_path):
    """Two packages whose passes know of each other."""
    for package, source in (
        ("plug_one", declaration("alpha", after="remove_noop_ops") + declaration("gamma", after="beta")),
        ("plug_two", declaration("beta", after="alpha")),
    ):
        (tmp_path / package).mkdir()
        passes = "[alpha, gamma]" if package == "plug_one" else "[beta]"
        install(tmp_path / package, package, f"{HEADER}{source}PASSES = {passes}\n", f"main = {package}:PASSES")
    return tmp_path


def test_two_packages_coexist_whatever_comes_first(two, load):
    forth = order(load(two / "plug_one", two / "plug_two"))
    at = forth.index(("remove_noop_ops", "eductor"))
    assert forth[at + 1 : at + 4] == [("alpha", "plug_one"), ("beta", "plug_two"), ("gamma", "plug_one")]
    assert order(load(two / "plug_two", two / "plug_one")) == forth


def test_passes_that_ask_for_nothing_stand_by_name_not_by_package(tmp_path, load):
    install(tmp_path, "plug_a", HEADER + declaration("zebra"), "z = plug_a:zebra")
    install(tmp_path, "plug_b", HEADER + declaration("ant"), "a = plug_b:ant")
    names = [name for name, _ in order(load(tmp_path))]
    at = names.index("joint_custom_post_pass")
    assert names[at + 1 : at + 3] == ["ant", "zebra"]


def test_the_command_line_shows_them_in_a_process_of_their_own(two):
    path = os.pathsep.join([str(two / "plug_two"), str(two / "plug_one")])
    done = subprocess.run(
        [sys.executable, "-m", "eductor", "passes", "--json", "--stage", "joint"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert list(rows)[list(rows).index("alpha") :][:3] == ["alpha", "beta", "gamma"]
    assert rows["beta"]["source"] == "plug_two"
    assert rows["beta"]["reason"] == "asked for by plug_two: after alpha"
    assert rows["beta"]["purpose"] == "The pass beta of a package."


def test_conflicting_packages_are_an_error_that_names_both(tmp_path, load):
    install(tmp_path, "plug_one", HEADER + declaration("alpha", after="beta"), "a = plug_one:alpha")
    install(tmp_path, "plug_two", HEADER + declaration("beta", after="alpha"), "b = plug_two:beta")
    with pytest.raises(OrderConflict) as caught:
        load(tmp_path).order("joint")
    assert "'alpha' (from plug_one) wants to run after 'beta'" in str(caught.value)
    assert "'beta' (from plug_two) wants to run after 'alpha'" in str(caught.value)


def test_two_passes_of_one_name_are_an_error_that_names_both(tmp_path, load):
    install(tmp_path, "plug_one", HEADER + declaration("alpha"), "a = plug_one:alpha")
    install(tmp_path, "plug_two", HEADER + declaration("alpha"), "a = plug_two:alpha")
    with pytest.raises(BadPass, match="'alpha': one from plug_one, one from plug_two"):
        load(tmp_path).order("joint")


def test_a_package_may_not_take_the_name_of_a_built_in_pass(tmp_path, load):
    install(tmp_path, "plug_one", HEADER + declaration("remove_noop_ops"), "a = plug_one:remove_noop_ops")
    with pytest.raises(BadPass, match="'remove_noop_ops': one from eductor, one from plug_one"):
        load(tmp_path).order("joint")


def test_an_unknown_neighbour_names_the_package(tmp_path, load):
    install(tmp_path, "plug_one", HEADER + declaration("alpha", after="remove_nop_ops"), "a = plug_one:alpha")
    with pytest.raises(UnknownName, match=r"'alpha', from plug_one\) 'remove_nop_ops'. Did you mean 'remove_noop_ops'"):
        load(tmp_path).order("joint")


@pytest.mark.parametrize(
    ("source", "point", "says"),
    [
        ("import nothing_of_that_name\n", "a = plug_bad:alpha", "ModuleNotFoundError"),
        ("1 / 0\n", "a = plug_bad:alpha", "ZeroDivisionError"),
        ("", "a = plug_bad:alpha", "AttributeError"),
        ("alpha = 3\n", "a = plug_bad:alpha", "must be a pass, a list of passes, or a function"),
        ("alpha = [3]\n", "a = plug_bad:alpha", "must be a pass"),
        ("def alpha(): raise ValueError('later')\n", "a = plug_bad:alpha", "later"),
        ("", "a = plug_bad", "must be a pass"),
        (HEADER + declaration("alpha", numerics="perfect"), "a = plug_bad:alpha", "numerics 'perfect' is unknown"),
    ],
)
def test_a_package_that_fails_is_left_out_with_a_warning(tmp_path, load, source, point, says):
    install(tmp_path, "plug_bad", source, point)
    install(tmp_path, "plug_good", HEADER + declaration("beta"), "b = plug_good:beta")
    with pytest.warns(EductorWarning, match=rf"passes of plug_bad \(plug_bad.*left out: .*{says}"):
        found = load(tmp_path)
    assert ("beta", "plug_good") in order(found)
    assert [e.source for e in found.extras] == ["plug_good"]


@pytest.mark.parametrize(
    "what", ["alpha", "[alpha]", "(alpha,)", "lambda: alpha", "lambda: [alpha]", "lambda: iter([alpha])"]
)
def test_an_entry_point_is_a_pass_a_list_or_a_function(tmp_path, load, what):
    install(tmp_path, "plug_one", f"{HEADER}{declaration('alpha')}PASSES = {what}\n", "a = plug_one:PASSES")
    assert ("alpha", "plug_one") in order(load(tmp_path))


def test_a_package_may_fill_a_slot_and_have_passes_that_are_off(tmp_path, load):
    source = HEADER + declaration("alpha", slot="joint_custom_pre_pass") + declaration("beta", on=False)
    install(tmp_path, "plug_one", source + "PASSES = [alpha, beta]\n", "a = plug_one:PASSES")
    found = load(tmp_path)
    names = [name for name, _ in order(found)]
    assert [names[i - 1] for i, n in enumerate(names) if n == "alpha"] == ["joint_custom_pre_pass"] * 2
    assert "joint/beta" not in [s.address for s in Pipeline.default(found).steps]
    assert "joint/beta" in [s.address for s in Pipeline.default(found, enable=["beta"]).steps]


# ------------------------------------------------------------------------------- for the device of another backend


SLOT = {"stage": "post_grad", "slot": "custom_backend_passes"}


def records(pipeline, program):
    """What became of the passes of the slot."""
    recorder = Recorder()
    names = [s.name for s in pipeline.stage("post_grad") if s.slot == SLOT["slot"]]
    pipeline.run("post_grad", graph_of(program, stage="post_grad"), Context("post_grad"), [recorder])
    return [(r.name, r.status) for r in recorder.records if r.name in names]


@pytest.fixture
def backend(tmp_path, load):
    """A package with two passes for one device, and one for another; the meta device stands for that of a backend."""
    source = declaration("lower", devices="meta", **SLOT) + declaration("fuse", devices="meta", **SLOT)
    source += declaration("another", devices=["xpu", "hpu"], **SLOT) + "PASSES = [lower, fuse, another]\n"
    install(tmp_path, "plug_backend", HEADER + source, "main = plug_backend:PASSES")
    return Pipeline.default(load(tmp_path))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.to("meta") + 1,
        lambda x: (x.sin(), torch.zeros(2, device="meta") * 2),
        lambda x: torch.unbind(x.to("meta"))[0],
    ],
)
def test_they_run_where_a_tensor_is_on_the_device(backend, program):
    assert records(backend, program) == [("lower", "unchanged"), ("fuse", "unchanged"), ("another", "skipped")]


@pytest.mark.filterwarnings("error")
def test_they_are_skipped_in_silence_elsewhere(backend):
    assert records(backend, torch.sin) == [("lower", "skipped"), ("fuse", "skipped"), ("another", "skipped")]


def test_they_stand_behind_all_that_takes_the_graph_for_functional(backend):
    names = [s.name for s in backend.stage("post_grad")]
    at = names.index("custom_backend_passes")
    assert names[at + 1 : at + 4] == ["lower", "fuse", "another"]
    assert names[at - 1] == "common_subexpression_elimination"
    assert names[at + 4 :] == ["bucketing", "reinplace_inplaceable_ops"]


def test_those_of_the_options_keep_their_order_too():
    given = [named(name, devices="cpu", **SLOT) for name in ("zeta", "alpha", "mu")]
    assert [name for name, _ in records(Pipeline.of(Options(passes=given)), torch.sin)] == ["zeta", "alpha", "mu"]
