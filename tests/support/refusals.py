"""Commands that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def refused(
    seamseg_main: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., str]:
    """Run a command, which must fail with exit code 2 and one line and leave nothing; return the line."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        assert seamseg_main(*words, "--quiet") == 2
        captured = capsys.readouterr()
        (line,) = captured.err.strip().splitlines()
        assert captured.out == ""
        assert line.startswith(tuple(f"seamseg {' '.join(map(str, words[:n]))}: " for n in (1, 2))), line
        for name in ("EVIL", "run", "scores.json"):
            assert not (tmp_path / name).exists()
        assert not list(tmp_path.rglob("*.partial"))
        return line

    return run
