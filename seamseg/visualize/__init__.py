"""Pictures for people: overlays of panoptic maps, boxes, and photos in which nobody can be recognised."""

from .anonymize import anonymize, clusters
from .overlay import draw_boxes, draw_classic, draw_overlay, outlines
from .palette import as_palette, spread_palette
from .region import Region

__all__ = [
    "Region",
    "anonymize",
    "as_palette",
    "clusters",
    "draw_boxes",
    "draw_classic",
    "draw_overlay",
    "outlines",
    "spread_palette",
]
