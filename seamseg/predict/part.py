"""Parts of a prediction: independent runs that divide the images and write to one place; no process group."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from seamseg.utils.errors import InputError

T = TypeVar("T")

SLURM = "slurm"
"""Text of a part that reads the variables of a Slurm job array."""

_SLURM = tuple(f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "MAX", "COUNT"))


@dataclass(frozen=True)
class Part:
    """Part `number` of `count`, from 1: every `count`-th image of the whole list, whatever is done already.

    So parts may start at any time, on any machine, and again, and never share an image.
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def word(self) -> str:
        """The part in the names of its manifests, `part3of10`."""
        return f"part{self.number}of{self.count}"

    def has(self, position: int) -> bool:
        """Return whether an item belongs to this part by its position in the whole list, from 0."""
        return position % self.count == self.number - 1

    def select(self, items: Sequence[T]) -> Sequence[T]:
        """Return the items of this part."""
        return items[self.number - 1 :: self.count]


def parse_part(text: str, environment: Mapping[str, str] = os.environ) -> Part:
    """Return the part of a text: `3/10`, or `slurm` for that of this task of a Slurm job array.

    Parameters
    ----------
    text : value of `part`
    environment : holds SLURM_ARRAY_TASK_ID, _MIN, _MAX and _COUNT

    Raises
    ------
    InputError
        if it is neither, or the array has no equal steps
    """
    if text == SLURM:
        return _of_array(environment)
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None:
        raise InputError(f"`part={text}`: must be k/n, such as 3/10, or {SLURM} in a Slurm job array")
    part = Part(int(match[1]), int(match[2]))
    if part.count == 0:
        raise InputError(f"`part={text}`: the number of parts must be positive")
    if not 1 <= part.number <= part.count:
        raise InputError(f"`part={text}`: parts are counted from 1 to {part.count}")
    return part


def _of_array(environment: Mapping[str, str]) -> Part:
    """Return the part of a task by its place in the array."""
    given = f"`part={SLURM}`"
    missing = [name for name in _SLURM if not environment.get(name, "").isdecimal()]
    if missing:
        raise InputError(f"{given}: {missing[0]} is not set to a number; start a job array of Slurm, or use `part` k/n")
    task, first, last, count = (int(environment[name]) for name in _SLURM)
    # SLURM_ARRAY_TASK_STEP is 1 for any list of numbers; the step follows from the other three
    step, rest = divmod(last - first, max(count - 1, 1))
    if rest or (count > 1 and step < 1) or (count == 1 and last != first):
        raise InputError(
            f"{given}: the {count} tasks of the array from {first} to {last} have no equal steps; use `part` k/n"
        )
    place, rest = divmod(task - first, step or 1)
    if rest or not 0 <= place < count:
        raise InputError(f"{given}: task {task} is not in the array from {first} to {last} in steps of {step}")
    return Part(place + 1, count)
