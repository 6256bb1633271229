"""The kinds of networks: the modules and losses that distinguish them.

docs/design/structure.md lists what a new kind needs besides an entry here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    `task` is what it does, as the Hugging Face Hub names it. Each of its `modules` has its own state dict in a
    snapshot. Its `losses` have the order of `[optimizer] loss_weights`. The keys in `ignored`, `section.key` or a whole
    `section`, have no effect.
    """

    task: str
    modules: tuple[str, ...]
    losses: tuple[str, ...]
    ignored: frozenset[str]

    def uses(self, section: str, key: str) -> bool:
        """Whether a key of the configuration has an effect."""
        return self.ignored.isdisjoint((section, f"{section}.{key}"))

    @property
    def heads(self) -> tuple[str, ...]:
        """Sections of the configuration that describe the heads."""
        return tuple(module.removesuffix("_head") for module in self.modules if module.endswith("_head"))

    @property
    def has_masks(self) -> bool:
        """Whether detections have masks."""
        return "roi_msk_loss" in self.losses

    @property
    def has_classes(self) -> bool:
        """Whether pixels have classes."""
        return "sem_loss" in self.losses


_DETECTION = ("obj_loss", "bbx_loss", "roi_cls_loss", "roi_bbx_loss")

# the original accepts and ignores it, too
_ALWAYS = frozenset({"body.out_strides"})
_FUSION = frozenset(f"general.{key}" for key in ("overlap_threshold", "min_stuff_area", "eval_mode", "eval_coco"))
_MASKS = frozenset(f"roi.{key}" for key in ("void_is_background", "mask_positives_only"))
_PYRAMID = frozenset({"fpn", "rpn", "roi", "body.out_channels", "sem.fpn_min_level", "sem.fpn_levels"})

KINDS = {
    "panoptic": Kind(
        "panoptic-segmentation",
        ("body", "rpn_head", "roi_head", "sem_head"),
        (*_DETECTION, "roi_msk_loss", "sem_loss"),
        _ALWAYS | {"sem.out_channels", "sem.dilations"},
    ),
    "instance_seg": Kind(
        "instance-segmentation",
        ("body", "rpn_head", "roi_head"),
        (*_DETECTION, "roi_msk_loss"),
        _ALWAYS | _FUSION | {"sem"},
    ),
    "detection": Kind(
        "object-detection", ("body", "rpn_head", "roi_head"), _DETECTION, _ALWAYS | _FUSION | _MASKS | {"sem"}
    ),
    "semantic": Kind(
        "semantic-segmentation",
        ("body", "head", "cls"),
        ("sem_loss",),
        _ALWAYS | _FUSION | _PYRAMID | {"general.score_threshold"},
    ),
}
"""The kinds by the name in `[general] kind`; the first is the default."""

PANOPTIC = "panoptic"

SEAMLESS = "seamless"
"""The network that the sections body, fpn, rpn, roi and sem describe."""

WHOLE = "network"
"""The only module of other networks."""

_OF_SEAMLESS = frozenset(
    {"fpn", "rpn", "roi", "sem", "optimizer.loss_weights", "optimizer.layer_decay"}
    # [body] also chooses its norms
    | {f"body.{key}" for key in ("body", "weights", "body_params", "num_frozen", "bn_frozen", "out_channels")}
    | {f"general.{key}" for key in ("channels_last", "compile", "checkpoint_body")}
)


def kind_of_network(kind: str, network: str) -> Kind:
    """Return the modules, losses and ignored keys of a kind for the network of `[general] network`."""
    if network == SEAMLESS:
        return KINDS[kind]
    return Kind(KINDS[kind].task, (WHOLE,), (), KINDS[kind].ignored | _OF_SEAMLESS)
