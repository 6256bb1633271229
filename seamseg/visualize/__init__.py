"""Pictures for people: overlays of panoptic maps, boxes, palettes."""

from .overlay import draw_boxes, draw_classic, draw_overlay, outlines
from .palette import as_palette, spread_palette

__all__ = ["as_palette", "draw_boxes", "draw_classic", "draw_overlay", "outlines", "spread_palette"]
