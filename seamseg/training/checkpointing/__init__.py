"""Snapshots of a training, the run folder that holds them, and how a training resumes."""
