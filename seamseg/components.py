"""Decorators that register components, the declaration of their keys, and the base classes.

A component is one class or function in a module or file of the user, see docs/how-to/extend.md::

    from seamseg.components import key, optimizer

    @dataclass(frozen=True)
    class LionKeys:
        beta1: float = key("weight of the momentum in an update", 0.9, minimum=0, maximum=1)

    @optimizer("lion", keys=LionKeys)
    def lion(groups, keys): ...

Each decorator takes the name of the component in a configuration, and `keys`, the frozen dataclass of its keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from seamseg.config.components import Made, NoKeys, register
from seamseg.config.sections import key

if TYPE_CHECKING:
    from seamseg.data.reader import Reader as Reader
    from seamseg.maps.evaluation.metric import Metric as Metric
    from seamseg.maps.folder import ReadMap as ReadMap
    from seamseg.maps.formats.metadata import ImageInfo as ImageInfo
    from seamseg.maps.formats.metadata import Metadata as Metadata
    from seamseg.maps.formats.metadata import parse_metadata as parse_metadata
    from seamseg.maps.images import open_image as open_image
    from seamseg.maps.images import open_map as open_map
    from seamseg.maps.images import open_mask as open_mask
    from seamseg.maps.visualize.maps import resize_map as resize_map
    from seamseg.models.backbones.base import Body as Body
    from seamseg.models.backbones.base import BodyContext as BodyContext
    from seamseg.models.custom import CustomNetwork as Network
    from seamseg.models.custom import Head as Head
    from seamseg.models.custom import HeadContext as HeadContext
    from seamseg.models.custom import Map as Map
    from seamseg.models.custom import NetworkContext as NetworkContext
    from seamseg.models.custom import SemanticImage as SemanticImage
    from seamseg.predicting.writers.images import ImageFormat as ImageFormat
    from seamseg.predicting.writers.images import OutputFormat as OutputFormat
    from seamseg.training.callbacks import Callback as Callback
    from seamseg.training.callbacks import Run as Run

_MODULES = {
    "ImageFormat": "seamseg.predicting.writers.images",
    "OutputFormat": "seamseg.predicting.writers.images",
    "Network": "seamseg.models.custom:CustomNetwork",
    **dict.fromkeys(("Body", "BodyContext"), "seamseg.models.backbones.base"),
    **dict.fromkeys(("Callback", "Run"), "seamseg.training.callbacks"),
    **dict.fromkeys(("open_image", "open_map", "open_mask"), "seamseg.maps.images"),
    "Reader": "seamseg.data.reader",
    "ReadMap": "seamseg.maps.folder",
    **dict.fromkeys(("ImageInfo", "Metadata", "parse_metadata"), "seamseg.maps.formats.metadata"),
    "Metric": "seamseg.maps.evaluation.metric",
    **dict.fromkeys(("Head", "HeadContext", "Map", "NetworkContext", "SemanticImage"), "seamseg.models.custom"),
    "resize_map": "seamseg.maps.visualize.maps",
}

__all__ = ["Network", "augmentation", "body", "callback", "head", "key", "loss", "metric", "network", "optimizer"]
__all__ += ["output_format", "reader", "scheduler", *_MODULES]


def augmentation(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a function that changes the colours of a training image: `[augmentation NAME]`.

    It is called as `function(pixels, rng, keys)` with pixels uint8 `H x W x 3`, scaled and cropped, and
    :class:`random.Random`, the only source of random numbers, and returns pixels of the same size.
    """
    return register("augmentation", name, keys)


def body(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a class derived from :class:`Body`, the backbone: `[body] body = NAME`.

    It is made as `Class(keys, context)`, with a :class:`BodyContext`.
    """
    return register("body", name, keys)


def callback(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a class derived from :class:`Callback`, which follows a training: `[callback NAME]`.

    It is made as `Class(keys)`.
    """
    return register("callback", name, keys)


def head(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a class derived from :class:`Head`, with losses and output maps: `[head NAME]`.

    It is made as `Class(keys, context)`, with a :class:`HeadContext`.
    """
    return register("head", name, keys)


def loss(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a function that returns the loss of the semantic head: `[sem] loss = NAME`.

    It is called as `function(image, keys)` with a :class:`SemanticImage` and returns a scalar tensor.
    """
    return register("loss", name, keys)


def metric(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a class derived from :class:`Metric`, of a validation: `[metric NAME]`.

    It is made as `Class(keys)`.
    """
    return register("metric", name, keys)


def network(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a class derived from :class:`Network`, a network as a whole: `[general] network = NAME`.

    It is made as `Class(keys, context)`, with a :class:`NetworkContext`.
    """
    return register("network", name, keys)


def optimizer(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a function or class that gives a :class:`torch.optim.Optimizer`: `[optimizer] type = NAME`.

    It is called as `function(groups, keys)` with the groups of parameters, dicts with `params`, `lr` and
    `weight_decay`. The state of the optimizer is saved and restored by `state_dict` and `load_state_dict`.
    """
    return register("optimizer", name, keys)


def output_format(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a class derived from :class:`OutputFormat`, such as an :class:`ImageFormat`: format NAME of predict.

    The kind of the component, its section and `seamseg new` name it `format`: `[format NAME]`. It is made as
    `Class(out, metadata, keys)` with the folder of the outputs and the :class:`Metadata` of the model.
    """
    return register("format", name, keys)


def reader(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a class derived from :class:`Reader`, which reads a data set: `[dataloader] reader = NAME`.

    It is made as `Class(root, split, keys)`, once for each split.
    """
    return register("reader", name, keys)


def scheduler(name: str, keys: type = NoKeys) -> Callable[[Made], Made]:
    """Register a function that returns the factor of the base learning rates: `[scheduler] type = NAME`.

    It is called as `function(t, total, keys)`. With `[scheduler] update_mode = batch`, `t` is the number of the step,
    1 for the first, and `total` the number of steps of the training; with `epoch`, `t` is the number of finished
    epochs, 0 in the first, and `total` the number of epochs. It is also called once with `t = 0` before a training,
    and not called during the burn-in of `[scheduler] burn_in_steps`.
    """
    return register("scheduler", name, keys)


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is used."""
    if name in _MODULES:
        from importlib import import_module

        module, _, attribute = _MODULES[name].partition(":")
        return getattr(import_module(module), attribute or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List what is imported when it is used, too."""
    return sorted({*globals(), *__all__})
