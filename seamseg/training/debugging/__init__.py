"""Dumps of failed steps and their replay."""
