"""What was compiled of `csrc/`: where it is, whether it is of these sources, why it is missing.

setup.py runs this file alone, and commands that do without torch load it: it imports nothing of ours, nor torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
_SOURCES = _PACKAGE.parent / "csrc"
SWITCH = "SEAMSEG_PLAIN_OPS"
REBUILD = "pip install --no-build-isolation --no-deps --force-reinstall ."
"""The command that compiles everything again, in the folder of the sources."""
_INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)}
"""GPUs of Jetson and its kin, whose machine code is not that of the cards of the same major version."""


def digest(csrc: Path) -> str:
    """A checksum of the C++ and CUDA sources below a folder, by name and content."""
    total = hashlib.sha256()
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in (".h", ".cuh", ".cpp", ".cu")):
        total.update(path.relative_to(csrc).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def switched_off() -> str | None:
    """Why nothing that is compiled shall be loaded, if so."""
    return f"switched off by {SWITCH}" if os.environ.get(SWITCH, "0") not in ("", "0") else None


def find(name: str) -> ModuleSpec:
    """A compiled file of this very package: those of another clone, installed as editable, know other functions.

    In a clone it must be as old as its sources: nobody compares a kernel's arguments with the schema it serves.

    Raises
    ------
    ImportError
        if there is none
    """
    spec = PathFinder.find_spec(f"seamseg.{name}", [str(_PACKAGE)])
    if spec is None or spec.loader is None or spec.origin is None:
        raise ImportError(f"{_PACKAGE} has no {name}")
    built_from = _report().get("sources")
    if built_from is not None and _SOURCES.is_dir() and built_from != digest(_SOURCES):
        raise ImportError("csrc has changed since they were compiled: make kernels")
    return spec


def why_not(name: str, error: Exception) -> str:
    """Why a file could not be loaded: what the build said, or how loading failed."""
    said = _report().get(name, "they were never built")
    return f"they do not load here ({error})" if said == "built" else said


def runs_on(code: str, capability: tuple[int, int]) -> bool:
    """Whether compiled CUDA code runs on a GPU; see "GPU compatibility" in NVIDIA's CUDA programming guide.

    Parameters
    ----------
    code : machine code as "sm_80": the same major version and no smaller minor one, of integrated GPUs that very one;
        or PTX as "compute_90": that capability and all above. With "a" (sm_90a) both are for one capability only, with
        "f" (sm_100f) for a family: the same major version and no smaller minor one
    capability : (major, minor) of the GPU
    """
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", code)
    if match is None:
        return False
    kind, features, own = match[1], match[4], (int(match[2]), int(match[3]))
    if features == "a" or (kind == "sm" and (own in _INTEGRATED or capability in _INTEGRATED)):
        return capability == own
    if kind == "sm" or features == "f":
        return capability[0] == own[0] and capability[1] >= own[1]
    return capability >= own


def not_covered(gpus: Mapping[str, tuple[int, int]]) -> tuple[str, str] | None:
    """Why the CUDA library does not run on all GPUs, and the command that compiles it for them; None if it does.

    Parameters
    ----------
    gpus : capability (major, minor) of each, by a name for messages

    Notes
    -----
    A library without a list of architectures, from an older build, is taken as it is.
    """
    codes = _report().get("architectures")
    if not codes:
        return None
    lacking = [name for name, card in gpus.items() if not any(runs_on(code, card) for code in codes)]
    if not lacking:
        return None
    cards = ", ".join(f"{name} (sm_{gpus[name][0]}{gpus[name][1]})" for name in lacking)
    wanted = ";".join(f"{major}.{minor}" for major, minor in sorted(set(gpus.values())))
    return f"compiled for {', '.join(codes)}, not for {cards}", f'TORCH_CUDA_ARCH_LIST="{wanted}" {REBUILD}'


def warn_missing(what: str, reason: str, rebuild: str = REBUILD) -> None:
    """Say that something that should have been compiled is not there, and the command that compiles it."""
    warnings.warn(
        f"seamseg: no compiled {what}: {reason}. Everything works, slower. To compile them: {rebuild} "
        "(docs/reference/ops.md)",
        stacklevel=3,
    )


def _report() -> dict[str, Any]:
    try:
        return json.loads((_PACKAGE / "kernels.json").read_text())
    except (OSError, ValueError):
        return {}
