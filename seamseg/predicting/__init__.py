"""Prediction on folders, lists and videos into files."""
