"""Class maps: the results of semantic networks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from seamseg.maps.evaluation.coco_ap import encode_crop
from seamseg.maps.formats.label_png import look_up
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.idmaps.segments import areas_and_boxes, count_classes, resize_nearest
from seamseg.maps.panoptic_map import VOID, PanopticResult, class_map_result
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.visualize import padded_palette
from seamseg.maps.visualize.overlay import canvas, draw_overlay
from seamseg.results.base import Drawable, ImageResult, Thresholds, choose_classes


@dataclass(frozen=True, eq=False, repr=False)
class SemanticMap(ImageResult):
    """The class of each pixel of an image, at the size of the image.

    Attributes
    ----------
    classes : `H x W` uint8, index into `metadata.categories`, 255 void (with a choice of classes only)
    probability : `H x W` uint8, 255 times the probability of the class, rounded down; None if it was not requested
    metadata, prediction, source, maps : see :class:`seamseg.results.base.ImageResult`

    Notes
    -----
    Both maps are resized from the network's input by nearest neighbour. Two results are equal if their maps are.

    Examples
    --------
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> result.mask("road").mean()  # doctest: +SKIP
    0.31
    >>> result.save("street_overlay.jpg")  # doctest: +SKIP
    """

    kinds = ("semantic",)
    options = ("tta_fusion", "probabilities")
    counted = "segments"
    outputs = ("classmap", "probability")
    has_ids = True
    classes: np.ndarray
    probability: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        prediction: ArrayPrediction,
        size: tuple[int, int],
        metadata: Metadata,
        thresholds: Thresholds = Thresholds(0.0),  # noqa: B008  # frozen
        classes: Sequence[int] | None = None,
    ) -> SemanticMap:
        """See :meth:`ImageResult.of`; pixels of other classes are void."""
        prediction = prediction.on_cpu()
        assert prediction.semantic is not None
        found = resize_nearest(prediction.semantic, size)
        if classes is not None:
            found = _only(found, classes)
        surest = prediction.maps.get("probability")
        surest = None if surest is None else resize_nearest(surest, size)
        return SemanticMap(found, surest, metadata=replace(metadata, images=[]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SemanticMap):
            return NotImplemented
        if (self.probability is None) != (other.probability is None):
            return False
        same = self.probability is None or np.array_equal(self.probability, other.probability)  # type: ignore[arg-type]
        return same and np.array_equal(self.classes, other.classes)

    def __repr__(self) -> str:
        height, width = self.size
        names = [name for name, *_ in sorted(self.shares(), key=lambda share: -share[3])]
        return f"SemanticMap({width} x {height}: {', '.join(names) or 'nothing'})"

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the image."""
        return int(self.classes.shape[0]), int(self.classes.shape[1])

    def mask(self, classes: str | Sequence[str]) -> np.ndarray:
        """Return where the pixels belong to one of some classes, given by name: `H x W` bool."""
        return np.isin(self.classes, choose_classes(classes, self.metadata))

    def counts(self) -> dict[str, int]:
        """Return 1 for each class that occurs."""
        return dict.fromkeys((name for name, *_ in self.shares()), 1)

    def shares(self) -> list[tuple[str, int, bool, float]]:
        """See :meth:`ImageResult.shares`."""
        counts = enumerate(count_classes(self.classes)[:VOID].tolist())
        return [(self.metadata.categories[c], c, False, n / self.classes.size) for c, n in counts if n]

    def only(self, classes: str | Sequence[str]) -> SemanticMap:
        """Return the result with some classes only; pixels of others are void.

        `classes` are names, see :func:`seamseg.results.base.choose_classes`.
        """
        return replace(self, classes=_only(self.classes, choose_classes(classes, self.metadata)))

    def draw(  # type: ignore[override]  # its options are named
        self, image: Drawable = None, opacity: float = 0.5, classes: str | Sequence[str] | None = None
    ) -> Image.Image:
        """Blend the image with the colours of the classes.

        Parameters
        ----------
        image : image to draw on, of any size; None for the result's own, or a black image if it has none
        opacity : opacity of the colours, 0 to 1
        classes : names of the classes to draw; None for all
        """
        rgb, opacity = canvas(self, image, opacity)
        shown = self if classes is None else self.only(classes)
        return draw_overlay(rgb, shown._segments(), self.metadata.palette, opacity=opacity)

    def _segments(self) -> PanopticResult:
        return class_map_result(self.classes)

    def to_coco(self, image_id: int | str = 0) -> list[dict[str, Any]]:
        """Return the classes in COCO's format of results: for each class that occurs its mask as run lengths (RLE)."""
        entries = []
        for _, category, _, _ in self.shares():
            counts = encode_crop(self.classes == category, (0, 0), self.size).decode("ascii")
            mask = {"size": list(self.size), "counts": counts}
            entries.append({"image_id": image_id, "category_id": category, "segmentation": mask, "score": 1.0})
        return entries

    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        """See :meth:`ImageResult.entries`; the score is None."""
        areas, boxes = areas_and_boxes(self.classes.astype(np.int32) + 1, VOID + 1)
        found = []
        for name, category, *_ in self.shares():
            y0, x0, y1, x1 = (int(v) for v in boxes[category + 1])
            place = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": int(areas[category + 1])}
            found.append((category, {"category_id": category, "class": name, "score": None, **place}))
        return found

    def index_map(self, shape: tuple[int, int]) -> np.ndarray:
        """See :meth:`ImageResult.index_map`."""
        numbers = [(category, k) for k, (_, category, *_) in enumerate(self.shares(), 1)]
        return look_up(resize_nearest(self.classes, shape), numbers, np.int32)

    def id_image(self) -> Image.Image:
        """Return the class indices as an image with a palette: the colours of the classes, black from there."""
        image = Image.fromarray(self.classes)
        # red, green, blue of the first colour, then of the next
        image.putpalette(padded_palette(self.metadata.palette).tobytes(), "RGB")
        return image

    def id_png(self) -> bytes:
        """See :meth:`ImageResult.id_png`."""
        buffer = BytesIO()
        self.id_image().save(buffer, "PNG", compress_type=zlib.Z_RLE)
        return buffer.getvalue()

    def _class_map(self) -> np.ndarray:
        return self.classes


def _only(classes: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    return np.where(np.isin(classes, list(chosen)), classes, VOID).astype(np.uint8)
