"""Semantic classes: network, target, loss."""
