"""Visualization: overlays of panoptic maps, boxes, palettes."""

from .overlay import compose_overlay, draw_boxes, draw_overlay, outlines
from .palette import distinct_colors, padded_palette

__all__ = ["compose_overlay", "distinct_colors", "draw_boxes", "draw_overlay", "outlines", "padded_palette"]
