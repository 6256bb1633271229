"""The network of a configuration: how it is built, initialised, trained and loaded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from seamseg.contrib.classification.config import ClassifierConfig, NetworkConfig
from seamseg.contrib.classification.data import ImageBatch
from seamseg.contrib.classification.result import Classification
from seamseg.models.build import build_backbone, norm_factory
from seamseg.models.network import BatchOptions, Losses, Network
from seamseg.ops.norm import ABN
from seamseg.utils.errors import InputError

TOP = (1, 5)
"""An image counts as correct if its class is among the 1, or the 5, of highest score."""


class Classifier(Network):
    """A network of one part: a body that maps images to logits."""

    kind, result_type = "classification", Classification
    body: nn.Module

    def __init__(self, body: nn.Module, options: BatchOptions = BatchOptions(channels_last=False)) -> None:  # noqa: B008
        super().__init__({"body": body}, options)

    def forward(self, images: Tensor, targets: ImageBatch | None = None) -> Tensor:
        """Map normalised images `N x 3 x H x W` to logits `N x classes`."""
        logits: Tensor = self.body(images.contiguous(memory_format=self.memory_format))
        return logits

    def loss(self, outputs: Tensor, targets: ImageBatch) -> Losses:  # type: ignore[override]  # a batch of its own
        """Compute the cross entropy of a batch as `loss`, and the metrics `top1` and `top5` in percent."""
        logits = outputs.float()
        loss = functional.cross_entropy(logits, targets.labels)
        hits = correct(logits.detach(), targets.labels)
        metrics = {f"top{k}": 100 * hit.float().mean() for k, hit in zip(TOP, hits)}
        return Losses.of({"loss": (loss, len(targets.ids))})._replace(metrics=metrics)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Return whether the class of each of N images is among the k of highest score: bool `2 x N`, for k of `TOP`."""
    best = logits.topk(min(max(TOP), logits.shape[1])).indices
    found = best == labels[:, None]
    return torch.stack([found[:, :k].any(1) for k in TOP])


def build_classifier(config: ClassifierConfig) -> nn.Module:
    """Build the network of a configuration with random weights; InputError if there is none."""
    network = config.network
    # as in the original, a WiderResNet takes neither `dilation` nor `input_3x3`; the A2 form takes `dilation`
    params = dict(network.params)
    if not network.arch.startswith("wider"):
        params.setdefault("dilation", network.dilation)
        if network.input_3x3:
            params.setdefault("input_3x3", True)
    elif network.arch.endswith("_a2") and network.dilation != 1:
        params.setdefault("dilation", network.dilation)
    try:
        norm = norm_factory(network.bn_mode, network.activation, network.activation_param)
        net = build_backbone(network.arch, norm, classes=network.classes, keep_outputs=False, **params)
    except (TypeError, ValueError) as error:
        raise InputError(f"{config.source}: network: {error}") from None
    initialise(net, network)
    return net


@torch.no_grad()
def initialise(net: nn.Module, network: NetworkConfig) -> None:
    """Initialise as the original: convolutions by `weight_init`, the classifier by Xavier with gain 0.1."""
    function, rectified = getattr(nn.init, f"{network.weight_init}_"), network.activation in ("relu", "elu")
    fill: Callable[[Tensor], Any]
    if network.weight_init.startswith("kaiming"):
        fill = partial(function, a=0.0 if rectified else network.activation_param)
    else:
        kind: Any = "relu" if rectified else {"identity": "linear"}.get(network.activation, network.activation)
        gain = nn.init.calculate_gain(kind, network.activation_param)
        fill = partial(function, gain=gain * network.weight_gain_multiplier)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fill(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight, 0.1)
        elif isinstance(module, ABN):
            module.reset_parameters()
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.zeros_(module.bias)
