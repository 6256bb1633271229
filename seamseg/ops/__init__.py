"""Numerical building blocks: boxes, NMS, ROI sampling, in-place ABN, pooling, upsampling, pasting.

Each operator has a plain-torch implementation for every device (`reference/`), and kernels in `csrc/` for the CPU and
for CUDA. Nothing here depends on networks, data or files.
"""

# an operator exists once its file is loaded
from seamseg.ops import abn, boxes, fused, labels, nms, pooling, roi_sampling, upsample
from seamseg.ops._library import implementations, kernels

__all__ = [
    "abn",
    "boxes",
    "fused",
    "implementations",
    "kernels",
    "labels",
    "nms",
    "pooling",
    "roi_sampling",
    "upsample",
]
