"""Describe the machine and run commands with a time limit, for the steps of `gpu.py`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT_LINES = 60
KERNELS = """
import json, torch
if torch.cuda.is_available():
    torch.cuda.init()  # the library for the GPU is loaded then
from seamseg.ops import kernels
print(json.dumps(kernels()))
"""
_FACTS = """
import json, sys, torch
cuda = sys.argv[1] == "cuda"
if cuda and not torch.cuda.is_available():
    sys.exit("this PyTorch has no GPU to work with: " + str(torch.version.cuda and "CUDA " + torch.version.cuda))
print(json.dumps({
    "device": torch.cuda.get_device_name() if cuda else "cpu",
    "capability": ".".join(map(str, torch.cuda.get_device_capability())) if cuda else None,
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
}))
"""


class Failed(Exception):
    """A step that went wrong: its status, what it still found, and the end of its output."""

    def __init__(self, reason: str, status: str = "failed", output: list[str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.output = output or []
        self.results: dict[str, Any] | None = None


class LeftOut(Exception):
    """A step that cannot be done here; `status` is "needs a GPU" or "left out"."""

    def __init__(self, status: str, reason: str, **facts: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.facts = facts


class Machine:
    """The machine and how to run commands on it.

    Parameters
    ----------
    device : cuda or cpu
    small : the smallest form of everything
    folder : for temporary files
    """

    def __init__(self, device: str, small: bool, folder: Path) -> None:
        self.device = device
        self.small = small
        self.folder = folder
        wheels = [p for p in sys.path if p.endswith(str(Path("build", "wheels")))]
        path = [*wheels, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        done = subprocess.run(
            [sys.executable, "-c", _FACTS, device], env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"gpu.py: {(done.stderr.strip().splitlines() or ['torch does not work'])[-1]}")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        self.capability = found.pop("capability")
        self.facts = {**found, "small": small, "commit": commit(), "sources": sources()}

    def kernels(self) -> dict[str, str]:
        """Return by device "loaded" or why the kernels are missing, from a fresh process."""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", KERNELS], env=self.environment, capture_output=True
        )
        lines = done.stdout.decode().strip().splitlines()
        return json.loads(lines[-1]) if done.returncode == 0 and lines else {"GPU": done.stderr.decode()[-300:]}

    def kernels_load(self) -> bool:
        """Return whether the CUDA kernels of these sources are loaded."""
        return self.kernels().get("GPU") == "loaded"

    def call(self, words: list[str], seconds: float, **variables: str) -> list[str]:
        """Run a command, show its output, return the end of it.

        Raises
        ------
        Failed
            if its exit code is not 0, or it does not end in time; all that it has started is then killed
        """
        kept: deque[str] = deque(maxlen=KEPT_LINES)
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

        def show() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                kept.append(line.rstrip("\n"))
                print(line, end="", flush=True)

        reader = threading.Thread(target=show, daemon=True)
        reader.start()
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"no end after {seconds:.0f} s", "timed out", list(kept)) from None
        finally:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            reader.join(5)
        if code:
            raise Failed(f"exit code {code}", output=list(kept))
        return list(kept)

    def script(self, name: str, *words: object, seconds: float, **variables: str) -> dict[str, Any]:
        """Run a script of this folder with `--json` and environment variables; return what it wrote.

        A `Failed` carries what a script wrote that fails.
        """
        path = self.folder / f"{name}-{time.monotonic_ns()}.json"
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *map(str, words), "--json", str(path)]
        try:
            self.call(command, seconds, **variables)
        except Failed as failure:
            failure.results = json.loads(path.read_text()) if path.exists() else None
            raise
        return json.loads(path.read_text())


def commit() -> str | None:
    """Return the commit of the clone; None without git or a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def sources() -> str:
    """Return a checksum of what results depend on; not the commit, because results are committed, too."""
    total = hashlib.sha256()
    patterns = (
        "seamseg/**/*.py",
        "seamseg/**/*.ini",
        "csrc/**/*.[ch]*",
        "configs/*.ini",
        "benchmarks/*.py",
        "setup.py",
    )
    for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]
