"""Whether torch.compile works on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def compiler_problem(device: torch.device, backend: str = "inductor") -> str | None:
    """Compile a function of one line, to C++ or Triton, and return the first line of the error; None if it works."""
    import torch

    try:
        x = torch.ones(8, device=device)
        torch.compile(_one_line, backend=backend)(x)
    except Exception as error:  # each missing tool has its own type
        return first_line(error)
    return None


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of an error, cut at 300 characters; the name of its type if it has no text."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].strip()[:300]


def _one_line(x: Tensor) -> Tensor:
    return (x + 1).sin()
