"""Panoptic segmentation of folders, lists, videos, shards and URLs into files."""
