"""Rank and number of processes from the environment of a launcher such as torchrun, without importing torch.

:mod:`seamseg.utils.distributed` validates the same variables and initializes the process group.
"""

from __future__ import annotations

import os


def process_count() -> int:
    """Return the number of processes started by the launcher; 1 without one."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def local_rank() -> int:
    """Return the number of this process on its machine; 0 without a launcher."""
    rank = os.environ.get("LOCAL_RANK", "0")
    return int(rank) if rank.isdigit() and process_count() > 1 else 0


def local_processes() -> int:
    """Return the number of processes of the launcher on this machine; 1 if it does not state it."""
    size = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(int(size), 1) if size.isdigit() and process_count() > 1 else 1


def is_main_process() -> bool:
    """Return whether this process prints and writes the shared files."""
    # as seamseg.utils.distributed: a single process is the main one, whatever its RANK
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE") == "1"
