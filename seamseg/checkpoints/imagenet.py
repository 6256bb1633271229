"""Weights of backbones trained on ImageNet: published ones with in-place ABN, and those of torchvision's ResNets.

Published files are checkpoints of the original: `state_dict` with the prefix `module.`, without counters of batches.
Those of torchvision are renamed to the keys of our bodies (docs/contract.md, section 1).
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seamseg.checkpoints.snapshot import load_tensors, write_tensors
from seamseg.models.backbones.resnet import RESNETS, ResNet
from seamseg.ops.norm import ABN
from seamseg.utils.errors import InputError, SeamsegError, one_line
from seamseg.utils.files import hash_content, refuse_existing

ARCHITECTURES = tuple(RESNETS)
"""Architectures that :func:`convert_backbone` supports."""

_CONVOLUTION = re.compile(r"(|.*\.)layer[1-4]\.\d+\.conv1\.weight")
_LAYER = re.compile(r"layer([1-4])\.(\d+)\.(conv\d|bn\d|downsample\.[01])\.(.+)")
_PARTS = {"downsample.0": "proj_conv", "downsample.1": "proj_bn"}

_RELEASE_0_0_1 = ("b959d936", "28d42cd3", "adf52110", "0f9746be", "74e9405a", "c6907524")
"""Begin of the MD5 of the files of the release 0.0.1."""


def refuse_old_release(path: str | Path) -> None:
    """Raise InputError for a published file of the release 0.0.1, whose networks were others."""
    digest = hashlib.md5(usedforsecurity=False)
    hash_content(Path(path), digest)
    if digest.hexdigest().startswith(_RELEASE_0_0_1):
        raise InputError(
            f"{path}: weights of inplace_abn 0.0.1, which are only compatible with release 0.0.1: "
            "download those of a later release"
        )


def without_prefix(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict without the prefix `module.` of the keys, which DistributedDataParallel adds."""
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def convert_backbone(
    net: str, out: str | Path, weights: str | Path | None = None, force: bool = False
) -> tuple[int, list[str]]:
    """Convert the weights of a torchvision ResNet to the state dict of a body, for `[body] weights`.

    `weights` is a state dict with torchvision's names, possibly partial; None downloads torchvision's IMAGENET1K_V1.
    Returns the number of tensors and the keys of the body that they lack.
    """
    refuse_existing(Path(out), force)
    if weights is None:
        source, name = download(net), f"torchvision's {net}"
    else:
        source, name = unwrapped(load_tensors(weights, str(weights)), str(weights)), str(weights)
    state, missing = rename(net, source, name)
    write_tensors(Path(out), state)
    return len(state), missing


def rename(net: str, source: Mapping[str, Tensor], name: str = "weights") -> tuple[dict[str, Tensor], list[str]]:
    """Rename the tensors of a torchvision state dict, and list the keys of the body that it lacks.

    The classifier and the counters of batches are skipped. InputError if the tensors belong to another network.
    """
    with torch.device("meta"):
        expected = ResNet(RESNETS[net], ABN).state_dict()
    state = body_tensors(source, expected, f"a {net}", name)
    if not state:
        converted = any(str(key).removeprefix("backbone.").startswith(("mod1.", "mod2.")) for key in source)
        hint = "; it is converted already: use it with `seamseg train --pre-train body:FILE`" if converted else ""
        raise InputError(f"{name}: holds no tensor with the names of a torchvision ResNet{hint}")
    missing = [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]
    return state, missing


def body_tensors(
    source: Mapping[str, Tensor], expected: Mapping[str, Tensor], network: str, name: str
) -> dict[str, Tensor]:
    """Return the tensors of a torchvision state dict by their keys in a body, whose state dict is `expected`.

    The keys may have a prefix. A norm with a negative weight gets its absolute value, the scale of in-place ABN, and
    the convolution before it the other sign: the function is the same, and other tensors are unchanged. InputError if
    a tensor does not belong to the `network`, or there are several.
    """
    prefixes = resnet_prefixes(source)
    if len(prefixes) > 1:
        raise InputError(f"{name}: holds several networks: {', '.join(map(repr, prefixes))}; keep the tensors of one")
    prefix = next(iter(prefixes), "")
    state: dict[str, Tensor] = {}
    for key, value in source.items():
        renamed = body_key(str(key).removeprefix(prefix)) if str(key).startswith(prefix) else None
        if renamed is None or renamed.endswith("num_batches_tracked"):
            continue
        if not isinstance(value, Tensor) or renamed not in expected or expected[renamed].shape != value.shape:
            raise InputError(f"{name}: {key} does not belong to {network}: is it another network?")
        state[renamed] = value
    moved = dict(state)
    for name in [key.removesuffix(".weight") for key in state if re.search(r"bn\d?\.weight$", key)]:
        sign = torch.where(state[f"{name}.weight"] < 0, -1, 1)
        kernel = f"{'conv'.join(name.rsplit('bn', 1))}.weight"
        for key in (f"{name}.weight", f"{name}.running_mean", kernel):
            if key in state:
                moved[key] = state[key] * sign.view(-1, *[1] * (state[key].dim() - 1))
    return moved


def resnet_prefixes(keys: Iterable[object]) -> list[str]:
    """Return what precedes the keys of each ResNet of torchvision, such as `module.backbone.`; empty for none."""
    return sorted({found[1] for key in keys if (found := _CONVOLUTION.match(str(key)))})


def body_key(key: str) -> str | None:
    """Return the key in the body for a torchvision key, or None for tensors outside of the body (the classifier)."""
    if key.startswith(("conv1.", "bn1.")):
        return f"mod1.{key}"
    match = _LAYER.fullmatch(key)
    if match is None:
        return None
    layer, block, part, rest = match.groups()
    return f"mod{int(layer) + 1}.block{int(block) + 1}.{_PARTS.get(part, f'convs.{part}')}.{rest}"


def unwrapped(content: Any, name: str) -> Mapping[str, Tensor]:
    """Return the state dict in the content of a file, also if a training script wrapped it in a dict."""
    for wrapper in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping):
        raise InputError(f"{name}: not a state dict")
    return content


def download(net: str, advice: str = "give a file with `weights=FILE`") -> Mapping[str, Tensor]:
    """Return the first ImageNet weights of torchvision for a ResNet, from its cache or downloaded to it."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        raise SeamsegError(f"torchvision cannot be imported ({error}); {advice}") from None
    try:
        # the first weights, which the original used; later ones are from another training recipe
        with redirect_stdout(sys.stderr):  # torchvision prints the address
            state: Mapping[str, Tensor] = models.get_model_weights(net).IMAGENET1K_V1.get_state_dict(progress=True)
        return state
    except (OSError, RuntimeError) as error:
        reason = one_line(error)[:200]
        raise SeamsegError(f"torchvision cannot download {net} ({reason}); {advice}") from None
