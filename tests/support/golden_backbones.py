"""The seeded weights that the golden files of the backbones were made with, rebuilt from their recipe.

As in `golden_weights.py` every array comes from a legacy numpy generator, seeded with a checksum of the tensor's name.
Running statistics and the output layer are in `tests/golden/backbones_calib.npz`.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from support.golden_files import DATA
from support.golden_weights import draws, norm_weight

_OUTPUT_LAYERS = ("classifier.fc", "cls")


@cache
def stored() -> dict:
    return json.loads((DATA / "backbones.json").read_text())


def golden_state(name: str, network: nn.Module, arch: str | None = None) -> dict[str, Tensor]:
    """State dict of a network with the weights of the golden net `name`.

    `arch` names the seeds, default: `name`; a checksum of all tensors is compared with the stored one.
    """
    shapes = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    with np.load(DATA / "backbones_calib.npz") as calibration:
        stored_parts = {part: calibration[f"{name}/{part}"] for part in ("q", "s", "v", "out_b", "out_s", "out_g")}
    arrays = dict(_arrays(arch or name, shapes, stored_parts))
    parts = "".join(hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()[:12] for a in arrays.values())
    assert hashlib.sha256(parts.encode()).hexdigest()[:16] == stored()["checksums"][name], f"{name}: other weights"
    return {key: torch.from_numpy(array) for key, array in arrays.items()}


def load_golden(name: str, network: nn.Module, arch: str | None = None) -> nn.Module:
    network.load_state_dict(golden_state(name, network, arch))
    return network.eval()


def golden_vistas(network: nn.Module) -> dict[str, Tensor]:
    """State dict of the semantic network of `tests/golden/vistas.npz`; its values decide whether it is right."""
    shapes = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    with np.load(DATA / "vistas.npz") as calibration:
        parts = {part: calibration[f"calib/{part}"] for part in ("q", "s", "v", "out_b", "out_s", "out_g")}
    return {key: torch.from_numpy(array) for key, array in _arrays("vistas_wrn38", shapes, parts)}


def sample_positions(key: str, numel: int, count: int) -> np.ndarray:
    """Flat positions of the stored samples of an array; `key` is its name without `_val`."""
    return np.random.RandomState(zlib.crc32(key.encode()) % 2**31).randint(0, numel, count)


def _arrays(
    arch: str, shapes: Mapping[str, tuple[int, ...]], parts: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    norms: dict[str, tuple] = {}
    position = 0
    for key, shape in shapes.items():
        if key.endswith(".running_mean"):
            i = len(norms)
            norms[key.removesuffix(".running_mean")] = (
                parts["q"][position : position + shape[0]],
                parts["s"][i],
                parts["v"][i],
            )
            position += shape[0]
    for key, shape in shapes.items():
        layer, kind = key.rsplit(".", 1)
        if kind == "num_batches_tracked":
            yield key, np.zeros((), np.int64)
            continue
        if layer in norms:
            values = _norm_tensor(f"{arch}.{key}", kind, shape[0], norms[layer])
        elif kind == "bias":
            assert layer in _OUTPUT_LAYERS, key
            values = parts["out_b"].astype(np.float32) * np.float32(parts["out_s"])
        else:
            fan_in = int(np.prod(shape[1:]))
            values = np.sqrt(3.0 / fan_in) * draws(f"{arch}.{key}", int(np.prod(shape)))
            if layer in _OUTPUT_LAYERS:
                values = float(parts["out_g"]) * values
        if kind == "weight" and _ends_a_branch(layer, shapes):
            values = 0.35 * values
        yield key, values.astype(np.float32).reshape(shape)


def _norm_tensor(key: str, kind: str, channels: int, statistics: tuple) -> np.ndarray:
    quantised, step, variance = statistics
    if kind == "running_mean":
        return quantised.astype(np.float32) * np.float32(step)
    if kind == "running_var":
        return np.float64(np.float32(variance)) * (1.0 + 0.5 * draws(key, channels))
    if kind == "bias":
        return 0.25 * draws(key, channels)
    return norm_weight(key, channels)


def _ends_a_branch(layer: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a layer is the last of a residual branch: a norm, or a convolution where norms come first."""
    block, inside, name = layer.partition(".convs.")
    if not inside or "." in name:
        return False
    kind = "bn" if f"{block}.convs.bn1.weight" in shapes else "conv"
    last = 3 if f"{block}.convs.conv3.weight" in shapes else 2
    return name == f"{kind}{last}"
