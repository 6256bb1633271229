"""Snapshots of a training run and how it resumes."""
