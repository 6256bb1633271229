"""The base of results: their image, overlays, files, notebooks, and labels of other libraries."""

from __future__ import annotations

import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
from PIL import Image

from seamseg.maps.evaluation.coco_ap import encode_crop
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.images import open_image, pixels_of
from seamseg.maps.panoptic_map import PanopticResult
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.visualize.overlay import distinct_colors, figure_html
from seamseg.results.anonymize import LEAST_SCORE, Style, hide_classes
from seamseg.utils.errors import InputError, first_names, near_names
from seamseg.utils.files import replacing, write_json
from seamseg.utils.limits import check_sides

if TYPE_CHECKING:
    import fiftyone
    import supervision

OVERLAY_FORMATS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
"""File endings for which :meth:`ImageResult.save` writes the overlay."""

SourceImage: TypeAlias = Path | Image.Image | None

Drawable: TypeAlias = np.ndarray | Image.Image | None

R = TypeVar("R", bound="ImageResult")


def choose_classes(names: str | Sequence[str], metadata: Metadata, parameter: str = "classes") -> list[int]:
    """Return the indices of classes by their names, in ascending order.

    Case, blanks, `-` and `_` are ignored. Names of Vistas have parts (`human--rider--bicyclist`): one part, or several
    consecutive ones, such as `rider` or `human--rider`, select all classes that contain them.

    `names` is a list, or one text separated by commas; `parameter` is its name, for errors. InputError, with similar
    names, if there are none, or the model has no such class.
    """
    words = [w.strip() for w in (names.split(",") if isinstance(names, str) else names)]
    words = [w for w in words if w]
    if not words:
        raise InputError(f"`{parameter}`: no class is given")

    def key_of(name: str) -> tuple[str, ...]:
        return tuple(re.sub(r"[\s_-]+", " ", part).strip() for part in name.casefold().split("--"))

    keys = [key_of(name) for name in metadata.categories]
    chosen: set[int] = set()
    for word in words:
        part = key_of(word)
        starts = [range(len(key) - len(part) + 1) for key in keys]
        found = [k for k, key in enumerate(keys) if any(key[i : i + len(part)] == part for i in starts[k])]
        if not found:
            parts = {part.casefold(): part for name in metadata.categories for part in (name, *name.split("--"))}
            near = [parts[key] for key in near_names(word.casefold(), sorted(parts), 3)]
            meant = f"did you mean {' or '.join(near)}? " if near else ""
            known = f"its classes are {first_names(metadata.categories)}"
            raise InputError(f"`{parameter}`: the model has no class {word!r}; {meant}{known}")
        chosen.update(found)
    return sorted(chosen)


