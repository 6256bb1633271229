"""Locate the headers of torch, the C++ compiler and the CUDA toolkit that build the kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

DEFAULT_ARCHITECTURES = "8.0;9.0+PTX"


def torch_folder() -> Path | None:
    """Return the folder of torch, whose headers are used: in an isolated build those of the target environment."""
    places = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    found = (Path(place or ".") / "torch" for place in places)
    return next((folder for folder in found if (folder / "include/torch/csrc/stable/library.h").exists()), None)


def cuda_version_of(torch: Path) -> str | None:
    """Return the CUDA version of an installed torch, None for a CPU build."""
    match = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", (torch / "version.py").read_text(), re.MULTILINE)
    return match.group(1) if match else None


def cuda_home() -> Path | None:
    """Return the folder of the CUDA toolkit, None without one."""
    # nvcc on the path may be a wrapper script outside of the toolkit
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc:
        places.append(str(Path(nvcc).resolve().parent.parent))
    found = (Path(place) for place in places if place)
    return next((place for place in found if (place / "bin/nvcc").exists() and (place / "include").is_dir()), None)


def cards() -> list[str]:
    """List the architectures of the GPUs in this machine, as "7.5"."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=compute_cap", "--format=csv,noheader"]
    lines = subprocess.run(query, capture_output=True, text=True).stdout.split()
    return sorted({card for card in lines if re.fullmatch(r"\d+\.\d", card)})


def architectures() -> list[str]:
    """Return the targets of TORCH_CUDA_ARCH_LIST: machine code as "sm_80", PTX as "compute_90"."""
    found = []
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST") or ";".join([DEFAULT_ARCHITECTURES, *({*cards()} - {"8.0", "9.0"})])
    for entry in re.findall(r"[^;, ]+", wanted):
        number = entry.removesuffix("+PTX").replace(".", "")
        found.append(f"sm_{number}")
        if entry.endswith("+PTX"):
            found.append(f"compute_{number}")
    return list(dict.fromkeys(found))


def architecture_flags() -> list[str]:
    """Return the flags of nvcc for :func:`architectures`."""
    return [f"-gencode=arch=compute_{code.partition('_')[2]},code={code}" for code in architectures()]


def compiler() -> str | None:
    """Return the path of the C++ compiler: $CXX, g++, c++ or clang++; None without one."""
    return next(
        (found for name in (os.environ.get("CXX"), "g++", "c++", "clang++") if name and (found := shutil.which(name))),
        None,
    )
