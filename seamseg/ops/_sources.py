"""Which sources the kernels of a clone were built from. setup.py runs this file alone: it imports nothing of ours."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(csrc: Path) -> str:
    """A checksum of the C++ and CUDA sources below a folder, by name and content."""
    total = hashlib.sha256()
    for path in sorted(path for path in csrc.rglob("*") if path.suffix in (".h", ".cuh", ".cpp", ".cu")):
        total.update(path.relative_to(csrc).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()
