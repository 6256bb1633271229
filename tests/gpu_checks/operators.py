"""Compare every operator on a device with the CPU: rare cases, then random arguments for a given time.

    python tests/gpu_checks/operators.py --device cuda --seconds 240 --json operators.json
    python tests/gpu_checks/operators.py --device cpu --seconds 5               # the CPU's kernels against plain torch
    python tests/gpu_checks/operators.py --seed 1795000000 --seconds 0 nms      # one round from a seed, of one operator

Arguments come from `tests/support/op_arguments.py`: all dtypes, layouts and small sizes, empty ones too.
Every other call has its tensors one element off a 16-byte boundary. A reference and the device get the same values;
results and arguments that are written to must agree within the tolerances of the tests. On a GPU the reference is
the operator on the CPU, on the CPU plain torch. The device works in a process of its own: what ends it, or breaks its
CUDA context, is a failure of the operator at work, and the others go on without that one.

Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
sys.path.insert(2, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import operator_cases
from support.cuda_emulation.worker import tensors_of
from support.op_arguments import check_equal, plausible

import seamseg.ops.reference
from seamseg.ops import implementations, kernels

MOST_FAILURES = 5
"""Maximum number of failures of an operator that are written down."""
MOST_ROUNDS = 20
"""After the time is over, until every operator has been compared."""


@dataclass
class Tally:
    """What was seen of an operator.

    Attributes
    ----------
    compared : calls whose results were compared, of them `empty` with a tensor of no elements, `unaligned` off 16 bytes
    refused : calls that the reference does not take
    refused_here : messages of argument checks in calls that only the device does not take
    failures : seeds and differences or errors, the first few
    """

    compared: int = 0
    empty: int = 0
    unaligned: int = 0
    refused: int = 0
    refused_here: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def plain_form(name: str) -> Callable[..., Any]:
    """Return the plain implementation of an operator."""
    for info in pkgutil.iter_modules(seamseg.ops.reference.__path__):
        module = importlib.import_module(f"seamseg.ops.reference.{info.name}")
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(f"seamseg.ops.reference has no {name}")


def moved(value: Any, device: torch.device, shift: int) -> Any:
    """Copy to a device with the same strides, `shift` elements behind the start of the storage."""
    if isinstance(value, (list, tuple)):
        return [moved(item, device, shift) for item in value]
    if not isinstance(value, Tensor):
        return value
    expanded = [size > 1 and stride == 0 for size, stride in zip(value.shape, value.stride())]
    if any(expanded):
        once = value[tuple(slice(0, 1) if one else slice(None) for one in expanded)]
        return moved(once, device, shift).expand(value.shape)
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride())) if value.numel() else 0
    storage = torch.empty(shift + span, dtype=value.dtype, device=device)
    return storage.as_strided(value.shape, value.stride(), shift).copy_(value)


def compare(name: str, seed: int, device: torch.device, tally: Tally) -> None:
    """Call an operator with the arguments of a seed."""
    operator = getattr(torch.ops.seamseg, name).default
    reference = plain_form(name) if device.type == "cpu" else operator
    theirs, shift = plausible(name, seed), seed % 2
    ours = moved(plausible(name, seed), device, shift)
    try:
        wanted = reference(*theirs)
    except (RuntimeError, ValueError, IndexError):
        tally.refused += 1
        return
    try:
        found = operator(*ours)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except RuntimeError as error:
        if device.type == "cuda" and "CUDA error" in str(error):
            raise
        message = str(error).splitlines()[0]
        # a check of the arguments names its operator
        known = "CUDA error" not in message and any(f"{other}: " in message for other in implementations())
        kept = tally.refused_here if known else tally.failures
        if len(kept) < MOST_FAILURES:
            kept.append(f"seed {seed}: {message}")
        return
    tally.compared += 1
    tally.unaligned += shift
    tally.empty += any(t.numel() == 0 for t in tensors_of(theirs))
    try:
        check_equal(name, [found, ours], [wanted, theirs])
    except AssertionError as error:
        words = " ".join(str(error).split())[:300]
        tally.failures = [*tally.failures, f"seed {seed}: {words}"][:MOST_FAILURES]


def work(arguments: argparse.Namespace) -> int:
    """Run all cases, then rounds of all operators until the time is over; called in the process of the device.

    The results are written after each case and round. If the file exists, a process before this one has begun it.
    """
    device, path = torch.device(arguments.device), Path(arguments.json)
    now = Path(arguments.now) if arguments.now else None
    result: dict[str, Any] = {"seed": arguments.seed, "rounds": 0, "seconds": 0.0, "cases": {}, "operators": {}}
    result |= json.loads(path.read_text()) if path.exists() else {"kernels": kernels()}

    def begin(name: str) -> bool:
        chosen = not arguments.names or any(word in name for word in arguments.names)
        if now is not None and chosen:
            now.write_text(name)
        return chosen and name not in arguments.without

    for name, case in operator_cases.CASES.items():
        if not arguments.no_cases and name not in result["cases"] and begin(name):
            result["cases"][name] = operator_cases.outcome(case, device)
            print(f"{name}: {result['cases'][name]}", flush=True)
            path.write_text(json.dumps(result, indent=1))
    names = [name for name in implementations() if begin(name)]
    tallies = {name: Tally(**row) for name, row in result["operators"].items()}
    tallies |= {name: Tally() for name in names if name not in tallies}
    result["served"] = {name: implementations()[name] for name in tallies}
    while (
        result["rounds"] == 0
        or result["seconds"] < arguments.seconds
        or (result["rounds"] < MOST_ROUNDS and not all(tallies[name].compared for name in names))
    ):
        start = time.monotonic()
        for name in names:
            begin(name)
            compare(name, arguments.seed + result["rounds"], device, tallies[name])
        result["rounds"] += 1
        result["seconds"] += time.monotonic() - start
        result["operators"] = {name: asdict(tally) for name, tally in tallies.items()}
        path.write_text(json.dumps(result, indent=1))
    return 0


def in_a_process(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run the checks in another process, again without an operator that crashes it; return the results."""
    broken: dict[str, str] = {}
    path, now = Path(arguments.json or folder / "result.json"), folder / "now"
    path.unlink(missing_ok=True)
    while True:
        command = [sys.executable, __file__, *arguments.names, "--in-process", "--device", arguments.device]
        command += ["--seed", str(arguments.seed), "--seconds", str(arguments.seconds)]
        command += ["--json", str(path), "--now", str(now), *(f"--without={name}" for name in broken)]
        command += ["--no-cases"] if arguments.no_cases else []
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode == 0:
            return {**json.loads(path.read_text()), "broken": broken}
        name = now.read_text() if now.exists() else ""
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        words = next((line for line in lines if "CUDA error" in line), lines[-1])
        if not name or name in broken:
            raise SystemExit(f"operators.py: {words}")
        print(f"{name}: ended its process, exit code {done.returncode}: {words}", flush=True)
        broken[name] = words


