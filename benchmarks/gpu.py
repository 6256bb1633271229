"""Run everything that needs a GPU: build the kernels, check them, measure, write the tables.

    python3 benchmarks/gpu.py                                   # what fits into 6.5 minutes and is not done yet
    python3 benchmarks/gpu.py --steps build,ops --wheels wheels --out results
    python3 benchmarks/gpu.py --device cpu --small --out /tmp/results      # a test of this script

Needs no network: the Python that runs it has torch; other packages come from a folder of wheels (`--wheels`). Kernels
that load and match the sources are used as they are, others are built.

Each step runs in processes of its own with a time limit. All results are in one file, `gpu.json` (on a CPU
`cpu_small.json`): for each step device, versions, commit, date, seconds, results, and for a step that fails the lines
after its errors, tracebacks and what it has found before. The whole output is in `gpu_logs.zip` beside it, and what
torch.compile has made in `compiled.zip`, which the next run uses. The results are also written to `build/gpu`. A step
that is done on this device, with these kernels and these sources of its own, is not repeated without `--again`; one
that timed out gets twice its time. Without kernels for the GPU nothing is measured (`--allow-plain`: plain PyTorch,
which stays out of the tables).

The exit code is 1 if a step failed, 2 if nothing could start.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gpu_tables
from gpu_machine import ROOT, Failed, Machine, Skipped, excerpt, read, stop, write
from gpu_steps import STEPS, Step

RESULTS = Path(__file__).parent / "results"
STATE = ROOT / "build" / "gpu"
"""A copy of the results, in a folder that git ignores."""
FINISHED = ("done", "needs a GPU")
MINUTES = 6.5
"""Time limit on a GPU, for a machine that is lent for a quarter of an hour: the second run has `--time-limit 4.5`."""
Records = dict[str, dict[str, Any]]
"""By step; that of a failure as STEP.failed."""


def unpack(wheels: Path) -> Path:
    """Install a folder of wheels where nothing else is, without a network."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        stop(f"--wheels {wheels}: there is no .whl file")
    target = ROOT / "build" / "wheels"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    done = subprocess.run([*command, "--target", str(target), *map(str, files)], capture_output=True, text=True)
    if done.returncode:
        stop(f"--wheels {wheels}: pip failed: {done.stderr.strip().splitlines()[-1]}")
    return target


class Session:
    """The records of this machine and form, and the files that they are kept in."""

    def __init__(self, machine: Machine, out: Path) -> None:
        self.machine = machine
        self.out = out
        self.name = ("gpu" if machine.device == "cuda" else "cpu") + ("_small" if machine.small else "")
        self.records: Records = {}
        for folder in dict.fromkeys((RESULTS, STATE, out)):
            for key, record in read(folder / f"{self.name}.json").items():
                if record["date"] >= self.records.get(key, record)["date"]:
                    self.records[key] = record

    def is_done(self, step: Step) -> bool:
        """Return whether a result of these sources and kernels on this device exists."""
        found = self.records.get(step.name, {})
        same = all(found.get(key) == self.machine.facts[key] for key in ("device", "small", "torch", "kernels"))
        return same and found["digest"] == step.digest()

    def timed_out(self, step: Step) -> bool:
        """Return whether the step was cut off the last time."""
        return self.records.get(f"{step.name}.failed", {}).get("status") == "timed out"

    def run(self, step: Step, seconds: float) -> str:
        """Run a step, write its record and its log; return its status, and the reason unless it is done."""
        print(f"\n=== {step.name}: {step.what} (limit {seconds:.0f} s)", flush=True)
        start, machine = time.monotonic(), self.machine
        date = f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
        machine.log.unlink(missing_ok=True)
        status = "done"
        more: dict[str, Any] = {}
        try:
            if lacking := step.missing():
                raise Skipped("skipped", f"cannot be imported here: {', '.join(lacking)}")
            results = step.run(machine, seconds)
        except Skipped as reason:
            status, results = reason.status, {"reason": str(reason), **reason.results}
        except Failed as failure:
            status, results = failure.status, {"reason": str(failure), **(failure.results or {})}
            more = {"output": failure.output}
        except Exception as error:  # a step that is broken itself must not stop the others
            status, results = "failed", {"reason": f"{type(error).__name__}: {error}"}
            more = {"output": excerpt(traceback.format_exc().splitlines())}
        used = round(time.monotonic() - start, 1)
        record: dict[str, Any] = {"step": step.name, "status": status, "date": date, "seconds": used, **machine.facts}
        record |= {"digest": step.digest(), "results": results, **more}
        self.records.pop(f"{step.name}.failed", None)
        self.records[step.name if status in FINISHED else f"{step.name}.failed"] = record
        for folder in dict.fromkeys((STATE, self.out)):
            write(folder / f"{self.name}.json", self.records)
        if machine.log.exists():
            self.archive(step)
        words = status if status == "done" else f"{status}: {results['reason']}"
        print(f"=== {step.name}: {words} ({used:.0f} s)", flush=True)
        return words

    def archive(self, step: Step) -> None:
        """Add the log of a step to the archive."""
        path = self.out / f"{self.name}_logs.zip"
        if not zipfile.is_zipfile(path):
            path.unlink(missing_ok=True)
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file:
            file.write(self.machine.log, f"{len(file.namelist()):03}_{step.name}.log")


