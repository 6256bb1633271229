"""Optimizer, schedules, moving average, precision."""