class LabelledObject(NamedTuple):
    """An object for other libraries: its class, score, box `(y0, x0, y1, x1)` in pixels, and mask `H x W`, if any."""

    name: str
    category: int
    score: float | None
    box: tuple[float, float, float, float]
    mask: np.ndarray | None


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the fusion to a panoptic map: see the keys of the same name in `[general]`."""

    score_threshold: float = 0.5
    overlap_threshold: float = 0.5
    min_stuff_area: int = 4096


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ImageResult(ABC):
    """The result of a prediction on an image.

    Attributes
    ----------
    kinds : kinds of networks that give it, as in `[general] kind`
    options : those of :data:`seamseg.inference.options.OF_RESULTS` that it depends on
    counted : what :meth:`counts` counts: segments, detections or classes
    outputs : names of the outputs that an exported network of it has at least, in order
    located : whether it says where in the image a class is
    has_ids : whether each pixel has one segment or class at most, see :meth:`id_png`
    metadata : names, colours and ids of the classes
    prediction : output of the network, in pixels of its input; None if it is not kept
    source : path or copy of the image, if it is kept
    maps : output maps of custom heads by name, `H x W` or `channels x H x W`, at the size of the network's input; see
        :func:`seamseg.components.resize_map`
    """

    kinds: ClassVar[tuple[str, ...]]
    options: ClassVar[tuple[str, ...]] = ()
    counted: ClassVar[str]
    outputs: ClassVar[tuple[str, ...]]
    located: ClassVar[bool] = True
    has_ids: ClassVar[bool] = False
    metadata: Metadata
    prediction: ArrayPrediction | None = None
    source: SourceImage = None
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    @abstractmethod
    def of(
        cls,
        prediction: ArrayPrediction,
        size: tuple[int, int],
        metadata: Metadata,
        thresholds: Thresholds = Thresholds(0.0),
        classes: Sequence[int] | None = None,
    ) -> ImageResult:
        """Make the result of an image of `size` from the output of the network, in pixels of its input.

        `classes` are the indices of the classes to keep, stuff first; None for all.
        """

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the image."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Count what was found of each class, by name, in the order of the classes."""

    @abstractmethod
    def shares(self) -> list[tuple[str, int, bool, float]]:
        """Return for each found object or region: class name, index, whether it is counted, part of the image."""

    @abstractmethod
    def draw(self, image: Drawable = None, **options: Any) -> Image.Image:
        """Draw the result over an image."""

    @abstractmethod
    def to_coco(self, image_id: int | str = 0) -> Any:
        """Return the result in the COCO format of its kind."""

    @abstractmethod
    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        """Return class index and JSON of each segment, object or class.

        The JSON has `category_id`, `class`, `score`, and `bbox` `[x, y, width, height]` and `area` in pixels; in a
        panoptic map also `id`, that of :meth:`id_png`; of a classifier no `bbox` and `area`. Crowds are void.
        """

    def index_map(self, shape: tuple[int, int]) -> np.ndarray:
        """Return the number of the entry of each pixel, from 1, int32, at `(height, width)`; 0 for void.

        Of overlapping objects the one of the highest score is on top, or without masks the smallest box.
        """
        return np.zeros(shape, np.int32)

    def to_json(self, masks: bool = False) -> dict[str, Any]:
        """Return `width`, `height`, the :meth:`entries` as `segments`, and `classes`: those that occur.

        With `masks` each segment or object has `segmentation`, its mask as run lengths of COCO, if there are masks.
        """
        (height, width), entries = self.size, self.entries()
        if masks and self.has_ids:
            numbers = self.index_map(self.size)
            for number, (_, entry) in enumerate(entries, 1):
                x, y, w, h = entry["bbox"]
                counts = encode_crop(numbers[y : y + h, x : x + w] == number, (y, x), self.size).decode("ascii")
                entry["segmentation"] = {"size": [height, width], "counts": counts}
        ids = {category: entry["category_id"] for category, entry in entries}
        infos = class_infos(self.metadata)
        # classifiers have no colours
        colors = self.metadata.palette or distinct_colors(self.metadata.num_classes).tolist()
        classes = [
            {"id": ids[c], "name": infos[c].name, "isthing": infos[c].isthing, "color": list(colors[c])}
            for c in sorted(ids)
        ]
        return {"width": width, "height": height, "segments": [entry for _, entry in entries], "classes": classes}

    def id_png(self) -> bytes:
        """Return the id image (R + 256 G + 65536 B) of a panoptic map, or class indices with a palette, as a PNG."""
        raise NotImplementedError

    def with_image(self: R, image: SourceImage, prediction: ArrayPrediction | None = None) -> R:
        """Return the result with its image, and with a copy of the output of the network."""
        compact = None if prediction is None else prediction.copy()
        maps = self.maps if compact is None else {name: compact.maps[name] for name in self.maps}
        return replace(self, source=image, prediction=compact, maps=maps)

    @property
    def image(self) -> np.ndarray | None:
        """The image, uint8 `H x W x 3` RGB, upright; None if the result has none.

        Raises
        ------
        InputError
            if the image is a file that no longer exists, or has another size now
        """
        if self.source is None:
            return None
        rgb = pixels_of(open_image(self.source) if isinstance(self.source, Path) else self.source)
        if rgb.shape[:2] != self.size:
            height, width = self.size
            raise InputError(
                f"{self.source}: the image is now {rgb.shape[1]} x {rgb.shape[0]} pixels, the result is of "
                f"{width} x {height}: the file has changed"
            )
        return rgb

    def anonymize(
        self, classes: str | Sequence[str], style: Style = "blur", least_score: float = LEAST_SCORE
    ) -> Image.Image:
        """Return the image with everything that may belong to some classes made unrecognisable.

        Parameters
        ----------
        classes : names; include related classes, as `person,rider`
        style : "blur" or "pixels"
        least_score : minimum score of detections that are hidden, see
            :func:`seamseg.results.anonymize.private_regions`

        Raises
        ------
        InputError
            if a name is unknown, or the result has no image
        """
        chosen = choose_classes(classes, self.metadata)
        rgb = self.image
        if rgb is None:
            raise InputError("this result has no image to anonymise: predict with keep_image=True")
        return Image.fromarray(
            hide_classes(rgb, self._segments(), self.prediction, chosen, self.metadata.num_stuff, style, least_score)
        )

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the result atomically, in the format that the ending of the path selects.

        Parameters
        ----------
        path : `.jpg`, `.png` or `.webp` for the overlay; `.json` for the COCO format of this kind of result
        **options : options of :meth:`draw`, for overlays

        Returns
        -------
        path : the path as given

        Raises
        ------
        InputError
            if the ending is not supported
        SeamsegError
            if the file cannot be written
        """
        path = Path(path)
        ending = path.suffix.lower()
        if ending in OVERLAY_FORMATS:
            image = self.draw(**options)
            check_sides(image.size, OVERLAY_FORMATS[ending])
            more = {"quality": 92} if ending != ".png" else {}
            with replacing(path) as temporary:
                image.save(temporary, OVERLAY_FORMATS[ending], **more)
        elif ending != ".json":
            raise InputError(f"{path}: results are saved as {', '.join([*OVERLAY_FORMATS, '.json'])}")
        elif options:
            raise InputError(f"{path}: {', '.join(options)}: options for overlays only")
        else:
            self._save_json(path)
        return path

    def to_fiftyone(self) -> dict[str, fiftyone.Label]:
        """Return labels of FiftyOne by name.

        `segmentation`, of networks with a class map: class index + 1, 0 void, crowds included. `detections`: the things
        of a panoptic map, or the detections, with masks if the network has them; the box of an object with a mask
        bounds its pixels, over which FiftyOne stretches the mask. `classification`: the most probable class.

        Raises
        ------
        InputError
            if the library is not installed
        """
        library, labels = import_library("fiftyone", "pip install fiftyone"), {}
        classes, objects = self._class_map(), self._objects()
        if classes is not None:
            mask = classes + np.uint8(1)  # void, 255, becomes 0
            labels["segmentation"] = library.Segmentation(mask=mask)
        if objects is not None:
            found = [_fiftyone_detection(library, one, self.size) for one in objects]
            labels["detections"] = library.Detections(detections=found)
        return labels

    def _segments(self) -> PanopticResult | None:
        """Return the panoptic map of the result, if it has one."""
        return None

    def _class_map(self) -> np.ndarray | None:
        """Return the class index of each pixel, 255 for void, if the result has it."""
        return None

    def _objects(self) -> list[LabelledObject] | None:
        """Return the detected objects, if the network detects any."""
        return None

    def _save_json(self, path: Path) -> None:
        """Write the COCO format."""
        write_json(path, self.to_coco(path.stem))

    def _repr_html_(self) -> str:
        try:
            overlay = self.draw()
        except InputError:  # the file of the image may have moved
            overlay = replace(self, source=None).draw()
        return figure_html(overlay, repr(self), self.shares(), self.metadata.palette)


def result_of(kind: str) -> type[ImageResult]:
    """Return the type of results whose `kinds` contain a kind; InputError if this version has none."""
    for result in ImageResult.__subclasses__():
        if kind in result.kinds:
            return result
    raise InputError(f"no results are known of networks of kind {kind!r:.40}: update seamseg")


def supervision_detections(
    objects: Sequence[LabelledObject], size: tuple[int, int], has_masks: bool
) -> supervision.Detections:
    """Return `supervision.Detections` of objects of an image of `(height, width)`."""
    library = import_library("supervision", "pip install 'seamseg[supervision]'")
    masks = np.array([one.mask for one in objects], bool).reshape(-1, *size) if has_masks else None
    found: supervision.Detections = library.Detections(
        xyxy=np.array([one.box for one in objects], np.float32).reshape(-1, 4)[:, [1, 0, 3, 2]],
        mask=masks,
        confidence=np.array([1.0 if one.score is None else one.score for one in objects], np.float32),
        class_id=np.array([one.category for one in objects], int),
        data={"class_name": np.array([one.name for one in objects], dtype=str)},
    )
    return found


def _fiftyone_detection(library: Any, found: LabelledObject, size: tuple[int, int]) -> Any:
    """Return the label of an object, whose box `[x, y, width, height]` is relative to the image."""
    (height, width), (y0, x0, y1, x1), crop = size, found.box, None
    if found.mask is not None and found.mask.any():
        rows, columns = np.flatnonzero(found.mask.any(1)), np.flatnonzero(found.mask.any(0))
        (y0, y1), (x0, x1) = (rows[0], rows[-1] + 1), (columns[0], columns[-1] + 1)
        crop = np.ascontiguousarray(found.mask[y0:y1, x0:x1])
    box = [float(v) for v in (x0 / width, y0 / height, (x1 - x0) / width, (y1 - y0) / height)]
    score = None if found.score is None else float(found.score)
    return library.Detection(label=found.name, bounding_box=box, confidence=score, mask=crop)


def import_library(name: str, advice: str) -> Any:
    """Import an optional library, which may take seconds; InputError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"to_{name}() needs {name} ({error}): {advice}") from error
