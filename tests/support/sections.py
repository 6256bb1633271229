"""Sections of a configuration for modules that are made without one: the defaults with some keys changed."""

from dataclasses import replace
from typing import Any

from seamseg.config.loader import default_config
from seamseg.config.sections import Roi, Rpn, Sem


def rpn(**changes: Any) -> Rpn:
    """The section `[rpn]`."""
    return replace(default_config().rpn, **changes)


def roi(**changes: Any) -> Roi:
    """The section `[roi]`."""
    return replace(default_config().roi, **changes)


def sem(kind: str = "panoptic", **changes: Any) -> Sem:
    """The section `[sem]` of a kind of network."""
    return replace(default_config(kind).sem, **changes)
