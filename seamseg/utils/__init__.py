"""Processes, files, URLs, progress, errors: what every package uses."""