def verdict(result: dict[str, Any]) -> int:
    """Print the results; return the number of operators and cases that fail."""
    print(f"\n{'operator':<30}{'served by':<14}{'compared':>9}{'empty':>7}{'unaligned':>10}{'refused':>8}{'fail':>6}")
    bad = [*result["broken"]]
    for name, row in result["operators"].items():
        print(
            f"{name:<30}{result['served'][name]:<14}{row['compared']:>9}{row['empty']:>7}{row['unaligned']:>10}"
            f"{row['refused'] + len(row['refused_here']):>8}{len(row['failures']):>6}"
        )
        bad += [name] * (name not in bad and (bool(row["failures"]) or not row["compared"]))
    bad += [name for name, outcome in result["cases"].items() if outcome.startswith("differs")]
    print(f"\nseed {result['seed']}, {result['rounds']} rounds, {len(result['cases'])} cases; ", end="")
    print(f"{len(bad)} fail: {', '.join(bad)}" if bad else "nothing differs")
    for name in bad:
        for line in result["operators"].get(name, {}).get("failures", [])[:2]:
            print(f"  {name}: {line}")
    return len(bad)


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only operators and cases that contain one of these words")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=240, help="for random arguments (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the first round (default: the time)"
    )
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="leave out an operator or case")
    parser.add_argument("--no-cases", action="store_true", help="random arguments only")
    parser.add_argument("--in-process", action="store_true", help="no process of its own: for compute-sanitizer")
    parser.add_argument("--now", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="seamseg-operators-") as name:
        if arguments.now is not None:
            return work(arguments)
        if arguments.in_process:
            path, arguments.json = arguments.json, os.path.join(name, "result.json")
            work(arguments)
            result = {**json.loads(Path(arguments.json).read_text()), "broken": {}}
        else:
            path, result = arguments.json, in_a_process(arguments, Path(name))
        bad = verdict(result)
        if path:
            Path(path).write_text(json.dumps({**result, "failing": bad}, indent=1))
        return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
