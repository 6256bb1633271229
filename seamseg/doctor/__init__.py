"""Measurements of `seamseg doctor`: the stages of a prediction, and the backends that can run a network."""
