"""A learning rate schedule, `[scheduler] type = example`."""

import math
from dataclasses import dataclass

from seamseg.components import key, scheduler


@dataclass(frozen=True)
class ExampleKeys:
    """Keys of the section [scheduler example]."""

    final: float = key("factor of the learning rate at the end", 0.01, minimum=0, maximum=1)


@scheduler("example", keys=ExampleKeys)
def example(t, total, keys):
    """Half a cosine from 1 to the final factor; t is the number of steps (or epochs) done."""
    return keys.final + (1 - keys.final) * (1 + math.cos(math.pi * t / max(1, total))) / 2
