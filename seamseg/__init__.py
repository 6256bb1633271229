"""Panoptic segmentation of street scenes: Seamless Scene Segmentation with in-place activated BatchNorm."""

from .version import __version__

__all__ = ["__version__"]
