"""Dumps of failed training steps and their replay."""
