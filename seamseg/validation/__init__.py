"""Scoring a model on a data set, and the evaluation folder."""
