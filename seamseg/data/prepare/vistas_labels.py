"""What all files of Mapillary Vistas have in common: how instances are numbered, and what groups are called."""

from __future__ import annotations

INSTANCES_PER_LABEL = 256
"""Values of the pictures in `instances/` are `label * 256 + number`."""

GROUP_ENDING = "-group"
"""What the name of a group has after that of its class; the names of some older groups lack the dash."""


def is_group(name: str) -> bool:
    """Whether all regions of a class are groups, and hence crowds."""
    return name.endswith(GROUP_ENDING.lstrip("-"))
