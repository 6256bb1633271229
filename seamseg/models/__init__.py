"""The network, its losses, and how they are built from a configuration."""

from seamseg.models.build import build_criterion, build_network, build_training_module
from seamseg.models.criterion import Criterion, TrainingModule
from seamseg.models.panoptic import PanopticNet

__all__ = [
    "Criterion",
    "PanopticNet",
    "TrainingModule",
    "build_criterion",
    "build_network",
    "build_training_module",
]
