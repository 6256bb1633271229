"""The steps of `gpu.py`: what each runs, in small or full form, and its time limit."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import shutil
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpu_machine import ROOT, Failed, Machine, Skipped, script_path


@dataclass(frozen=True)
class Step:
    """A step.

    Attributes
    ----------
    name, what : name for `--steps`, and a line that describes the step
    minutes : its time limit; it gets what earlier steps have not used, too
    needs : modules to import
    run : function of the machine and the seconds that the step has; returns its results
    scripts : names of the scripts that it runs; what they import from their folder and from this one counts, too
    files : patterns of the other files on which its results depend
    """

    name: str
    what: str
    minutes: float
    needs: tuple[str, ...]
    run: Callable[[Machine, float], dict[str, Any]]
    scripts: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """List the required modules that cannot be imported."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]

    def digest(self) -> str:
        """Return a checksum of what the results depend on; not the commit, because results are committed, too."""
        paths = [script_path(name) for name in self.scripts]
        for path in paths:
            imported = re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
            others = map(script_path, imported)
            paths += [other for other in others if other.exists() and other not in paths]
        paths += [path for pattern in self.files for path in ROOT.glob(pattern)]
        bound = self.run if isinstance(self.run, partial) else partial(self.run)
        total = hashlib.sha256(f"{inspect.getsource(bound.func)}{bound.keywords}".encode())
        for path in sorted(set(paths)):
            if path.is_file() and path.suffix not in (".pyc", ".so"):
                total.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
        return total.hexdigest()[:16]


def build(machine: Machine, seconds: float) -> dict[str, Any]:
    """Build the kernels for this GPU only, unless kernels of these sources load."""
    if machine.device == "cpu":
        raise Skipped("needs a GPU", "the architecture is that of the card", kernels=machine.facts["kernels"])
    if prebuilt := not machine.kernels_load():
        words = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        status = "failed"
        try:
            lines = machine.call(words, seconds, TORCH_CUDA_ARCH_LIST=machine.capability, SEAMSEG_KERNELS="all")
        except Failed as failure:  # perhaps of another library
            status, lines = failure.status, failure.output
        machine.look()
        if not machine.kernels_load():
            raise Failed(f"the CUDA kernels do not load: {machine.facts['kernels'].get('GPU')}", status, lines)
    return {"architecture": machine.capability, "prebuilt": not prebuilt}


def ops(machine: Machine, seconds: float) -> dict[str, Any]:
    """Compare every operator with the CPU, and on a GPU with plain torch; a third of the time with random arguments."""
    words = ["--device", machine.device, "--seconds", 0 if machine.small else min(60, seconds / 3)]
    # the other cases take a while on a CPU
    cases = ["2^31", "nms"] if machine.small else []
    sides = {"kernels": lambda left: machine.script("operators", *words, *cases, seconds=0.75 * left)}
    if machine.device == "cuda":
        plain = [*words[:3], 5, "--no-cases"]
        sides["plain torch"] = lambda left: machine.script("operators", *plain, seconds=left, SEAMSEG_PLAIN_OPS="1")
    return parts(sides, seconds)


def parts(calls: dict[str, Callable[[float], dict[str, Any]]], seconds: float) -> dict[str, Any]:
    """Run the parts of a step, each with the seconds that are left; if one fails, the others keep their results."""
    end = time.monotonic() + seconds
    found: dict[str, Any] = {}
    failures = []
    for name, call in calls.items():
        try:
            found[name] = call(end - time.monotonic())
        except Failed as failure:
            found[name] = failure.results
            failures.append(failure)
    if failures:
        failures[0].results = found
        raise failures[0]
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
    """Run every operator under memcheck and racecheck, which watch our kernels only."""
    if machine.device == "cpu":
        raise Skipped("needs a GPU", "the tests run the kernels under sanitizers on a CPU (tests/support)")
    tool = sanitizer_tool()
    if tool is None:
        raise Skipped("skipped", "compute-sanitizer is neither on the path nor in the CUDA toolkit")
    found: dict[str, Any] = {}
    failures = []
    for check in ("memcheck", "racecheck"):
        # the other kernels and the calls of the CUDA interface are torch's
        words = [str(tool), "--tool", check, "--kernel-name", "kns=seamseg", "--report-api-errors", "no"]
        words += ["--error-exitcode", "99", sys.executable, str(script_path("operators")), "--device", "cuda"]
        words += ["--no-cases", "--seed", "0", "--seconds", "30"]
        try:
            # every tensor is an allocation of its own: reads past its end are found
            lines = machine.call(words, seconds / 2, PYTORCH_NO_CUDA_MEMORY_CACHING="1")
        except Failed as failure:
            lines = failure.output
            # the tool marks its lines; torch may warn of other things that are not supported
            if any(line.startswith("=") and "not supported" in line for line in lines):
                raise Skipped("skipped", "compute-sanitizer refuses this device") from failure
            failures.append(failure)
        summary = next((line for line in reversed(lines) if "SUMMARY" in line), "")
        if not summary and not failures:
            failures.append(Failed(f"{check}: no summary", output=lines))
        numbers = [int(number) for number in re.findall(r"\d+", summary)]
        found[check] = {"errors": numbers[0] if numbers else None, "summary": summary.strip("= ")}
    if failures:
        failures[0].results = found
        raise failures[0]
    return found


