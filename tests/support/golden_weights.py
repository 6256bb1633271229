"""The seeded weights that the golden files were made with, rebuilt from their recipe.

Every array comes from a legacy numpy generator whose seed is a checksum of the tensor's name, so it is the same on
every machine; running statistics and the scale and bias of the output layers come from
`tests/golden/weights_calib.npz`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from torch import Tensor

from support.golden_files import DATA

_SEED = 20190601
_OUTPUT_LAYERS = {"conv_obj", "conv_bbx", "roi_cls", "roi_bbx", "roi_msk", "conv_sem"}

Calibration = Callable[[str], "np.ndarray | None"]


@cache
def golden_state(name: str = "cityscapes") -> dict[str, dict[str, Tensor]]:
    """State dicts of the four parts (`body`, `rpn_head`, `roi_head`, `sem_head`) of the golden ResNet-50 network.

    They are kept: do not write to them.
    """
    keys = json.loads((DATA / f"keys_{name}_r50.json").read_text())["state_dict"]
    with np.load(DATA / "weights_calib.npz") as stored:
        arrays = {key: stored[key] for key in stored.files}

    def calibration(key: str) -> np.ndarray | None:
        return arrays.get(f"{name}/{key}", arrays.get(f"shared/{key}"))

    state = {}
    for part, entries in keys.items():
        norms = {key.removesuffix(".running_mean") for key, _, _ in entries if key.endswith(".running_mean")}
        state[part] = {
            key: torch.from_numpy(np.array(_tensor(part, key, tuple(shape), norms, calibration)))
            for key, shape, _ in entries
        }
    return state


def draws(key: str, count: int) -> np.ndarray:
    """`count` numbers in [-1, 1) that belong to one tensor."""
    seed = zlib.crc32(f"{_SEED}:{key}".encode("ascii"))
    return 2.0 * np.random.RandomState(seed).random_sample(count) - 1.0


def norm_weight(key: str, channels: int) -> np.ndarray:
    """Scales of a norm, 8 % of which are negative."""
    drawn = draws(key, 2 * channels)
    weight = 1.0 + 0.4 * drawn[:channels]
    return np.where(drawn[channels:] < -0.84, -weight, weight)


def _tensor(part: str, key: str, shape: tuple[int, ...], norms: set[str], calibration: Calibration) -> np.ndarray:
    layer, kind = key.rsplit(".", 1)
    is_output = layer in _OUTPUT_LAYERS
    if kind == "num_batches_tracked":
        return np.zeros((), np.int64)
    if kind.startswith("running_"):
        values = calibration(f"{part}.{key}")
    elif layer in norms:
        values = _norm_parameter(part, key, layer, kind, shape[0])
    elif kind == "bias" and is_output:
        values = calibration(f"{part}.{key}")
    elif kind == "bias":
        values = 0.25 * draws(f"{part}.{key}", shape[0])
    else:
        values = _kernel(part, key, layer, shape, calibration if is_output else lambda _: None)
    assert values is not None, f"no calibration for {part}.{key}"
    return np.asarray(values).astype(np.float32).reshape(shape)


def _norm_parameter(part: str, key: str, layer: str, kind: str, channels: int) -> np.ndarray:
    if kind == "bias":
        return 0.25 * draws(f"{part}.{key}", channels)
    weight = norm_weight(f"{part}.{key}", channels)
    return 0.35 * weight if layer.endswith("convs.bn3") else weight


def _kernel(part: str, key: str, layer: str, shape: tuple[int, ...], calibration: Calibration) -> np.ndarray:
    fan_in = shape[0] if layer.endswith("conv_up") else int(np.prod(shape[1:]))
    values = np.sqrt(3.0 / fan_in) * draws(f"{part}.{key}", int(np.prod(shape))).reshape(shape)
    scale = calibration(f"{part}.{layer}.scale")
    if scale is not None:
        values = values * scale.astype(np.float64).reshape(-1, *[1] * (len(shape) - 1))
    in_scale = calibration(f"{part}.{layer}.in_scale")
    if in_scale is not None:
        values = values * in_scale.astype(np.float64).reshape(1, -1, *[1] * (len(shape) - 2))
    return values
