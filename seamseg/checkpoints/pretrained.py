"""Pre-trained weights: `pretrain` of a training, and `body.weights`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seamseg.checkpoints.bundle import open_weights, weights_file
from seamseg.checkpoints.class_table import PARTS, ClassTable
from seamseg.checkpoints.hub import SCHEME, quiet_hub
from seamseg.checkpoints.imagenet import (
    ARCHITECTURES,
    body_tensors,
    download,
    refuse_old_release,
    resnet_prefixes,
    unwrapped,
    without_prefix,
)
from seamseg.checkpoints.model_path import weights_at
from seamseg.checkpoints.snapshot import (
    NETWORK_MODULES,
    LoadReport,
    load_into,
    load_module,
    load_snapshot,
    load_tensors,
)
from seamseg.config.sections import Dataloader
from seamseg.models.backbones.base import Backbone
from seamseg.models.backbones.resnet import ResNet
from seamseg.utils.errors import InputError


def load_pretrained(net: nn.Module, specification: str, classes: ClassTable | None = None) -> LoadReport:
    """Load the weights that fit a network: of all parts of a snapshot `FILE`, or of one, `PART:FILE`.

    FILE is a snapshot, or a state dict of that part alone; it may be a safetensors file, a published zip, a folder with
    a model, `hf://user/repo`, or `torchvision` for the ImageNet weights that it downloads for the ResNet of the body.
    The moving average of the weights is loaded if there is one. `classes` maps the rows of the file's classes to those
    of the network; without it, layers are loaded as they are, if their shapes fit. InputError if nothing fits, or
    values are not finite.
    """
    part, colon, path = specification.partition(":")
    if not colon or part not in NETWORK_MODULES:
        if colon and not specification.startswith(SCHEME) and not Path(specification).exists() and len(part) > 1:
            parts = ", ".join(NETWORK_MODULES)
            raise InputError(
                f"`pretrain={specification}`: no such file, and {part!r} is not a part of the network: {parts}"
            )
        part, path = "", specification
    module = getattr(net, part, None) if part else net
    if module is None:
        raise InputError(f"`pretrain={specification}`: this network has no {part}")
    if classes is not None and (not part or part in PARTS):
        snapshot, trained = open_weights(path)
        state, fresh = classes.remap(snapshot.weights(), net, trained, path)
        if part:
            report = _load_part(module, {part: state[part]} if part in state else {}, path, part)
        else:
            # the average is among the weights already
            remapped = replace(snapshot, state_dict={name: value for name, value in state.items() if name != "ema"})
            report = load_into(net, remapped, strict=False, name=path)
        report = replace(report, averaged="ema" in snapshot.state_dict, fresh=tuple(fresh))
    elif not part:
        snapshot = load_snapshot(*weights_file(weights_at(path)))
        stated = (snapshot.metadata or {}).get("categories")
        report = load_into(net, snapshot, strict=False, name=path)
        report = replace(report, classes=tuple(map(str, stated)) if isinstance(stated, list) else ())
    else:
        report = _load_part(module, *_content(module, path), part)
    if report.loaded == 0:
        raise InputError(f"`pretrain={specification}`: nothing in it fits this network: {report}")
    return report


def load_body_weights(net: nn.Module, path: str) -> LoadReport:
    """Load the weights of a backbone, `[body] weights`: a file, or `timm` or `torchvision` for what these download."""
    body: Any = net.body
    backbone: Backbone = body if isinstance(body, Backbone) else body.backbone
    if path == "timm":
        with quiet_hub(f"[body] weights = timm: {backbone.name}"):
            state = backbone.download()
        report = load_module(backbone.pretrained_part, state, "body", path)
    else:
        report = _load_part(body, *_content(body, path), "body")
    missing = {line.partition(" ")[0].removeprefix("body.").removeprefix("backbone.") for line in report.skipped}
    # a pyramid alone may fit, since its layers are the same for many backbones
    if report.loaded == 0 or missing.issuperset(name for name, _ in backbone.named_parameters()):
        raise InputError(f"[body] weights = {path}: nothing in it fits this network's backbone: {report}")
    return report


def _part_state(content: Any, part: str, path: str) -> tuple[Mapping[str, Tensor], bool]:
    """Return the state dict of a part from a snapshot or a state dict, and whether it is a moving average."""
    state: Any = unwrapped(content, path) if isinstance(content, Mapping) else None
    average = state.get("ema") if isinstance(state, Mapping) else None
    averaged = isinstance(average, Mapping) and isinstance(average.get(part), Mapping)
    if averaged:
        state = average
    if isinstance(state, Mapping) and isinstance(state.get(part), Mapping):
        state = state[part]
    if not isinstance(state, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise InputError(f"{path}: neither a snapshot with a {part!r} nor the state dict of one")
    return state, averaged


def _content(module: nn.Module, path: str) -> tuple[Any, str]:
    """Return the content of a file and its name; of `torchvision` what it downloads for the ResNet of this part."""
    if path == "torchvision":
        name = getattr(getattr(module, "backbone", module), "name", "")
        if name not in ARCHITECTURES:
            raise InputError(f"torchvision: has weights for {', '.join(ARCHITECTURES)}, this part is not one of them")
        return download(name, "name a file of its weights instead, `pretrain=body:FILE`"), f"torchvision's {name}"
    file, name = weights_file(weights_at(path))
    return load_tensors(file, name), name


def _load_part(module: nn.Module, content: Any, path: str, part: str) -> LoadReport:
    state, averaged = _part_state(content, part, path)
    backbone = getattr(module, "backbone", None)
    network = module if backbone is None else backbone
    if isinstance(network, Backbone) and network.pretrained_part is not network:
        own = ("backbone.", "fpn.", *(f"{name}." for name, _ in network.named_children()))
        if not any(key.startswith(own) for key in state):
            # of the network alone, as its library stores it
            return load_module(network.pretrained_part, network.without_removed(without_prefix(state)), part, path)
    if isinstance(network, ResNet) and resnet_prefixes(state):
        # a ResNet of torchvision
        state = body_tensors(state, network.state_dict(), "this body", path)
    if isinstance(backbone, Backbone) and (any(key.startswith("module.") for key in state) or "bn_out.weight" in state):
        # a classifier, whose last layer is skipped
        refuse_old_release(path)
        known, weights = backbone.state_dict(), without_prefix(state)
        weights = {key: value for key, value in weights.items() if key in known or not key.startswith("classifier.")}
        report = load_module(backbone, weights, part, path)
        if report.skipped:
            raise InputError(f"{path}: does not fit {backbone.name}; is it another network, or input_3x3? {report}")
        return report
    if isinstance(backbone, nn.Module) and not any(key.startswith(("backbone.", "fpn.")) for key in state):
        # do not report the pyramid as missing for a bare backbone
        module = backbone
    return replace(load_module(module, state, part, path), averaged=averaged)


def normalisation_problem(net: nn.Module, loading: Dataloader) -> str | None:
    """Return a warning if the timm weights were trained with images normalised in another way; None if not."""
    body: Any = net.body
    backbone = body if isinstance(body, Backbone) else body.backbone
    trained = backbone.normalisation if isinstance(backbone, Backbone) else None
    if trained is None or trained == (loading.rgb_mean, loading.rgb_std):
        return None
    mean, std = trained
    return (
        f"the weights of {backbone.name} were trained with [dataloader] rgb_mean = {mean}, rgb_std = {std}, which "
        "differ from those of this training"
    )
