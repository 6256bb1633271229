"""The seeded weights that the golden files were made with, rebuilt from their recipe.

Every array comes from a legacy numpy generator whose seed is a checksum of the tensor's name, so it is the same on
every machine; running statistics and the scale and bias of the output layers come from `weights_calib.npz` and, for
backbones, `backbones_calib.npz` of `tests/golden`.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from support.golden_files import DATA

_SEED = 20190601
_OUTPUT_LAYERS = {"conv_obj", "conv_bbx", "roi_cls", "roi_bbx", "roi_msk", "conv_sem"}

_BACKBONE_OUTPUTS = ("classifier.fc", "cls")

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


# --- Backbones


@cache
def stored() -> dict:
    return json.loads((DATA / "backbones.json").read_text())


def backbone_state(name: str, network: nn.Module, arch: str | None = None) -> dict[str, Tensor]:
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
    network.load_state_dict(backbone_state(name, network, arch))
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
            assert layer in _BACKBONE_OUTPUTS, key
            values = parts["out_b"].astype(np.float32) * np.float32(parts["out_s"])
        else:
            fan_in = int(np.prod(shape[1:]))
            values = np.sqrt(3.0 / fan_in) * draws(f"{arch}.{key}", int(np.prod(shape)))
            if layer in _BACKBONE_OUTPUTS:
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
