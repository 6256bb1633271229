"""Entry points of `torch.hub`: `torch.hub.load("OWNER/seamseg", "panoptic", "hf://user/repo")`.

`OWNER/seamseg` is this repository on GitHub; a clone is `torch.hub.load(PATH, "panoptic", MODEL, source="local")`.
torch.hub runs the code of the repository and asks first, see its parameter `trust_repo`. The operators have no kernels
unless they were compiled in the clone: the same results, slower.
"""

from __future__ import annotations

import typing  # a class would be listed as an entry point

import seamseg

dependencies = ["torch", "torchvision", "numpy", "PIL", "pycocotools", "umsgpack", "tqdm", "zlib_ng", "filelock"]


def _load(kind: str, model: typing.Any, overrides: typing.Any = (), **options: typing.Any) -> typing.Any:
    return seamseg.load(model, overrides=[*overrides, f"general.kind={kind}"], **options)


def panoptic(model: typing.Any, **options: typing.Any) -> typing.Any:
    """Load a model for panoptic segmentation; arguments of `seamseg.load`."""
    return _load("panoptic", model, **options)


def instance_seg(model: typing.Any, **options: typing.Any) -> typing.Any:
    """Load a model for instance segmentation, also that of a panoptic network; arguments of `seamseg.load`."""
    return _load("instance_seg", model, **options)


def detection(model: typing.Any, **options: typing.Any) -> typing.Any:
    """Load a detector, also that of a panoptic or instance segmentation network; arguments of `seamseg.load`."""
    return _load("detection", model, **options)


def semantic(model: typing.Any, **options: typing.Any) -> typing.Any:
    """Load a model for semantic segmentation; arguments of `seamseg.load`."""
    return _load("semantic", model, **options)


def classifier(config: typing.Any, checkpoint: typing.Any = None, device: typing.Any = "auto") -> typing.Any:
    """Load an ImageNet classifier as a module; arguments of `seamseg.classifier`."""
    return seamseg.classifier(config, checkpoint, device)