def chosen(arguments: argparse.Namespace) -> list[Step]:
    """Return the requested steps in order; none for the tables alone."""
    names = [name for name in (arguments.steps or "").split(",") if name] or list(STEPS)
    if unknown := [name for name in names if name not in (*STEPS, "tables")]:
        stop(f"--steps {','.join(unknown)}: choose among {','.join(STEPS)},tables")
    return [step for step in STEPS.values() if step.name in names]


def farewell(statuses: dict[str, str], session: Session) -> None:
    """Print finished and remaining steps."""
    print("\n" + "\n".join(f"{name:<14}{status}" for name, status in statuses.items()))
    left = [s.name for s in STEPS.values() if not session.is_done(s) and "skipped" not in statuses.get(s.name, "")]
    print(f"remain: --steps {','.join(left)}" if left else "nothing remains")


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", metavar="NAME,...", help=f"steps: {','.join(STEPS)},tables (default: all)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s")
    parser.add_argument("--small", action="store_true", help="the smallest form, whose figures mean nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="MIN",
        help=f"minutes of all steps (default: {MINUTES:g} on a GPU, none on a CPU)",
    )
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="a folder of wheels that this Python lacks")
    parser.add_argument("--again", action="store_true", help="also the steps that are done")
    parser.add_argument("--allow-plain", action="store_true", help="measure without kernels for the GPU, too")
    arguments = parser.parse_args()
    if arguments.time_limit is None and arguments.device == "cuda":
        arguments.time_limit = MINUTES
    return arguments


def require(steps: list[Step]) -> None:
    """List missing packages; stop where most of the steps cannot run."""
    if importlib.util.find_spec("torch") is None:
        stop(f"{sys.executable} has no torch: name another Python (make gpu PYTHON=...)")
    lacking = {step.name: step.missing() for step in steps if step.missing()}
    for name in dict.fromkeys(name for names in lacking.values() for name in names):
        without = ", ".join(step for step, names in lacking.items() if name in names)
        print(f"{name} cannot be imported, needed by {without}", file=sys.stderr, flush=True)
    if len(lacking) > len(steps) / 2:
        stop(f"packages of {len(lacking)} of {len(steps)} steps are missing: benchmarks/results/README.md, --wheels")


def run_all(steps: list[Step], session: Session, arguments: argparse.Namespace, begin: float) -> dict[str, str]:
    """Run the steps within the time limit; return their statuses."""
    machine, statuses, saved = session.machine, dict[str, str](), 0.0
    needs_kernels = machine.device == "cuda" and not arguments.allow_plain
    if needs_kernels and STEPS["build"] not in steps and not machine.kernels_load():
        steps = [STEPS["build"], *steps]
    for step in steps:
        if needs_kernels and step.name != "build" and not machine.kernels_load():
            statuses[step.name] = "failed: kernels missing"
            continue
        if not arguments.again and session.is_done(step):
            statuses[step.name] = "done before"
            continue
        # the small forms are quick, but on processors that others use, too
        limit = step.minutes * 60 * (4 if machine.device == "cpu" else 1)
        total = arguments.time_limit * 60 if arguments.time_limit else float("inf")
        if session.timed_out(step):
            limit = max(limit, min(2 * limit, 0.9 * total))
        left = total - (time.monotonic() - begin)
        if left < limit:
            statuses[step.name] = "no time left"
            continue
        start = time.monotonic()
        statuses[step.name] = session.run(step, min(limit + saved, left))
        saved = max(0.0, saved + limit - (time.monotonic() - start))
    return statuses


def main() -> int:
    """Run the steps, write the tables."""
    arguments, begin = parse(), time.monotonic()
    statuses: dict[str, str] = {}
    if steps := chosen(arguments):
        if arguments.wheels:
            sys.path.insert(0, str(unpack(arguments.wheels)))
        require(steps)
        with tempfile.TemporaryDirectory(prefix="seamseg-gpu-") as folder:
            machine = Machine(arguments.device, arguments.small, Path(folder))
            cache, kept = Path(folder) / "compiled", arguments.out / "compiled.zip"
            machine.environment["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
            if kept.exists():
                shutil.unpack_archive(kept, cache)
            print(", ".join(f"{key} {value}" for key, value in machine.facts.items()), flush=True)
            session = Session(machine, arguments.out)
            statuses = run_all(steps, session, arguments, begin)
            if cache.exists():
                shutil.make_archive(str(kept.with_suffix("")), "zip", cache)
        farewell(statuses, session)
    changed = gpu_tables.write({**gpu_tables.read(RESULTS), **gpu_tables.read(arguments.out)}, ROOT)
    print(f"tables: {', '.join(changed) if changed else 'no table changes'}")
    return int(any(status.startswith(("failed", "timed out")) for status in statuses.values()))


if __name__ == "__main__":
    sys.exit(main())
