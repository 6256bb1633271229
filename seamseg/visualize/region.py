"""What is to be hidden of a photo, and how it shall look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Style = Literal["blur", "pixels"]


@dataclass(frozen=True)
class Region:
    """Pixels to hide.

    Attributes
    ----------
    mask : bool `h x w`
    corner : `(y, x)` of its first pixel in the photo
    part : may be but a part of an object, as a face alone: it is made coarser
    """

    mask: np.ndarray
    corner: tuple[int, int] = (0, 0)
    part: bool = False
