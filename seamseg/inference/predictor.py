"""Results of photos with a trained network of any kind."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

import torch
from torch import Tensor

from seamseg.checkpoints.bundle import kind_of, open_model
from seamseg.checkpoints.snapshot import load_into
from seamseg.data.transforms import TestTransform
from seamseg.formats.metadata import Metadata
from seamseg.inference.class_names import choose_classes
from seamseg.inference.cuda_graphs import CudaGraphCache
from seamseg.inference.images import (
    ImageInput,
    ImagePreparation,
    equal_size_batches,
    is_for_tiles,
    is_single_image,
)
from seamseg.inference.kinds import INFERENCE_KINDS, ResultSettings
from seamseg.inference.options import InferenceOptions, Thresholds
from seamseg.inference.photo_result import PhotoResult
from seamseg.inference.tiling.predict import first_side, predict_in_tiles_that_fit
from seamseg.inference.tiling.tiles import LEAST_SIDE, Tiling
from seamseg.inference.tta import Augmentation, predict_augmented, segment_augmented
from seamseg.models.build import build_network
from seamseg.models.folding import for_inference
from seamseg.models.panoptic import PanopticNet
from seamseg.models.semantic import SemanticNet
from seamseg.structures import PackedSequence, Prediction
from seamseg.utils.device_memory import free_memory, lacks_memory
from seamseg.utils.distributed import choose_device
from seamseg.utils.errors import InputError, SeamsegError, option
from seamseg.utils.launcher import is_main_process
from seamseg.utils.progress import is_quiet

R = TypeVar("R", bound=PhotoResult)


class Predictor(Generic[R]):
    """Segmentation of, or detection in single photos; the kind of the network decides the type `R` of the results.

    These are :class:`seamseg.inference.result.Panoptic` for panoptic networks,
    :class:`seamseg.inference.detections.Detections` for those of kind detection and instance_seg, and
    :class:`seamseg.inference.semantic.SemanticMap` for those of kind semantic.

    Parameters
    ----------
    net : trained network; is moved to `device` and set to evaluation mode. Its `kind` is a key of
        :data:`seamseg.inference.kinds.INFERENCE_KINDS`
    metadata : its classes
    transform : from a photo to the network's input
    thresholds : of scores, and of the fusion
    device : to compute on
    tiling : how large images are divided
    augmentation : views of each image; None for one plain view
    classes : indices of the classes in results; None for all

    Attributes
    ----------
    averaged : whether the weights are a moving average of those of the training
    tta_fusion : how the views of a semantic network are merged, see :class:`seamseg.inference.options.InferenceOptions`

    Notes
    -----
    An image for which the GPU memory does not suffice is processed in tiles, smaller and smaller ones until they fit,
    unless the tiling is "off". The first time a message is printed to stderr.

    Examples
    --------
    >>> model = seamseg.load("runs/city")  # doctest: +SKIP
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> [s.name for s in result.segments]  # doctest: +SKIP
    """

    def __init__(
        self,
        net: PanopticNet | SemanticNet,
        metadata: Metadata,
        transform: TestTransform,
        thresholds: Thresholds,
        device: torch.device,
        tiling: Tiling = Tiling(),  # noqa: B008  # frozen
        augmentation: Augmentation | None = None,
        classes: Sequence[int] | None = None,
    ) -> None:
        self.net = net.to(device).eval()
        self.metadata = metadata
        self.transform = transform
        self.thresholds = thresholds
        self.device = device
        self.averaged = False
        self.tta_fusion = "mean"
        self.tiling = tiling
        self.augmentation = augmentation
        self.classes = classes
        self._warned = False

    @overload
    def predict(  # type: ignore[overload-overlap]  # a string is also an iterable of strings
        self,
        photo: ImageInput,
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> R: ...

    @overload
    def predict(
        self,
        photo: Iterable[ImageInput],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> list[R]: ...

    def predict(
        self,
        photo: ImageInput | Iterable[ImageInput],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> R | list[R]:
        """Return the result of a photo, at the size of the photo; for several photos a list of them.

        Parameters
        ----------
        photo : file or URL in any format that Pillow reads, PIL image, `H x W x 3` uint8 RGB array, or `3 x H x W`
            tensor, uint8 or float from 0 to 1; or a list of these, of any sizes. The EXIF orientation of a file is
            applied, and the map is upright too; other inputs are not rotated
        tiles : "auto", "off" or the side of the tiles in pixels of the network's input, see
            :class:`seamseg.inference.tiling.tiles.Tiling`; None for the setting of the predictor
        tile_overlap : minimum overlap of the tiles in pixels of the network's input; None for the setting of the
            predictor, or if `tiles` is given for a quarter of their side
        keep_photo : the result keeps the photo, to draw on: the path of a file, else a copy of the pixels
        batch_size : for several photos, see :meth:`predict_iter`

        Raises
        ------
        UnreadableImage
            if the file is missing, broken or not an image
        InputError
            if the array or tensor is not an RGB image, or tiles or overlap are out of range
        SeamsegError
            if the GPU is out of memory

        Examples
        --------
        >>> model.predict("street.jpg").save("overlay.jpg")  # doctest: +SKIP
        >>> first, second = model.predict(["a.jpg", Image.open("b.png")])  # doctest: +SKIP
        """
        if is_single_image(photo) or not isinstance(photo, Iterable):
            return next(self.predict_iter([photo], tiles, tile_overlap, keep_photo=keep_photo))  # type: ignore[list-item]
        results = self.predict_iter(photo, tiles, tile_overlap, keep_photo=keep_photo, batch_size=batch_size)  # type: ignore[arg-type]
        return list(results)

    def predict_iter(
        self,
        photos: Iterable[ImageInput],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_photo: bool = True,
        batch_size: int | None = None,
    ) -> Iterator[R]:
        """Iterate over the results of any number of photos, in order, with constant memory.

        Parameters
        ----------
        photos : see :meth:`predict`; they are read as results are requested
        tiles, tile_overlap, keep_photo : see :meth:`predict`
        batch_size : consecutive photos of equal size that the network processes together; None for 4 on a GPU, 1
            elsewhere. Use 1 for a live camera

        Raises
        ------
        InputError, SeamsegError
            see :meth:`predict`, when the photo is reached

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

        prepare = ImagePreparation(self.transform, tiling, keep_source=keep_photo)
        for group in equal_size_batches(map(prepare, photos), batch_size, lambda image: image.pixels, in_order=True):
            for image, prediction in zip(group, self.raw([i.pixels for i in group], tiling)):
                yield self.result(prediction, image.size).with_photo(image.source_image, prediction)

    def raw(self, images: Sequence[Tensor], tiling: Tiling | None = None) -> list[Prediction]:
        """Run the network on prepared images.

        Images of different sizes are padded to one size, which changes their results slightly.

        Parameters
        ----------
        images : network inputs `3 x H x W`, see :func:`seamseg.inference.images.network_input`
        tiling : None for that of the predictor

        Returns
        -------
        list of Prediction
            on the CPU, in pixels of the network inputs; class maps are uint8

        Raises
        ------
        SeamsegError
            if the GPU is out of memory
        """
        tiling = self.tiling if tiling is None else tiling
        if not any(map(is_for_tiles, images)):
            try:
                return self._run_network(images)
            except RuntimeError as error:
                if not lacks_memory(error):
                    raise
                if not tiling.allowed and len(images) == 1:
                    raise self._out_of_memory(images[0], advice=f"set {option('tiles', 'auto')}") from error
            # after the handler: the error keeps tensors of the network alive
            free_memory()
        if len(images) > 1:
            return [self.raw([image], tiling)[0] for image in images]
        return [self._run_in_tiles(image, tiling) for image in images]

    @property
    def graph_cache(self) -> CudaGraphCache | None:
        """CUDA graphs of the network, if it uses any; they are dropped if the memory does not suffice."""
        run = self.net.options.run_dense
        return run if isinstance(run, CudaGraphCache) else None

    def _run_network(self, images: Sequence[Tensor]) -> list[Prediction]:
        """Run the network; if the memory does not suffice, drop the CUDA graphs, if any, and run it again."""
        graphs = self.graph_cache
        try:
            return self._forward(images)
        except RuntimeError as error:
            if graphs is None or len(graphs) == 0 or not lacks_memory(error):
                raise
        # after the handler: the error keeps tensors of the network alive
        graphs.clear()
        return self._forward(images)

    def _forward(self, images: Sequence[Tensor]) -> list[Prediction]:
        with torch.inference_mode():
            on_device = [i.to(self.device, non_blocking=True) for i in images]
            if self.augmentation is None:
                predictions = self.net.predict(PackedSequence(on_device))
            elif isinstance(self.net, SemanticNet):
                predictions = segment_augmented(self.net, on_device, self.augmentation, self.tta_fusion)
            else:
                predictions = predict_augmented(self.net, on_device, self.augmentation)
        return [p.on_cpu() for p in predictions]

    def _run_in_tiles(self, image: Tensor, tiling: Tiling) -> Prediction:
        """Run the network on an image that is to be processed in tiles, or does not fit into the memory as a whole."""
        size = int(image.shape[-2]), int(image.shape[-1])
        wanted = tiling.side_for(size) if is_for_tiles(image) else None
        side = first_side(size) if wanted is None else wanted

        def forward(part: Tensor) -> Prediction:
            return self._run_network([self.transform.normalise(part) if is_for_tiles(part) else part])[0]

        if side is None:
            raise self._out_of_memory(image)
        threshold = None if isinstance(self.net, SemanticNet) else self.net.options.selector.nms_threshold
        try:
            prediction, used = predict_in_tiles_that_fit(forward, image, side, tiling, threshold)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise
            raise self._out_of_memory(image, f", not even in tiles of {LEAST_SIDE} pixels") from error
        if used != wanted and not self._warned:
            print(
                f"{self.device}: not enough memory for a network input of {size[1]} x {size[0]} pixels at once: it is "
                f"processed in tiles of {used} pixels, and so are others, without another message",
                file=sys.stderr,
                flush=True,
            )
            self._warned = True
        return prediction

    def _out_of_memory(self, image: Tensor, tried: str = "", advice: str = "") -> SeamsegError:
        cpu = "" if self.device.type == "cpu" else f"use {option('device', 'cpu')}"
        ways = [advice, f"set a smaller {option('shortest_size')}", cpu]
        size = f"{image.shape[-1]} x {image.shape[-2]} pixels"
        return SeamsegError(
            f"{self.device}: not enough memory for a network input of {size}{tried}: {' or '.join(filter(None, ways))}"
        )

    @property
    def kind(self) -> str:
        """The kind of the network, as in `[general] kind`."""
        return self.net.kind

    def result(self, prediction: Prediction, native_size: tuple[int, int]) -> R:
        """Make the result of a photo of `(height, width)` from the output of the network, without its photo."""
        settings = ResultSettings(self.metadata, self.thresholds, self.classes)
        return cast(R, INFERENCE_KINDS[self.kind].result(prediction, native_size, settings))


