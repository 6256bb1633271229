"""The kinds of networks: the modules and losses that distinguish them.

A new kind is an entry here, packaged defaults in `defaults/`, its network and loss (:mod:`seamseg.models.build`), and
its scores (:mod:`seamseg.validation.validator`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    Attributes
    ----------
    modules : parts of the network, each with its own state dict in a snapshot
    losses : in the order of `[optimizer] loss_weights`
    """

    modules: tuple[str, ...]
    losses: tuple[str, ...]

    @property
    def heads(self) -> tuple[str, ...]:
        """Sections of the configuration that describe the heads."""
        return tuple(module.removesuffix("_head") for module in self.modules if module.endswith("_head"))

    @property
    def has_masks(self) -> bool:
        """Whether detections have masks."""
        return "roi_msk_loss" in self.losses


_DETECTION = ("obj_loss", "bbx_loss", "roi_cls_loss", "roi_bbx_loss")

KINDS = {
    "panoptic": Kind(("body", "rpn_head", "roi_head", "sem_head"), (*_DETECTION, "roi_msk_loss", "sem_loss")),
    "instance_seg": Kind(("body", "rpn_head", "roi_head"), (*_DETECTION, "roi_msk_loss")),
    "detection": Kind(("body", "rpn_head", "roi_head"), _DETECTION),
    "semantic": Kind(("body", "head", "cls"), ("sem_loss",)),
}
"""The kinds by the name in `[general] kind`; the first is the default."""

PANOPTIC = "panoptic"
