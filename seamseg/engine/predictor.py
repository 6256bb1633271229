"""A trained network that turns photos into panoptic results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from seamseg.config import Config
from seamseg.data.metadata import Metadata
from seamseg.data.transforms import TestTransform
from seamseg.engine.any_photo import AnyPhoto, as_image, is_one, keepsake, runs_of_one_size
from seamseg.engine.augmentation import Augmentation, predict_augmented
from seamseg.engine.class_names import choose_classes
from seamseg.engine.distributed import choose_device
from seamseg.engine.model_file import open_model
from seamseg.engine.photos import test_transform
from seamseg.engine.result import Panoptic, only_classes
from seamseg.engine.snapshot import load_into
from seamseg.errors import InputError
from seamseg.fusion import fuse, to_result
from seamseg.models.build import build_network
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
    augmentation : several looks at each image
    classes : indices of those that results hold; None for all

    Examples
    --------
    >>> model = seamseg.load("runs/city")  # doctest: +SKIP
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> [s.name for s in result.segments]  # doctest: +SKIP
    """

    def __init__(
        self,
        net: PanopticNet,
        metadata: Metadata,
        transform: TestTransform,
        thresholds: Thresholds,
        device: torch.device,
        averaged: bool = False,
        augmentation: Augmentation | None = None,
        classes: Sequence[int] | None = None,
    ) -> None:
        self.net = net.to(device).eval()
        self.metadata = metadata
        self.transform = transform
        self.thresholds = thresholds
        self.device = device
        self.averaged = averaged
        self.augmentation = augmentation
        self.classes = classes

    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is a text, and a text many texts
        self, photo: AnyPhoto, keep_photo: bool = True, batch_size: int | None = None
    ) -> Panoptic: ...

    @overload
    def predict(
        self, photo: Iterable[AnyPhoto], keep_photo: bool = True, batch_size: int | None = None
    ) -> list[Panoptic]: ...

    def predict(
        self, photo: AnyPhoto | Iterable[AnyPhoto], keep_photo: bool = True, batch_size: int | None = None
    ) -> Panoptic | list[Panoptic]:
        """The panoptic map of a photo, at its own size; of several photos a list of them.

        Parameters
        ----------
        photo : file of any kind that Pillow reads, PIL image, `H x W x 3` uint8 RGB array, or `3 x H x W` tensor, uint8
            or float from 0 to 1; or a list of these, of any sizes
        keep_photo : the result remembers the photo, to draw on: the path of a file, else a copy of the pixels
        batch_size : of several photos, see :meth:`predict_iter`

        Raises
        ------
        UnreadableImage
            if the file is missing, broken or no image
        InputError
            if the array or tensor is no RGB image

        Examples
        --------
        >>> model.predict("street.jpg").save("overlay.jpg")  # doctest: +SKIP
        >>> first, second = model.predict(["a.jpg", Image.open("b.png")])  # doctest: +SKIP
        """
        if is_one(photo):
            return next(self.predict_iter([photo], keep_photo, 1))  # type: ignore[list-item]
        return list(self.predict_iter(photo, keep_photo, batch_size))  # type: ignore[arg-type]

    def predict_iter(
        self, photos: Iterable[AnyPhoto], keep_photo: bool = True, batch_size: int | None = None
    ) -> Iterator[Panoptic]:
        """The results of any number of photos, one after the other, in order; memory does not grow with their number.

        Parameters
        ----------
        photos : as :meth:`predict` takes them; read as results are asked for
        keep_photo : as :meth:`predict`
        batch_size : neighbours of one size that the network sees together; None for 4 on a GPU, 1 elsewhere. Take 1 for
            a camera, where the next picture is far away

        Raises
        ------
        InputError
            as :meth:`predict`, when it is the photo's turn

        Examples
        --------
        >>> for result in model.predict_iter(sorted(Path("drive").glob("*.jpg"))):  # doctest: +SKIP
        ...     print(result)
        """
        if batch_size is None:
            batch_size = 4 if self.device.type == "cuda" else 1
        if batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {batch_size}")
        opened = ((photo, image, self.transform(image)) for photo in photos for image in (as_image(photo),))
        for group in runs_of_one_size(opened, batch_size):
            for (photo, image, _), prediction in zip(group, self.raw([pixels for _, _, pixels in group])):
                result = self.fuse(prediction, (image.height, image.width))
                yield Panoptic.of(result, self.metadata, keepsake(photo, image) if keep_photo else None, prediction)

    def raw(self, images: Sequence[Tensor]) -> list[Prediction]:
        """What the network says of transformed images `3 x H x W`, on the CPU, in pixels of its input.

        Images of different sizes are padded to one, which influences their results a little.
        """
        with torch.inference_mode():
            there = [i.to(self.device, non_blocking=True) for i in images]
            if self.augmentation is None:
                predictions = self.net.predict(PackedSequence(there))
            else:
                predictions = predict_augmented(self.net, there, self.augmentation)
        return [_on_cpu(p) for p in predictions]

    def fuse(self, prediction: Prediction, native_size: tuple[int, int]) -> PanopticResult:
        """One panoptic map of what the network says, at the `(height, width)` of the photo."""
        t, num_stuff = self.thresholds, self.metadata.num_stuff
        fused = fuse(prediction, num_stuff, t.score_threshold, t.overlap_threshold, t.min_stuff_area)
        result = to_result(fused, native_size, num_stuff)
        return result if self.classes is None else only_classes(result, self.classes)


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
    tta: str | Augmentation | None = None,
    classes: str | Sequence[str] | None = None,
    preview: bool = False,
    overrides: Sequence[str] = (),
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
    tta : several looks at each image, as `"flip,0.75,1.0,1.25"`: see :class:`seamseg.engine.augmentation.Augmentation`
    classes : names of those that results hold, all others are void; None for all
    preview : at half the size: a quarter of the time, small things are lost
    overrides : configuration keys as `section.key=value`

    Raises
    ------
    InputError
        if the model is missing, broken, or not what its configuration and metadata say
    """
    augmentation = Augmentation.parse(tta)
    chosen = device if isinstance(device, torch.device) else choose_device(device)
    opened = open_model(model, config, meta, list(overrides))
    # all arguments are checked before the network is built, which takes seconds
    transform = test_transform(opened.config, shortest_size, longest_max_size)
    thresholds = Thresholds.of(opened.config, score_threshold, overlap_threshold, min_stuff_area)
    if preview:
        transform.halve()
        thresholds = replace(thresholds, min_stuff_area=thresholds.min_stuff_area // 4)
    kept = None if classes is None else choose_classes(classes, opened.metadata, "--classes")
    net = build_network(opened.config, opened.metadata.num_stuff, opened.metadata.num_thing)
    averaged = load_into(net, opened.snapshot, strict=True, name=opened.name).averaged
    return Predictor(net, opened.metadata.without_images(), transform, thresholds, chosen, averaged, augmentation, kept)


def _on_cpu(p: Prediction) -> Prediction:
    return Prediction(
        p.boxes.cpu(),
        p.classes.cpu(),
        p.scores.cpu(),
        None if p.mask_logits is None else p.mask_logits.cpu(),
        None if p.semantic is None else p.semantic.cpu(),
        p.size,
    )
