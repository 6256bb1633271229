"""The network, its losses, how they are built from a configuration, and the fusion of its outputs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seamseg.models.build import build_network, build_training_module
    from seamseg.models.criterion import Criterion, TrainingModule
    from seamseg.models.panoptic import PanopticNet

__all__ = [
    "Criterion",
    "PanopticNet",
    "TrainingModule",
    "build_network",
    "build_training_module",
]

_MODULES = {"Criterion": "criterion", "TrainingModule": "criterion", "PanopticNet": "panoptic"}


def __getattr__(name: str) -> Any:
    # networks need torch, the fusion does not
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'build')}"), name)
