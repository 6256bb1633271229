"""Optimizer, learning-rate schedules, moving average of the weights."""
