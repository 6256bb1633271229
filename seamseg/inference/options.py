"""Options of a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from seamseg.config import Config
from seamseg.data.transforms import TestTransform
from seamseg.inference.acceleration import Acceleration
from seamseg.inference.images import test_transform
from seamseg.inference.tiling.tiles import Tiling
from seamseg.inference.tta import Augmentation
from seamseg.models.folding import choose_precision
from seamseg.ops.upsample import FUSIONS
from seamseg.utils.errors import InputError, option


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the fusion to a panoptic map: see the keys of the same name in `[general]`.

    Raises
    ------
    InputError
        if one is out of range
    """

    score_threshold: float = 0.5
    overlap_threshold: float = 0.5
    min_stuff_area: int = 4096

    def __post_init__(self) -> None:
        for name in ("score_threshold", "overlap_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{option(name)} must be between 0 and 1, not {getattr(self, name)}")
        if self.min_stuff_area < 0:
            raise InputError(f"{option('min_stuff_area')} must not be negative, not {self.min_stuff_area}")

    @staticmethod
    def of(config: Config) -> Thresholds:
        """Return those of a configuration."""
        general = config.general
        return Thresholds(general.score_threshold, general.overlap_threshold, general.min_stuff_area)


@dataclass(frozen=True)
class InferenceOptions:
    """Options of :func:`seamseg.load`; None for the value of the configuration.

    Attributes
    ----------
    score_threshold, overlap_threshold, min_stuff_area : of the fusion, see `[general]`
    shortest_size, longest_max_size : of the network's input in pixels; by default the longest side is at most 4 times
        the shortest, or the configured maximum if that is larger
    tiles, tile_overlap : for large images: "auto", "off" or the side of the tiles, and the minimum overlap, in pixels
        of the network's input; see :class:`seamseg.inference.tiling.tiles.Tiling`
    size : length of the longest side of the network's input instead of these, see `dataloader.longest_size`
    tta : test-time augmentation, as `"flip,0.75,1.0,1.25"`: see :class:`seamseg.inference.tta.Augmentation`
    tta_fusion : of the views of a semantic network: "mean" (of the probabilities), "max" (the surest view) or "voting"
    probabilities : predict the probability of the class of each pixel, too (semantic networks only)
    classes : names of the classes in results, all others are void; None for all
    preview : half the input size: a quarter of the time, small objects are missed
    overrides : configuration keys as `section.key=value`
    precision : fp32, bf16, fp16 (GPU only) or auto (bf16 where it is fast); below fp32 results differ slightly
    compile, cuda_graphs, pad_to : see :class:`seamseg.inference.acceleration.Acceleration`

    Raises
    ------
    InputError
        if an option is out of range
    """

    score_threshold: float | None = None
    overlap_threshold: float | None = None
    min_stuff_area: int | None = None
    shortest_size: int | None = None
    longest_max_size: int | None = None
    tiles: str | int = "auto"
    tile_overlap: int | None = None
    size: int | None = None
    tta: str | Augmentation | None = None
    tta_fusion: str = "mean"
    probabilities: bool = False
    classes: str | Sequence[str] | None = None
    preview: bool = False
    overrides: Sequence[str] = ()
    precision: str = "fp32"
    compile: bool = False
    cuda_graphs: bool = False
    pad_to: int = 1

    def __post_init__(self) -> None:
        # each checks its values
        _ = self.tiling, self.augmentation, self.acceleration
        if self.tta_fusion not in FUSIONS:
            raise InputError(f"{option('tta_fusion', self.tta_fusion)}: choose one of {', '.join(FUSIONS)}")
        if self.size is not None and (self.shortest_size is not None or self.longest_max_size is not None):
            other = "longest_max_size" if self.shortest_size is None else "shortest_size"
            raise InputError(f"{option('size')} and {option(other)} are mutually exclusive")

    @cached_property
    def tiling(self) -> Tiling:
        """How large images are divided."""
        return Tiling(self.tiles, self.tile_overlap)

    @cached_property
    def augmentation(self) -> Augmentation | None:
        """The views of test-time augmentation; None for one plain view."""
        return Augmentation.parse(self.tta)

    @cached_property
    def acceleration(self) -> Acceleration:
        """How the network is executed."""
        return Acceleration(self.compile, self.cuda_graphs, self.pad_to)

    def check(self, device: torch.device) -> None:
        """Raise InputError if a device does not support these options."""
        choose_precision(self.precision, device)
        self.acceleration.check(device, self.augmentation is not None)

    def thresholds(self, config: Config) -> Thresholds:
        """Return the thresholds for a model with a configuration."""
        names = ("score_threshold", "overlap_threshold", "min_stuff_area")
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        thresholds = replace(Thresholds.of(config), **chosen)
        # pixels of the network's input
        return replace(thresholds, min_stuff_area=thresholds.min_stuff_area // 4) if self.preview else thresholds

    def transform(self, config: Config) -> TestTransform:
        """Return the transform for a model with a configuration."""
        transform = test_transform(config, self.shortest_size, self.longest_max_size, self.size)
        if self.preview:
            transform.halve()
        return transform
