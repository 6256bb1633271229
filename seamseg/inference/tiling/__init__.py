"""Prediction of large images in tiles."""
