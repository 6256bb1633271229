"""The networks, their losses, and how they are built from a configuration; parts for networks of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seamseg.models.backbones import build_backbone, norm_factory
    from seamseg.models.backbones.fpn import FPN, FPNBody
    from seamseg.models.folding import fold_abn
    from seamseg.models.heads.roi import ROIHead
    from seamseg.models.heads.rpn import RPNHead
    from seamseg.models.heads.semantic import SemanticHead
    from seamseg.models.panoptic import PanopticNet
    from seamseg.models.panoptic_options import NetworkOptions

_MODULES = {
    **dict.fromkeys(("build_backbone", "norm_factory"), "backbones"),
    **dict.fromkeys(("FPN", "FPNBody"), "backbones.fpn"),
    "fold_abn": "folding",
    "ROIHead": "heads.roi",
    "RPNHead": "heads.rpn",
    "SemanticHead": "heads.semantic",
    "PanopticNet": "panoptic",
    "NetworkOptions": "panoptic_options",
}

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


def __getattr__(name: str) -> Any:
    """Import a part when it is used: its module may need one that imports this package."""
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"seamseg.models.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
