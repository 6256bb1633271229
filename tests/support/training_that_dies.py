"""Run a command of the command line, with a small network, in a process that stops or dies at a moment, or never.

python -m support.training_that_dies MOMENT SIGNAL WORD...
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from seamseg.cli.main import main
from seamseg.ops import abn as abn_module
from seamseg.training.logging import reporter
from seamseg.validation.validator import PanopticScorer
from support.micro import narrow_body

MOMENTS: dict[str, tuple[Any, str, int]] = {
    # in the middle of the second step's body, of its backward pass, of the first validation
    "forward": (abn_module, "batch_statistics", 70),
    "backward": (abn_module, "gradient_sums", 70),
    "validation": (PanopticScorer, "add", 1),
    "report": (reporter, "mean_over_processes", 2),
    "never": (PanopticScorer, "add", 0),
}


def after(calls: int, function: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Wrap a function so that its call number `calls` sends this process a signal."""
    remaining = [calls]

    def called(*args: Any, **kwargs: Any) -> Any:
        remaining[0] -= 1
        if remaining[0] == 0:
            os.kill(os.getpid(), number)
        return function(*args, **kwargs)

    return called


if __name__ == "__main__":
    moment, name, *words = sys.argv[1:]
    # ignored in a background job
    signal.signal(signal.SIGINT, signal.default_int_handler)
    owner, function, calls = MOMENTS[moment]
    wrapped = after(calls, getattr(owner, function), getattr(signal, name))
    with narrow_body(), mock.patch.object(owner, function, wrapped):
        sys.exit(main(words))
