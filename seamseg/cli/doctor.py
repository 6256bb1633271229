"""What this machine has, what serves each operator, and what to mend. Paste its output into a bug report.

    seamseg doctor
    seamseg doctor --replay runs/my/dump-step-00000123.pth.tar
    seamseg doctor --bench --size 1024x2048
    seamseg doctor --bench seamseg_r50_vistas.zip --precision bf16 --json

A training that stops over a loss leaves a dump of the step in its run folder; --replay repeats that step and says which
loss and which module go wrong first. It ends with 0 if the step goes wrong again, with 1 if not.

--bench predicts one made-up picture again and again, from its file to the files of the result, and prints how long each
stage takes and what limits it. Without MODEL the weights are random; they are given 1000 proposals and 100 detections.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import sys
from importlib import metadata
from types import ModuleType

from seamseg.cli import process_settings
from seamseg.config import experiments
from seamseg.utils.parallel import available_cores
from seamseg.version import __version__

_PACKAGES = ("torch", "torchvision", "numpy", "pillow", "tensorboard", "pycocotools", "u-msgpack-python", "tqdm")
_OPTIONAL = ("inplace-abn",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--replay", metavar="DUMP", help="repeat the training step of this dump")
    parser.add_argument("--device", default="cpu", help="for both: auto, cpu, cuda or cuda:N (default: cpu)")
    measured = parser.add_argument_group("how fast it is")
    measured.add_argument(
        "--bench",
        nargs="?",
        const="",
        metavar="MODEL",
        help="time each stage of a prediction; of random weights if none",
    )
    measured.add_argument("--size", default="1024x2048", metavar="HxW", help="of the picture (default: 1024x2048)")
    measured.add_argument("--rounds", type=int, default=5, metavar="N", help="runs (default: 5)")
    measured.add_argument("--precision", default="fp32", metavar="P", help="fp32, bf16, fp16 or auto (default: fp32)")
    measured.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if something that is needed does not work, or if a step does not go wrong again."""
    if args.replay is not None:
        return _replay(args.replay, args.device)
    if args.bench is not None:
        from seamseg.cli.doctor_bench import bench

        return bench(args.bench or None, args.size, args.rounds, args.device, args.precision, args.json)
    problems: list[str] = []
    _say("seamseg", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")
    for package in _PACKAGES:
        version = _version(package)
        _say(package, version or "MISSING")
        if version is None:
            problems.append(f"{package} is not installed: pip install {package}")
    for package in _OPTIONAL:
        _say(package, _version(package) or "not installed (optional)")
    # the program that reports on a broken torch must not need it
    torch = _imported("torch", problems)
    for module in ("torchvision", "PIL.Image", "pycocotools.mask", "umsgpack"):
        _imported(module, problems)
    _say(
        "processor",
        f"{available_cores()} cores to use" + (f", torch uses {torch.get_num_threads()} threads" if torch else ""),
    )
    _say("malloc", process_settings.describe_malloc())
    _say("OpenMP", process_settings.describe_spin())
    if torch is not None:
        _say("GPU", _gpus(torch, problems))
    _say("launcher", _launcher())
    _say("experiments", ", ".join(experiments()) or "none found: the installation is incomplete")
    maps = _imported("seamseg.idmaps.library", problems)
    if maps is not None:
        _say("kernels, maps", maps.state)
    if torch is not None:
        _operators(problems)
    for problem in problems:
        print(f"to mend: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _replay(path: str, device: str) -> int:
    from seamseg.training.debugging.replay import replay

    outcome = replay(path, device)
    dump = outcome.dump
    process = f", process {dump.rank} of {dump.world_size}" if dump.world_size > 1 else ""
    _say("step", f"{dump.step}{process}: {dump.reason}")
    _say("images", ", ".join(name for batch in dump.batches for name in batch.ids))
    for name in outcome.losses or dump.losses:
        now = f"{outcome.losses[name]:.6g}" if outcome.losses else "none"
        _say(name, f"{now} (was {dump.losses.get(name, float('nan')):.6g})")
    _say("gradient norm", f"{outcome.grad_norm:.6g}")
    if outcome.error is not None:
        _say("stopped by", outcome.error)
    _say("bad pixels", f"in {', '.join(outcome.bad_inputs)}" if outcome.bad_inputs else "none: all are finite")
    _say("first bad module", outcome.first or "none: every module's output is finite")
    _say("outcome", "goes wrong again" if outcome.reproduced else "does not go wrong this time")
    return 0 if outcome.reproduced else 1


def _say(what: str, words: str) -> None:
    print(f"{what:<18}{words}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _imported(module: str, problems: list[str]) -> ModuleType | None:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken binary fails in any way it likes
        problems.append(f"{module} cannot be imported: {' '.join(str(error).split())[:200]}")
        return None


def _gpus(torch: ModuleType, problems: list[str]) -> str:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{', '.join(names)} (CUDA {torch.version.cuda})"
    if torch.version.cuda is None:
        if shutil.which("nvidia-smi"):
            problems.append("this machine seems to have an NVIDIA GPU, but PyTorch is built without CUDA: pytorch.org")
        return "none: this PyTorch is built without CUDA"
    if shutil.which("nvidia-smi"):
        problems.append(
            f"PyTorch is built for CUDA {torch.version.cuda} but sees no GPU: compare with the driver in nvidia-smi"
        )
    return f"none seen (PyTorch is built for CUDA {torch.version.cuda}); everything runs on the CPU"


def _launcher() -> str:
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    return "none: one process"


def _operators(problems: list[str]) -> None:
    ops = _imported("seamseg.ops", problems)
    if ops is not None:
        for device, state in ops.kernels().items():
            _say(f"kernels, {device}", state)
        print("operators")
        for name, server in ops.implementations().items():
            print(f"  {name:<28}{server}")
