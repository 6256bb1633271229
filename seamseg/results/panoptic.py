"""Panoptic maps: the results of panoptic networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from seamseg.fusion import fuse, merge_queries, to_result
from seamseg.maps.formats.coco_writer import CocoPanopticWriter, encode_panoptic, encode_result
from seamseg.maps.formats.id_png import id_image
from seamseg.maps.formats.label_png import look_up
from seamseg.maps.formats.metadata import Metadata, class_infos
from seamseg.maps.idmaps.segments import resize_nearest
from seamseg.maps.panoptic_map import VOID, PanopticResult, Segment
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.visualize.overlay import canvas, draw_overlay
from seamseg.results.base import (
    Drawable,
    ImageResult,
    LabelledObject,
    SourceImage,
    Thresholds,
    choose_classes,
    supervision_detections,
)
from seamseg.utils.errors import InputError

if TYPE_CHECKING:
    import supervision


@dataclass(frozen=True)
class NamedSegment(Segment):
    """A segment with the `name` of its class."""

    name: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Panoptic(PanopticResult, ImageResult):
    """The panoptic map of an image, at the size of the image.

    Attributes
    ----------
    id_map : `H x W` int32, the segment of each pixel, 0 void
    segments : id, class `name` and index `category`, score, area and box of each, see :class:`NamedSegment`
    prediction : output of the network before the fusion
    metadata, source, maps : see :class:`seamseg.results.base.ImageResult`

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

    kinds = ("panoptic",)
    options = ("score_threshold", "overlap_threshold", "min_stuff_area")
    counted = "segments"
    outputs = ("boxes", "classes", "scores", "count", "classmap")
    has_ids = True
    segments: list[NamedSegment]  # type: ignore[assignment]

    @classmethod
    def of(
        cls,
        prediction: ArrayPrediction,
        size: tuple[int, int],
        metadata: Metadata,
        thresholds: Thresholds = Thresholds(),  # noqa: B008  # frozen
        classes: Sequence[int] | None = None,
    ) -> Panoptic:
        """See :meth:`ImageResult.of`."""
        t, num_stuff = thresholds, metadata.num_stuff
        if prediction.queries is None:
            fused = fuse(
                prediction, num_stuff, t.score_threshold, t.overlap_threshold, t.min_stuff_area, native_size=size
            )
        else:
            fused = merge_queries(
                prediction.queries, prediction.size, size, num_stuff, t.score_threshold, t.overlap_threshold
            )
        result = to_result(fused, size, num_stuff)
        return Panoptic.of_map(result if classes is None else _only(result, classes), metadata)

    @staticmethod
    def of_map(result: PanopticResult, metadata: Metadata, image: SourceImage = None) -> Panoptic:
        """Return a panoptic map with the names of its classes, and with its image if given."""
        names = metadata.categories
        named = [NamedSegment(**{**vars(s), "name": names[s.category]}) for s in result.segments]
        found = Panoptic(result.id_map, named, metadata=replace(metadata, images=[]))
        return found if image is None else found.with_image(image)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PanopticResult):
            return NotImplemented
        return np.array_equal(self.id_map, other.id_map) and self.segments == other.segments

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

    def mask(self, segment: int | Segment | str) -> np.ndarray:
        """Return the mask of a segment, given by itself or its id, or of a class, given by its name: `H x W` bool."""
        if isinstance(segment, str):
            return np.isin(self.classes, choose_classes(segment, self.metadata, "segment"))
        if not isinstance(segment, Segment) and segment not in (0, *(s.id for s in self.segments)):
            raise InputError(f"no segment has the id {segment}")
        found: np.ndarray = self.id_map == (segment.id if isinstance(segment, Segment) else segment)
        return found

    def only(self, classes: str | Sequence[str]) -> Panoptic:
        """Return the result with some classes only; pixels of others are void.

        `classes` are names, see :func:`seamseg.results.base.choose_classes`.
        """
        kept = _only(self, choose_classes(classes, self.metadata))
        return replace(self, id_map=kept.id_map, segments=cast("list[NamedSegment]", kept.segments))

    def draw(  # type: ignore[override]  # its options are named
        self,
        image: Drawable = None,
        labels: bool = True,
        opacity: float = 0.5,
        outlined: bool = True,
        classes: str | Sequence[str] | None = None,
    ) -> Image.Image:
        """Draw the segments over the image.

        Parameters
        ----------
        image : image to draw on, of any size; None for the result's own, or a black image if it has none
        labels : write class and score on large segments
        opacity : opacity of the colours, 0 to 1
        outlined : draw a contour around each thing
        classes : names of the classes to draw; None for all
        """
        rgb, opacity = canvas(self, image, opacity)
        shown = self if classes is None else self.only(classes)
        names = self.metadata.categories
        return draw_overlay(rgb, shown, self.metadata.palette, names, labels, opacity, outlined)

    def _segments(self) -> PanopticResult:
        return self

    def to_coco(self, image_id: int | str = 0) -> tuple[dict[str, Any], Image.Image]:
        """Return the annotation of the COCO panoptic format, and its image of ids (R + 256 G + 65536 B).

        Crowds (pixels of things that belong to no detection) are void: predictions of the format have no crowds.

        Parameters
        ----------
        image_id : id of the image in the list of images; the file name of the id image is `<image_id>.png`
        """
        segments = [s for s in self.segments if not s.iscrowd]
        annotation, values = encode_panoptic(image_id, segments, class_infos(self.metadata), self.metadata.palette)
        return annotation, id_image(look_up(self.id_map, values, np.uint32))

    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        """See :meth:`ImageResult.entries`."""
        segments = [s for s in self.segments if not s.iscrowd]
        stated, _ = encode_panoptic(0, segments, class_infos(self.metadata), self.metadata.palette)
        found = []
        for segment, e in zip(segments, stated["segments_info"], strict=True):
            entry = {"id": e["id"], "category_id": e["category_id"], "class": segment.name, "score": e.get("score")}
            found.append((segment.category, {**entry, "bbox": e["bbox"], "area": e["area"]}))
        return found

    def index_map(self, shape: tuple[int, int]) -> np.ndarray:
        """See :meth:`ImageResult.index_map`."""
        numbers = [(s.id, k) for k, s in enumerate((s for s in self.segments if not s.iscrowd), 1)]
        return look_up(resize_nearest(self.id_map, shape), numbers, np.int32)

    def id_png(self) -> bytes:
        """See :meth:`ImageResult.id_png`."""
        return encode_result(self, self.metadata)[1]

    def to_supervision(self, stuff: bool = False) -> supervision.Detections:
        """Return `supervision.Detections`: boxes, masks, class indices, scores, and `class_name` in its data.

        Parameters
        ----------
        stuff : include stuff classes, such as road and sky, with confidence 1; crowds, which have no score, are omitted

        Raises
        ------
        SeamsegError
            if the library is not installed
        """
        return supervision_detections(self._objects(stuff), self.size, has_masks=True)

    def _class_map(self) -> np.ndarray:
        return self.classes

    def _objects(self, stuff: bool = False) -> list[LabelledObject]:
        shown = [s for s in self.segments if not s.iscrowd and (stuff or s.isthing)]
        return [LabelledObject(s.name, s.category, s.score, s.box, self.mask(s)) for s in shown if s.area]

    def _save_json(self, path: Path) -> None:
        # the id image is written to a folder of the same name, as usual for the format
        writer = CocoPanopticWriter(path, self.metadata)
        name = self.source.name if isinstance(self.source, Path) else None
        writer.write_json([writer.write(path.stem, self, name)])

    def shares(self) -> list[tuple[str, int, bool, float]]:
        """See :meth:`ImageResult.shares`."""
        return [(s.name, s.category, s.isthing and not s.iscrowd, s.area / self.id_map.size) for s in self.segments]


def _only(result: PanopticResult, classes: Sequence[int]) -> PanopticResult:
    """Return a result with the segments of some classes (indices) only; other pixels are void."""
    kept = [s for s in result.segments if s.category in set(classes)]
    return PanopticResult(look_up(result.id_map, [(s.id, s.id) for s in kept], result.id_map.dtype), kept)
