"""The operators in plain torch: used where there is no kernel, and in tests of the kernels."""

import torch
from torch import Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums and of numbers per channel: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widened(x: Tensor) -> Tensor:
    """Convert half precision to float32: float16 overflows at areas of 256 x 256 pixels, bfloat16 is coarse."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