def tests(machine: Machine, seconds: float) -> dict[str, Any]:
    """Run `pytest -m gpu`; on a CPU other tests, which checks that results are counted."""
    report = machine.folder / "junit.xml"
    words = [sys.executable, "-m", "pytest", "-v", "-rfEs", "--tb=short", "--durations=10", f"--junitxml={report}"]
    words += ["-p", "no:cacheprovider"]
    if importlib.util.find_spec("pytest_timeout"):
        words.append(f"--timeout={120 if machine.device == 'cuda' else 600}")
    if importlib.util.find_spec("xdist") and machine.device == "cuda":
        words += ["-n", "8"]
    if machine.device == "cuda":
        # only these: others may need packages that are not here to be collected
        paths = [p for p in sorted((ROOT / "tests").rglob("test_*.py")) if "pytest.mark.gpu" in p.read_text()]
        words += ["-m", "gpu", "-k", "not compil", *map(str, paths)]  # the compiler takes minutes
    else:
        words += ["tests/ops/test_contract.py", "-k", "compiles and iou"]
    try:
        machine.call(words, seconds, TORCH_LOGS="recompiles")  # prints why the compiler runs again
    except Failed as failure:
        failure.results = counts(report) if report.exists() else None
        raise
    found = counts(report)
    if machine.device == "cpu":
        raise Skipped("needs a GPU", "pytest -m gpu does", others=found)
    return found


def counts(report: Path) -> dict[str, Any]:
    """Count the passed, failed and skipped tests of a JUnit file; keep the tracebacks of the failed ones."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failing = {
        f"{case.get('classname')}::{case.get('name')}": (child.text or "").splitlines()[:80]
        for case in cases
        for child in case
        if child.tag in ("failure", "error")
    }
    skipped = sum(any(child.tag == "skipped" for child in case) for case in cases)
    passed = len(cases) - len(failing) - skipped
    return {"passed": passed, "failed": len(failing), "skipped": skipped, "failing": failing}


def parity(machine: Machine, seconds: float) -> dict[str, Any]:
    """Check the golden network."""
    words = ["flower"] if machine.small else []
    return machine.script("golden", *words, "--device", machine.device, seconds=seconds)


def train_step(
    machine: Machine, seconds: float, sides: tuple[str, ...] = ("eager",), more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Measure sides of the training step beside the plain one."""
    words = ["--size", "64x128", "--rounds", 1, "--config", "toy_city_r18"] if machine.small else []
    # compiling takes minutes on a CPU
    variables = {"TORCHDYNAMO_DISABLE": "1"} if machine.small else {}
    words = [*words, "--device", machine.device, *more, "--sides", *sides]
    return machine.script("train_step", *words, seconds=seconds, **variables)


