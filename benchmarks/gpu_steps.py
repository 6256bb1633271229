"""The steps of `gpu.py`: what each runs, in small or full form, and its time limit."""

from __future__ import annotations

import os
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_machine import ROOT, Failed, LeftOut, Machine


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes
    ----------
    name, what : for `--steps`, and a line
    minutes, least : it may take, and must have left to begin
    needs : modules to import
    run : with the machine and the seconds that it has; its results
    """

    name: str
    what: str
    minutes: float
    least: float
    needs: tuple[str, ...]
    run: Callable[[Machine, float], dict[str, Any]]


def build(machine: Machine, seconds: float) -> dict[str, Any]:
    """Build the kernels for this GPU only."""
    if machine.device == "cpu":
        raise LeftOut("needs a GPU", "the architecture is that of the card", kernels=machine.kernels())
    words = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    machine.call(words, seconds, TORCH_CUDA_ARCH_LIST=machine.capability, SEAMSEG_KERNELS="all")
    kernels = machine.kernels()
    if kernels.get("GPU") != "loaded":
        raise Failed(f"the CUDA kernels do not load: {kernels.get('GPU')}")
    return {"architecture": machine.capability, "kernels": kernels}


def ops(machine: Machine, seconds: float) -> dict[str, Any]:
    """Compare every operator with the CPU, and on a GPU with plain torch; half of the time with random arguments."""
    words = ["--device", machine.device, "--seconds", 0 if machine.small else min(240, seconds / 2)]
    # the other cases take a while on a CPU
    found = machine.script("operators", *words, *(["2^31", "nms"] if machine.small else []), seconds=seconds * 0.8)
    if machine.device == "cuda":
        words = ["--device", machine.device, "--seconds", 10, "--no-cases"]
        found["plain torch"] = machine.script("operators", *words, seconds=seconds / 5, SEAMSEG_PLAIN_OPS="1")
    return found


def sanitizer_tool() -> Path | None:
    """Find compute-sanitizer on the path or in the CUDA toolkit."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc := shutil.which("nvcc"):
        homes.append(str(Path(nvcc).resolve().parents[1]))
    inside = [
        Path(home, *where)
        for home in homes
        if home
        for where in (("bin",), ("compute-sanitizer",), ("extras", "compute-sanitizer"))
    ]
    found = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(map(str, inside))
    )
    return Path(found) if found else None


