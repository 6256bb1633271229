"""Pictures for people: overlays of panoptic maps, boxes, and a gallery page."""

from .gallery import Card, write_gallery
from .overlay import draw_boxes, draw_classic, draw_overlay, outlines
from .palette import as_palette, spread_palette

__all__ = [
    "Card",
    "as_palette",
    "draw_boxes",
    "draw_classic",
    "draw_overlay",
    "outlines",
    "spread_palette",
    "write_gallery",
]
