"""A lock file ends with its process, names it, and is removed."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import filelock
import pytest

from seamseg.utils.errors import InputError, SeamsegError
from seamseg.utils.files import lock_file


def test_the_holder_is_named_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            with lock_file(path, "wait"):
                os.write(writing, b".")
                signal.pause()
        finally:
            os._exit(1)
    os.read(reading, 1)
    in_use = rf"^{tmp_path}: in use by process {process} on \S+; wait$"
    try:
        with pytest.raises(InputError, match=in_use), lock_file(path, "wait"):
            pass
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    assert f"process {process} " in path.read_text(), "left by the killed process"
    with lock_file(path, "wait"):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    assert not path.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "no").touch()
    with pytest.raises(SeamsegError, match=r"\.lock: cannot be written"), lock_file(tmp_path / "no" / ".lock", "wait"):
        pass


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("kept")
    (tmp_path / ".lock").symlink_to("precious")
    with pytest.raises(SeamsegError, match=r"\.lock: cannot be written"), lock_file(tmp_path / ".lock", "wait"):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_a_file_system_without_locks_gives_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(filelock.FileLock, "acquire", none)
    with lock_file(tmp_path / ".lock", "wait"):
        (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be locked (Operation not supported); do not start a second run" in line
