"""How much memory a training has needed so far."""

from __future__ import annotations

import sys

import torch

_GIB = 1 << 30


def peak_memory(device: torch.device) -> dict[str, float]:
    """Peaks of this process in GiB: of its resident memory and, on a GPU, of what tensors and torch's pool took there.

    Nothing waits for the device.
    """
    peaks = {}
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        # kilobytes, but bytes on macOS
        unit = 1 if sys.platform == "darwin" else 1024
        peaks["rss_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _GIB
    if device.type == "cuda":
        peaks["allocated_peak_gib"] = torch.cuda.max_memory_allocated(device) / _GIB
        peaks["reserved_peak_gib"] = torch.cuda.max_memory_reserved(device) / _GIB
    return peaks
