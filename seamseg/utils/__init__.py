"""Processes, files, URLs, progress, errors: what every room uses."""
