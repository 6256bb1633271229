"""Converters to the dataset folder, and check, merge and export of dataset folders."""
