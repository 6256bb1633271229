"""Visualization: overlays of panoptic maps, boxes, palettes."""

from .overlay import draw_boxes, draw_overlay, outlines
from .palette import distinct_colors, padded_palette

__all__ = ["distinct_colors", "draw_boxes", "draw_overlay", "outlines", "padded_palette"]
