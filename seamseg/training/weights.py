"""The weights that a segmentation network starts from."""

from __future__ import annotations

import numpy as np
from torch import nn

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained, normalisation_problem
from seamseg.config import Config
from seamseg.data.transforms import Normalise
from seamseg.inference.network import TorchNetwork
from seamseg.maps.formats.metadata import Metadata
from seamseg.models.backbones.base import Backbone
from seamseg.models.build import build_network, without_quantisation
from seamseg.models.folding import fold_layers
from seamseg.models.network import Network
from seamseg.models.quantised import choosing_ranges
from seamseg.training.logging.logs import TextLog
from seamseg.training.options import TrainingOptions
from seamseg.utils.distributed import World, broadcast_tensors
from seamseg.utils.errors import InputError
from seamseg.validation.validator import Validator

CALIBRATION_IMAGES = 64
"""Maximum number of training images by which the ranges of int8 are chosen."""


def load_initial_weights(
    config: Config, net: Network, options: TrainingOptions, metadata: Metadata, world: World, log: TextLog
) -> None:
    """Load the weights of `[body]` and of `pretrain` into a network with random weights, and check that all are loaded.

    With `[general] qat` a float network is loaded, from which the network for int8 is filled. InputError if a file does
    not fit, or weights are missing that must not be random.
    """
    quantised = config.general.qat
    if quantised and not options.pretrain:
        raise InputError("[general] qat starts from a trained network: name its snapshot with `pretrain=F`")
    if not quantised or options.evaluate:
        _load(config, net, options, metadata, log)
        return
    start = build_network(without_quantisation(config), metadata.num_stuff, metadata.num_thing)
    _load(config, start, options, metadata, log)
    net.to(world.device)
    net.load_state_dict(fold_layers(start).state_dict(), strict=False)
    _choose_ranges(config, net, options, world, log)


def _choose_ranges(config: Config, net: Network, options: TrainingOptions, world: World, log: TextLog) -> None:
    """Choose the ranges of int8 by training images."""
    loading = config.dataloader
    images = Validator.open(options.data, loading.train_set, config, world).dataset
    count = min(CALIBRATION_IMAGES, len(images))
    log.info(f"[general] qat: choosing the ranges of int8 by {count} training images")
    network = TorchNetwork(net, Normalise(loading.rgb_mean, loading.rgb_std), world.device)
    # each process does the same, so that none waits for the others
    with choosing_ranges(net):
        for number in np.linspace(0, len(images) - 1, count).round().astype(int):
            network.run([images[int(number)]["img"].numpy()])
    net.train()
    broadcast_tensors(world, net.buffers())


def _load(config: Config, net: Network, options: TrainingOptions, metadata: Metadata, log: TextLog) -> None:
    # others may leave the rest random
    complete = options.evaluate or config.general.qat
    why = "`evaluate=True`" if options.evaluate else "[general] qat"
    # torch counts the writes to a tensor
    frozen = [] if complete else [(name, p, p._version) for name, p in _frozen(config, net).items()]
    _load_body(config, net, metadata, log)
    table = None if options.pretrain_classes is None else ClassTable(metadata, options.pretrain_classes)
    for specification in options.pretrain:
        report = load_pretrained(net, specification, table)
        log.info(f"pre-trained {specification}: {report}")
        if report.classes and report.classes != tuple(metadata.categories):
            log.warning(
                f"pre-trained {specification}: its classes are not those of the data set; "
                f"`pretrain_classes=TABLE` copies weights by the names of classes"
            )
        for line in report.fresh:
            log.info(f"pre-trained {specification}: {line}")
        if complete and (report.skipped or report.fresh):
            problem = str(report) if report.skipped else report.fresh[0]
            raise InputError(f"{why} `pretrain={specification}`: does not fill the network: {problem}")
    parts = config.parts_of_kind.modules
    if complete and all(":" in s and s.split(":")[0] in parts for s in options.pretrain):
        filled = {s.split(":")[0] for s in options.pretrain}
        if missing := [part for part in parts if part not in filled]:
            raise InputError(f"{why}: `pretrain` gives no weights for {', '.join(missing)}")
    if fresh := [name for name, parameter, version in frozen if parameter._version == version]:
        problem = (
            f"[body] num_frozen freezes weights that were not loaded ({len(fresh)} tensors, the first {fresh[0]}): "
            "set body.num_frozen=0, or load weights with `pretrain=body:F`"
        )
        if not options.legacy:
            raise InputError(problem)
        log.warning(problem)


def _load_body(config: Config, net: Network, metadata: Metadata, log: TextLog) -> None:
    """Load `[body] weights`, or what a custom network starts from; warn of another normalisation of the images."""
    if not config.parts_of_kind.uses("body", "weights"):
        if line := net.initialise(metadata.categories):
            log.info(line)
    elif (weights := config.body.weights) and not config.general.qat:
        log.info(f"body weights {weights}: {load_body_weights(net, weights)}")
        if (problem := normalisation_problem(net, config.dataloader)) is not None:
            log.warning(problem)


def _frozen(config: Config, net: Network) -> dict[str, nn.Parameter]:
    """Return the parameters that `[body] num_frozen` freezes; none of a body that loads them itself."""
    if not config.parts_of_kind.uses("body", "num_frozen") or config.body.num_frozen == 0:
        return {}
    backbone = net.backbone
    assert isinstance(backbone, Backbone)
    named = [] if backbone.pretrained else backbone.named_parameters()
    return {name: parameter for name, parameter in named if not parameter.requires_grad}
