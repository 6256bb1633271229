"""One run at a time in an output folder: a lock that ends with its process, and that decoders do not keep."""

import errno
import os
import signal
import time

import pytest
from PIL import Image

from seamseg.predict.sinks.lock import FolderLock
from seamseg.utils import locks
from seamseg.utils.errors import SeamsegError


class Holder:
    """A process that holds the lock of a folder, and has a child that survives it."""

    def __init__(self, folder, how):
        reading, writing = os.pipe()
        self.process = os.fork()
        if self.process == 0:
            # nothing of the test may run on in this process
            try:
                self._hold(folder, how, writing)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as file:
            self.child = int(file.readline())

    @staticmethod
    def _hold(folder, how, writing):
        lock = FolderLock(folder)
        lock.acquire_exclusive()
        if how == "shared":
            lock.acquire_shared()
        child = os.fork()
        if child:
            os.write(writing, f"{child}\n".encode())
        time.sleep(600)

    def kill(self):
        if self.process is not None:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.process = None


@pytest.fixture
def other(tmp_path, how):
    """Another process with the lock, whose child survives it."""
    started = Holder(tmp_path / "out", how)
    yield started
    started.kill()
    os.kill(started.child, signal.SIGKILL)


@pytest.mark.parametrize("how", ["exclusive", "shared"])
def test_another_run_is_refused_until_the_first_ends(tmp_path, other, how):
    with FolderLock(tmp_path / "out") as lock:
        with pytest.raises(SeamsegError, match="out: another `seamseg predict` is writing to this folder"):
            lock.acquire_exclusive()
        if how == "shared":
            lock.acquire_shared()
        else:
            with pytest.raises(SeamsegError, match="another"):
                lock.acquire_shared()
    other.kill()
    # its child still runs
    with FolderLock(tmp_path / "out") as lock:
        lock.acquire_exclusive()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("how", ["shared"])
@pytest.mark.usefixtures("narrow")
def test_through_the_command(micro_run, tmp_path, other, seamseg_main, capsys):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    words = ("predict", micro_run, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--quiet")
    for out in (tmp_path / "out", tmp_path / "out" / "p-%d.tar"):
        assert seamseg_main(*words[:3], out, *words[4:]) == 1
        (error,) = capsys.readouterr().err.strip().splitlines()
        assert "another `seamseg predict` is writing to this folder" in error
    other.kill()
    assert seamseg_main(*words) == 0
    assert seamseg_main(*words, "--restart") == 0


def test_a_file_system_without_locks_gives_one_warning(tmp_path, monkeypatch, capsys):
    def none(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    with FolderLock(tmp_path) as lock:
        lock.acquire_exclusive()
        lock.acquire_shared()
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be locked (Operation not supported); do not start a second run" in line


def test_processes_of_one_run_share_it(tmp_path):
    with FolderLock(tmp_path) as first, FolderLock(tmp_path) as second:
        first.acquire_exclusive()
        with pytest.raises(SeamsegError, match="another"):
            second.acquire_shared()
        first.acquire_shared()
        second.acquire_shared()
        with FolderLock(tmp_path) as other, pytest.raises(SeamsegError, match="another"):
            other.acquire_exclusive()
    with FolderLock(tmp_path) as third:
        third.acquire_exclusive()
        with FolderLock(tmp_path) as other, pytest.raises(SeamsegError, match="another"):
            other.acquire_shared()
