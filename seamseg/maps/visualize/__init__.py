"""Visualization: overlays of panoptic maps, boxes, palettes."""

from seamseg.maps.visualize.overlay import distinct_colors, draw_boxes, draw_overlay, outlines, padded_palette

__all__ = ["distinct_colors", "draw_boxes", "draw_overlay", "outlines", "padded_palette"]
