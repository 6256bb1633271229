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
from seamseg.utils import process
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
    torch = None if _version("torch") is None else _imported("torch", problems)
    for module in (*([] if torch is None else ["torchvision"]), "PIL.Image", "pycocotools.mask", "umsgpack"):
        _imported(module, problems)
    threads = f", torch uses {torch.get_num_threads()} threads" if torch else ""
    _print("processor", f"{available_cores()} cores available{threads}")
    _print("malloc", process.malloc_status())
    _print("OpenMP", process.openmp_status())
    if torch is not None:
        _print("GPU", _gpus(torch, problems))
    rank, count = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE"))
    _print("launcher", f"rank {rank} of {count}" if rank and count else "none: one process")
    _print("experiments", ", ".join(experiments()) or "none found: the installation is incomplete")
    _kernels(torch, problems)
    for problem in problems:
        echo(f"to fix: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _print(label: str, text: str) -> None:
    echo(f"{label:<18}{text}")


def _packages(problems: list[str]) -> None:
    missing = []
    for package in (*_PACKAGES, *_TORCH, *_OPTIONAL):
        how = f"not installed (extra {EXTRAS[package]})" if package in EXTRAS else "MISSING"
        version = _version(package)
        _print(package, version or how)
        missing += [package] if version is None else []
    problems += [f"{name} is not installed: pip install {name}" for name in missing if name in _PACKAGES]
    lacking = [name for name in _TORCH if name in missing]
    # without torch exported networks can be used, which need onnxruntime
    if lacking and (len(lacking) < len(_TORCH) or "onnxruntime" in missing):
        names, extra = ", ".join(lacking), "'seamseg[torch]', or for exported networks only 'seamseg[onnx]'"
        problems.append(f"{names} not installed: pip install {extra}")


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
    if (maps := _imported("seamseg.maps.idmaps.library", problems)) is not None:
        _print("kernels, maps", maps.state)
    if torch is None or (ops := _imported("seamseg.ops", problems)) is None:
        return
    for device, state in ops.kernels().items():
        _print(f"kernels, {device}", state)
    echo("operators")
    for name, implementation in ops.implementations().items():
        echo(f"  {name:<28}{implementation}")
