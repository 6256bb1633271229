"""Run everything that needs a GPU: build the kernels, check them, measure, write the tables.

    make gpu                                         # all steps that are not done for these sources
    make gpu STEPS=build,ops PYTHON=python3.12
    python benchmarks/gpu.py --time-limit 9 --wheels wheels --out results
    python benchmarks/gpu.py --device cpu --small --out /tmp/results      # a test of this script

Needs no network: the Python that runs it has torch; other packages come from a folder of wheels (`--wheels`).
Each step runs in processes of its own with a time limit, and writes `gpu_STEP.json` (on a CPU `cpu_STEP.json`):
device, versions, commit, date, seconds, results. A step that fails, or lacks a requirement, writes
`gpu_STEP.failed.json` with the end of its output, and the others go on. A step that has been done on this device with
these sources is not done again without `--again`. Exit code 1 if a step failed. The most
valuable steps run first, for machines that are available for a few minutes only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import gpu_tables
from gpu_machine import ROOT, Failed, LeftOut, Machine
from gpu_steps import STEPS, Step

RESULTS = Path(__file__).parent / "results"
FINISHED = ("done", "needs a GPU")


def unpack(wheels: Path) -> Path:
    """Install a folder of wheels where nothing else is, without a network."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise SystemExit(f"gpu.py: --wheels {wheels}: there is no .whl file")
    target = ROOT / "build" / "wheels"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--upgrade"]
    done = subprocess.run([*command, "--target", str(target), *map(str, files)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"gpu.py: --wheels {wheels}: pip failed: {done.stderr.strip().splitlines()[-1]}")
    return target


def missing(step: Step) -> list[str]:
    """List the modules of a step that cannot be imported."""
    return [name for name in step.needs if importlib.util.find_spec(name) is None]


def path_of(folder: Path, machine: Machine, step: str, failed: bool = False) -> Path:
    """Return the path of the JSON file of a step."""
    return folder / f"{machine.device}_{step}{'.failed' if failed else ''}.json"


def is_done(machine: Machine, step: Step, folders: list[Path]) -> bool:
    """Return whether a result of these sources on this device exists."""
    for folder in folders:
        try:
            found = json.loads(path_of(folder, machine, step.name).read_text())
        except (OSError, ValueError):
            continue
        keys = ("sources", "device", "small")
        if found.get("status") in FINISHED and all(found.get(key) == machine.facts[key] for key in keys):
            # compiled files do not travel with the results
            return step.name != "build" or machine.device == "cpu" or machine.kernels_load()
    return False


def run(machine: Machine, step: Step, seconds: float, out: Path) -> str:
    """Run a step, write its JSON, return its status."""
    print(f"\n=== {step.name}: {step.what} (at most {seconds / 60:.0f} minutes)", flush=True)
    start, record = time.monotonic(), dict(machine.facts)
    status, results, output = "done", None, []
    try:
        if lacking := missing(step):
            raise LeftOut("left out", f"cannot be imported here: {', '.join(lacking)}")
        results = step.run(machine, seconds)
    except LeftOut as reason:
        status, results = reason.status, {"reason": str(reason), **reason.facts}
    except Failed as failure:
        status, results, output = failure.status, failure.results, failure.output
        results = {"reason": str(failure), **(results or {})}
    except Exception as error:  # a step that is broken itself must not stop the others
        status, results = "failed", {"reason": f"{type(error).__name__}: {error}"}
    record |= {"step": step.name, "status": status, "date": f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC"}
    record |= {"seconds": round(time.monotonic() - start, 1), "results": results}
    bad = status not in FINISHED
    out.mkdir(parents=True, exist_ok=True)
    path_of(out, machine, step.name, True).unlink(missing_ok=True)
    if bad:
        record["output"] = output
    path_of(out, machine, step.name, bad).write_text(json.dumps(record, indent=1) + "\n")
    words = "" if status == "done" or results is None else f": {results.get('reason', '')}"
    print(f"=== {step.name}: {status}{words} ({record['seconds']:.0f} s)", flush=True)
    return status


def chosen(arguments: argparse.Namespace) -> list[Step]:
    """Return the requested steps in order."""
    names = [name for name in (arguments.steps or "").split(",") if name] or list(STEPS)
    if unknown := [name for name in names if name not in STEPS]:
        raise SystemExit(f"gpu.py: --steps {','.join(unknown)}: choose among {','.join(STEPS)}")
    return [step for step in STEPS.values() if step.name in names]


def farewell(arguments: argparse.Namespace, statuses: dict[str, str], machine: Machine) -> None:
    """Describe finished and remaining steps, with the command for them."""
    print("\n" + "\n".join(f"{name:<14}{status}" for name, status in statuses.items()))
    folders = [arguments.out, RESULTS]
    steps = [s for s in STEPS.values() if s.name != "tables" and statuses.get(s.name) != "left out"]
    left = [step.name for step in steps if not is_done(machine, step, folders)]
    if not left:
        print("nothing remains")
        return
    command = [Path(sys.executable).name, "benchmarks/gpu.py", "--steps", ",".join([*left, "tables"])]
    command += ["--device", machine.device] if machine.device != "cuda" else []
    command += ["--small"] if arguments.small else []
    command += ["--wheels", str(arguments.wheels)] if arguments.wheels else []
    command += ["--out", str(arguments.out)] if arguments.out != RESULTS else []
    command += ["--time-limit", f"{arguments.time_limit:g}"] if arguments.time_limit else []
    print(f"remain: {', '.join(left)}\n    {' '.join(command)}")


def parse() -> argparse.Namespace:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", metavar="NAME,...", help=f"of {','.join(STEPS)} (default: all, in this order)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="default: %(default)s")
    parser.add_argument("--small", action="store_true", help="the smallest form, whose figures mean nothing")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="default: benchmarks/results")
    parser.add_argument("--time-limit", type=float, metavar="MIN", help="no step begins or goes on beyond it")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="a folder of wheels that this Python lacks")
    parser.add_argument("--again", action="store_true", help="also the steps that are done")
    return parser.parse_args()


