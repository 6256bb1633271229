"""What all files of Mapillary Vistas have in common: how instances are numbered, and what groups are called."""

from __future__ import annotations

INSTANCES_PER_LABEL = 256
"""Values of the pictures in `instances/` are `label * 256 + number`."""

GROUP_ENDING = "-group"
"""What follows the name of a class in that of its groups."""


def is_group(name: str) -> bool:
    """Whether all regions of a class are groups, and hence crowds; its name need not have the dash."""
    return name.endswith("group")
