"""The maps of Cityscapes: one channel of label or instance ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from seamseg.cityscapes_labels import INSTANCES_FROM, LABEL_OF, LICENSE_PLATES
from seamseg.errors import InputError
from seamseg.limits import refuse_program

_HIGHEST = 0xFFFF
_MODES = ("1", "L", "P", "I;16", "I;16L", "I;16B", "I")


def read_map(path: Path, what: str) -> np.ndarray:
    """The values of an image of one channel.

    Parameters
    ----------
    path : of the image; a palette is not looked at
    what : its name in errors

    Returns
    -------
    values : `H x W` uint8, uint16 or int32

    Raises
    ------
    InputError
        if the file is missing, broken or has several channels
    """
    try:
        with Image.open(path) as image:
            refuse_program(image)
            if image.mode not in _MODES:
                raise InputError(f"{path}: {what} have one channel, this image is of mode {image.mode}")
            values = np.array(image)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file ({what})") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable image ({what}): {error}") from error
    if values.dtype == np.int32 and values.size and not 0 <= values.min() <= values.max() <= _HIGHEST:
        raise InputError(f"{path}: {what} are numbers of at most 16 bits, this image has others")
    return values.astype(np.uint8) if values.dtype == bool else values


def label_of_instance(values: np.ndarray, path: Path) -> np.ndarray:
    """The label id of each value of an `instanceIds` map; licence plates are label 0.

    Raises
    ------
    InputError
        if a value is of no Cityscapes label
    """
    labels = np.where(values < INSTANCES_FROM, values, values // INSTANCES_FROM)
    labels[values == LICENSE_PLATES["instanceIds"]] = 0
    wrong = ~np.isin(labels, list(LABEL_OF))
    if wrong.any():
        value, label = int(values[wrong][0]), int(labels[wrong][0])
        raise InputError(f"{path}: {value} is no Cityscapes instance id (label {label} does not exist)")
    return labels