def main() -> int:
    """Run the steps."""
    arguments, begin = parse(), time.monotonic()
    steps = chosen(arguments)
    if steps == [STEPS["tables"]]:
        tables(arguments)
        return 0
    if arguments.wheels:
        sys.path.insert(0, str(unpack(arguments.wheels)))
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"gpu.py: {sys.executable} has no torch: name another Python (make gpu PYTHON=...)")
    for name in dict.fromkeys(name for step in STEPS.values() for name in missing(step)):
        without = ", ".join(step.name for step in STEPS.values() if name in step.needs)
        print(f"{name} cannot be imported: left out are {without}", flush=True)
    with tempfile.TemporaryDirectory(prefix="seamseg-gpu-") as folder:
        machine = Machine(arguments.device, arguments.small, Path(folder))
        print(", ".join(f"{key} {value}" for key, value in machine.facts.items()), flush=True)
        if arguments.device == "cuda" and STEPS["build"] not in steps and not machine.kernels_load():
            print("the CUDA kernels do not load: the step build is done first", flush=True)
            steps = [STEPS["build"], *steps]
        statuses: dict[str, str] = {}
        for step in steps:
            if not arguments.again and step.name != "tables" and is_done(machine, step, [arguments.out, RESULTS]):
                statuses[step.name] = "done before"
                continue
            # the small forms are quick, but on processors that others use, too
            seconds = step.minutes * 60 * (4 if arguments.device == "cpu" else 1)
            if arguments.time_limit:
                left = arguments.time_limit * 60 - (time.monotonic() - begin)
                if left < min(seconds, 60 * step.least):
                    statuses[step.name] = "no time left"
                    continue
                seconds = min(seconds, left)
            statuses[step.name] = (
                run(machine, step, seconds, arguments.out) if step.name != "tables" else tables(arguments)
            )
        farewell(arguments, statuses, machine)
    return int(any(status in ("failed", "timed out") for status in statuses.values()))


def tables(arguments: argparse.Namespace) -> str:
    """Write the tables from the results that are in the repository and those of this run."""
    results: dict[str, Any] = {**gpu_tables.read(RESULTS), **gpu_tables.read(arguments.out)}
    changed = gpu_tables.write(results, ROOT)
    print(f"\n=== tables: {', '.join(changed) if changed else 'no table changes'}")
    return "done"


if __name__ == "__main__":
    sys.exit(main())
