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
    from seamseg.models.heads.custom import Head, Map
    from seamseg.models.heads.semantic import SemanticImage
    from seamseg.predict.writers.base import OutputFormat
    from seamseg.predict.writers.images import ImageFormat
    from seamseg.structures import ReadMap
    from seamseg.training.callbacks import Callback, Run

augmentation = partial(register, "augmentation")
"""Registers a function of the pixels of a training image, uint8 `H x W x 3`, an RNG (:class:`random.Random`) and the
keys; it returns pixels of the same size."""

body = partial(register, "body")
"""Registers a class derived from :class:`Body`, the backbone."""

callback = partial(register, "callback")
"""Registers a class derived from :class:`Callback`."""

head = partial(register, "head")
"""Registers a class derived from :class:`Head`."""

metric = partial(register, "metric")
"""Registers a class derived from :class:`Metric`."""

output_format = partial(register, "format")
"""Registers a class derived from :class:`OutputFormat`, such as an :class:`ImageFormat`."""

loss = partial(register, "loss")
"""Registers a function of a :class:`SemanticImage` and the keys; it returns the loss of the image, a scalar."""

network = partial(register, "network")
"""Registers a class derived from :class:`Network`, a network as a whole."""

optimizer = partial(register, "optimizer")
"""Registers a function of the parameter groups, dicts with `params`, `lr` and `weight_decay`, and the keys; it returns
a :class:`torch.optim.Optimizer`. Its state is saved and restored by `state_dict` and `load_state_dict`."""

reader = partial(register, "reader")
"""Registers a class derived from :class:`Reader`."""

scheduler = partial(register, "scheduler")
"""Registers a function of `t` (steps or epochs done), their total number and the keys; it returns the factor of the
learning rates."""

__all__ = [
    "API",
    "Body",
    "BodyContext",
    "Callback",
    "Head",
    "ImageFormat",
    "ImageInfo",
    "Map",
    "Metadata",
    "Metric",
    "Network",
    "NetworkContext",
    "OutputFormat",
    "ReadMap",
    "Reader",
    "Run",
    "SemanticImage",
    "augmentation",
    "body",
    "callback",
    "head",
    "key",
    "loss",
    "metric",
    "network",
    "open_image",
    "open_map",
    "open_mask",
    "optimizer",
    "output_format",
    "parse_metadata",
    "reader",
    "scheduler",
]

_MODULES = {
    "ImageFormat": "seamseg.predict.writers.images",
    "OutputFormat": "seamseg.predict.writers.base",
    "Network": "seamseg.models.custom_network:CustomNetwork",
    "NetworkContext": "seamseg.models.custom_network",
    **dict.fromkeys(("Body", "BodyContext"), "seamseg.models.backbones.base"),
    **dict.fromkeys(("Callback", "Run"), "seamseg.training.callbacks"),
    **dict.fromkeys(("open_image", "open_map", "open_mask"), "seamseg.data.images"),
    "Reader": "seamseg.data.reader",
    "ReadMap": "seamseg.structures",
    **dict.fromkeys(("ImageInfo", "Metadata", "parse_metadata"), "seamseg.formats.metadata"),
    "Metric": "seamseg.evaluation.metric",
    **dict.fromkeys(("Head", "Map"), "seamseg.models.heads.custom"),
    "SemanticImage": "seamseg.models.heads.semantic",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is used."""
    if name in _MODULES:
        from importlib import import_module

        module, _, attribute = _MODULES[name].partition(":")
        return getattr(import_module(module), attribute or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
