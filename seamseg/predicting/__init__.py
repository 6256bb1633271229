"""Prediction on folders, lists, videos, shards and URLs into files."""
