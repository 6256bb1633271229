"""What the kernels are built with, and where it is: torch's headers, the C++ compiler, the CUDA toolkit."""

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
    """Where torch is installed. Headers are all that is used: an isolated build may take those of the target."""
    places = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    found = (Path(place or ".") / "torch" for place in places)
    return next((folder for folder in found if (folder / "include/torch/csrc/stable/library.h").exists()), None)


def cuda_version_of(torch: Path) -> str | None:
    """CUDA version that an installed torch was built with, None for a CPU build."""
    said = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", (torch / "version.py").read_text(), re.MULTILINE)
    return said.group(1) if said else None


def cuda_home() -> Path | None:
    """The CUDA toolkit: an nvcc on the path may be a wrapper script elsewhere, so its neighbours are looked for."""
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    if nvcc:
        places.append(str(Path(nvcc).resolve().parent.parent))
    found = (Path(place) for place in places if place)
    return next((place for place in found if (place / "bin/nvcc").exists() and (place / "include").is_dir()), None)


def cards() -> list[str]:
    """Architectures of the GPUs in this machine that the default does not cover, as "7.5"."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=compute_cap", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True).stdout.split()
    return sorted({card for card in said if re.fullmatch(r"\d+\.\d", card)} - {"8.0", "9.0"})


def architectures() -> list[str]:
    """Return the targets of TORCH_CUDA_ARCH_LIST: machine code as "sm_80", PTX as "compute_90"."""
    found = []
    said = os.environ.get("TORCH_CUDA_ARCH_LIST") or ";".join([DEFAULT_ARCHITECTURES, *cards()])
    for entry in re.findall(r"[^;, ]+", said):
        number = entry.removesuffix("+PTX").replace(".", "")
        found.append(f"sm_{number}")
        if entry.endswith("+PTX"):
            found.append(f"compute_{number}")
    return list(dict.fromkeys(found))


def architecture_flags() -> list[str]:
    """nvcc's flags for :func:`architectures`."""
    return [f"-gencode=arch=compute_{code.partition('_')[2]},code={code}" for code in architectures()]


def compiler() -> str | None:
    """The C++ compiler: $CXX, c++, g++ or clang++."""
    return next(
        (found for name in (os.environ.get("CXX"), "g++", "c++", "clang++") if name and (found := shutil.which(name))),
        None,
    )
