"""The allocator's settings: one second start, with the same arguments, and none where it is not wanted."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from seamseg.cli import malloc

PROGRAM = """
import sys
from pathlib import Path
with open(sys.argv[1], "a") as starts:
    print(sys.argv[2:], file=starts)
from seamseg.cli import malloc
malloc.keep_buffers()
print(malloc.describe())
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")


def starts(tmp_path: Path, **extra: str) -> tuple[list[str], str]:
    """Each start of a program, by its arguments, and what it says in the end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if name not in (*malloc.SETTINGS, malloc.SWITCH)}
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "starts"), "a b", "--c=*"]
    done = subprocess.run(command, env={**env, **extra}, capture_output=True, text=True, check=True)
    return (tmp_path / "starts").read_text().splitlines(), done.stdout.strip()


@glibc
def test_starts_once_more_with_the_same_arguments(tmp_path: Path) -> None:
    seen, said = starts(tmp_path)
    assert seen == ["['a b', '--c=*']"] * 2
    assert said == "large buffers are kept"


@glibc
def test_settings_of_the_user_are_left_alone(tmp_path: Path) -> None:
    seen, said = starts(tmp_path, MALLOC_TOP_PAD_="1000000")
    assert len(seen) == 1
    assert said == "large buffers are kept"


@pytest.mark.parametrize("value", ["off", "OFF", "0"])
def test_switched_off(tmp_path: Path, value: str) -> None:
    seen, said = starts(tmp_path, SEAMSEG_MALLOC=value)
    assert len(seen) == 1
    assert "kept" not in said


def test_other_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(os, "execve", lambda *args: pytest.fail("started again"))
    for name in malloc.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    malloc.keep_buffers()
    assert malloc.describe() == "not glibc: left alone"


@glibc
def test_a_start_that_fails_costs_only_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise PermissionError("no")

    for name in malloc.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv(malloc.SWITCH, raising=False)
    monkeypatch.setattr(os, "execve", refuse)
    malloc.keep_buffers()
    assert "takes longer than it need" in malloc.describe()
