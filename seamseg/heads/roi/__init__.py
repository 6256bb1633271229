"""Regions of interest: network, features, targets, losses, detections."""
