"""What the values of a configuration must satisfy together."""

from __future__ import annotations

from seamseg.config.sections import Config
from seamseg.errors import InputError

LOSSES = {"panoptic": 6, "instance_seg": 5, "detection": 4}
"""Number of losses of each task: the semantic one and then the mask one are missing."""

MAX_PARAMETERS = 1 << 30
"""Most parameters of the heads and the pyramid; those of the defaults have 26 million."""


def check(config: Config, source: str) -> None:
    """Raise InputError, with `source` in front, if keys contradict each other or together ask for an absurd network."""
    checks = (_body_params, _loss_weights, _inputs, _levels, _heads, _thresholds, _parameters)
    for problem in (check(config) for check in checks):
        if problem is not None:
            raise InputError(f"{source}: {problem}")


def head_parameters(config: Config) -> dict[str, int]:
    """About how many parameters the pyramid and each head have, by section; classes and norms are left out."""
    width, roi = config.fpn.out_channels, config.roi
    levels = len(config.fpn.out_strides)
    body = sum(config.body.out_channels.get(name, 0) for name in config.fpn.inputs)
    rpn = config.rpn.hidden_channels
    return {
        "fpn": width * body + 9 * width * width * levels,
        "rpn": 9 * width * rpn + 5 * rpn * len(config.rpn.anchor_ratios),
        "roi": width * (roi.roi_size[0] // 2) * (roi.roi_size[1] // 2) * roi.fc_channels
        + roi.fc_channels**2
        + 9 * (width + 4 * roi.conv_channels) * roi.conv_channels,
        "sem": 9 * (width + config.sem.hidden_channels) * config.sem.hidden_channels * config.sem.fpn_levels,
    }


def _body_params(config: Config) -> str | None:
    params = config.body.body_params
    for name, limit in (("classes", 16_384), ("dilation", 64)):
        value = params.get(name, 1)
        for number in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(number, (int, float)) and abs(number) > limit:
                return f"[body] body_params: {name} {number} is above the limit of {limit}"
    return None


def _parameters(config: Config) -> str | None:
    counts = head_parameters(config)
    most = max(counts, key=counts.__getitem__)
    if (total := sum(counts.values())) <= MAX_PARAMETERS:
        return None
    return (
        f"the channels and sizes ask for {total} parameters, {counts[most]} of them by [{most}]; the limit is "
        f"{MAX_PARAMETERS}"
    )


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
