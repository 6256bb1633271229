"""Instance results of a frame: a text file of lines `mask.png label confidence`, and the masks it names."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.cityscapes_labels import LABEL_OF
from seamseg.errors import InputError
from seamseg.files import read_bytes
from seamseg.limits import MIB, refuse_program

LIST_BYTES = 64 * MIB
"""Largest list of the instances of a frame."""


@dataclass(frozen=True)
class PredictedInstance:
    """One line: the file of the mask, the label id and the confidence."""

    mask: Path
    label: int
    score: float


@dataclass(frozen=True)
class Patch:
    """A mask inside the smallest box around it.

    Attributes
    ----------
    shape : height and width of the whole mask
    top, left : place of the box
    inside : `h x w` bool; `0 x 0` for a mask without a pixel
    """

    shape: tuple[int, int]
    top: int
    left: int
    inside: np.ndarray


def read_instance_list(path: Path, root: Path) -> list[PredictedInstance]:
    """The instances of a frame. Where two lines name one mask, the later one counts.

    Parameters
    ----------
    path : of the text file; masks are named relative to its folder
    root : the masks must lie below this folder

    Raises
    ------
    InputError
        if the file cannot be read, or a line is not of the form
    """
    try:
        lines = read_bytes(path, "list of instances", LIST_BYTES).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from error
    limit = os.path.abspath(root)
    found: dict[Path, PredictedInstance] = {}
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        parts = line.split(" ")
        if len(parts) != 3:
            raise InputError(
                f"{where}: has {len(parts)} words; wanted are three with one space between: mask.png labelID confidence"
            )
        name, label, score = parts[0], _number(parts[1], where, "label id"), _number(parts[2], where, "confidence")
        mask = os.path.abspath(path.parent / name)
        if os.path.isabs(name) or os.path.commonpath([limit, mask]) != limit:
            raise InputError(f"{where}: {name} must be a relative path that stays inside {root}")
        if int(label) not in LABEL_OF:
            raise InputError(f"{where}: {parts[1]} is no Cityscapes label id (24 person, 26 car ...)")
        found[Path(mask)] = PredictedInstance(Path(mask), int(label), score)
    return list(found.values())


def read_mask(path: Path) -> Patch:
    """A predicted mask: what is not black.

    Raises
    ------
    InputError
        if the file is missing or broken
    """
    try:
        with Image.open(path) as image:
            refuse_program(image)
            grey = image if image.mode in ("L", "1") else image.convert("L")
            box = grey.getbbox()
            inside = np.array(grey.crop(box)) != 0 if box else np.zeros((0, 0), bool)
            return Patch((image.height, image.width), box[1] if box else 0, box[0] if box else 0, inside)
    except FileNotFoundError:
        raise InputError(f"{path}: no such mask") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable mask: {error}") from error


def _number(text: str, where: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{where}: {text!r} is no {what}")
    return value
