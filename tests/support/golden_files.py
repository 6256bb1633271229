"""Stored inputs and outputs of the original implementation (`tests/golden/*.npz`)."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DATA = Path(__file__).parents[1] / "golden"


@cache
def _file(name: str) -> np.lib.npyio.NpzFile:
    return np.load(DATA / f"{name}.npz")


def array(file: str, name: str) -> np.ndarray:
    return _file(file)[name]


def tensor(file: str, name: str) -> Tensor:
    return torch.from_numpy(array(file, name).copy())


def golden(name: str) -> Tensor:
    """A fresh tensor of the operators' file, `<op>/<case>/<name>`."""
    return tensor("ops", name)


def names(prefix: str) -> list[str]:
    return sorted(name for name in _file("ops").files if name.startswith(prefix))


def has(file: str, name: str) -> bool:
    return name in _file(file).files


def numpy_permutation(n: int) -> Tensor:
    """The order that the original's sampling draws, from numpy's global generator."""
    return torch.from_numpy(np.random.permutation(n))
