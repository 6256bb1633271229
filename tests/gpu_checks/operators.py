"""Compare every operator on a device with the CPU: rare cases, then random arguments for a given time.

    python tests/gpu_checks/operators.py --device cuda --seconds 240 --json operators.json
    python tests/gpu_checks/operators.py --device cpu --seconds 5               # the CPU's kernels against plain torch
    python tests/gpu_checks/operators.py --seed 1795000000 --seconds 0 nms      # one round from a seed, of one operator

Arguments come from `tests/support/op_arguments.py`: all dtypes, layouts and small sizes, empty ones too.
Every other call has its tensors one element off a 16-byte boundary. A reference and the device get the same values;
results and arguments that are written to must agree within the tolerances of the tests. On a GPU the reference is
the operator on the CPU, on the CPU plain torch.

Exit code 1 if anything differs.
"""

import argparse
import importlib
import json
import pkgutil
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

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


def plain_form(name):
    for info in pkgutil.iter_modules(seamseg.ops.reference.__path__):
        module = importlib.import_module(f"seamseg.ops.reference.{info.name}")
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(f"seamseg.ops.reference has no {name}")


def moved(value, device, shift):
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


def compare(name, seed, device, tally):
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


def work(arguments):
    """Run all cases, then rounds of all operators until the time is over; write the results after each of them."""
    device, path = torch.device(arguments.device), Path(arguments.json) if arguments.json else None
    names, cases = list(implementations()), {} if arguments.no_cases else dict(operator_cases.CASES)
    if arguments.names:
        names = [name for name in names if any(word in name for word in arguments.names)]
        cases = {name: case for name, case in cases.items() if any(word in name for word in arguments.names)}
    tallies = {name: Tally() for name in names}
    result = {"kernels": kernels(), "seed": arguments.seed, "rounds": 0, "cases": {}, "operators": {}}
    result["served"] = {name: implementations()[name] for name in names}

    def write():
        result["operators"] = {name: asdict(tally) for name, tally in tallies.items()}
        if path is not None:
            path.write_text(json.dumps(result, indent=1))

    for name, case in cases.items():
        result["cases"][name] = operator_cases.outcome(case, device)
        print(f"{name}: {result['cases'][name]}", flush=True)
        write()
    end = time.monotonic() + arguments.seconds
    while (
        result["rounds"] == 0
        or time.monotonic() < end
        or (result["rounds"] < MOST_ROUNDS and not all(tally.compared for tally in tallies.values()))
    ):
        for name in names:
            compare(name, arguments.seed + result["rounds"], device, tallies[name])
        result["rounds"] += 1
        write()
    return result


def verdict(result):
    print(f"\n{'operator':<30}{'served by':<14}{'compared':>9}{'empty':>7}{'unaligned':>10}{'refused':>8}{'fail':>6}")
    bad = []
    for name, row in result["operators"].items():
        print(
            f"{name:<30}{result['served'][name]:<14}{row['compared']:>9}{row['empty']:>7}{row['unaligned']:>10}"
            f"{row['refused'] + len(row['refused_here']):>8}{len(row['failures']):>6}"
        )
        bad += [name] * (bool(row["failures"]) or not row["compared"])
    bad += [name for name, outcome in result["cases"].items() if outcome.startswith("differs")]
    print(f"\nseed {result['seed']}, {result['rounds']} rounds, {len(result['cases'])} cases; ", end="")
    print(f"{len(bad)} fail: {', '.join(bad)}" if bad else "nothing differs")
    for name in bad:
        for line in result["operators"].get(name, {}).get("failures", [])[:2]:
            print(f"  {name}: {line}")
    return len(bad)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only operators and cases that contain one of these words")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=240, help="for random arguments (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="seed of the first round (default: the time)"
    )
    parser.add_argument("--no-cases", action="store_true", help="random arguments only")
    parser.add_argument("--json", help="also write the numbers to this file")
    arguments = parser.parse_args()
    result = work(arguments)
    bad = verdict(result)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({**result, "failing": bad}, indent=1))
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
