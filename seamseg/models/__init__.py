"""The networks, their losses, and how they are built from a configuration; parts for networks of your own."""

from seamseg.models.backbones.base import FPN, FPNBody
from seamseg.models.build import build_backbone, norm_factory
from seamseg.models.folding import fold_abn
from seamseg.models.heads.roi import ROIHead
from seamseg.models.heads.rpn import RPNHead
from seamseg.models.heads.semantic import SemanticHead
from seamseg.models.panoptic import PanopticNet
from seamseg.models.panoptic_inference import NetworkOptions

__all__ = [
    "FPN",
    "FPNBody",
    "NetworkOptions",
    "PanopticNet",
    "ROIHead",
    "RPNHead",
    "SemanticHead",
    "build_backbone",
    "fold_abn",
    "norm_factory",
]
