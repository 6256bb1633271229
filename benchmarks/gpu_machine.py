"""Describe the machine and run commands with a time limit, for the steps of `gpu.py`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
LAST_LINES = 40
"""Last lines of a failed step that its record keeps, besides those after its errors; the log archive has all lines."""
_ERROR = re.compile(r"(?i)\b(fatal )?error\b|\w(Error|Exception)\b|^Traceback|SUMMARY")
_FACTS = """
import json, sys, torch
cuda = sys.argv[1] == "cuda"
if cuda and not torch.cuda.is_available():
    sys.exit("this PyTorch has no GPU to work with: " + str(torch.version.cuda and "CUDA " + torch.version.cuda))
if cuda:
    torch.cuda.init()  # the library for the GPU is loaded then
from seamseg.ops import kernels
print(json.dumps({
    "device": torch.cuda.get_device_name() if cuda else "cpu",
    "capability": ".".join(map(str, torch.cuda.get_device_capability())) if cuda else None,
    "torch": torch.__version__,
    "cuda": torch.version.cuda,
    "kernels": kernels(),
}))
"""


class Failed(Exception):
    """A step that failed: its status, the results that it has still found, and an excerpt of its output."""

    def __init__(self, reason: str, status: str = "failed", output: list[str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.output = excerpt(output or [])
        self.results: dict[str, Any] | None = None


class Skipped(Exception):
    """A step that cannot run here; `status` is "needs a GPU" or "skipped"."""

    def __init__(self, status: str, reason: str, **results: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.results = results


class Machine:
    """The machine and how to run commands on it.

    Parameters
    ----------
    device : cuda or cpu
    small : the smallest form of everything
    folder : folder for temporary files
    """

    def __init__(self, device: str, small: bool, folder: Path) -> None:
        self.device = device
        self.small = small
        self.folder = folder
        self.log = folder / "log"
        wheels = [p for p in sys.path if p.endswith(str(Path("build", "wheels")))]
        path = [*wheels, str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        self.facts: dict[str, Any] = {"small": small, "commit": commit()}
        try:
            self.look()
        except Failed as failure:
            stop(str(failure))

    def look(self) -> None:
        """Find device, versions and state of the kernels in a fresh process; Failed if torch or the kernels crash."""
        words = [sys.executable, "-W", "ignore", "-c", _FACTS, self.device]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [
                f"torch or the kernels do not load: exit code {done.returncode}"
            ]
            raise Failed(lines[-1], output=lines)
        self.facts |= json.loads(done.stdout.strip().splitlines()[-1])
        self.capability: str = self.facts.pop("capability")

    def kernels_load(self) -> bool:
        """Return whether the CUDA kernels of these sources load."""
        return bool(self.facts["kernels"].get("GPU") == "loaded")

    def call(self, words: list[str], seconds: float, **variables: str) -> list[str]:
        """Run a command, print its output and append it to the log; return its lines.

        The command and all that it has started are killed at the end, also when this process is killed.

        Raises
        ------
        Failed
            if its exit code is not 0, or it does not end in time
        """
        lines: list[str] = []
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        # its input ends when this process ends, in whatever way
        guard = ["sh", "-c", f"read line; kill -9 -{process.pid}"]
        killer = subprocess.Popen(guard, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)

        def show() -> None:
            assert process.stdout is not None
            with self.log.open("a") as log:
                log.write(f"$ {' '.join(words)}\n")
                for line in process.stdout:
                    lines.append(line.rstrip("\n"))
                    log.write(line)
                    print(line, end="", flush=True)

        reader = threading.Thread(target=show, daemon=True)
        reader.start()
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            killer.communicate()
            process.wait()
            reader.join(5)
        if code is None:
            raise Failed(f"no end after {seconds:.0f} s", "timed out", lines)
        if code:
            raise Failed(f"exit code {code}", output=lines)
        return lines

    def script(self, name: str, *words: object, seconds: float, **variables: str) -> dict[str, Any]:
        """Run a script with `--json` and environment variables; return what it wrote.

        A `Failed` carries what a script wrote that fails.
        """
        path = self.folder / f"{name}-{time.monotonic_ns()}.json"
        command = [sys.executable, str(script_path(name)), *map(str, words), "--json", str(path)]
        try:
            self.call(command, seconds, **variables)
        except Failed as failure:
            failure.results = read(path)
            raise
        return json.loads(path.read_text())


def script_path(name: str) -> Path:
    """Return the file of a script: a measurement of this folder or a check of tests/gpu_checks."""
    path = ROOT / "benchmarks" / f"{name}.py"
    return path if path.exists() else ROOT / "tests" / "gpu_checks" / f"{name}.py"


def stop(reason: str) -> NoReturn:
    """End the program: bad input, or a machine that it cannot work on."""
    print(f"gpu.py: {reason}", file=sys.stderr)
    raise SystemExit(2)


def read(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file; empty if there is none, or it was cut off."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def write(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.write_text(json.dumps(content, indent=1) + "\n")
    fresh.replace(path)


def excerpt(lines: list[str]) -> list[str]:
    """Return the first ten errors with 20 lines after each, and the end."""
    kept: set[int] = set()
    errors = 0
    for i, line in enumerate(lines):
        if i not in kept and errors < 10 and _ERROR.search(line):
            errors += 1
            kept.update(range(i, min(i + 21, len(lines))))
    kept.update(range(max(0, len(lines) - LAST_LINES), len(lines)))
    found: list[str] = []
    for i in sorted(kept):
        found += ["..."] * (i > 0 and i - 1 not in kept)
        found.append(lines[i][:500])
    return found


def commit() -> str | None:
    """Return the commit of the clone; None without git or a repository."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
