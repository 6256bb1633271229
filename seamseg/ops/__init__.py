"""Numerical building blocks in plain torch: boxes, NMS, ROI sampling, in-place ABN, pooling, upsampling, pasting.

Every function runs on any device. Nothing here knows about networks, data or files.
"""
