"""The libraries compiled from `csrc/`: find them, check that they match the sources, explain why one is missing.

setup.py runs this file on its own, and commands without torch import it: it imports neither the package nor torch.
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
SCHEMAS = "seamseg/ops/schemas.inc"
"""Schemas of the operators, compiled into the library for the CPU; in the folder of the sources."""
SWITCH = "SEAMSEG_PLAIN_OPS"
DISABLED = f"switched off by {SWITCH}" if os.environ.get(SWITCH, "0") not in ("", "0") else None
"""Why compiled libraries are not to be loaded; None if they are."""
REBUILD = "pip install --no-build-isolation --no-deps --force-reinstall ."
"""The command that compiles all libraries again, in the folder of the sources."""
COMPILER_FAILED = "the compiler failed: "
"""Begins the reason for a library that could not be compiled; the first error line of the compiler follows."""
_INTEGRATED = {(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0)}
"""Integrated GPUs (Jetson, Drive): discrete GPUs of the same major version have other machine code."""


def digest(csrc: Path) -> str:
    """Return a checksum of the names and contents of the C++ and CUDA sources in `csrc`, and of the schemas."""
    total = hashlib.sha256((csrc.parent / SCHEMAS).read_bytes())
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in (".h", ".cuh", ".cpp", ".cu")):
        total.update(path.relative_to(csrc).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def find(name: str) -> ModuleSpec:
    """Find a compiled library in the folder of this package, not of another clone that is installed as editable.

    ImportError if there is none, or, in a clone, if its sources have changed: the arguments of a kernel are not
    compared with its schema.
    """
    spec = PathFinder.find_spec(f"seamseg.{name}", [str(_PACKAGE)])
    if spec is None or spec.loader is None or spec.origin is None:
        raise ImportError(f"{_PACKAGE} has no {name}")
    built_from = _report().get("sources")
    if built_from is not None and _SOURCES.is_dir() and built_from != digest(_SOURCES):
        raise ImportError("csrc has changed since they were compiled: make kernels")
    return spec


def load_failure(name: str, error: Exception) -> str:
    """Return why a library could not be loaded: the reason noted by the build, or the error of loading it."""
    reason = _report().get(name, "they were never built")
    return f"they do not load here ({error})" if reason == "built" else str(reason)


def failed_builds() -> list[str]:
    """List the libraries that a compiler failed to build, each with its error."""
    reasons = {name: str(reason) for name, reason in _report().items()}
    return [f"{name}: {reason}" for name, reason in reasons.items() if reason.startswith(COMPILER_FAILED)]


def runs_on(code: str, capability: tuple[int, int]) -> bool:
    """Return whether compiled CUDA code runs on a GPU of a `(major, minor)` capability.

    By "GPU compatibility" of NVIDIA's CUDA programming guide: machine code (sm_80) and families (sm_100f) run on the
    same major version with an equal or higher minor one (integrated GPUs: on the same version only), PTX (compute_90)
    on that capability and all above. The suffix "a" (sm_90a) limits both to one capability.
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


def uncovered_gpus(gpus: Mapping[str, tuple[int, int]]) -> tuple[str, str] | None:
    """Return why the CUDA library does not run on all GPUs, given by name with (major, minor), and how to compile it.

    None if it does, or its build has noted no architectures.
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
    """Warn that compiled code is missing, with the command that compiles it."""
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
