"""One run at a time in a folder of outputs; a lock that ends with its process and that decoders do not keep."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import seamseg
from seamseg.predict.sinks import lock as module
from seamseg.predict.sinks.lock import FolderLock
from seamseg.utils.errors import SeamsegError

HOLDER = """
import os, sys, time
from pathlib import Path
from seamseg.predict.sinks.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.alone()
if sys.argv[2] == "together":
    lock.together()
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process with the lock, and a child of it that lives on."""
    started = []

    def start(how):
        environment = {**os.environ, "PYTHONPATH": str(Path(seamseg.__file__).parents[1])}
        words = [sys.executable, "-c", HOLDER, str(tmp_path / "out"), how]
        process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True)
        started.append((process, int(process.stdout.readline())))
        return process

    yield start
    for process, child in started:
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("how", ["alone", "together"])
def test_another_run_is_refused_until_it_is_dead(tmp_path, holder, how):
    other = holder(how)
    with FolderLock(tmp_path / "out") as lock:
        with pytest.raises(SeamsegError, match="out: another `seamseg predict` is at work in this folder"):
            lock.alone()
        if how == "together":
            lock.together()
        else:
            with pytest.raises(SeamsegError, match="another"):
                lock.together()
    other.kill()
    other.wait()
    # its child lives
    with FolderLock(tmp_path / "out") as lock:
        lock.alone()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.usefixtures("narrow")
def test_through_the_command(micro_run, tmp_path, holder, seamseg_main, capsys):
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png")
    words = ("predict", micro_run, tmp_path / "a.png", tmp_path / "out", "--device", "cpu", "--quiet")
    other = holder("together")
    for out in (tmp_path / "out", tmp_path / "out" / "p-%d.tar"):
        assert seamseg_main(*words[:3], out, *words[4:]) == 1
        (error,) = capsys.readouterr().err.strip().splitlines()
        assert "another `seamseg predict` is at work" in error
    other.kill()
    other.wait()
    assert seamseg_main(*words) == 0
    assert seamseg_main(*words, "--restart") == 0


def test_a_file_system_without_locks_is_told_once(tmp_path, monkeypatch, capsys):
    def none(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(module.fcntl, "flock", none)
    with FolderLock(tmp_path) as lock:
        lock.alone()
        lock.together()
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be locked (Operation not supported); start no second run into it" in line


def test_a_place_without_a_lock(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with FolderLock(None) as lock, FolderLock(None) as other:
        lock.alone()
        other.alone()
        other.together()
    assert not list(tmp_path.iterdir())


def test_processes_of_one_run_share_it(tmp_path):
    with FolderLock(tmp_path) as first, FolderLock(tmp_path) as second:
        first.alone()
        with pytest.raises(SeamsegError):
            second.together()
        first.together()
        second.together()
    with FolderLock(tmp_path) as third:
        third.alone()
