"""What a component is made of: decorators that register it, and the declaration of its keys.

A component is one class or function in a module or file of the user, see docs/how-to/extend.md::

    from seamseg.components import key, optimizer

    @dataclass(frozen=True)
    class LionKeys:
        beta1: float = key("weight of the momentum in an update", 0.9, minimum=0, maximum=1)

    @optimizer("lion", keys=LionKeys)
    def lion(groups, keys): ...
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from seamseg.config.components import API, register
from seamseg.config.sections import key

if TYPE_CHECKING:
    from seamseg.data.images import open_image, open_map, open_mask
    from seamseg.data.reader import Reader
    from seamseg.evaluation.metric import Metric
    from seamseg.formats.metadata import ImageInfo, Metadata, parse_metadata
    from seamseg.models.backbones.base import Body, BodyContext
    from seamseg.models.custom_network import CustomNetwork as Network
    from seamseg.models.custom_network import NetworkContext
    from seamseg.models.heads.box_loss import BoxSamples
    from seamseg.models.heads.custom import Head, HeadContext, Map
    from seamseg.models.heads.refinement import MaskRefinement, Regions, RegionTruth
    from seamseg.models.heads.roi import RegionHead
    from seamseg.models.heads.semantic import SemanticImage
    from seamseg.predict.writers.images import ImageWriter as ImageFormat
    from seamseg.structures import ReadMap
    from seamseg.training.callbacks import Callback, Run

augmentation = partial(register, "augmentation")
"""Registers a function of the pixels of a training image, uint8 `H x W x 3`, an RNG (:class:`random.Random`) and the
keys; it returns pixels of the same size."""

body = partial(register, "body")
"""Registers a class derived from :class:`Body`, the backbone."""

box_loss = partial(register, "box_loss")
"""Registers a function of :class:`BoxSamples` and the keys; it returns the loss of each sample, `M x 4` or `M`."""

callback = partial(register, "callback")
"""Registers a class derived from :class:`Callback`."""

head = partial(register, "head")
"""Registers a class derived from :class:`Head`."""

mask_refinement = partial(register, "mask_refinement")
"""Registers a class derived from :class:`MaskRefinement`."""

metric = partial(register, "metric")
"""Registers a class derived from :class:`Metric`."""

output_format = partial(register, "format")
"""Registers a class derived from :class:`ImageFormat`, or one with its methods."""

loss = partial(register, "loss")
"""Registers a function of a :class:`SemanticImage` and the keys; it returns the loss of the image, a scalar."""

network = partial(register, "network")
"""Registers a class derived from :class:`Network`, a network as a whole."""

optimizer = partial(register, "optimizer")
"""Registers a function of the parameter groups, dicts with `params`, `lr` and `weight_decay`, and the keys; it returns
a :class:`torch.optim.Optimizer`. Its state is saved and restored by `state_dict` and `load_state_dict`."""

roi_head = partial(register, "roi_head")
"""Registers a class derived from :class:`RegionHead`, which gives class, box and mask of regions."""

rpn_head = partial(register, "rpn_head")
"""Registers a :class:`torch.nn.Module` made from the keys and a :class:`HeadContext`: levels `N x C x h x w` to
objectness logits `N x A`, box codes `N x A x 4` and the `(height, width)` of the cells of each level."""

semantic_head = partial(register, "semantic_head")
"""Registers a :class:`torch.nn.Module` made from the keys and a :class:`HeadContext`: all levels to class logits."""

reader = partial(register, "reader")
"""Registers a class derived from :class:`Reader`."""

scheduler = partial(register, "scheduler")
"""Registers a function of `t` (steps or epochs done), their total number and the keys; it returns the factor of the
learning rates."""

__all__ = [
    "API",
    "Body",
    "BodyContext",
    "BoxSamples",
    "Callback",
    "Head",
    "HeadContext",
    "ImageFormat",
    "ImageInfo",
    "Map",
    "MaskRefinement",
    "Metadata",
    "Metric",
    "Network",
    "NetworkContext",
    "ReadMap",
    "Reader",
    "RegionHead",
    "RegionTruth",
    "Regions",
    "Run",
    "SemanticImage",
    "augmentation",
    "body",
    "box_loss",
    "callback",
    "head",
    "key",
    "loss",
    "mask_refinement",
    "metric",
    "network",
    "open_image",
    "open_map",
    "open_mask",
    "optimizer",
    "output_format",
    "parse_metadata",
    "reader",
    "roi_head",
    "rpn_head",
    "scheduler",
    "semantic_head",
]

_MODULES = {
    "ImageFormat": "seamseg.predict.writers.images:ImageWriter",
    "Network": "seamseg.models.custom_network:CustomNetwork",
    "NetworkContext": "seamseg.models.custom_network",
    **dict.fromkeys(("Body", "BodyContext"), "seamseg.models.backbones.base"),
    **dict.fromkeys(("Callback", "Run"), "seamseg.training.callbacks"),
    **dict.fromkeys(("open_image", "open_map", "open_mask"), "seamseg.data.images"),
    "Reader": "seamseg.data.reader",
    "ReadMap": "seamseg.structures",
    **dict.fromkeys(("ImageInfo", "Metadata", "parse_metadata"), "seamseg.formats.metadata"),
    "Metric": "seamseg.evaluation.metric",
    **dict.fromkeys(("Head", "HeadContext", "Map"), "seamseg.models.heads.custom"),
    **dict.fromkeys(("MaskRefinement", "RegionTruth", "Regions"), "seamseg.models.heads.refinement"),
    "RegionHead": "seamseg.models.heads.roi",
    "BoxSamples": "seamseg.models.heads.box_loss",
    "SemanticImage": "seamseg.models.heads.semantic",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is used."""
    if name in _MODULES:
        from importlib import import_module

        module, _, attribute = _MODULES[name].partition(":")
        return getattr(import_module(module), attribute or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
