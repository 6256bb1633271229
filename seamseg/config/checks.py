"""What the values of a configuration must satisfy together."""

from __future__ import annotations

from seamseg.config.sections import Config
from seamseg.errors import InputError

LOSSES = {"panoptic": 6, "instance_seg": 5, "detection": 4}
"""Number of losses of each task: the semantic one and then the mask one are missing."""


def check(config: Config, source: str) -> None:
    """Raise InputError, with `source` in front, if keys of a configuration contradict each other."""
    for problem in (_loss_weights(config), _inputs(config), _levels(config), _heads(config), _thresholds(config)):
        if problem is not None:
            raise InputError(f"{source}: {problem}")


def _loss_weights(config: Config) -> str | None:
    given, losses = len(config.optimizer.loss_weights), LOSSES[config.kind]
    if given == losses:
        return None
    return f"[optimizer] loss_weights has {given} values, {config.kind} has {losses} losses"


def _inputs(config: Config) -> str | None:
    for name in ("out_channels", "out_strides"):
        for module in config.fpn.inputs:
            if module not in getattr(config.body, name):
                return f"[fpn] inputs names {module!r}, which [body] {name} lacks"
    return None


def _levels(config: Config) -> str | None:
    given, levels = len(config.fpn.out_strides), len(config.fpn.inputs) + config.fpn.extra_scales
    if given == levels:
        return None
    return f"[fpn] out_strides has {given} values, inputs and extra_scales make {levels} levels"


def _heads(config: Config) -> str | None:
    levels = len(config.fpn.out_strides)
    # only panoptic networks have a semantic head
    for name in ("rpn", "roi", "sem") if config.kind == "panoptic" else ("rpn", "roi"):
        section = getattr(config, name)
        last = section.fpn_min_level + section.fpn_levels
        if last > levels:
            return f"[{name}] fpn_min_level + fpn_levels = {last}, the pyramid has {levels} levels"
    return None


def _thresholds(config: Config) -> str | None:
    rpn, roi = config.rpn, config.roi
    if rpn.neg_threshold > rpn.pos_threshold:
        return f"[rpn] neg_threshold {rpn.neg_threshold} is above pos_threshold {rpn.pos_threshold}"
    if roi.neg_threshold_lo > roi.neg_threshold_hi:
        return f"[roi] neg_threshold_lo {roi.neg_threshold_lo} is above neg_threshold_hi {roi.neg_threshold_hi}"
    return None
