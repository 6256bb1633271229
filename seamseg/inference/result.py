"""The result of a prediction: a panoptic map with its classes and image, which can be drawn and saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from seamseg.data.images import MAX_PIXELS
from seamseg.formats.coco_writer import CocoPanopticWriter, encode_panoptic
from seamseg.formats.id_png import MAX_ID, id_image
from seamseg.formats.label_png import look_up
from seamseg.formats.metadata import Metadata
from seamseg.inference.class_names import choose_classes
from seamseg.inference.fiftyone_labels import LabelledObject, cropped, detections_label, segmentation_label
from seamseg.inference.photo_result import Photo, PhotoResult, ResultFile, SourceImage, import_supervision
from seamseg.panoptic_map import VOID, PanopticResult, Segment, class_infos
from seamseg.predictions import ArrayPrediction
from seamseg.utils.limits import bounded_number, whole_number
from seamseg.visualize.overlay import overlay_image

if TYPE_CHECKING:
    import fiftyone
    import supervision


@dataclass(frozen=True)
class NamedSegment(Segment):
    """A segment with the `name` of its class."""

    name: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Panoptic(PanopticResult, PhotoResult):
    """The panoptic map of an image, at the size of the image.

    Attributes
    ----------
    id_map : `H x W` int32, the segment of each pixel, 0 void
    segments : id, class `name` and index `category`, score, area and box of each, see :class:`NamedSegment`
    prediction : output of the network before the fusion
    metadata, source, maps : see :class:`seamseg.inference.photo_result.PhotoResult`

    Notes
    -----
    Two results are equal if their maps and segments are. A result can be pickled, with its image, or with the path of
    its file.

    Examples
    --------
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> [(s.name, s.score, s.area) for s in result.segments]  # doctest: +SKIP
    [('car', 0.98, 5321), ('road', None, 201334)]
    >>> result.id_map == result.segments[0].id  # the pixels of the first segment  # doctest: +SKIP
    >>> result.save("street_overlay.jpg")  # doctest: +SKIP
    """

    counted = "segments"
    metadata: Metadata = field(default_factory=lambda: Metadata(0, 0, [], [], []))
    prediction: ArrayPrediction | None = None
    source: SourceImage = None
    maps: Mapping[str, np.ndarray] = field(default_factory=dict)

    segments: list[NamedSegment]  # type: ignore[assignment]

    @staticmethod
    def of(
        result: PanopticResult, metadata: Metadata, photo: SourceImage = None, prediction: ArrayPrediction | None = None
    ) -> Panoptic:
        """Return a result with the names of its classes, and with its image and prediction if given."""
        named = [_named(s, metadata) for s in result.segments]
        bare = Panoptic(result.id_rows, named, metadata.without_images())  # type: ignore[arg-type]  # see its field
        return bare if photo is None and prediction is None else bare.with_photo(photo, prediction)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PanopticResult):
            return NotImplemented
        return np.array_equal(self.id_map, other.id_map) and self.segments == other.segments

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        height, width = self.size
        counts = Counter(s.name for s in self.segments if s.isthing and not s.iscrowd)
        things = [f"{n} {name}" for name, n in counts.most_common()]
        others = [s for s in sorted(self.segments, key=lambda s: -s.area) if not s.isthing or s.iscrowd]
        stuff = [f"{s.name} (crowd)" if s.iscrowd else s.name for s in others]
        return f"Panoptic({width} x {height}: {', '.join(things + stuff) or 'no segments'})"

    def counts(self) -> dict[str, int]:
        """Count the segments of each class, without crowds."""
        count = Counter(s.category for s in self.segments if not s.iscrowd)
        return {self.metadata.categories[category]: count[category] for category in sorted(count)}

    @property
    def classes(self) -> np.ndarray:
        """The class index of each pixel (into `metadata.categories`), `H x W` uint8, 255 for void."""
        return look_up(self.id_map, [*((s.id, s.category) for s in self.segments), (0, VOID)], np.uint8, VOID)

    def mask(self, segment: int | Segment) -> np.ndarray:
        """Return the mask of a segment, given by itself or its id, `H x W` bool."""
        found: np.ndarray = self.id_map == (segment.id if isinstance(segment, Segment) else segment)
        return found

    def only(self, classes: str | Sequence[str]) -> Panoptic:
        """Return the result with some classes only; pixels of others are void.

        Parameters
        ----------
        classes : names, as a list or separated by commas, see :func:`seamseg.inference.class_names.choose_classes`

        Examples
        --------
        >>> len(result.only("car,truck").segments)  # doctest: +SKIP
        """
        kept = only_classes(self, choose_classes(classes, self.metadata))
        return replace(self, id_map=kept.id_map, segments=[_named(s, self.metadata) for s in kept.segments])

    def draw(  # type: ignore[override]  # its options are named
        self,
        photo: Photo = None,
        labels: bool = True,
        opacity: float = 0.5,
        outlined: bool = True,
        classes: str | Sequence[str] | None = None,
    ) -> Image.Image:
        """Draw the segments over the image.

        Parameters
        ----------
        photo : image to draw on, of any size; None for the result's own, or a black image if it has none
        labels : write class and score on large segments
        opacity : opacity of the colours, 0 to 1
        outlined : draw a contour around each thing
        classes : names of the classes to draw; None for all

        Examples
        --------
        >>> result.draw(opacity=0.3, classes="person,rider").show()  # doctest: +SKIP
        """
        rgb, opacity = self.canvas(photo, opacity)
        shown = self if classes is None else self.only(classes)
        names = self.metadata.categories
        return overlay_image(rgb, shown, self.metadata.palette, names, labels, opacity, outlined)

    def _segments(self) -> PanopticResult:
        return self

    def to_coco(self, image_id: int | str = 0, file_name: str | None = None) -> tuple[dict[str, Any], Image.Image]:
        """Return the annotation of the COCO panoptic format, and its image of ids (R + 256 G + 65536 B).

        Crowds (pixels of things that belong to no detection) are void: predictions of the format have no crowds.

        Parameters
        ----------
        image_id : id of the image in the list of images
        file_name : file name of the id image, `<image_id>.png` by default

        Examples
        --------
        >>> annotation, id_map = result.to_coco(17)  # doctest: +SKIP
        >>> annotation["segments_info"][0]["category_id"]  # doctest: +SKIP
        """
        segments = [s for s in self.segments if not s.iscrowd]
        annotation, values = encode_panoptic(image_id, segments, class_infos(self.metadata), self.metadata.palette)
        if file_name is not None:
            annotation["file_name"] = file_name
        return annotation, id_image(look_up(self.id_map, values, np.uint32))

    def to_supervision(self, stuff: bool = False) -> supervision.Detections:
        """Return `supervision.Detections`: boxes, masks, class indices, scores, and `class_name` in its data.

        Parameters
        ----------
        stuff : include stuff classes, such as road and sky, with confidence 1; crowds, which have no score, are omitted

        Raises
        ------
        SeamsegError
            if the library is not installed

        Examples
        --------
        >>> import supervision as sv  # doctest: +SKIP
        >>> sv.MaskAnnotator().annotate(result.photo.copy(), result.to_supervision())  # doctest: +SKIP
        """
        shown = [s for s in self.segments if not s.iscrowd and (stuff or s.isthing)]
        boxes = np.array([s.box for s in shown], np.float32).reshape(-1, 4)
        masks = np.stack([self.mask(s) for s in shown]) if shown else np.zeros((0, *self.size), bool)
        found: supervision.Detections = import_supervision().Detections(
            xyxy=boxes[:, [1, 0, 3, 2]],
            mask=masks,
            confidence=np.array([1.0 if s.score is None else s.score for s in shown], np.float32),
            class_id=np.array([s.category for s in shown], int),
            data={"class_name": np.array([s.name for s in shown], dtype=str)},
        )
        return found

    def _fiftyone_labels(self) -> dict[str, fiftyone.Label]:
        things = []
        for segment in self.segments:
            crop = cropped(self.mask(segment)) if segment.isthing and not segment.iscrowd else None
            if crop is not None:
                things.append(LabelledObject(segment.name, segment.score, *crop))
        return {"segmentation": segmentation_label(self.classes), "detections": detections_label(things, self.size)}

    def _save_json(self, path: Path) -> None:
        # the id image is written to a folder of the same name, as usual for the format
        writer = CocoPanopticWriter(path, self.metadata)
        name = self.source.name if isinstance(self.source, Path) else None
        writer.add(path.stem, self, name)
        writer.write_json()

    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"segments": [asdict(s) for s in self.segments]}, {"id_map": self.id_map}

    @classmethod
    def _read(cls, file: ResultFile, source: SourceImage) -> Panoptic:
        id_map = file.array("id_map", 4 * MAX_PIXELS + 1024)
        if id_map.ndim != 2 or id_map.dtype != np.int32:
            raise ValueError(f"its map is {id_map.shape} {id_map.dtype}")
        metadata = file.metadata
        return Panoptic(id_map, [_segment(s, metadata) for s in file.content["segments"]], metadata, None, source)

    def shares(self) -> list[tuple[str, int, bool, float]]:
        """See :meth:`seamseg.inference.photo_result.PhotoResult.shares`."""
        return [(s.name, s.category, s.isthing and not s.iscrowd, s.area / self.id_rows.size) for s in self.segments]


def only_classes(result: PanopticResult, classes: Sequence[int]) -> PanopticResult:
    """Return a result with the segments of some classes (indices) only; other pixels are void."""
    kept = [s for s in result.segments if s.category in set(classes)]
    return PanopticResult(look_up(result.id_map, [(s.id, s.id) for s in kept], result.id_map.dtype), kept)


def _named(segment: Segment, metadata: Metadata) -> NamedSegment:
    values = {f.name: getattr(segment, f.name) for f in fields(Segment)}
    return NamedSegment(**values, name=metadata.categories[segment.category])


def _segment(entry: dict[str, Any], metadata: Metadata) -> NamedSegment:
    """Return a segment of a `.npz` file."""
    identity, category, area = (whole_number(entry[key]) for key in ("id", "category", "area"))
    if not 0 < identity <= MAX_ID or not 0 <= category < metadata.num_classes:
        raise ValueError(f"its segment {identity} is of class {category}")
    y0, x0, y1, x1 = map(bounded_number, entry["box"])
    score = None if entry["score"] is None else bounded_number(entry["score"])
    segment = Segment(identity, category, bool(entry["isthing"]), score, area, (y0, x0, y1, x1), bool(entry["iscrowd"]))
    return _named(segment, metadata)
