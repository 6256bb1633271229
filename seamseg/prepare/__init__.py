"""Converters to the dataset folder, check, merge, and export of data sets."""
