"""Visualization: overlays of panoptic maps, boxes, palettes."""

from seamseg.maps.visualize.overlay import draw_boxes, draw_overlay, outlines
from seamseg.maps.visualize.palette import distinct_colors, padded_palette

__all__ = ["distinct_colors", "draw_boxes", "draw_overlay", "outlines", "padded_palette"]
