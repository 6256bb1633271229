"""Sections of a configuration for modules that are made without one: the defaults with some keys changed."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seamseg.config.loader import default_config
from seamseg.config.sections import Roi, Rpn, Sem
from seamseg.structures import Things


def rpn(**changes: Any) -> Rpn:
    return replace(default_config().rpn, **changes)


def roi(**changes: Any) -> Roi:
    return replace(default_config().roi, **changes)


def sem(kind: str = "panoptic", **changes: Any) -> Sem:
    return replace(default_config(kind).sem, **changes)


def things(boxes: Tensor | None, crowd: Tensor | None = None) -> Things:
    """Things of one class with these boxes, None for no things."""
    rows = torch.zeros(0, 4) if boxes is None else boxes
    ids = torch.arange(len(rows))
    return Things(rows, torch.zeros_like(ids), ids, crowd)
