"""Results of images with a trained network of any kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

import numpy as np
from PIL import Image

from seamseg.checkpoints.model_path import library_of, local_model
from seamseg.config import Config
from seamseg.config.kinds import SEAMLESS
from seamseg.data.input_size import InputSize, value_factor
from seamseg.extensions import OPENERS
from seamseg.inference.images import ImageInput, equal_size_batches, prepare_image
from seamseg.inference.options import LEAST_SIDE, OF_PARTS, OF_RESULTS, InferenceOptions, Tiling
from seamseg.inference.tiling import first_side, predict_in_tiles
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.idmaps.histogram import is_tensor
from seamseg.maps.predictions import ArrayPrediction, InferenceNetwork, MapFormat
from seamseg.results import ImageResult, Thresholds
from seamseg.results.base import choose_classes
from seamseg.utils.errors import InputError, OutOfMemory, free_memory, lacks_memory
from seamseg.utils.output import echo
from seamseg.utils.process import return_memory

if TYPE_CHECKING:
    import torch

R = TypeVar("R", bound=ImageResult)


SMALL_INPUT = 256 * 512
"""Largest network input, in pixels, of which a CPU computes several at a time; each takes the memory of its own."""


class OpenedModel(Protocol):
    """A model that is open, and whose network is not built yet."""

    name: str
    config: Config
    kind: str
    metadata: Metadata
    reference: InputSize | None

    def input_size(self, options: InferenceOptions) -> InputSize:
        """Return the size of the network's input."""

    def build(self, options: InferenceOptions) -> InferenceNetwork:
        """Build the network and load its weights."""