def sanitizer(machine: Machine, seconds: float) -> dict[str, Any]:
    """Run every operator under memcheck and racecheck."""
    if machine.device == "cpu":
        raise LeftOut("needs a GPU", "the tests run the kernels under sanitizers on a CPU (tests/support)")
    tool = sanitizer_tool()
    if tool is None:
        raise LeftOut("left out", "compute-sanitizer is neither on the path nor in the CUDA toolkit")
    found: dict[str, Any] = {}
    for check in ("memcheck", "racecheck"):
        words = [str(tool), "--tool", check, "--error-exitcode", "99", sys.executable, "benchmarks/operators.py"]
        words += ["--device", "cuda", "--in-process", "--no-cases", "--seed", "0", "--seconds", str(int(seconds / 8))]
        try:
            # every tensor is an allocation of its own: what is read past its end is seen
            lines = machine.call(words, seconds / 2, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        except Failed as failure:
            if any("not supported" in line for line in failure.output):
                raise LeftOut("left out", "compute-sanitizer refuses this device") from failure
            failure.results = found
            raise
        summary = next((line for line in reversed(lines) if "SUMMARY" in line), "")
        numbers = [int(number) for number in re.findall(r"\d+", summary)]
        if not numbers:
            raise Failed(f"{check}: no summary", output=lines)
        found[check] = {"errors": sum(numbers[:1]), "summary": summary.strip("= ")}
    return found


def tests(machine: Machine, seconds: float) -> dict[str, Any]:
    """Run `pytest -m gpu`; on a CPU other tests, which checks that results are counted."""
    report = machine.folder / "junit.xml"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    if machine.device == "cuda":
        # only these: others may need packages that are not here to be collected
        paths = [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in p.read_text()]
        words += ["-m", "gpu", *map(str, paths)]
    else:
        words += ["tests/ops/test_devices.py", "-k", "compiles and iou"]
    try:
        machine.call(words, seconds)
    except Failed as failure:
        failure.results = counts(report) if report.exists() else None
        raise
    found = counts(report)
    if machine.device == "cpu":
        raise LeftOut("needs a GPU", "pytest -m gpu does", others=found)
    return found


def counts(report: Path) -> dict[str, Any]:
    """Count the passed, failed and skipped tests of a JUnit file, and list the failed ones."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    kinds = [{child.tag for child in case} for case in cases]
    bad = [f"{c.get('classname')}::{c.get('name')}" for c, kind in zip(cases, kinds) if kind & {"failure", "error"}]
    skipped = sum("skipped" in kind for kind in kinds)
    return {"passed": len(cases) - len(bad) - skipped, "failed": len(bad), "skipped": skipped, "failing": bad}


def parity(machine: Machine, seconds: float) -> dict[str, Any]:
    """Check the golden network."""
    words = ["flower"] if machine.small else []
    return machine.script("golden", *words, "--device", machine.device, seconds=seconds)


def train_step(machine: Machine, seconds: float) -> dict[str, Any]:
    """Measure the training step, plain and fast."""
    words = ["--size", "64x128", "--rounds", 1, "--config", "toy_city_r18"] if machine.small else []
    # compiling takes minutes on a CPU
    variables = {"TORCHDYNAMO_DISABLE": "1"} if machine.small else {}
    return machine.script("train_step", *words, "--device", machine.device, seconds=seconds, **variables)


def throughput(machine: Machine, seconds: float) -> dict[str, Any]:
    """Measure the throughput of prediction."""
    words: list[object] = ["--device", machine.device]
    if machine.small:
        words += ["plain", "--size", "64x96", "--rounds", 1, "--photos", 2, "--workers", 0, "--config", "toy_city_r18"]
    return machine.script("throughput", *words, seconds=seconds)


def fusion(machine: Machine, seconds: float) -> dict[str, Any]:
    """Measure the fusion of masks and class map to a panoptic map."""
    words = ["--rounds", 1, "to_result"] if machine.small else ["--rounds", 50]
    return machine.script("fusion", *words, "--device", machine.device, seconds=seconds)


def memory(machine: Machine, seconds: float) -> dict[str, Any]:
    """Measure the memory of training and of a huge photo."""
    size = (64, 128) if machine.small else (512, 1024)
    kept = machine.script("memory", "--size", *size, "--device", machine.device, seconds=seconds / 3)
    photo = (
        ["96x64", "--network", "small", "--tiles", "off"]
        if machine.small
        else ["12000x8400", "--tiles", "auto", "2048"]
    )
    photo += [] if machine.small else ["--shortest-size", "8400"]
    huge = machine.script("huge_photo", *photo, "--device", machine.device, seconds=seconds * 2 / 3)
    return {"training": kept, "huge_photo": huge}


def distributed(machine: Machine, seconds: float) -> dict[str, Any]:
    """Check two processes on one GPU."""
    words = ["--steps", 2] if machine.small else []
    return machine.script("one_card", *words, "--device", machine.device, seconds=seconds)


def toy_city(machine: Machine, seconds: float) -> dict[str, Any]:
    """Train the demo in two precisions."""
    words: list[object] = ["--workers", 4]
    if machine.small:
        words = ["--train", 2, "--val", 1, "--epochs", 1, "--log-interval", 1]
    return machine.script("toy_city", *words, "--device", machine.device, seconds=seconds)


def no_run(machine: Machine, seconds: float) -> dict[str, Any]:
    """Do nothing: `gpu.py` writes the tables."""
    raise AssertionError


_TRAINING = ("numpy", "PIL", "umsgpack")
_ALL = (
    Step("build", "CUDA kernels for this card", 9.5, 3, ("setuptools",), build),
    Step("ops", "every operator against the CPU", 9, 3, ("numpy",), ops),
    Step("tests", "pytest -m gpu", 9, 3, ("pytest", "hypothesis", *_TRAINING, "pycocotools"), tests),
    Step("train_step", "training step, plain against fast", 9.5, 5, _TRAINING, train_step),
    Step("throughput", "images a second of prediction", 9.5, 5, _TRAINING, throughput),
    Step("fusion", "from detections to a panoptic map", 3, 1, ("numpy",), fusion),
    Step("parity", "the golden network in fp32, bf16, fp16", 4, 1.5, ("pytest", "numpy", "PIL"), parity),
    Step("memory", "memory of training and of a huge photo", 6, 3, _TRAINING, memory),
    Step("sanitizer", "compute-sanitizer: memcheck, racecheck", 9.5, 5, ("numpy",), sanitizer),
    Step("distributed", "two processes on one card", 6, 2, ("pytest", *_TRAINING), distributed),
    Step("toy_city", "the toy city in fp32 and bf16", 9.5, 5, (*_TRAINING, "pycocotools", "tensorboard"), toy_city),
    Step("tables", "README.md, docs/reference/performance.md, benchmarks/results/README.md", 1, 0, (), no_run),
)
STEPS = {step.name: step for step in _ALL}
