"""Converters from other data sets to the folder format, and a generator of one."""
