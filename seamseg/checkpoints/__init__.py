"""Snapshots, model bundles, pre-trained weights and their conversion."""
