"""Numerical building blocks: boxes, NMS, ROI sampling, in-place ABN, pooling, upsampling, pasting.

Each operator has a plain-torch implementation for every device (`reference/`), and kernels in `csrc/` for the CPU and
for CUDA. Nothing here knows about networks, data or files.
"""

from . import extract_boxes, histogram, upsample  # an operator exists once its file is loaded
from ._library import implementations

__all__ = ["extract_boxes", "histogram", "implementations", "upsample"]
