"""Toy city: procedural street scenes with exact labels, written as a raw Cityscapes tree.

The scenes need no download and no licence. Colours do not reveal the class, so a network has to learn shapes and
context. :func:`generate_toy_city` writes them, :func:`render_scene` renders one.
"""

from seamseg.toy_city.scene import render_scene
from seamseg.toy_city.writer import generate_toy_city

__all__ = ["generate_toy_city", "render_scene"]
