"""What this machine has, what serves each operator, and what to mend. Paste its output into a bug report.

seamseg doctor
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

from seamseg.cli import malloc
from seamseg.config import experiments
from seamseg.data.prepare.parallel import available_cores
from seamseg.version import __version__

_PACKAGES = ("torch", "torchvision", "numpy", "pillow", "tensorboard", "pycocotools", "u-msgpack-python", "tqdm")
_OPTIONAL = ("inplace-abn",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if something that is needed does not work."""
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
    _say("malloc", malloc.describe())
    if torch is not None:
        _say("GPU", _gpus(torch, problems))
    _say("launcher", _launcher())
    _say("experiments", ", ".join(experiments()) or "none found: the installation is incomplete")
    if torch is not None:
        _operators(problems)
    for problem in problems:
        print(f"to mend: {problem}", file=sys.stderr)
    return 1 if problems else 0


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
