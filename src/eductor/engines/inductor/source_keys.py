"""Hashes of the code of torch and Triton, which are in the key of every cached kernel: computed once per installation.

Torch reads the code of both in each process, with Triton's compiler of some hundred MB, which takes 0.35 s. Here a hash is kept on disk,
next to the kernels, under the names, sizes and times of the files that it was computed from.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

FOLDER = "eductor_source_keys"
"""The folder of the hashes, in torch's folder of cached kernels."""
_NO_CODE = frozenset({"include", "__pycache__"})
"""Folders of files that no hash is computed from: headers are most of torch's files."""


def key_of_torch(compute: Callable[[], bytes]) -> bytes:
    """`torch_key`: the hash of torch's Python code."""
    return bytes(_kept("torch", compute))


def key_of_triton(compute: Callable[[], str]) -> str:
    """`triton_key`: the hashes of Triton's code and compiler."""
    return str(_kept("triton", compute))


@functools.cache
def _kept(package: str, compute: Callable[[], Any]) -> Any:
    """The hash of a package from its file, which is written if it is missing; computed where neither is possible."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    with suppress(OSError, ValueError, SyntaxError):
        path = Path(cache_dir()) / FOLDER / f"{package}-{_state_of(package)}"
        if path.exists():
            return ast.literal_eval(path.read_text())
        text = repr(compute())
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    return compute()


def _state_of(package: str) -> str:
    """A hash of torch's version, and of the paths, sizes and times of a package's files."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(package)
    state = hashlib.sha256(f"{torch.__version__} {torch.version.git_version}".encode())
    for file in _files(os.path.dirname(spec.origin)):
        known = file.stat()
        state.update(f"{file.path} {known.st_size} {known.st_mtime_ns} {known.st_ctime_ns}\n".encode())
    return state.hexdigest()


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """The files below a folder, in a fixed order."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if not entry.is_dir():
            yield entry
        elif entry.name not in _NO_CODE:
            yield from _files(entry.path)
