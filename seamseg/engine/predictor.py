"""A trained network that turns photos into panoptic results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from seamseg.config import Config
from seamseg.data.images import open_image
from seamseg.data.metadata import Metadata
from seamseg.data.transforms import TestTransform
from seamseg.engine.distributed import choose_device
from seamseg.engine.model_file import open_model
from seamseg.engine.photos import test_transform
from seamseg.engine.snapshot import load_into
from seamseg.errors import InputError
from seamseg.fusion import fuse, to_result
from seamseg.models.build import build_network
from seamseg.models.folding import choose_precision, for_inference
from seamseg.models.panoptic import PanopticNet
from seamseg.structures import PackedSequence, PanopticResult, Prediction


@dataclass(frozen=True)
class Thresholds:
    """How detections and classes become one map: see the keys of the same name in `[general]`."""

    score_threshold: float = 0.5
    overlap_threshold: float = 0.5
    min_stuff_area: int = 4096

    @staticmethod
    def of(
        config: Config,
        score_threshold: float | None = None,
        overlap_threshold: float | None = None,
        min_stuff_area: int | None = None,
    ) -> Thresholds:
        """Those of a configuration where they are not given; InputError if one is out of range."""
        general = config.general
        chosen = Thresholds(
            general.score_threshold if score_threshold is None else score_threshold,
            general.overlap_threshold if overlap_threshold is None else overlap_threshold,
            general.min_stuff_area if min_stuff_area is None else min_stuff_area,
        )
        for name in ("score_threshold", "overlap_threshold"):
            if not 0 <= getattr(chosen, name) <= 1:
                raise InputError(f"{name} must be between 0 and 1, not {getattr(chosen, name)}")
        if chosen.min_stuff_area < 0:
            raise InputError(f"the smallest area of stuff must not be negative, it is {chosen.min_stuff_area}")
        return chosen


class Predictor:
    """Panoptic segmentation of single photos.

    Parameters
    ----------
    net : trained network; is put into evaluation mode on `device`
    metadata : its classes
    transform : from a photo to its input
    thresholds : of the fusion
    device : to compute on
    averaged : whether its weights are a moving average of those of the training

    Examples
    --------
    >>> model = seamseg.load("runs/city")  # doctest: +SKIP
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> [model.metadata.categories[s.category] for s in result.segments]  # doctest: +SKIP
    """

    def __init__(
        self,
        net: PanopticNet,
        metadata: Metadata,
        transform: TestTransform,
        thresholds: Thresholds,
        device: torch.device,
        averaged: bool = False,
    ) -> None:
        self.net = net.to(device).eval()
        self.metadata = metadata
        self.transform = transform
        self.thresholds = thresholds
        self.device = device
        self.averaged = averaged

    def predict(self, photo: str | Path | Image.Image | np.ndarray) -> PanopticResult:
        """The panoptic map of a photo, at its own size.

        Parameters
        ----------
        photo : file of any kind that Pillow reads, PIL image, or `H x W x 3` uint8 RGB array

        Raises
        ------
        UnreadableImage
            if the file is missing, broken or no image
        InputError
            if the array is no RGB image
        """
        image = _as_image(photo)
        return self.fuse(self.raw([self.transform(image)])[0], (image.height, image.width))

    def raw(self, images: Sequence[Tensor]) -> list[Prediction]:
        """What the network says of transformed images `3 x H x W`, on the CPU, in pixels of its input.

        Images of different sizes are padded to one, which influences their results a little.
        """
        with torch.inference_mode():
            predictions = self.net.predict(PackedSequence([i.to(self.device, non_blocking=True) for i in images]))
        return [_on_cpu(p) for p in predictions]

    def fuse(self, prediction: Prediction, native_size: tuple[int, int]) -> PanopticResult:
        """One panoptic map of what the network says, at the `(height, width)` of the photo."""
        t, num_stuff = self.thresholds, self.metadata.num_stuff
        fused = fuse(prediction, num_stuff, t.score_threshold, t.overlap_threshold, t.min_stuff_area)
        return to_result(fused, native_size, num_stuff)


def load_predictor(
    model: str | Path,
    device: str | torch.device = "auto",
    config: str | Path | None = None,
    meta: str | Path | None = None,
    *,
    score_threshold: float | None = None,
    overlap_threshold: float | None = None,
    min_stuff_area: int | None = None,
    shortest_size: int | None = None,
    longest_max_size: int | None = None,
    overrides: Sequence[str] = (),
    precision: str = "fp32",
) -> Predictor:
    """Open a trained model for inference; available as `seamseg.load`.

    Parameters
    ----------
    model : published zip, run folder, or snapshot
    device : auto (a GPU if there is one), cpu, cuda or cuda:N
    config, meta : INI file and `metadata.bin`, where the model does not hold them
    score_threshold, overlap_threshold, min_stuff_area : of the fusion, see `[general]`; None as configured
    shortest_size, longest_max_size : of the network's input in pixels; None as configured, the longest side at most 4
        times the shortest, or the configured maximum if that is more
    overrides : configuration keys as `section.key=value`
    precision : fp32, bf16, fp16 (GPU only) or auto (bf16 where the device has it); below fp32 results differ a little

    Raises
    ------
    InputError
        if the model is missing, broken, or not what its configuration and metadata say
    """
    chosen = device if isinstance(device, torch.device) else choose_device(device)
    choose_precision(precision, chosen)
    opened = open_model(model, config, meta, list(overrides))
    # all arguments are checked before the network is built, which takes seconds
    transform = test_transform(opened.config, shortest_size, longest_max_size)
    thresholds = Thresholds.of(opened.config, score_threshold, overlap_threshold, min_stuff_area)
    net = build_network(opened.config, opened.metadata.num_stuff, opened.metadata.num_thing)
    averaged = load_into(net, opened.snapshot, strict=True, name=opened.name).averaged
    net = for_inference(net, chosen, precision)
    return Predictor(net, opened.metadata.without_images(), transform, thresholds, chosen, averaged)


def _as_image(photo: str | Path | Image.Image | np.ndarray) -> Image.Image:
    if isinstance(photo, Image.Image):
        return photo if photo.mode == "RGB" else photo.convert("RGB")
    if isinstance(photo, np.ndarray):
        if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3 or 0 in photo.shape:
            raise InputError(
                f"a photo as an array must be H x W x 3 uint8 RGB, this one is {photo.shape} {photo.dtype}"
            )
        return Image.fromarray(photo)
    return open_image(photo)


def _on_cpu(p: Prediction) -> Prediction:
    return Prediction(
        p.boxes.cpu(),
        p.classes.cpu(),
        p.scores.cpu(),
        None if p.mask_logits is None else p.mask_logits.cpu(),
        None if p.semantic is None else p.semantic.cpu(),
        p.size,
    )
