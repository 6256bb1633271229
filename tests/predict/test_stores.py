"""Places that OUT can name, stores of finished files, and the folders in which outputs are made."""

import os
import signal

import pytest

from seamseg.predict.sinks import lock, parse_place
from seamseg.predict.sinks import scratch as staging
from seamseg.predict.sinks.file_store import FolderStore, UrlStore
from seamseg.predict.sinks.scratch import Staging
from seamseg.predict.sinks.target import Numbering
from seamseg.utils.errors import InputError, SeamsegError

pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr("seamseg.predict.sinks.file_store.PAUSES", (0.0, 0.0))


def test_places():
    assert parse_place("out/").folder == "out" and parse_place("out").shards is None
    assert parse_place("s3://b/x/p-%06d.tar").shards == Numbering("p-", ".tar", 6)
    with pytest.raises(InputError, match="URLs have two slashes"):
        parse_place("http:/foo")
    assert parse_place("p{08..11}.tar").shards == Numbering("p", ".tar", 2, 8, 11)
    place = parse_place("s3://b/x/p-%04d.tar")
    assert place.shards.name(12) == "p-0012.tar" and place.shards.name(123456) == "p-123456.tar"
    for name, owned in (("p-0012.tar", True), ("p-012.tar", False), ("p-123456.tar", True), ("p-x.tar", False)):
        assert place.shards.owns(name) == owned == place.holds(f"s3://b/x/{name}")
    assert not place.holds("s3://b/y/p-0012.tar")
    assert parse_place("s3://b/x").holds("s3://b/x/a.jpg") and not parse_place("s3://b/x").holds("s3://b/xy/a.jpg")


@pytest.mark.parametrize("kind", ["folder", "memory", "file"])
def test_stores(tmp_path, memory, kind):
    (tmp_path / "s").mkdir()
    where = {"folder": tmp_path / "s", "memory": "memory://s/t", "file": f"file://{tmp_path}/s/t/"}[kind]
    place = FolderStore(where) if kind == "folder" else UrlStore(where)
    assert place.sizes(True) == {}
    for content in (b"first", b"second!"):
        (tmp_path / "s.bin").write_bytes(content)
        place.put(tmp_path / "s.bin", "x/a.bin")
        place.put_bytes(content, "b.bin")
    assert place.read("x/a.bin") == place.read("b.bin") == b"second!"
    assert place.sizes(True) == {"x/a.bin": 7, "b.bin": 7} and place.sizes(False) == {"b.bin": 7}
    place.fetch("b.bin", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"second!"
    place.remove("b.bin")
    place.remove("b.bin")
    assert place.sizes(False) == {}
    with pytest.raises(SeamsegError, match=r"none: cannot be read: "):
        place.read("none")


def test_staging_that_is_being_made_is_not_swept(tmp_path, monkeypatch):
    """Processes of a run make theirs at the same time."""
    flock, sweeping = staging.fcntl.flock, []

    def meanwhile(file, how):
        if not sweeping:
            sweeping.append(True)
            staging._sweep(tmp_path)
            sweeping.clear()
        flock(file, how)

    monkeypatch.setattr(staging.fcntl, "flock", meanwhile)
    made = Staging(tmp_path, lambda folder: [])
    assert made.folder.is_dir()
    made.close()


def test_a_decoder_that_lives_on_keeps_no_staging(tmp_path):
    dead = Staging(tmp_path, lambda folder: [])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    lock.let_go(dead._lock)  # as when the process is killed
    try:
        Staging(tmp_path, lambda folder: [], sweep=False).close()
        assert dead.folder.is_dir()
        Staging(tmp_path, lambda folder: []).close()
        assert not dead.folder.exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_staging_of_the_dead_is_swept(tmp_path):
    dead = tmp_path / "here" / ".seamseg-predict-dead"
    dead.mkdir(parents=True)
    (dead / "lock").touch()
    (dead / "big.tar").write_bytes(b"x")
    alive = Staging(tmp_path / "here", lambda folder: [])
    assert not dead.exists()
    other = Staging(tmp_path / "here", lambda folder: [])
    assert alive.folder.exists()
    with other.room() as first, other.room() as second:
        assert first.folder != second.folder
        (first.folder / "sub").mkdir()
        (first.folder / "sub" / "a").touch()
        assert first.files() == ["sub/a"]
    with other.room() as room:
        assert room.files() == []
    alive.close()
    other.close()
    assert list((tmp_path / "here").iterdir()) == []


def test_permission_is_not_asked_for_twice(tmp_path, memory, monkeypatch):
    calls = []
    monkeypatch.setattr(
        type(memory), "pipe_file", lambda *_: calls.append(1) or (_ for _ in ()).throw(PermissionError(13, "no entry"))
    )
    with pytest.raises(SeamsegError, match=r"memory://b/x: cannot be written: no entry; the same command"):
        UrlStore("memory://b").put_bytes(b"", "x")
    assert len(calls) == 1
    with pytest.raises(InputError, match="cannot be written to a web server"):
        UrlStore("https://h.org/x")
