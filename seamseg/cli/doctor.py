"""Check the installation, the GPU and the compiled operators.

    seamseg doctor          # paste the output into a bug report

It exits with 1 if a required part does not work.
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

from seamseg.config import experiments
from seamseg.utils import process_settings
from seamseg.utils.errors import EXTRAS, one_line
from seamseg.utils.native import REBUILD, failed_builds
from seamseg.utils.output import echo
from seamseg.utils.parallel import available_cores
from seamseg.version import __version__

_PACKAGES = ("numpy", "pillow", "pycocotools", "u-msgpack-python", "tqdm", "filelock", "zlib-ng")
_TORCH = ("torch", "torchvision", "tensorboard")
_OPTIONAL = (
    *("onnxruntime", "openvino", "safetensors", "huggingface_hub", "timm", "transformers", "starlette", "av"),
    *("supervision", "cityscapesscripts"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""


def run(args: argparse.Namespace) -> int:
    """Print the report; return 1 if a required part does not work."""
    problems: list[str] = []
    _print("seamseg", f"{__version__} on Python {platform.python_version()}, {platform.platform()}")
    _packages(problems)
    # torch may be broken
    installed = _version("torch") is not None
    torch = _imported("torch", problems) if installed else None
    for module in (*(("torchvision",) if installed else ()), "PIL.Image", "pycocotools.mask", "umsgpack"):
        _imported(module, problems)
    threads = f", torch uses {torch.get_num_threads()} threads" if torch else ""
    _print("processor", f"{available_cores()} cores available{threads}")
    _print("malloc", process_settings.malloc_status())
    _print("OpenMP", process_settings.openmp_status())
    if torch is not None:
        _print("GPU", _gpus(torch, problems))
    several = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    rank = f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}" if several else "none: one process"
    _print("launcher", rank)
    _print("experiments", ", ".join(experiments()) or "none found: the installation is incomplete")
    _kernels(torch, problems)
    for problem in problems:
        echo(f"to fix: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _print(label: str, text: str) -> None:
    echo(f"{label:<18}{text}")


def _packages(problems: list[str]) -> None:
    for package in _PACKAGES:
        version = _version(package)
        _print(package, version or "MISSING")
        if version is None:
            problems.append(f"{package} is not installed: pip install {package}")
    lacking = [package for package in _TORCH if _version(package) is None]
    for package in _TORCH:
        _print(package, _version(package) or "not installed (extra torch)")
    # without torch exported networks can be used, which need onnxruntime
    if lacking and (len(lacking) < len(_TORCH) or _version("onnxruntime") is None):
        problems.append(
            f"{', '.join(lacking)} not installed: pip install 'seamseg[torch]', or for exported networks only "
            "'seamseg[onnx]'"
        )
    for package in _OPTIONAL:
        part = f"extra {EXTRAS[package]}" if package in EXTRAS else "optional"
        _print(package, _version(package) or f"not installed ({part})")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _imported(module: str, problems: list[str]) -> ModuleType | None:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken binary may raise anything
        problems.append(f"{module} cannot be imported: {one_line(error)[:200]}")
        return None


def _gpus(torch: ModuleType, problems: list[str]) -> str:
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return f"{', '.join(names)} (CUDA {torch.version.cuda})"
    built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
    if shutil.which("nvidia-smi"):
        problems.append(
            f"this machine seems to have an NVIDIA GPU, but PyTorch {built} and finds none: see pytorch.org, or "
            "compare with the driver in nvidia-smi"
        )
    return f"none found (PyTorch {built}); everything runs on the CPU"


def _kernels(torch: ModuleType | None, problems: list[str]) -> None:
    for failed in failed_builds():
        problems.append(f"kernels are missing, slower replacements are used: {failed}; compile them again: {REBUILD}")
    maps = _imported("seamseg.maps.idmaps.library", problems)
    if maps is not None:
        _print("kernels, maps", maps.state)
    ops = None if torch is None else _imported("seamseg.ops", problems)
    if ops is None:
        return
    for device, state in ops.kernels().items():
        _print(f"kernels, {device}", state)
    echo("operators")
    for name, implementation in ops.implementations().items():
        echo(f"  {name:<28}{implementation}")
