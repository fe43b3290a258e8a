"""Times that are measured: side by side, kept on disk, and measured anew where what is there cannot be used."""

from __future__ import annotations

import json
import threading
import time
import warnings

import pytest
import torch

from eductor.cost.measured import default_folder, kept, seconds
from eductor.errors import EductorWarning

CPU, NAN = torch.device("cpu"), float("nan")


def test_candidates_take_turns():
    calls = []
    fast, slow = seconds([lambda: calls.append("fast"), lambda: (calls.append("slow"), time.sleep(1e-3))], CPU)
    assert 0 < fast < slow
    assert slow >= 1e-3
    assert calls.count("fast") == calls.count("slow")
    assert calls[:4] == ["fast", "slow"] * 2


def test_times_are_measured_once_for_each_key(tmp_path):
    times = iter([[1.0, 2.0], [3.0]])
    for _ in range(2):
        assert kept({"device": "a", "size": 3}, 2, lambda: next(times), tmp_path) == [1.0, 2.0]
    assert kept({"device": "b", "size": 3}, 1, lambda: next(times), tmp_path) == [3.0]
    assert kept({"size": 3, "device": "a"}, 2, lambda: pytest.fail("it is known"), tmp_path) == [1.0, 2.0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"x"', "{}", '{"key": "other", "seconds": [1.0]}', "\udcff", '{"seconds": [1.0]}']
)
def test_damaged_files_are_measured_anew_with_a_warning(tmp_path, text):
    kept({"a": 1}, 1, lambda: [1.0], tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.warns(EductorWarning, match="damaged"):
        assert kept({"a": 1}, 1, lambda: [2.0], tmp_path) == [2.0]
    assert kept({"a": 1}, 1, lambda: pytest.fail("it was repaired"), tmp_path) == [2.0]


@pytest.mark.parametrize("times", [[], [1.0, 2.0], [0.0], [NAN], [-1.0], ["x"], [None], 3])
def test_times_that_cannot_be_are_damage(tmp_path, times):
    kept({"a": 1}, 1, lambda: [1.0], tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "seconds": times}))
    with pytest.warns(EductorWarning, match="damaged"):
        assert kept({"a": 1}, 1, lambda: [2.0], tmp_path) == [2.0]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(EductorWarning):
        assert kept({"a": 1}, 1, lambda: [2.0], tmp_path / "file" / "folder") == [2.0]


def test_many_may_write_at_once(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        many = [threading.Thread(target=kept, args=({"a": 1}, 1000, lambda: [1.0] * 1000, tmp_path)) for _ in range(16)]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join()
    assert len(list(tmp_path.iterdir())) == 1
    assert kept({"a": 1}, 1000, lambda: [2.0], tmp_path) == [1.0] * 1000


def test_the_folder_is_where_caches_are(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(default_folder()) == "/somewhere/eductor/measured"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert str(default_folder()) == "/home/me/.cache/eductor/measured"
