"""Formats of data sets: labels, file names, reading and writing."""
