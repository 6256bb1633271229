"""Checks of a whole configuration: keys that contradict each other, and arguments of bodies beyond the limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from seamseg.config.bodies import MAX_WIDTH, TIMM, layout_of
from seamseg.config.sections import CHANNELS, Config
from seamseg.utils.errors import InputError


def check(config: Config, source: str) -> None:
    """Raise InputError, prefixed by `source`, if keys contradict each other."""
    if (problem := _body_params(config) or _pyramid(config)) is not None:
        raise InputError(f"{source}: {problem}")


def check_training(config: Config, source: str | Path, overrides: Sequence[str] = ()) -> None:
    """Raise InputError if keys contradict each other that inference does not need; arguments as :func:`load_config`."""
    if (problem := _loss_weights(config) or _thresholds(config) or _hue(config)) is not None:
        raise InputError(f"{source}{' with `overrides`' if overrides else ''}: {problem}")


def _body_params(config: Config) -> str | None:
    params, of_timm = config.body.body_params, config.body.body.startswith(TIMM)
    limits = {"classes": 16_384, "dilation": 64, "width": MAX_WIDTH}
    if of_timm:  # some make a table for each pair of pixels of a window, a part of the image, in loops
        limits = {name: 32 if "window" in name else 4096 if name == "img_size" else CHANNELS for name in params}
    for name, limit in limits.items():
        for number in _numbers(params.get(name, 1)):
            if not isinstance(number, (int, float)):
                if of_timm:  # names of layers, for example
                    continue
                return f"[body] body_params: {name} must be a number or a list of numbers, got {number!s:.80}"
            if abs(number) > limit:
                return f"[body] body_params: {name} {number} is above the limit of {limit}"
    return None


def _numbers(value: object) -> Iterator[object]:
    """Yield the items of nested lists: dilations of stages, and of their blocks."""
    for item in value if isinstance(value, (list, tuple)) else [value]:
        yield from item if isinstance(item, (list, tuple)) else [item]


def _loss_weights(config: Config) -> str | None:
    given, losses = len(config.optimizer.loss_weights), config.parts_of_kind.losses
    if given == len(losses) or not config.parts_of_kind.uses("optimizer", "loss_weights"):
        return None
    names = ", ".join(loss.removesuffix("_loss") for loss in losses)
    return f"[optimizer] loss_weights has {given} values, {config.kind} has {len(losses)} losses ({names})"


def _pyramid(config: Config) -> str | None:
    """Return what contradicts in the maps that are its inputs, its levels, and those that the heads use."""
    fpn, layout = config.fpn, layout_of(config.body.body, config.body.body_params)
    # without a layout, an exported network with a custom body
    known = fpn.inputs if layout is None else config.body.out_channels or layout.out_strides
    if unknown := [module for module in fpn.inputs if module not in known]:
        return f"[fpn] inputs names {unknown[0]!r:.80}, which is not in [body] out_channels"
    given, levels = len(fpn.out_strides), len(fpn.inputs) + fpn.extra_scales
    if given != levels:
        return f"[fpn] out_strides has {given} values, inputs and extra_scales make {levels} levels"
    for name in config.parts_of_kind.heads:
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


def _hue(config: Config) -> str | None:
    jitter = config.dataloader.color_jitter
    if jitter is None or jitter[3] <= 0.5:
        return None
    return f"[dataloader] color_jitter: the hue, its last value, is at most 0.5 turns, got {jitter[3]}"
