"""The interface of an output format of `predict`, and the formats with an image for each input."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from PIL import Image

from seamseg.config.components import register
from seamseg.config.sections import key
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.visualize.detections import draw_legacy
from seamseg.maps.visualize.overlay import draw_legend
from seamseg.predicting.source import Source
from seamseg.results import Detections, ImageResult, SemanticMap
from seamseg.results.anonymize import Style, hide_classes
from seamseg.results.base import choose_classes
from seamseg.utils.files import replacing
from seamseg.utils.limits import check_sides

Record = dict[str, Any]
"""Data that a format stores in the manifest for an image, as JSON."""

Records = Callable[[], Iterator[Record]]
"""Iterates over the records of all images in the order of their names; may be called several times."""

R = TypeVar("R", bound=ImageResult, contravariant=True)


@dataclass(eq=False, repr=False)
class OutputFormat(ABC, Generic[R]):
    """An output format for results of type `R`; derive from it, and register the class.

    The methods may be called from several threads at a time.

    Parameters
    ----------
    out : folder
    metadata : the classes of the model
    keys : values of the section `[format NAME]`

    Attributes
    ----------
    kinds : kinds of networks whose results it holds
    file : file of an image in the folder, with `{}` for its name; empty if there is none, or :meth:`paths` returns them
    final : file that :meth:`finish` writes; empty if there is none, or :meth:`finals` returns them
    needs_photo : whether :meth:`write` needs the pixels of the image
    all_classes : whether it contains all classes whatever the user chooses, so that a choice is an error
    probabilities : whether it needs the probabilities of a semantic network
    of_torch : whether it holds tensors, which an exported network does not return
    of_files : whether it names the files of the images, which frames of videos do not have
    map_only : whether it reads no detections of a panoptic network; if so for all formats, `prediction` may lack those
        that score too low for the panoptic map; not inherited
    least_score, chosen : detections score above, by default all that the network returns, as average precision needs;
        indices of their classes, stuff first, None for all. Set after the construction, for formats that read
        detections from the prediction
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    file = ""
    final = ""
    needs_photo = False
    all_classes = False
    probabilities = False
    of_torch = False
    of_files = False
    map_only = False
    out: Path
    metadata: Metadata
    keys: Any = None
    least_score: float = field(default=0.0, init=False)
    chosen: Sequence[int] | None = field(default=None, init=False)

    def paths(self, source: Source) -> list[Path]:
        """Return the files of an image, as far as they are known in advance."""
        return [self.out / self.file.format(source.name)] if self.file else []

    @abstractmethod
    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: R) -> Record | None:
        """Write the files of an image, each atomically, and return what :meth:`finish` needs of it, if anything."""

    def finals(self) -> list[Path]:
        """Return the files that :meth:`finish` writes."""
        return [self.out / self.final] if self.final else []

    def finish(self, records: Records) -> None:
        """Write files about all images; called by the main process after the last one.

        Parameters
        ----------
        records : what :meth:`write` returned for each image, in this run or an earlier one, in any process
        """
        return


LEGEND = "legend.png"
"""File of the legend, beside overlays with names."""

OVERLAY_QUALITY = 92
ANONYMIZED_QUALITY = 95


class ImageFormat(OutputFormat[R]):
    """Base of the formats with one output image per input: `<name><ending>`, a JPEG or PNG without any metadata.

    Attributes
    ----------
    ending : end of the file name, after the name of the image
    encoding : options of Pillow for a JPEG
    """

    needs_photo = True
    ending = ".jpg"
    encoding: ClassVar[dict[str, Any]] = {"quality": OVERLAY_QUALITY}

    def paths(self, source: Source) -> list[Path]:
        """Return `OUT/<name><ending>`."""
        return [self.out / f"{source.name}{self.ending}"]

    def write(self, source: Source, rgb: np.ndarray | None, prediction: ArrayPrediction, result: R) -> None:
        """Draw and write the image."""
        image = self.image(rgb, prediction, result)  # errors of drawing are none of the file
        with replacing(self.paths(source)[0]) as temporary:
            # not through memory: only where it writes to a file Pillow releases the lock of Python
            self.encode(image, temporary)

    def encode(self, image: Image.Image, target: Path | BytesIO) -> None:
        """Write the content of the file of an image."""
        if self.ending.endswith(".jpg"):
            check_sides(image.size, "JPEG")
            image.save(target, "JPEG", **self.encoding)
        else:
            image.save(target, "PNG", compress_type=zlib.Z_RLE)

    @abstractmethod
    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: R) -> Image.Image:
        """Return the image of a result; `rgb` is given if :attr:`needs_photo`."""


