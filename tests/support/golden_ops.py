"""Stored inputs and outputs of the original implementation, op by op."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@cache
def _file() -> np.lib.npyio.NpzFile:
    return np.load(Path(__file__).parents[1] / "golden" / "ops.npz")


def golden(name: str) -> Tensor:
    """A fresh tensor of one array of ops.npz, `<op>/<case>/<name>`."""
    return torch.from_numpy(_file()[name].copy())


def names(prefix: str) -> list[str]:
    """All arrays whose name starts with a prefix."""
    return sorted(k for k in _file().files if k.startswith(prefix))
