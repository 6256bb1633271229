"""Region proposals: network, anchors, targets, losses, proposals."""
