"""What a new process imports and computes: `import eductor`, and a compile whose graphs are on disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import eductor
from eductor.engines.inductor import source_keys
from eductor.engines.inductor.patches import active

PROGRAM = """
import json, sys
import torch, torch._inductor.compile_fx
before = set(sys.modules)
import eductor
imported = set(sys.modules) - before
eductor.compile(lambda x: (x.sin() * 2).sum(), engine="aten")(torch.ones(3, requires_grad=True)).backward()
print(json.dumps([sorted(imported), sorted(set(sys.modules) - before)]))
"""


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """The modules that a first and a second process import: by `import eductor`, and until the end of a compile."""
    own = {**os.environ, "EDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("graphs")), "EDUCTOR_CACHE_MIB": "64"}

    def process():
        ran = subprocess.run([sys.executable, "-c", PROGRAM], env=own, capture_output=True, text=True, check=True)
        return json.loads(ran.stdout)

    return [process(), process()]


def below(modules, *rooms):
    return [name for name in modules if name.startswith(tuple(f"eductor.{room}." for room in rooms))]


def test_importing_the_package_imports_no_pass_and_no_pattern(processes):
    """Beyond what torch's own compile imports: 0.1 s for some 200 modules."""
    imported, _ = processes[1]
    stages = [f"eductor.passes.{stage}" for stage in ("joint", "lower", "partition", "post_grad", "pre_grad")]
    assert below(imported, "passes", "patterns") == stages
    assert below(imported, "measure", "regions", "views", "observe.report", "observe.manual") == []
    assert [name for name in imported if not name.startswith("eductor")] in ([], ["graphlib"])
    assert len(imported) < 240


def test_a_warm_start_imports_only_the_passes_that_prepare_graphs_for_the_engine(processes):
    cold, warm = (of_compile for _, of_compile in processes)
    assert "eductor.passes.joint.fuse_attention" in cold
    stages = [f"eductor.passes.{stage}" for stage in ("joint", "lower", "partition", "post_grad", "pre_grad")]
    assert [name for name in below(warm, "passes", "patterns", "regions", "views") if ".lower." not in name] == stages


def test_a_pass_that_was_edited_since_the_key_was_made(store, monkeypatch):
    """It is imported when it first runs: what it makes does not belong to that key."""
    eductor.compile(torch.cos, engine="aten")(torch.ones(2))
    monkeypatch.setattr("eductor.cache.key._source", lambda: "edited")
    eductor.compile(torch.sin, engine="aten")(torch.ones(2))
    assert len(store.entries()) == 1


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose files may change, and a folder for kernels; each look is that of a new process."""
    home = tmp_path / "packaged"
    (home / "inner").mkdir(parents=True)
    (home / "__init__.py").write_text("")
    (home / "inner" / "code.py").write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("torch._inductor.runtime.cache_dir_utils.cache_dir", lambda: str(tmp_path / "kernels"))
    return home


def look():
    """The key of the package's sources, and whether it was computed."""
    computed = []

    def compute():
        computed.append(1)
        return b"key"

    source_keys._kept.cache_clear()
    assert source_keys._kept("packaged", compute) == b"key"
    source_keys._kept.cache_clear()
    return bool(computed)


def changed(path: Path) -> None:
    """As long as it was, with the time that it had."""
    before = path.stat()
    path.write_text("x = 2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "nothing": (lambda home: None, False),
    "contents": (lambda home: changed(home / "inner" / "code.py"), True),
    "a new file": (lambda home: (home / "inner" / "more.py").write_text(""), True),
    "a file less": (lambda home: (home / "inner" / "code.py").unlink(), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_hash_of_sources_is_computed_again_when_they_change(package, change):
    edit, is_computed = CHANGES[change]
    assert look()
    edit(package)
    assert look() == is_computed


def test_a_damaged_hash_and_a_folder_that_cannot_be_written(package, tmp_path):
    assert look()
    (kept,) = (tmp_path / "kernels" / source_keys.FOLDER).iterdir()
    kept.write_text("b'cut")
    assert look()
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.write_text("no folder")
    assert look()
    assert look()


@pytest.mark.parametrize("which", ["torch_key", "triton_key"])
def test_the_hashes_are_those_of_torch(which, tmp_path, monkeypatch):
    from torch._inductor import codecache
    from torch._inductor.runtime import triton_compat

    home = codecache if which == "torch_key" else triton_compat
    if which == "triton_key" and not triton_compat.HAS_TRITON:
        pytest.skip("no Triton here")
    kept = source_keys.key_of_torch if which == "torch_key" else source_keys.key_of_triton
    monkeypatch.setattr("torch._inductor.runtime.cache_dir_utils.cache_dir", lambda: str(tmp_path))
    for _ in range(2):
        source_keys._kept.cache_clear()
        assert kept(getattr(home, which)) == getattr(home, which)()
    source_keys._kept.cache_clear()


def test_triton_itself_reads_the_hash_that_is_kept():
    """It asks for it where this process compiles a kernel, even if the kernel is in its cache."""
    from torch._inductor.runtime import triton_compat

    if not triton_compat.HAS_TRITON:
        pytest.skip("no Triton here")
    home = sys.modules[triton_compat.triton_key.__module__]
    with patch.object(source_keys, "_kept", return_value="kept"), active():
        assert home.triton_key() == triton_compat.triton_key() == "kept"