class Predictor(Generic[R]):
    """Segmentation of, or detection in single images; the network decides the type `R` of the results.

    It is a class of :mod:`seamseg.results`: `Panoptic`, `Detections`, `SemanticMap` or `Classification`.

    Parameters
    ----------
    network : trained network
    metadata : its classes
    input_size : the size of the network's input for an image
    thresholds : thresholds of scores, and of the fusion
    tiling : how large images are divided
    classes : indices of the classes in results; None for all
    reference : size of the input at which distances have the units of the files, see
        :func:`seamseg.data.input_size.reference_size`; None for `input_size`

    Attributes
    ----------
    kind : kind of the network, as in `[general] kind`
    result_type : the type of its results
    map_formats : output maps of custom heads by name
    map_only : only maps are made of predictions, which may then lack the detections that score too low for a panoptic
        map: their masks need not be computed. False at first; without effect for results that are detections
    batch_size : how many images it computes together unless the user gives a number

    Notes
    -----
    An image for which the memory does not suffice is processed in tiles, smaller and smaller ones until they fit,
    unless the tiling is "off". The first time a message is printed to stderr.

    Examples
    --------
    >>> model = seamseg.load("runs/city")  # doctest: +SKIP
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> [s.name for s in result.segments]  # doctest: +SKIP
    """

    def __init__(
        self,
        network: InferenceNetwork,
        metadata: Metadata,
        input_size: InputSize,
        thresholds: Thresholds,
        tiling: Tiling = Tiling(),  # noqa: B008  # frozen
        classes: Sequence[int] | None = None,
        reference: InputSize | None = None,
    ) -> None:
        self.network = network
        self.kind = network.kind
        self.result_type = network.result_type
        self.map_formats: Mapping[str, MapFormat] = network.map_formats
        self.metadata = metadata
        self.input_size = input_size
        self.thresholds = thresholds
        self.tiling = self._possible(tiling)
        self.classes = classes
        self.reference = reference or input_size
        self.map_only = False
        self.batch_size = 4 if network.on_gpu else 1
        self._warned = False

    def __repr__(self) -> str:
        return f"Predictor({self.kind}, {self.metadata.num_classes} classes, {self.network.device})"

    @overload
    def predict(  # type: ignore[overload-overlap]  # a string is also an iterable of strings
        self,
        image: ImageInput,
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_image: bool = True,
        batch_size: int | None = None,
    ) -> R: ...

    @overload
    def predict(
        self,
        image: Iterable[ImageInput],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_image: bool = True,
        batch_size: int | None = None,
    ) -> list[R]: ...

    def predict(
        self,
        image: ImageInput | Iterable[ImageInput],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_image: bool = True,
        batch_size: int | None = None,
    ) -> R | list[R]:
        """Return the result of an image, at the size of the image; for several images a list of them.

        Parameters
        ----------
        image : file in any format that Pillow reads, PIL image, `H x W x 3` uint8 RGB array, or `3 x H x W`
            tensor, uint8 or float from 0 to 1; or a list of these, of any sizes. The EXIF orientation of a file is
            applied, and the map is upright too; other inputs are not rotated
        tiles : "auto", "off" or the side of the tiles in pixels of the network's input, see
            :class:`seamseg.inference.options.Tiling`; None for the setting of the predictor
        tile_overlap : minimum overlap of the tiles in pixels of the network's input; None for the setting of the
            predictor, or if `tiles` is given for a quarter of their side
        keep_image : the result keeps the image, to draw on: the path of a file, else a copy of the pixels
        batch_size : maximum number of images computed together, see :meth:`predict_iter`

        Raises
        ------
        UnreadableImage
            if the file is missing, broken or not an image
        InputError
            if the array or tensor is not an RGB image, or tiles or overlap are out of range
        OutOfMemory
            if the memory does not suffice

        Examples
        --------
        >>> model.predict("street.jpg").save("overlay.jpg")  # doctest: +SKIP
        >>> first, second = model.predict(["a.jpg", Image.open("b.png")])  # doctest: +SKIP
        """
        several = isinstance(image, Iterable) and not is_tensor(image)
        if not several or isinstance(image, (str, Path, Image.Image, np.ndarray)):
            return next(self.predict_iter([image], tiles, tile_overlap, keep_image=keep_image))  # type: ignore[list-item]
        results = self.predict_iter(image, tiles, tile_overlap, keep_image=keep_image, batch_size=batch_size)
        return list(results)

    def predict_iter(
        self,
        images: Iterable[ImageInput],
        tiles: str | int | None = None,
        tile_overlap: int | None = None,
        *,
        keep_image: bool = True,
        batch_size: int | None = None,
    ) -> Iterator[R]:
        """Iterate over the results of any number of images, in order, with constant memory.

        Parameters
        ----------
        images : see :meth:`predict`; they are read as results are requested
        tiles, tile_overlap, keep_image : see :meth:`predict`
        batch_size : consecutive images of equal size that the network processes together; None for 4 on a GPU, 1
            elsewhere. Use 1 for a live camera

        Raises
        ------
        InputError, SeamsegError
            see :meth:`predict`, when the image is reached

        Examples
        --------
        >>> for result in model.predict_iter(sorted(Path("drive").glob("*.jpg"))):  # doctest: +SKIP
        ...     print(result)
        """
        if batch_size is None:
            batch_size = self.batch_size
        if batch_size < 1:
            raise InputError(f"`batch_size={batch_size}`: must be at least 1")
        tiling = self.tiling if tiles is None else self._possible(Tiling(tiles))
        if tile_overlap is not None:
            tiling = replace(tiling, overlap=tile_overlap)

        prepared = (prepare_image(image, self.input_size, keep_source=keep_image) for image in images)
        for group in equal_size_batches(prepared, batch_size, lambda i: i.pixels.shape, in_order=True, tiling=tiling):
            for one, raw in zip(group, self.raw([i.pixels for i in group], tiling)):
                prediction = self.in_units(raw, one.size)
                yield self.result(prediction, one.size).with_image(one.source_image, prediction)

    def _possible(self, tiling: Tiling) -> Tiling:
        """Return the tiling that the network takes; InputError if tiles of one side were requested."""
        if self.network.tiles_problem is None:
            return tiling
        if isinstance(tiling.tiles, int):
            raise InputError(f"`tiles={tiling.tiles}`: {self.network.tiles_problem}")
        return Tiling("off")

    def raw(self, images: Sequence[np.ndarray], tiling: Tiling | None = None) -> list[ArrayPrediction]:
        """Return the outputs of the network for images at its input size, `H x W x 3` uint8, see :meth:`in_units`.

        Images of different sizes are padded to one size, which changes their results slightly. OutOfMemory if the
        memory does not suffice.
        """
        return [arrays() for arrays in self.start(images, tiling)]

    def start(self, images: Sequence[np.ndarray], tiling: Tiling | None = None) -> list[Callable[[], ArrayPrediction]]:
        """Start :meth:`raw`; return a function for each image that waits for its output, in any thread.

        A GPU computes meanwhile, unless the images are processed in tiles.
        """
        return_memory()
        tiling = self.tiling if tiling is None else tiling
        if all(tiling.side_for(image.shape) is None for image in images):
            # not for tiles, which need all detections: pieces of an object share the best score
            maps = self.map_only and self.result_type.has_ids
            least_score = self.thresholds.score_threshold if maps else 0.0
            try:
                return self.network.start(images, least_score)
            except Exception as error:
                if not lacks_memory(error):
                    raise
            # after the handler, and without a cause: the error keeps tensors of the network alive
            free_memory()
            if tiling.tiles == "off" and len(images) == 1:
                advice = "" if self.network.tiles_problem else "set `tiles=auto`"
                raise self._out_of_memory(images[0], advice=advice)
        if len(images) > 1:
            return [self.start([image], tiling)[0] for image in images]
        return [partial(lambda p: p, self._run_in_tiles(image, tiling)) for image in images]

    def in_units(self, prediction: ArrayPrediction, native_size: tuple[int, int]) -> ArrayPrediction:
        """Return an output of :meth:`raw` with maps in the units of their files, for an image of `native_size`."""
        formats = self.map_formats if prediction.maps else {}
        changing = {name: spec.values for name, spec in formats.items() if spec.values not in (None, "none")}
        if not changing:
            return prediction
        width = prediction.size[1]
        enlarged, scale = width / native_size[1], width / self.reference.scaled(native_size)[1]
        converted = {
            name: prediction.maps[name].astype(np.float32) / np.float32(value_factor(change, enlarged, scale))
            for name, change in changing.items()
        }
        return replace(prediction, maps={**prediction.maps, **converted})

    @contextmanager
    def images_at_a_time(self) -> Iterator[tuple[int, Callable[[], object]]]:
        """Yield how many threads may call :meth:`raw` at a time, and what each must call first.

        The layers of a small network are too short to be divided among threads: if an image of 1024x2048 has an input
        of at most :data:`SMALL_INPUT` pixels, each thread of torch computes an image of its own. With 1, this thread
        calls :meth:`raw`, and the call is for threads that make results of its outputs.
        """
        height, width = self.input_size.scaled((1024, 2048))
        if not self.network.concurrent or height * width > SMALL_INPUT:
            yield 1, self.network.begin_thread
            return
        import torch

        threads = torch.get_num_threads()
        try:
            yield threads, partial(torch.set_num_threads, 1)
        finally:
            # it is also what further threads of this process begin with
            torch.set_num_threads(threads)

    def _run_in_tiles(self, image: np.ndarray, tiling: Tiling) -> ArrayPrediction:
        """Run the network on an image in tiles, as requested or because it does not fit into the memory as a whole."""
        size = (int(image.shape[0]), int(image.shape[1]))
        wanted = tiling.side_for(size)
        side = first_side(size) if wanted is None else wanted
        if side is None:
            raise self._out_of_memory(image)
        while True:
            try:
                prediction = predict_in_tiles(
                    lambda part: self.network.run([part])[0].on_cpu(),  # the maps of tiles are merged before the fusion
                    image,
                    side,
                    tiling.overlap_for(side),
                    self.network.nms_threshold,
                    self.map_formats,
                )
                break
            except Exception as error:
                if not lacks_memory(error):
                    raise
            # after the handler: the error keeps tensors of the network alive
            free_memory()
            if side <= LEAST_SIDE:
                raise self._out_of_memory(image, f", not even in tiles of {LEAST_SIDE} pixels")
            side = max(side // 2, LEAST_SIDE)
        if side != wanted and not self._warned:
            echo(
                f"{self.network.device}: not enough memory for a network input of {size[1]} x {size[0]} pixels at "
                f"once: it is processed in tiles of {side} pixels, and so are others, without another message",
                file=sys.stderr,
                flush=True,
            )
            self._warned = True
        return prediction

    def _out_of_memory(self, image: np.ndarray, tried: str = "", advice: str = "") -> OutOfMemory:
        cpu = "use `device=cpu`" if self.network.on_gpu else ""
        name = "shortest_size" if self.input_size.longest_size is None else "size"
        ways = " or ".join(filter(None, [advice, f"set a smaller `{name}`", cpu]))
        size = f"{image.shape[1]} x {image.shape[0]} pixels"
        return OutOfMemory(f"{self.network.device}: not enough memory for a network input of {size}{tried}: {ways}")

    def result(self, prediction: ArrayPrediction, native_size: tuple[int, int]) -> R:
        """Make the result of an image of `(height, width)` from the output of the network, without its image."""
        result = self.result_type.of(prediction, native_size, self.metadata, self.thresholds, self.classes)
        if prediction.maps and self.map_formats:
            result = replace(result, maps={name: prediction.maps[name] for name in self.map_formats})
        return cast(R, result)


def open_for_inference(
    model: str | Path,
    device: str | torch.device = "auto",
    config: str | Path | None = None,
    meta: str | Path | None = None,
    options: InferenceOptions = InferenceOptions(),  # noqa: B008  # frozen
) -> OpenedModel:
    """Open a model for :func:`build_predictor`, without building its network, which takes seconds.

    See :class:`seamseg.inference.options.LoadOptions` for the arguments. InputError if the model is missing,
    broken, or does not match its configuration and metadata, or if torch is not installed and the model is no exported
    network; SeamsegError if torch.compile is requested and does not work.
    """
    model = local_model(model)
    # others may need no torch
    try:
        if (library := library_of(model)) in OPENERS:
            opened: OpenedModel = import_module(OPENERS[library]).open_model(model, device, config, meta, options)
            return opened
        from seamseg.checkpoints.bundle import open_model
        from seamseg.inference.network import TrainedModel
        from seamseg.utils.distributed import choose_device
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InputError(f"{model}: needs torch, which is not installed; pip install 'seamseg[torch]'") from None
    chosen = choose_device(device)
    file = open_model(model, config, meta, list(options.overrides))
    network = file.config.general.network
    if network != SEAMLESS and (name := options.changed(OF_PARTS)):
        raise InputError(f"`{name}` is for networks of body and heads, not for {network}")
    classes = replace(file.metadata, images=[])
    return TrainedModel(file.name, file.config, file.config.general.kind, classes, file.reference, file, chosen)


def build_predictor(
    opened: OpenedModel, options: InferenceOptions, input_size: InputSize | None = None
) -> Predictor[Any]:
    """Build the network of an opened model; `input_size` replaces the size of the options."""
    size = opened.input_size(options) if input_size is None else input_size
    thresholds, metadata = options.thresholds(opened.config), opened.metadata
    classes = None if options.classes is None else choose_classes(options.classes, metadata)
    tiling = Tiling(options.tiles, options.tile_overlap)
    network = opened.build(options)
    used = network.result_type.options
    if name := options.changed(name for name in OF_RESULTS if name not in used):
        raise InputError(f"`{name}` has no effect: the model is of kind {network.kind}")
    return Predictor(network, metadata, size, thresholds, tiling, classes, opened.reference)
