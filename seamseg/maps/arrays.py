"""numpy's view of what may be an array or a tensor, without asking torch, which need not be there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

    ArrayLike = np.ndarray | Tensor


def as_array(values: ArrayLike) -> np.ndarray:
    """The values of an array or a tensor, which is copied from a GPU and not otherwise."""
    return np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)


def is_tensor(values: object) -> TypeGuard[Tensor]:
    """Whether it is one of torch's, which somebody has imported then."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)
