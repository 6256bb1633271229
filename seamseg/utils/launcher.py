"""What a launcher such as torchrun says of this process, for commands that have not loaded torch yet.

:mod:`seamseg.utils.distributed` checks the same variables and joins the processes.
"""

from __future__ import annotations

import os


def process_count() -> int:
    """How many processes were started; 1 without a launcher."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdigit() else 1


def is_main_process() -> bool:
    """Whether this process is the one that prints and writes."""
    # as the engine takes it: a lone process is the main one, whatever its rank
    return os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE") == "1"
