"""Checks of a whole configuration: keys that contradict each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seamseg.config.bodies import layout_of
from seamseg.config.sections import Config
from seamseg.utils.errors import InputError


def check(config: Config, source: str) -> None:
    """Raise InputError, prefixed by `source`, if keys contradict each other."""
    fpn, layout = config.fpn, layout_of(config.body.body, config.body.body_params)
    # without a layout, an exported network with a custom body
    known = fpn.inputs if layout is None else config.body.out_channels or layout.out_strides
    if unknown := [module for module in fpn.inputs if module not in known]:
        raise InputError(f"{source}: [fpn] inputs names {unknown[0]!r:.80}, which is not in [body] out_channels")
    given, levels = len(fpn.out_strides), len(fpn.inputs) + fpn.extra_scales
    if given != levels:
        made = f"inputs and extra_scales make {levels} levels"
        raise InputError(f"{source}: [fpn] out_strides has {given} values, {made}")
    for name in config.parts_of_kind.heads:
        section = getattr(config, name)
        last = section.fpn_min_level + section.fpn_levels
        if last > levels:
            raise InputError(f"{source}: [{name}] fpn_min_level + fpn_levels = {last}, the pyramid has {levels} levels")


def check_training(config: Config, source: str | Path, overrides: Sequence[str] = ()) -> None:
    """Raise InputError if keys contradict each other that inference does not need; arguments as :func:`load_config`."""
    problem, rpn, roi, jitter = "", config.rpn, config.roi, config.dataloader.color_jitter
    given, losses = len(config.optimizer.loss_weights), config.parts_of_kind.losses
    if given != len(losses) and config.parts_of_kind.uses("optimizer", "loss_weights"):
        names = ", ".join(loss.removesuffix("_loss") for loss in losses)
        problem = f"[optimizer] loss_weights has {given} values, {config.kind} has {len(losses)} losses ({names})"
    elif rpn.neg_threshold > rpn.pos_threshold:
        problem = f"[rpn] neg_threshold {rpn.neg_threshold} is above pos_threshold {rpn.pos_threshold}"
    elif roi.neg_threshold_lo > roi.neg_threshold_hi:
        problem = f"[roi] neg_threshold_lo {roi.neg_threshold_lo} is above neg_threshold_hi {roi.neg_threshold_hi}"
    elif jitter is not None and jitter[3] > 0.5:
        problem = f"[dataloader] color_jitter: the hue, its last value, is at most 0.5 turns, got {jitter[3]}"
    if problem:
        raise InputError(f"{source}{' with `overrides`' if overrides else ''}: {problem}")