def load_predictor(
    model: str | Path,
    device: str | torch.device = "auto",
    config: str | Path | None = None,
    meta: str | Path | None = None,
    options: InferenceOptions = InferenceOptions(),  # noqa: B008  # frozen
) -> Predictor[Any]:
    """Load a trained model for inference; available as `seamseg.load`.

    Parameters
    ----------
    model : published zip, run folder, or snapshot
    device : auto (a GPU if there is one), cpu, cuda or cuda:N
    config, meta : INI file and `metadata.bin`, if the model does not contain them
    options : see :class:`seamseg.inference.options.InferenceOptions`

    Raises
    ------
    InputError
        if the model is missing, broken, or does not match its configuration and metadata
    SeamsegError
        if torch.compile is requested and does not work here
    """
    chosen = device if isinstance(device, torch.device) else choose_device(device)
    options.check(chosen)
    opened = open_model(model, config, meta, list(options.overrides))
    INFERENCE_KINDS[opened.config.kind].check(options)
    # all arguments are checked before the network is built, which takes seconds
    transform, thresholds = options.transform(opened.config), options.thresholds(opened.config)
    classes = None if options.classes is None else choose_classes(options.classes, opened.metadata)
    net = build_network(opened.config, opened.metadata.num_stuff, opened.metadata.num_thing)
    averaged = load_into(net, opened.snapshot, strict=True, name=opened.name).averaged
    if (trained := kind_of(opened.snapshot, opened.name)) != net.kind and is_main_process() and not is_quiet():
        print(f"{opened.name}: a model for {trained} is used for {net.kind}, without its other parts", file=sys.stderr)
    net = for_inference(net, chosen, options.precision)
    if options.probabilities:
        net = net.with_options(probabilities=True)
    net = options.acceleration.apply(net, chosen)
    metadata, tiling, augmentation = opened.metadata.without_images(), options.tiling, options.augmentation
    predictor: Predictor[Any] = Predictor(net, metadata, transform, thresholds, chosen, tiling, augmentation, classes)
    predictor.averaged = averaged
    predictor.tta_fusion = options.tta_fusion
    return predictor
