"""The build backend of setuptools, which adds torch as a requirement where its headers are needed and missing.

pip builds in an isolated environment. Torch in `build-system.requires` would mean a download of 3 GB for each build; if
the target environment has torch, its headers are used instead (`toolchain.torch_folder`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

sys.path.insert(0, str(Path(__file__).parent))
import toolchain


def _torch() -> list[str]:
    wanted = os.environ.get("SEAMSEG_KERNELS", "all") not in ("off", "maps") and toolchain.compiler() is not None
    return ["torch>=2.11"] if wanted and toolchain.torch_folder() is None else []


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    """Return the build requirements of a wheel (PEP 517)."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_torch()]


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    """Return the build requirements of an editable install (PEP 660)."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_torch()]
