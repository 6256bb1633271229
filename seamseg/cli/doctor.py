"""What this machine has, what serves each operator, and what to mend. Paste its output into a bug report.

seamseg doctor
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import sys
from importlib import metadata

import torch

from seamseg import ops
from seamseg.cli import malloc
from seamseg.version import __version__

_PACKAGES = ("torch", "torchvision", "numpy", "pillow", "tensorboard", "pycocotools", "u-msgpack-python", "tqdm")
_OPTIONAL = ("inplace-abn",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if something that is needed does not work."""
    problems: list[str] = []
    print(f"seamseg      {__version__} on Python {platform.python_version()}, {platform.platform()}")
    for package in _PACKAGES:
        print(f"{package:<17}{_version(package) or 'MISSING'}")
        if _version(package) is None:
            problems.append(f"{package} is not installed: pip install {package}")
    for package in _OPTIONAL:
        print(f"{package:<17}{_version(package) or 'not installed (optional)'}")
    _check_import("torchvision", problems)
    _check_import("pycocotools.mask", problems)
    print(f"{'processor':<17}{_cores()} cores to use, torch uses {torch.get_num_threads()} threads")
    print(f"{'malloc':<17}{malloc.describe()}")
    print(f"{'GPU':<17}{_gpus(problems)}")
    print(f"{'launcher':<17}{_launcher()}")
    print("operators")
    for name, server in ops.implementations().items():
        print(f"  {name:<20}{server}")
    for problem in problems:
        print(f"to mend: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_import(module: str, problems: list[str]) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # a broken binary fails in any way it likes
        problems.append(f"{module} does not import: {' '.join(str(error).split())[:200]}")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _gpus(problems: list[str]) -> str:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{', '.join(names)} (CUDA {torch.version.cuda})"
    if torch.version.cuda is None:
        return "none: this PyTorch is built without CUDA"
    return f"none seen (PyTorch is built for CUDA {torch.version.cuda}); everything runs on the CPU"


def _launcher() -> str:
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
    return "none: one process"
