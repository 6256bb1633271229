"""Processes that are interrupted, die or hang: one snapshot or none, one line, and an end in bounded time."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
from support.micro import make_dataset, write_config
from support.processes import free_port

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot
from seamseg.cli.main import main
from seamseg.training.preemption import Preemption
from seamseg.utils.distributed import World

PROGRAM = ("-m", "support.training_that_dies", "never", "SIGINT")
"""The command line with a small network."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupt")
    make_dataset(folder / "data", [2, 1, 0, 3, 1, 1], [1, 2, 0])
    write_config(folder / "config.ini")
    return folder


def words_of(folder: Path, run: str) -> list[str]:
    settings = ("scheduler.epochs=9999", "general.val_interval=9999", "dataloader.num_workers=1")
    words = ["train", folder / "config.ini", folder / "data", "--log-dir", folder / run, "--device", "cpu"]
    words += [word for setting in settings for word in ("--set", setting)]
    return [str(word) for word in words]


@contextmanager
def started(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(Path(seamseg.__file__).parents[1]), str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def read_until(file: IO[str] | None, word: str) -> str:
    lines: list[str] = []
    for line in file or ():
        lines.append(line)
        if word in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def check_stopped(text: str, run: Path) -> None:
    """One line says that the step of the newest snapshot was the last; no process failed or warned."""
    found = re.findall(r"SIGINT: stopped after step (\d+), snapshot saved; re-run .* to continue", text)
    assert len(found) == 1, text
    assert "interrupted" not in text, text
    assert "KeyboardInterrupt" not in text, text
    assert "[W" not in text, text
    assert load_snapshot(run / "model_last.pth.tar").training_meta["global_step"] == int(found[0])
    assert not (run / ".lock").exists()


def test_ctrl_c_saves_a_snapshot_and_a_second_training_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words, run = words_of(folder, "run"), folder / "run"
    with started(*PROGRAM, *words) as process:
        text = read_until(process.stderr, "  loss ")
        before = (run / "config.ini").stat().st_mtime_ns
        capfd.readouterr()
        assert main(words) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(f"seamseg train: {run}: in use by another process; ")
        assert line.endswith("; wait until that training ends, or choose another folder")
        assert (run / "config.ini").stat().st_mtime_ns == before
        # to the workers, too
        os.killpg(process.pid, signal.SIGINT)
        text += process.communicate(timeout=120)[1]
        assert process.returncode == 130, text
    assert "Traceback" not in text, text
    check_stopped(text, run)


def test_a_second_ctrl_c_has_its_default_effect() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Preemption(World()) as preemption:
        assert preemption.now() == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert preemption.now() == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
@pytest.mark.distributed
def test_ctrl_c_in_two_processes(folder: Path) -> None:
    command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *PROGRAM)
    with started(*command, *words_of(folder, "two")) as process:
        text = read_until(process.stderr, "  loss ")
        # a terminal signals the launcher only: each of its processes has a group of its own
        os.killpg(process.pid, signal.SIGINT)
        text += process.communicate(timeout=120)[1]
    # that of the launcher
    assert text.count("Traceback") == text.count("SignalException: Process") == 1, text
    check_stopped(text, folder / "two")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("moment", "number", "size"),
    [
        ("forward", "SIGKILL", 3),
        ("backward", "SIGSTOP", 3),
        ("validation", "SIGKILL", 2),
        ("report", "SIGKILL", 2),
    ],
)
def test_other_processes_end_when_one_is_lost(folder: Path, moment: str, number: str, size: int) -> None:
    """By themselves, with one line; the last process stops or dies."""
    words = ["train", str(folder / "config.ini"), str(folder / "data"), "--log-dir", str(folder / f"{moment}{size}")]
    words += ["--device", "cpu", "--quiet", "--set", "dataloader.train_batch_size=1"]
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    # the timeout of collective calls, long enough for a busy machine
    common["SEAMSEG_TIMEOUT_MINUTES"] = "0.34"
    programs = [PROGRAM] * (size - 1) + [(*PROGRAM[:2], moment, number)]
    with ExitStack() as stack:
        *others, last = (
            stack.enter_context(started(*program, *words, RANK=str(rank), LOCAL_RANK=str(rank), **common))
            for rank, program in enumerate(programs)
        )
        for process in others:
            text = process.communicate(timeout=160)[1]
            assert process.returncode == 1, text
            (line,) = [line for line in text.splitlines() if line.startswith("seamseg train: ")]
            assert "lost its connection to the others" in line
            assert "Traceback" not in text, text
        assert last.poll() == (-signal.SIGKILL if number == "SIGKILL" else None)
