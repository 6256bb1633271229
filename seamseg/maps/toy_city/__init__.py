"""Toy city: procedural street scenes with exact labels, written as a raw Cityscapes tree.

The scenes need no download and no licence. Colours do not reveal the class, so a network has to learn shapes and
context. :func:`generate_toy_city` writes them, :func:`render_scene` renders one, :func:`generate_toy_things` cuts out
their things as class folders, a data set for classification.
"""

from seamseg.maps.toy_city.scene import render_scene
from seamseg.maps.toy_city.writer import generate_toy_city, generate_toy_things

__all__ = ["generate_toy_city", "generate_toy_things", "render_scene"]
