"""Targets that OUT can name, stores of finished files, and scratch folders."""

import os

import pytest

from seamseg.predict.sinks import parse_target
from seamseg.predict.sinks.scratch import Staging
from seamseg.predict.sinks.store import FolderStore, UrlStore
from seamseg.predict.sinks.target import ShardPattern
from seamseg.utils.errors import InputError, SeamsegError

pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def no_delays(monkeypatch):
    monkeypatch.setattr("seamseg.predict.sinks.store.RETRY_SECONDS", (0.0, 0.0))


def test_targets():
    assert parse_target("out/").folder == "out"
    assert parse_target("out").shards is None
    assert parse_target("s3://b/x/p-%06d.tar").shards == ShardPattern("p-", ".tar", 6)
    with pytest.raises(InputError, match="URLs have two slashes"):
        parse_target("http:/foo")
    assert parse_target("p{08..11}.tar").shards == ShardPattern("p", ".tar", 2, 8, 11)
    target = parse_target("s3://b/x/p-%04d.tar")
    assert target.shards.name(12) == "p-0012.tar"
    assert target.shards.name(123456) == "p-123456.tar"
    for name, number in (("p-0012.tar", 12), ("p-012.tar", None), ("p-123456.tar", 123456), ("p-x.tar", None)):
        assert target.shards.number(name) == number
        assert target.owns(f"s3://b/x/{name}") == (number is not None)
    assert not target.owns("s3://b/y/p-0012.tar")
    assert parse_target("s3://b/x").owns("s3://b/x/a.jpg")
    assert not parse_target("s3://b/x").owns("s3://b/xy/a.jpg")


@pytest.mark.parametrize("kind", ["folder", "memory", "file"])
def test_stores(tmp_path, memory, kind):
    (tmp_path / "s").mkdir()
    where = {"folder": tmp_path / "s", "memory": "memory://s/t", "file": f"file://{tmp_path}/s/t/"}[kind]
    store = FolderStore(where) if kind == "folder" else UrlStore(where)
    assert store.sizes(True) == {}
    for content in (b"first", b"second!"):
        (tmp_path / "s.bin").write_bytes(content)
        store.put(tmp_path / "s.bin", "x/a.bin")
        store.put_bytes(content, "b.bin")
    assert store.read("x/a.bin") == store.read("b.bin") == b"second!"
    assert store.sizes(True) == {"x/a.bin": 7, "b.bin": 7}
    assert store.sizes(False) == {"b.bin": 7}
    store.fetch("b.bin", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"second!"
    store.remove("b.bin")
    store.remove("b.bin")
    assert store.sizes(False) == {}
    with pytest.raises(SeamsegError, match=r"none: cannot be read: "):
        store.read("none")


def test_scratch_folders_of_killed_processes_are_removed(tmp_path):
    dead, without_lock, new = (tmp_path / f".seamseg-predict-{name}" for name in ("dead", "old", "new"))
    for folder in (dead, without_lock, new):
        folder.mkdir()
    (dead / "lock").touch()
    # killed before the lock was created
    os.utime(without_lock, (0, 0))
    alive = Staging(tmp_path, lambda folder: [])
    assert sorted(tmp_path.iterdir()) == sorted([new, alive.folder])
    new.rmdir()
    other = Staging(tmp_path, lambda folder: [])
    assert alive.folder.exists()
    with other.scratch_dir() as first, other.scratch_dir() as second:
        (first.folder / "sub").mkdir()
        (first.folder / "sub" / "a").touch()
        assert first.files() == ["sub/a"]
        assert second.files() == []
    alive.close()
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_permission_errors_are_not_retried(memory, monkeypatch):
    calls = []

    def refuse(*_):
        calls.append(1)
        raise PermissionError(13, "no entry")

    monkeypatch.setattr(type(memory), "pipe_file", refuse)
    with pytest.raises(SeamsegError, match=r"memory://b/x: cannot be written: no entry; re-run the same command"):
        UrlStore("memory://b").put_bytes(b"", "x")
    assert len(calls) == 1
    with pytest.raises(InputError, match="cannot be written to a web server"):
        UrlStore("https://h.org/x")
