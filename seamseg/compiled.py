"""What was compiled of `csrc/`: where it is, whether it is of these sources, why it is missing.

setup.py runs this file alone, and commands that do without torch load it: it imports nothing of ours, nor torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_PACKAGE = Path(__file__).parent
_SOURCES = _PACKAGE.parent / "csrc"
SWITCH = "SEAMSEG_PLAIN_OPS"


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


def warn_missing(what: str, reason: str) -> None:
    """Say that something that should have been compiled is not there."""
    warnings.warn(
        f"seamseg: no compiled {what}: {reason}. Everything works, slower. "
        "To compile them: pip install --no-build-isolation --no-deps --force-reinstall . (docs/ops.md)",
        stacklevel=3,
    )


def _report() -> dict[str, str]:
    try:
        return json.loads((_PACKAGE / "kernels.json").read_text())
    except (OSError, ValueError):
        return {}
