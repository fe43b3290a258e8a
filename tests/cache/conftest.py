"""A cache of its own for each test, and what was taken from it."""

from __future__ import annotations

import logging

import pytest

import eductor
from eductor.cache import Store

FROM_DISK = "is loaded from disk"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("EDUCTOR_CACHE_DIR", str(tmp_path / "graphs"))
    monkeypatch.setenv("EDUCTOR_CACHE_MIB", "64")
    return Store.default()


@pytest.fixture
def resumed(caplog):
    """How many graphs came from disk until now."""
    caplog.set_level(logging.INFO, "eductor")
    return lambda: sum(FROM_DISK in record.getMessage() for record in caplog.records)


@pytest.fixture
def no_pass(monkeypatch):
    """From now on, no pass may run but those that prepare graphs for the engine."""

    def forbid():
        original = eductor.Pipeline.run

        def run(self, stage, *args, **kwargs):
            if stage == "lower":
                return original(self, stage, *args, **kwargs)
            raise AssertionError("a pass ran")

        monkeypatch.setattr(eductor.Pipeline, "run", run)

    return forbid
