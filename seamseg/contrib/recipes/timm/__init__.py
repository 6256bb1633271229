"""timm networks as backbones, `[body] body = timm:NAME`; no torch until one is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from seamseg.components import body, key

STRIDES = {"mod2": 4, "mod3": 8, "mod4": 16, "mod5": 32}
"""Stride of each level, by name."""


@dataclass(frozen=True)
class TimmKeys:
    """Options of the section [body timm]."""

    drop_path: float = key(
        "stochastic depth, arXiv 1603.09382: probability of skipping the last block in training, which earlier blocks "
        "approach linearly",
        0.0,
        minimum=0,
        maximum=0.9,
    )


@body("timm", keys=TimmKeys)
class TimmBody:
    """Makes a :class:`seamseg.contrib.recipes.timm.network.TimmBackbone`."""

    strides: ClassVar[dict[str, int]] = STRIDES

    def __new__(cls, keys: TimmKeys, context: Any) -> Any:
        """Build the network."""
        from seamseg.contrib.recipes.timm.network import TimmBackbone

        return TimmBackbone(keys, context)
