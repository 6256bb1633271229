"""The error for a missing model, which lists the accepted kinds and the source of the published one."""

from __future__ import annotations

from pathlib import Path

from seamseg.utils.errors import InputError

VISTAS_MD5 = "7046e54e54e9dcc38060b150e97f4a5a"
"""MD5 of the published zip according to the README of the original project; not verified."""


def require_model(path: Path) -> None:
    """Raise InputError if the model does not exist."""
    if path.exists():
        return
    text = (
        f"{path}: no such model; MODEL is a published .zip (snapshot, config.ini and metadata.bin inside), a run "
        "folder of `seamseg train`, or a snapshot (.pth.tar, .tar)"
    )
    if "vistas" in path.name.lower() and path.suffix.lower() == ".zip":
        text += (
            "; the model for Mapillary Vistas (ResNet-50, PQ 37.99, CC BY-NC-SA 4.0) is linked in the README of the "
            "original project, github.com/mapillary/seamseg, under Trained models, which gives its md5 as "
            f"{VISTAS_MD5}; nothing is downloaded automatically"
        )
    raise InputError(text)
