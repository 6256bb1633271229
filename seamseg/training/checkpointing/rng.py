"""The random numbers of a process: seeded for an epoch, kept in a snapshot, taken up again."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int, epoch: int, rank: int, step: int | None = None) -> None:
    """Seed Python's, NumPy's and torch's chance for an epoch of a process, or for what is left of it from a step on.

    It depends on nothing that came before, so a resumed run continues exactly as the uninterrupted one.
    """
    words = ["seamseg", seed, epoch, rank, *([] if step is None else [step])]
    value = random.Random("/".join(map(str, words))).getrandbits(63)
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)


def random_state(device: torch.device) -> dict[str, Any]:
    """Where all generators of this process stand, as tensors and plain numbers."""
    version, internal, python_gauss = random.getstate()
    twister: Any = np.random.get_state(legacy=False)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": {"version": version, "state": torch.tensor(internal), "gauss": python_gauss},
        "numpy": {
            "keys": torch.from_numpy(twister["state"]["key"].astype(np.int64)),
            "position": int(twister["state"]["pos"]),
            "has_gauss": int(twister["has_gauss"]),
            "gauss": float(twister["gauss"]),
        },
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Go on where :func:`random_state` stood; that of a GPU is left alone if the state has none, or there is none."""
    python, numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["state"].tolist()), python["gauss"]))
    keys: Tensor = numpy["keys"]
    np.random.set_state(
        ("MT19937", keys.numpy().astype(np.uint32), numpy["position"], numpy["has_gauss"], numpy["gauss"])
    )
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
