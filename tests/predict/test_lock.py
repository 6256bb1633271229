"""One run at a time in an output folder: a lock that ends with its process, and that decoders do not keep."""

import errno
import os
import signal

import pytest
from PIL import Image

from seamseg.predict.sinks.lock import FolderLock
from seamseg.utils import locks
from seamseg.utils.errors import SeamsegError


def test_a_killed_run_whose_decoder_survives(tmp_path):
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        # nothing of the test may run on in this process
        try:
            lock = FolderLock(tmp_path / "out")
            lock.acquire_exclusive()
            lock.acquire_shared()
            if os.fork() == 0:
                os.write(writing, f"{os.getpid()}\n".encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        child = int(file.readline())
    try:
        with FolderLock(tmp_path / "out") as lock, pytest.raises(SeamsegError, match="another"):
            lock.acquire_exclusive()
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    try:
        with FolderLock(tmp_path / "out") as lock:
            lock.acquire_exclusive()
    finally:
        os.kill(child, signal.SIGKILL)
    assert list((tmp_path / "out").iterdir()) == []


def test_processes_of_one_run_share_it(tmp_path):
    with FolderLock(tmp_path) as first, FolderLock(tmp_path) as second:
        first.acquire_exclusive()
        with pytest.raises(SeamsegError, match="another `seamseg predict` is writing to this folder"):
            second.acquire_shared()
        first.acquire_shared()
        second.acquire_shared()


@pytest.mark.usefixtures("narrow")
def test_through_the_command(micro_run, tmp_path, seamseg_main, capsys):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    words = ("predict", micro_run, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--quiet")
    with FolderLock(tmp_path / "out") as other:
        other.acquire_shared()
        for out in (tmp_path / "out", tmp_path / "out" / "p-%d.tar"):
            assert seamseg_main(*words[:3], out, *words[4:]) == 1
            (error,) = capsys.readouterr().err.strip().splitlines()
            assert "out: another `seamseg predict` is writing to this folder" in error
    assert seamseg_main(*words) == 0


def test_a_file_system_without_locks_gives_one_warning(tmp_path, monkeypatch, capsys):
    def none(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    with FolderLock(tmp_path) as lock:
        lock.acquire_exclusive()
        lock.acquire_shared()
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be locked (Operation not supported); do not start a second run" in line
