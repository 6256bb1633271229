"""The weights that a segmentation network starts from."""

from __future__ import annotations

from torch import nn

from seamseg.checkpoints.class_table import ClassTable
from seamseg.checkpoints.pretrained import load_body_weights, load_pretrained, normalisation_problem
from seamseg.config import Config
from seamseg.maps.formats.metadata import Metadata
from seamseg.models.backbones.base import Backbone
from seamseg.models.network import Network
from seamseg.training.logging.logs import TextLog
from seamseg.training.options import TrainingOptions
from seamseg.utils.errors import InputError


def load_initial_weights(
    config: Config, net: Network, options: TrainingOptions, metadata: Metadata, log: TextLog
) -> None:
    """Load the weights of `[body]` and of `pretrain` into a network with random weights, and check that all are loaded.

    InputError if a file does not fit, or weights are missing that must not be random.
    """
    # others may leave the rest random
    complete = options.evaluate
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
            raise InputError(f"`evaluate=True` `pretrain={specification}`: does not fill the network: {problem}")
    parts = config.parts_of_kind.modules
    if complete and all(":" in s and s.split(":")[0] in parts for s in options.pretrain):
        filled = {s.split(":")[0] for s in options.pretrain}
        if missing := [part for part in parts if part not in filled]:
            raise InputError(f"`evaluate=True`: `pretrain` gives no weights for {', '.join(missing)}")
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
    elif weights := config.body.weights:
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