def throughput(
    machine: Machine, seconds: float, variants: tuple[str, ...] = (), more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Measure variants of prediction beside the plain one."""
    words: list[object] = ["--device", machine.device, *more]
    if machine.small:  # the others need a GPU, or minutes to compile
        words += ["--size", "64x96", "--config", "toy_city_r18", "--rounds", 1, "--photos", 2, "--workers", 0]
        variants = ()
    return machine.script("throughput", "plain", *variants, *words, seconds=seconds)


def profile(machine: Machine, seconds: float) -> dict[str, Any]:
    """List the kernels of a training step and of a prediction, and how busy they keep the GPU."""
    step = partial(train_step, machine, sides=("eager", "graphed"), more=("--rounds", "1", "--profile"))
    predict = partial(throughput, machine, variants=("graphs",), more=("--rounds", "3", "--photos", "60", "--profile"))
    return parts({"train_step": step, "throughput": predict}, seconds)


def fusion(machine: Machine, seconds: float) -> dict[str, Any]:
    """Measure the fusion of masks and class map to a panoptic map."""
    words = ["--rounds", 1, "to_result"] if machine.small else ["--rounds", 10]
    return machine.script("fusion", *words, "--device", machine.device, seconds=seconds)


def memory(machine: Machine, seconds: float) -> dict[str, Any]:
    """Measure the memory of training."""
    size = (64, 128) if machine.small else (512, 1024)
    return machine.script("memory", "--size", *size, "--device", machine.device, seconds=seconds)


def distributed(machine: Machine, seconds: float) -> dict[str, Any]:
    """Check two processes on one GPU."""
    words = ["--steps", 2] if machine.small else []
    return machine.script("one_card", *words, "--device", machine.device, seconds=seconds)


def toy_city(machine: Machine, seconds: float) -> dict[str, Any]:
    """Train the demo in two precisions."""
    words: list[object] = ["--train", 100, "--epochs", 4, "--set", "dataloader.num_workers=4"]
    if machine.small:
        words = ["--train", 2, "--val", 1, "--epochs", 1, "--set", "dataloader.train_batch_size=2"]
        words += ["--set", "general.log_interval=1"]
    return machine.script("demo", "fp32", "bf16", *words, "--device", machine.device, seconds=seconds)


_TRAINING = ("numpy", "PIL", "umsgpack", "zlib_ng")
_KERNELS = ("csrc/**/*.[ch]*", "setup.py", "seamseg/ops/**/*", "seamseg/utils/native.py")
_PACKAGE = ("csrc/**/*.[ch]*", "seamseg/**/*.py", "seamseg/**/*.in[ci]", "configs/*.ini")
_SUPPORT = (*_PACKAGE, "tests/support/**/*.py")
_ARGUMENTS = (*_KERNELS, "tests/support/op_arguments.py")
_ALL = (
    # these fit into a first run of six and a half minutes, with prebuilt kernels
    Step("build", "CUDA kernels for this card", 2, ("setuptools",), build, files=_KERNELS),
    Step(
        "throughput",
        "images a second of prediction",
        1.2,
        _TRAINING,
        partial(throughput, variants=("graphs",)),
        ("throughput",),
        _PACKAGE,
    ),
    Step(
        "train_step",
        "training step",
        1,
        _TRAINING,
        partial(train_step, sides=("eager", "graphed", "eager_checkpointed")),
        ("train_step",),
        _PACKAGE,
    ),
    Step(
        "profile",
        "kernels of a training step and of a prediction",
        0.9,
        _TRAINING,
        profile,
        ("train_step", "throughput"),
        _PACKAGE,
    ),
    Step("fusion", "from detections to a panoptic map", 0.5, ("numpy",), fusion, ("fusion",), _PACKAGE),
    Step("ops", "every operator against the CPU", 0.4, ("numpy",), ops, ("operators",), _ARGUMENTS),
    Step("parity", "the golden network", 0.5, ("pytest", "numpy", "PIL"), parity, ("golden",), _SUPPORT),
    Step(
        "tests",
        "pytest -m gpu, but for compiled code",
        1.5,
        ("pytest", "hypothesis", *_TRAINING),
        tests,
        files=(*_PACKAGE, "tests/**/*.py"),
    ),
    # and these into a second of four and a half, if the compiler is quick
    Step("sanitizer", "memcheck, racecheck", 1.3, ("numpy",), sanitizer, ("operators",), _ARGUMENTS),
    Step(
        "throughput_compiled",
        "the same, compiled",
        1.5,
        _TRAINING,
        partial(throughput, variants=("compile", "both")),
        ("throughput",),
        _PACKAGE,
    ),
    Step(
        "train_step_compiled",
        "the same, compiled",
        1.5,
        _TRAINING,
        partial(train_step, sides=("fast", "checkpointed")),
        ("train_step",),
        _PACKAGE,
    ),
    Step("memory", "of training", 2, _TRAINING, memory, ("memory",), _PACKAGE),
    Step(
        "distributed", "two processes on one card", 0.75, ("pytest", *_TRAINING), distributed, ("one_card",), _SUPPORT
    ),
    Step(
        *("toy_city", "the toy city in fp32 and bf16", 1.5, (*_TRAINING, "pycocotools", "tensorboard")),
        *(toy_city, ("demo",), _PACKAGE),
    ),
)
STEPS = {step.name: step for step in _ALL}
