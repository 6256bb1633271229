"""Ctrl-C in real processes: one snapshot, one line, exit code 130; and one training at a time in a run folder."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
import torch
from support.micro import make_dataset, narrow_body, write_config
from support.processes import PRELOADED, free_port

import seamseg
from seamseg.checkpoints.snapshot import load_snapshot, verify_snapshot
from seamseg.cli.main import main
from seamseg.training.preemption import Preemption
from seamseg.utils.distributed import World

PROGRAM = """
import signal, sys, time
from support.micro import narrow_body
from seamseg.cli.main import main
from seamseg.training.trainer import Trainer

def stuck(self, epoch, batches):
    print("stuck", file=sys.stderr, flush=True)
    while not self._preemption._received:
        time.sleep(0.01)
    print("received", file=sys.stderr, flush=True)
    time.sleep(600)

if __name__ == "__main__":
    # ignored in a background job
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1] == "stuck":
        Trainer._step = stuck
        del sys.argv[1]
    with narrow_body():
        sys.exit(main(sys.argv[1:]))
"""
"""The command line with a small network; with `stuck`, the first step never ends."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, configuration and program of a training that takes hours."""
    folder = tmp_path_factory.mktemp("interrupt")
    make_dataset(folder / "data", [2, 1, 0, 3], [1])
    write_config(folder / "config.ini")
    (folder / "train.py").write_text(PROGRAM)
    return folder


def words_of(folder: Path, run: str) -> list[str]:
    settings = ("scheduler.epochs=9999", "general.val_interval=9999", "dataloader.num_workers=1")
    words = ["train", folder / "config.ini", folder / "data", "--log-dir", folder / run, "--device", "cpu"]
    words += [word for setting in settings for word in ("--set", setting)]
    return [str(word) for word in words]


@contextmanager
def started(folder: Path, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python with these arguments, in a process group of its own as a shell does."""
    path = os.pathsep.join([str(Path(seamseg.__file__).parents[1]), str(Path(__file__).parents[1])])
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
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


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """Return what a process prints, up to a line with a word."""
    assert process.stderr is not None
    return lines_until(process.stderr, word)


def lines_until(file: IO[str], word: str) -> str:
    """Return the lines up to one with a word."""
    lines: list[str] = []
    for line in file:
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
    verify_snapshot(run / "model_last.pth.tar")
    assert load_snapshot(run / "model_last.pth.tar").training_meta["global_step"] == int(found[0])
    assert not (run / ".lock").exists()


def train_forked(pipe: Path, words: list[str]) -> None:
    """Run the command line in this process, in a process group of its own."""
    os.setsid()
    with open(pipe, "wb", buffering=0) as file:
        os.dup2(file.fileno(), 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    with narrow_body():
        code = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def test_ctrl_c_saves_a_snapshot_and_a_second_training_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words, run, pipe = words_of(folder, "run"), folder / "run", folder / "pipe"
    os.mkfifo(pipe)
    multiprocessing.set_forkserver_preload(PRELOADED)
    process = multiprocessing.get_context("forkserver").Process(target=train_forked, args=(pipe, words))
    process.start()
    assert process.pid is not None
    try:
        with open(pipe) as file:
            text = lines_until(file, "  loss ")
            before = (run / "config.ini").stat().st_mtime_ns
            capfd.readouterr()
            assert main(words) == 2
            (line,) = capfd.readouterr().err.splitlines()
            assert line.startswith(f"seamseg train: {run}: in use by process {process.pid} on ")
            assert line.endswith("; wait until that training ends, or choose another folder")
            assert (run / "config.ini").stat().st_mtime_ns == before
            # to the workers, too
            os.killpg(process.pid, signal.SIGINT)
            text += file.read()
        process.join(120)
        assert process.exitcode == 130, text
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
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
def test_a_second_ctrl_c_ends_at_once_and_leaves_no_lock(folder: Path) -> None:
    words = words_of(folder, "stuck")
    with started(folder, str(folder / "train.py"), "stuck", *words) as process:
        read_until(process, "stuck")
        os.killpg(process.pid, signal.SIGINT)
        read_until(process, "received")
        os.killpg(process.pid, signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == -signal.SIGINT
    assert not (folder / "stuck" / "snapshots").exists()
    with started(folder, str(folder / "train.py"), *words, "--resume", "auto") as process:
        read_until(process, "  loss ")
        process.kill()
        process.wait()
    # the lock of a killed process, too
    with started(folder, str(folder / "train.py"), *words) as process:
        read_until(process, "  loss ")


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("launcher", ["torchrun", "own"])
def test_ctrl_c_in_two_processes(folder: Path, launcher: str) -> None:
    words = words_of(folder, launcher)
    if launcher == "torchrun":
        command = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(folder / "train.py"))
        with started(folder, *command, *words) as process:
            text = read_until(process, "  loss ")
            # a terminal signals the launcher only: each of its processes has a group of its own
            os.killpg(process.pid, signal.SIGINT)
            text += process.communicate(timeout=120)[1]
        # that of the launcher
        assert text.count("Traceback") == text.count("SignalException: Process") == 1, text
    else:
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        program = str(folder / "train.py")
        with (
            started(folder, program, *words, RANK="0", LOCAL_RANK="0", **common) as first,
            started(folder, program, *words, RANK="1", LOCAL_RANK="1", **common) as second,
        ):
            text = read_until(first, "  loss ")
            for process in (first, second):
                os.killpg(process.pid, signal.SIGINT)
            text += first.communicate(timeout=120)[1]
            assert second.communicate(timeout=120)[1] == ""
            assert (first.returncode, second.returncode) == (130, 130)
        assert "Traceback" not in text, text
    check_stopped(text, folder / launcher)


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_in_a_folder_in_use_are_refused_with_one_line(folder: Path) -> None:
    words, program = words_of(folder, "used"), str(folder / "train.py")
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    with started(folder, program, *words) as holder:
        read_until(holder, "  loss ")
        with (
            started(folder, program, *words, RANK="0", LOCAL_RANK="0", **common) as first,
            started(folder, program, *words, RANK="1", LOCAL_RANK="1", **common) as second,
        ):
            error = first.communicate(timeout=120)[1]
            assert second.communicate(timeout=120)[1] == ""
            assert error.count("\n") == 1, error
            assert f"in use by process {holder.pid} on" in error
            assert (first.returncode, second.returncode) == (2, 2)
