"""Whole networks: the network, its losses, and how a configuration becomes them."""

from seamseg.models.build import build_criterion, build_network, build_training_module
from seamseg.models.criterion import Criterion
from seamseg.models.panoptic import PanopticNet
from seamseg.models.training import TrainingModule

__all__ = [
    "Criterion",
    "PanopticNet",
    "TrainingModule",
    "build_criterion",
    "build_network",
    "build_training_module",
]