@dataclass(frozen=True)
class OverlayKeys:
    """Keys of overlays of panoptic maps."""

    labels: bool = key("write class and score on the segments that are large enough", False)
    opacity: float = key("opacity of the colours; 0 shows the image only, 1 no image", 0.5, minimum=0, maximum=1)


@register("format", "overlay", keys=OverlayKeys)
class OverlayWriter(ImageFormat[ImageResult]):
    """The image with the result: blended with segments or classes, or with boxes, masks, names and scores.

    With names on panoptic maps, `OUT/legend.png` has the colours of all classes.
    """

    kinds = ("panoptic", "instance_seg", "detection", "classification", "semantic")
    map_only = True

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> Image.Image:
        """See :class:`ImageFormat`."""
        return result.draw(rgb, **(vars(self.keys or OverlayKeys()) if isinstance(result, PanopticResult) else {}))

    def finals(self) -> list[Path]:
        """Return the legend, if names are written."""
        return [self.out / LEGEND] if self.keys is not None and self.keys.labels else []

    def finish(self, records: Records) -> None:
        """Write the legend."""
        if self.keys is not None and self.keys.labels:
            classes = self.metadata
            with replacing(self.out / LEGEND) as temporary:
                draw_legend(classes.categories, classes.palette, classes.num_stuff, 720).save(temporary, "PNG")


@register("format", "overlay-legacy")
class LegacyOverlayWriter(ImageFormat[Detections]):
    """The image as the original's `test_instance_seg.py` draws it: masks at 75 % opacity and boxes, without text."""

    kinds = ("instance_seg", "detection")

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: Detections) -> Image.Image:
        """See :class:`ImageFormat`."""
        assert rgb is not None
        return Image.fromarray(draw_legacy(rgb, list(result), result.size, self.metadata.palette))


@register("format", "labels")
class LabelsWriter(ImageFormat[SemanticMap]):
    """The class of each pixel as an image with a palette: indices with the colours of the classes, black from there."""

    kinds = ("semantic",)
    needs_photo = False
    ending = ".png"

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`ImageFormat`."""
        return result.id_image()


@register("format", "ids")
class IdsWriter(LabelsWriter):
    """The class of each pixel as a greyscale image, `<name>.png`, with the indices of `labels`."""

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`ImageFormat`."""
        return Image.fromarray(result.classes)


@register("format", "probabilities")
class ProbabilitiesWriter(LabelsWriter):
    """The probability of the class of each pixel as a greyscale image: 255 times the probability, rounded down."""

    ending = "_prob.png"
    probabilities = True

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: SemanticMap) -> Image.Image:
        """See :class:`ImageFormat`."""
        assert result.probability is not None
        return Image.fromarray(result.probability)


class AnonymizeWriter(ImageFormat[ImageResult]):
    """The image, upright and at its own size, with some classes hidden: `<name>.jpg`; InputError for an unknown class.

    The file holds pixels only: no EXIF (place, date, camera), thumbnail, comment or colour profile. Names of classes,
    `style` and `least_score` are as of :func:`seamseg.results.anonymize.hide_classes`.
    """

    encoding: ClassVar[dict[str, Any]] = {"quality": ANONYMIZED_QUALITY, "subsampling": 0}

    def __init__(
        self, out: Path, metadata: Metadata, hide: str | Sequence[str], style: Style, least_score: float
    ) -> None:
        super().__init__(out, metadata)
        self.classes = choose_classes(hide, metadata, "hide")
        self.style = style
        self.least_score = least_score

    def image(self, rgb: np.ndarray | None, prediction: ArrayPrediction, result: ImageResult) -> Image.Image:
        """See :class:`ImageFormat`."""
        assert rgb is not None
        segments = result if isinstance(result, PanopticResult) else None
        num_stuff = self.metadata.num_stuff
        return Image.fromarray(
            hide_classes(rgb, segments, prediction, self.classes, num_stuff, self.style, self.least_score)
        )
