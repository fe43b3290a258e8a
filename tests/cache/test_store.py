"""Files: whole or not there, checked, bounded; used by many at once."""

import multiprocessing
import os
import random
import warnings
import zlib

import pytest

import eductor
from eductor.cache import Store
from eductor.cli import main


def test_what_was_put_is_found_under_its_key_alone(store):
    store.put("a", {"x": [1, 2.5, "three", None]})
    assert store.get("a") == {"x": [1, 2.5, "three", None]}
    assert store.get("b") is None


def test_the_folder_is_the_users_own(store):
    store.put("a", 1)
    assert store.folder.stat().st_mode & 0o077 == 0


def only_file(store):
    [(path, _)] = store.entries()
    return path


@pytest.mark.parametrize(
    "spoil",
    [
        lambda packed: packed[: len(packed) // 2],
        lambda packed: b"",
        lambda packed: bytes([packed[0] ^ 1]) + packed[1:],
        lambda packed: zlib.compress(zlib.decompress(packed).replace(b"first", b"other")),
        lambda packed: zlib.compress(b"[]\nnull"),
        lambda packed: zlib.compress(b"no header"),
    ],
    ids=["cut", "empty", "flipped", "edited", "list", "text"],
)
def test_a_damaged_entry_is_left_alone_with_a_warning(store, spoil):
    store.put("a", "first")
    path = only_file(store)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.warns(eductor.EductorWarning, match=f"ignores {path}: it is damaged"):
        assert store.get("a") is None
    store.put("a", "again")
    assert store.get("a") == "again"


def test_an_entry_of_another_key_is_left_alone_with_a_warning(store):
    store.put("a", "of a")
    path = only_file(store)
    store.put("b", "of b")
    other = next(p for p, _ in store.entries() if p != path)
    path.write_bytes(other.read_bytes())
    with pytest.warns(eductor.EductorWarning, match="it belongs to another key"):
        assert store.get("a") is None


def test_the_entries_used_longest_ago_go_first(store):
    contents = os.urandom(3000).hex()
    small = Store(store.folder, 8000)
    for i, key in enumerate("abc"):
        small.put(key, contents)
        os.utime(small._path(key), (i, i))
    assert sum(stat.st_size for _, stat in small.entries()) <= 8000
    assert small.get("a") is None
    assert small.get("c") == contents


def test_what_was_used_stays(store):
    contents = os.urandom(1500).hex()
    small = Store(store.folder, 5000)
    for i, key in enumerate("ab"):
        small.put(key, contents)
        os.utime(small._path(key), (i, i))
    assert small.get("a") == contents  # now it is newer than b
    small.put("c", contents)
    assert small.get("b") is None
    assert small.get("a") == contents


def test_what_is_larger_than_the_limit_is_not_kept(store):
    small = Store(store.folder, 100)
    small.put("a", os.urandom(1000).hex())
    assert small.entries() == []


def test_files_of_processes_that_died_are_removed(store):
    store.put("a", 1)
    old, new = store.folder / ".unfinished-old", store.folder / ".unfinished-new"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    Store(store.folder, 1000).put("b", 2)  # so small that each put makes room
    assert not old.exists()
    assert new.exists()


@pytest.fixture
def looked_at(monkeypatch):
    """The folders that were listed, and the files whose state was asked for."""
    seen = []

    def watched(original):
        def watch(place, *args, **kwargs):
            seen.append(place)
            return original(place, *args, **kwargs)

        return watch

    for name in ("scandir", "listdir", "stat"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    return seen


def with_entries(store, count, size=1):
    """A store with so many entries, of which nothing has been counted."""
    store.folder.mkdir(parents=True)
    for i in range(count):
        (store.folder / f"{i:032}.entry").write_bytes(b"x" * size)
    return store


def test_a_put_looks_at_no_other_entry(store, looked_at):
    with_entries(store, 20_000)
    store.put("first", 1)  # there is no count yet, so it looks at all
    assert len(looked_at) >= 20_000
    looked_at.clear()
    for i in range(50):
        store.put(str(i), i)
    assert len(looked_at) < 200
    assert len(store.entries()) == 20_051


def test_room_is_made_when_a_part_of_the_limit_was_written(store, looked_at):
    small = with_entries(Store(store.folder, 1 << 20), 500, size=2048)
    contents = os.urandom(5000).hex()
    sizes, looks = [], []
    for i in range(100):
        looked_at.clear()
        small.put(str(i), contents)
        looks.append(len(looked_at) > 100)
        sizes.append(sum(stat.st_size for _, stat in small.entries()))
    assert max(sizes) <= small.limit
    assert 5 < sum(looks) < 15
    assert small.get("99") == contents


def test_a_process_that_dies_after_counting_only_makes_room_earlier(store):
    small = with_entries(Store(store.folder, 1 << 20), 3000, size=512)
    (store.folder / "written").write_bytes(b"." * 64)
    small.put("a", 1)
    assert sum(stat.st_size for _, stat in small.entries()) <= small.limit


def test_a_folder_that_cannot_be_written_is_warned_of(tmp_path):
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "graphs", 1 << 20)
    with pytest.warns(eductor.EductorWarning, match="it cannot be written"):
        store.put("a", 1)


def _write_and_read(folder, seed):
    warnings.simplefilter("error")
    store = Store(folder, 8_000)
    for i in range(60):
        key = str((i + seed) % 7)
        contents = random.Random(key).randbytes(1500).hex()
        store.put(key, contents)
        found = store.get(key)
        assert found is None or found == contents


def test_many_processes_at_once(store):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_write_and_read, args=(store.folder, seed)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert sum(stat.st_size for _, stat in store.entries()) <= 8_000 + 3 * 2_000  # what the others write meanwhile


def test_the_command_tells_and_clears(store, capsys):
    store.put("a", 1)
    assert main(["cache"]) == 0
    assert f"{store.folder}: 1 entries, 0.00 MiB of at most 64." in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert "1 entries removed" in capsys.readouterr().out
    assert store.entries() == []


def test_a_bad_limit_says_what_is_allowed(monkeypatch, capsys):
    monkeypatch.setenv("EDUCTOR_CACHE_MIB", "much")
    assert main(["cache"]) == 2
    assert "EDUCTOR_CACHE_MIB=much: it must be a number of MiB" in capsys.readouterr().err
