"""Weights of backbones with in-place ABN trained on ImageNet: the network that a published file holds.

The files are checkpoints of the original: `state_dict` with the prefix `module.`, without counters of batches.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from seamseg.models.backbones import DENSENETS, RESNETS, RESNEXTS, WIDER_RESNETS
from seamseg.utils.errors import InputError
from seamseg.utils.files import hash_content

_RELEASE_0_0_1 = ("b959d936", "28d42cd3", "adf52110", "0f9746be", "74e9405a", "c6907524")
"""Begin of the MD5 of the files of the release 0.0.1."""

_PREFIX = "module."
_FAMILIES: tuple[tuple[re.Pattern[str], tuple[Mapping[str, Any], ...]], ...] = (
    (re.compile(r"mod(\d+)\.block(\d+)\.convs\.bn1\.weight"), (RESNETS,)),
    (re.compile(r"mod(\d+)\.block(\d+)\.bn1\.weight"), (RESNEXTS, WIDER_RESNETS)),
    (re.compile(r"mod(\d+)\.convs1\.(\d+)\.conv\.weight"), (DENSENETS,)),
)
"""Keys of which each layer or block has one, and the networks with such keys."""


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
    return {str(key).removeprefix(_PREFIX): value for key, value in state.items()}


def network_of(keys: Iterable[str]) -> str | None:
    """Return the name of the network that has these keys, without prefix; None for none of ours.

    A WiderResNet and its A2 form have the same keys; the first form is returned.
    """
    keys = set(keys)
    for pattern, tables in _FAMILIES:
        modules = Counter(int(match[1]) for match in map(pattern.fullmatch, keys) if match)
        if not modules:
            continue
        blocks = tuple(count for _, count in sorted(modules.items()))
        bottleneck = "mod2.block1.convs.conv3.weight" in keys
        for name, architecture in itertools.chain.from_iterable(table.items() for table in tables):
            own = getattr(architecture, "blocks", architecture)
            if tuple(own) == blocks and getattr(architecture, "bottleneck", bottleneck) == bottleneck:
                return name
    return None


def check_network(state: Mapping[str, Any], arch: str, own: Mapping[str, Tensor], name: str) -> None:
    """Raise InputError unless a state dict of a backbone fits the network `arch`, whose own is `own`, and its stem."""
    found = network_of(state)
    if found is not None and found != arch.removesuffix("_a2"):
        raise InputError(f"{name}: holds a {found}, the network is a {arch}")
    stored, expected = (weights.get("mod1.conv1.weight") for weights in (state, own))
    if expected is None or not isinstance(stored, Tensor) or stored.dim() != 4:
        return
    if stored.shape[-1] == expected.shape[-1]:
        return
    has, needs = ("three 3x3 convolutions", "true") if stored.shape[-1] == 3 else ("a 7x7 convolution", "false")
    raise InputError(f"{name}: its network begins with {has}: set input_3x3 to {needs}")
