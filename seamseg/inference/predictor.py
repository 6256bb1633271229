"""A trained network that turns photos into panoptic results."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from seamseg.checkpoints.bundle import open_model
from seamseg.checkpoints.snapshot import load_into
from seamseg.config import Config
from seamseg.data.transforms import TestTransform
from seamseg.formats.metadata import Metadata
from seamseg.inference.acceleration import Acceleration
from seamseg.inference.class_names import choose_classes
from seamseg.inference.cuda_graphs import Recordings
from seamseg.inference.images import (
    AnyPhoto,
    Opened,
    as_image,
    is_for_tiles,
    is_one,
    keepsake,
    network_input,
    runs_of_one_size,
    test_transform,
)
from seamseg.inference.result import Panoptic, only_classes
from seamseg.inference.tiling.predict import first_side, predict_in_tiles_that_fit
from seamseg.inference.tiling.tiles import LEAST_SIDE, Tiling
from seamseg.inference.tta import Augmentation, predict_augmented
from seamseg.models.build import build_network
from seamseg.models.folding import choose_precision, for_inference
from seamseg.models.fusion import fuse, to_result
from seamseg.models.panoptic import PanopticNet
from seamseg.panoptic_map import PanopticResult
from seamseg.structures import PackedSequence, Prediction
from seamseg.utils.device_memory import free_memory, lacks_memory
from seamseg.utils.distributed import choose_device
from seamseg.utils.errors import InputError, SeamsegError


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
    tiling : how huge photos are seen
    augmentation : several looks at each image
    classes : indices of those that results hold; None for all
    recordings : CUDA graphs of the network, which are dropped where the memory does not suffice

    Notes
    -----
    Where the memory of the GPU does not suffice for an image, it is seen in tiles, ever smaller ones until they fit,
    unless the tiling is "off". The first time this is said on stderr.

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
        tiling: Tiling = Tiling(),  # noqa: B008  # frozen
        augmentation: Augmentation | None = None,
        classes: Sequence[int] | None = None,
        recordings: Recordings | None = None,
    ) -> None:
        self.net = net.to(device).eval()
        self.metadata = metadata
        self.transform = transform
        self.thresholds = thresholds
        self.device = device
        self.averaged = averaged
        self.tiling = tiling
        self.augmentation = augmentation
        self.classes = classes
        self.recordings = recordings
        self._said = False

    @overload
    def predict(  # type: ignore[overload-overlap]  # a path is a text, and a text many texts
        self,
        photo: AnyPhoto,
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> Panoptic: ...

    @overload
    def predict(
        self,
        photo: Iterable[AnyPhoto],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> list[Panoptic]: ...

    def predict(
        self,
        photo: AnyPhoto | Iterable[AnyPhoto],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> Panoptic | list[Panoptic]:
        """The panoptic map of a photo, always at its own size; of several photos a list of them.

        Parameters
        ----------
        photo : file or URL of any kind that Pillow reads, PIL image, `H x W x 3` uint8 RGB array, or `3 x H x W`
            tensor, uint8 or float from 0 to 1; or a list of these, of any sizes. A file with an EXIF orientation is
            seen upright, and the map is too; all else is taken as it is
        tiles : "auto", "off" or the side of the tiles in pixels of the network's input, see
            :class:`seamseg.inference.tiling.tiles.Tiling`; None as the predictor was made
        tile_overlap : least overlap of the tiles in pixels of the network's input; None as the predictor was made, or
            for other `tiles` a quarter of their side
        keep_photo : the result remembers the photo, to draw on: the path of a file, else a copy of the pixels
        batch_size : of several photos, see :meth:`predict_iter`

        Raises
        ------
        UnreadableImage
            if the file is missing, broken or no image
        InputError
            if the array or tensor is no RGB image, or tiles or overlap are wrong
        SeamsegError
            if the memory of the GPU does not suffice

        Examples
        --------
        >>> model.predict("street.jpg").save("overlay.jpg")  # doctest: +SKIP
        >>> first, second = model.predict(["a.jpg", Image.open("b.png")])  # doctest: +SKIP
        """
        if is_one(photo) or not isinstance(photo, Iterable):
            return next(self.predict_iter([photo], tiles, tile_overlap, keep_photo=keep_photo))  # type: ignore[list-item]
        results = self.predict_iter(photo, tiles, tile_overlap, keep_photo=keep_photo, batch_size=batch_size)  # type: ignore[arg-type]
        return list(results)

    def predict_iter(
        self,
        photos: Iterable[AnyPhoto],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> Iterator[Panoptic]:
        """The results of any number of photos, one after the other, in order; memory does not grow with their number.

        Parameters
        ----------
        photos : as :meth:`predict` takes them; read as results are asked for
        tiles, tile_overlap, keep_photo : as :meth:`predict`
        batch_size : neighbours of one size that the network sees together; None for 4 on a GPU, 1 elsewhere. Take 1 for
            a camera, where the next picture is far away

        Raises
        ------
        InputError, SeamsegError
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
        tiling = self.tiling if tiles is None else Tiling(tiles)
        if tile_overlap is not None:
            tiling = replace(tiling, overlap=tile_overlap)

        def opened(photo: AnyPhoto) -> Opened:
            # the picture is not held: a huge one takes more memory than the rest
            image = as_image(photo)
            kept = keepsake(photo, image) if keep_photo else None
            return Opened(kept, (image.height, image.width), network_input(image, self.transform, tiling))

        for group in runs_of_one_size(map(opened, photos), batch_size):
            for photo, prediction in zip(group, self.raw([p.pixels for p in group], tiling)):
                yield Panoptic.of(self.fuse(prediction, photo.size), self.metadata, photo.kept, prediction)

    def raw(self, images: Sequence[Tensor], tiling: Tiling | None = None) -> list[Prediction]:
        """What the network says of transformed images, on the CPU, in pixels of its input; class maps are uint8.

        Images of different sizes are padded to one, which influences their results a little.

        Parameters
        ----------
        images : `3 x H x W`, as :func:`seamseg.inference.images.network_input` makes them
        tiling : None as the predictor was made

        Raises
        ------
        SeamsegError
            if the memory of the GPU does not suffice
        """
        tiling = self.tiling if tiling is None else tiling
        if not any(map(is_for_tiles, images)):
            try:
                return self._see(images)
            except RuntimeError as error:
                if not lacks_memory(error):
                    raise
                if not tiling.allowed and len(images) == 1:
                    raise self._too_large(images[0], advice="set --tiles auto") from error
            # outside of the handler: the error holds on to what the network had made
            free_memory()
        if len(images) > 1:
            return [self.raw([image], tiling)[0] for image in images]
        return [self._see_in_tiles(image, tiling) for image in images]

    def _see(self, images: Sequence[Tensor]) -> list[Prediction]:
        """What the network says; where the memory does not suffice, once more without the recordings, if any."""
        recordings = self.recordings
        try:
            return self._look(images)
        except RuntimeError as error:
            if recordings is None or len(recordings) == 0 or not lacks_memory(error):
                raise
        # outside of the handler: the error holds on to what the network had made
        recordings.forget()
        return self._look(images)

    def _look(self, images: Sequence[Tensor]) -> list[Prediction]:
        with torch.inference_mode():
            there = [i.to(self.device, non_blocking=True) for i in images]
            if self.augmentation is None:
                predictions = self.net.predict(PackedSequence(there))
            else:
                predictions = predict_augmented(self.net, there, self.augmentation)
        return [p.on_cpu() for p in predictions]

    def _see_in_tiles(self, image: Tensor, tiling: Tiling) -> Prediction:
        """What the network says of an image that is for tiles, or does not fit into the memory as a whole."""
        size = int(image.shape[-2]), int(image.shape[-1])
        wanted = tiling.side_for(size) if is_for_tiles(image) else None
        side = first_side(size) if wanted is None else wanted

        def see(part: Tensor) -> Prediction:
            return self._see([self.transform.normalise(part) if is_for_tiles(part) else part])[0]

        if side is None:
            raise self._too_large(image)
        threshold = self.net.selector.nms_threshold
        try:
            prediction, used = predict_in_tiles_that_fit(see, image, side, tiling, threshold)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            raise self._too_large(image, f", not even in tiles of {LEAST_SIDE} pixels") from error
        if used != wanted and not self._said:
            print(
                f"{self.device}: not enough memory for a network input of {size[1]} x {size[0]} pixels at once: it is "
                f"processed in tiles of {used} pixels, and so are others, without another message",
                file=sys.stderr,
                flush=True,
            )
            self._said = True
        return prediction

    def _too_large(self, image: Tensor, tried: str = "", advice: str = "") -> SeamsegError:
        ways = [advice, "set a smaller --shortest-size", "" if self.device.type == "cpu" else "use --device cpu"]
        size = f"{image.shape[-1]} x {image.shape[-2]} pixels"
        return SeamsegError(
            f"{self.device}: not enough memory for a network input of {size}{tried}: {' or '.join(filter(None, ways))}"
        )

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
    tiles: str | int = "auto",
    tile_overlap: int | None = None,
    tta: str | Augmentation | None = None,
    classes: str | Sequence[str] | None = None,
    preview: bool = False,
    overrides: Sequence[str] = (),
    precision: str = "fp32",
    compile: bool = False,
    cuda_graphs: bool = False,
    pad_to: int = 1,
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
    tiles, tile_overlap : of huge images: "auto", "off" or a side, and the least overlap, in pixels of the network's
        input; see :class:`seamseg.inference.tiling.tiles.Tiling`
    tta : several looks at each image, as `"flip,0.75,1.0,1.25"`: see :class:`seamseg.inference.tta.Augmentation`
    classes : names of those that results hold, all others are void; None for all
    preview : at half the size: a quarter of the time, small things are lost
    overrides : configuration keys as `section.key=value`
    precision : fp32, bf16, fp16 (GPU only) or auto (bf16 where the device has it); below fp32 results differ a little
    compile, cuda_graphs, pad_to : see :class:`seamseg.inference.acceleration.Acceleration`

    Raises
    ------
    InputError
        if the model is missing, broken, or not what its configuration and metadata say
    SeamsegError
        if torch.compile is wanted and does not work here
    """
    tiling = Tiling(tiles, tile_overlap)
    augmentation = Augmentation.parse(tta)
    chosen = device if isinstance(device, torch.device) else choose_device(device)
    choose_precision(precision, chosen)
    acceleration = Acceleration(compile, cuda_graphs, pad_to)
    acceleration.check(chosen, augmentation is not None)
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
    net = for_inference(net, chosen, precision)
    metadata = opened.metadata.without_images()
    net, recordings = acceleration.apply(net, chosen)
    return Predictor(net, metadata, transform, thresholds, chosen, averaged, tiling, augmentation, kept, recordings)
