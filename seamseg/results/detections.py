"""Detections: the results of detection and instance segmentation networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from PIL import Image

from seamseg.maps.evaluation.coco_ap import encode_crop
from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.idmaps.segments import resize_nearest, sigmoid
from seamseg.maps.pasting import paste_detections
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.visualize.detections import draw_detections
from seamseg.maps.visualize.overlay import canvas
from seamseg.results.base import (
    Drawable,
    ImageResult,
    LabelledObject,
    Thresholds,
    choose_classes,
    supervision_detections,
)

if TYPE_CHECKING:
    import supervision

MOST_DETECTIONS = 100
"""Detections of queries in average precision, as in its paper (arXiv 2107.06278)."""


@dataclass(frozen=True, eq=False)
class Detection:
    """One detected object.

    Attributes
    ----------
    name : name of its class
    category : index of its class, into `metadata.categories`
    score : 0 to 1
    box : `(y0, x0, y1, x1)` in pixels of the image, exclusive lower-right corner
    size : `(height, width)` of the image
    crop : bool, the part of the mask with all its pixels; None if the network has no masks
    corner : `(y, x)` of the crop
    """

    name: str
    category: int
    score: float
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    crop: np.ndarray | None = field(default=None, repr=False)
    corner: tuple[int, int] = field(default=(0, 0), repr=False)

    @property
    def mask(self) -> np.ndarray | None:
        """The mask, `H x W` bool; None if the network has no masks."""
        if self.crop is None:
            return None
        mask = np.zeros(self.size, bool)
        (y, x), (height, width) = self.corner, self.crop.shape
        mask[y : y + height, x : x + width] = self.crop
        return mask

    @property
    def area(self) -> float:
        """Pixels of the mask, or of the box if there is no mask."""
        y0, x0, y1, x1 = self.box
        return float((y1 - y0) * (x1 - x0) if self.crop is None else self.crop.sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Detection):
            return NotImplemented
        facts = [(d.name, d.category, d.score, d.box, d.size, d.crop is None) for d in (self, other)]
        return facts[0] == facts[1] and (self.crop is None or np.array_equal(self.mask, other.mask))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, repr=False)
class Detections(ImageResult, Sequence[Detection]):
    """The objects that a detection or instance segmentation network found in an image, at the size of the image.

    A sequence of :class:`Detection`, class by class in the order of the classes, then by descending score. Objects may
    overlap. Masks are made as in the original's evaluation: probability above 0.5 at the size of the network's input,
    resized to the image by nearest neighbour.

    Attributes
    ----------
    detections : the objects
    image_size : `(height, width)` of the image
    has_masks : whether the network has masks
    prediction : output of the network with all objects, whatever their score
    metadata, source, maps : see :class:`seamseg.results.base.ImageResult`

    Notes
    -----
    Two results are equal if their size and objects are.

    Examples
    --------
    >>> result = model.predict("street.jpg")  # doctest: +SKIP
    >>> [(d.name, d.score, d.box) for d in result]  # doctest: +SKIP
    [('car', 0.98, (120.5, 33.0, 180.2, 90.7))]
    >>> result.only("car,truck").save("vehicles.jpg")  # doctest: +SKIP
    """

    kinds = ("instance_seg", "detection")
    options = ("score_threshold",)
    counted = "detections"
    outputs = ("boxes", "classes", "scores", "count")
    detections: list[Detection]
    image_size: tuple[int, int]
    has_masks: bool

    @classmethod
    def of(
        cls,
        prediction: ArrayPrediction,
        size: tuple[int, int],
        metadata: Metadata,
        thresholds: Thresholds = Thresholds(0.0),  # noqa: B008  # frozen
        classes: Sequence[int] | None = None,
    ) -> Detections:
        """See :meth:`ImageResult.of`."""
        chosen = choose_detections(prediction, metadata.num_stuff, thresholds.score_threshold, classes)
        found = []
        for d in paste_detections(chosen, size, by_nearest=True):
            category = d.category + metadata.num_stuff
            found.append(Detection(metadata.categories[category], category, d.score, d.box, size, d.crop, d.corner))
        return Detections(found, size, prediction.mask_logits is not None, metadata=replace(metadata, images=[]))

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the image."""
        return self.image_size

    def __len__(self) -> int:
        return len(self.detections)

    @overload
    def __getitem__(self, index: int) -> Detection: ...

    @overload
    def __getitem__(self, index: slice) -> Detections: ...

    def __getitem__(self, index: int | slice) -> Detection | Detections:
        if isinstance(index, slice):
            return replace(self, detections=self.detections[index])
        return self.detections[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Detections):
            return NotImplemented
        return self.size == other.size and self.detections == other.detections

    def __repr__(self) -> str:
        height, width = self.size
        found = [f"{n} {name}" for name, n in Counter(d.name for d in self).most_common()]
        return f"Detections({width} x {height}: {', '.join(found) or 'nothing found'})"

    @property
    def boxes(self) -> np.ndarray:
        """All boxes, `N x 4` float32, `(y0, x0, y1, x1)` in pixels of the image."""
        return np.array([d.box for d in self], np.float32).reshape(-1, 4)

    @property
    def classes(self) -> np.ndarray:
        """All class indices (into `metadata.categories`), `N` int64."""
        return np.array([d.category for d in self], np.int64)

    @property
    def scores(self) -> np.ndarray:
        """All scores, `N` float32."""
        return np.array([d.score for d in self], np.float32)

    @property
    def names(self) -> list[str]:
        """The class name of each object."""
        return [d.name for d in self]

    @property
    def masks(self) -> np.ndarray | None:
        """All masks, `N x H x W` bool, which take a byte a pixel each; None if the network has no masks."""
        if not self.has_masks:
            return None
        masks = np.zeros((len(self), *self.size), bool)
        for out, d in zip(masks, self):
            out[:] = d.mask
        return masks

    def counts(self) -> dict[str, int]:
        """Count the objects of each class."""
        count = Counter(d.category for d in self)
        return {self.metadata.categories[category]: count[category] for category in sorted(count)}

    def only(self, classes: str | Sequence[str]) -> Detections:
        """Return the result with some classes only.

        `classes` are names, see :func:`seamseg.results.base.choose_classes`.
        """
        chosen = set(choose_classes(classes, self.metadata))
        return replace(self, detections=[d for d in self if d.category in chosen])

    def draw(  # type: ignore[override]  # its options are named
        self,
        image: Drawable = None,
        labels: bool = True,
        opacity: float = 0.5,
        classes: str | Sequence[str] | None = None,
    ) -> Image.Image:
        """Draw boxes, masks, class names and scores over the image; objects of high score are on top.

        Parameters
        ----------
        image : image to draw on, of any size; None for the result's own, or a black image if it has none
        labels : write class and score at each box
        opacity : opacity of the masks, 0 to 1
        classes : names of the classes to draw; None for all
        """
        rgb, _ = canvas(self, image, opacity)  # masks on black keep their opacity: objects overlap
        shown = self if classes is None else self.only(classes)
        return Image.fromarray(draw_detections(rgb, list(shown), self.size, self.metadata.palette, labels, opacity))

    def to_coco(self, image_id: int | str = 0) -> list[dict[str, Any]]:
        """Return the objects in COCO's format of results, as `pycocotools.coco.COCO.loadRes` reads them.

        `bbox` is `[x, y, width, height]` in pixels, `segmentation` the mask as compressed run lengths (omitted for
        networks without masks). `category_id` is the index of the class, stuff first, as in `coco/<split>.json` of a
        dataset folder; the id in the original data set is `metadata.original_ids[category_id]`.

        Parameters
        ----------
        image_id : id of the image; in a dataset folder, the file name without its ending
        """
        entries = []
        for d in self:
            y0, x0, y1, x1 = d.box
            entry: dict[str, Any] = {
                "image_id": image_id,
                "category_id": d.category,
                "score": d.score,
                "bbox": [x0, y0, x1 - x0, y1 - y0],
            }
            if d.crop is not None:
                counts = encode_crop(d.crop, d.corner, d.size).decode("ascii")
                entry["segmentation"] = {"size": list(d.size), "counts": counts}
            entries.append(entry)
        return entries

    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        """See :meth:`ImageResult.entries`; masks are `segmentation`, as run lengths."""
        found = []
        for d, entry in zip(self, self.to_coco(), strict=True):
            del entry["image_id"]
            found.append((d.category, {"category_id": d.category, "class": d.name, **entry, "area": d.area}))
        return found

    def index_map(self, shape: tuple[int, int]) -> np.ndarray:
        """See :meth:`ImageResult.index_map`."""
        ids = np.zeros(self.size, np.int32)
        rank = self.scores if self.has_masks else [-d.area for d in self]
        for k in np.argsort(rank, kind="stable").tolist():
            d = self[k]
            if d.crop is not None:
                (y, x), (height, width) = d.corner, d.crop.shape
                ids[y : y + height, x : x + width][d.crop] = k + 1
            else:
                y0, x0, y1, x1 = (max(0, round(v)) for v in d.box)
                ids[y0:y1, x0:x1] = k + 1
        return resize_nearest(ids, shape)

    def to_supervision(self) -> supervision.Detections:
        """Return `supervision.Detections`: boxes, masks, class indices, scores, and `class_name` in its data.

        Raises
        ------
        SeamsegError
            if the library is not installed
        """
        return supervision_detections(self._objects(), self.size, self.has_masks)

    def _objects(self) -> list[LabelledObject]:
        return [LabelledObject(d.name, d.category, d.score, d.box, d.mask) for d in self]

    def shares(self) -> list[tuple[str, int, bool, float]]:
        """See :meth:`ImageResult.shares`."""
        pixels = max(self.size[0] * self.size[1], 1)
        return [(d.name, d.category, True, d.area / pixels) for d in self]


def choose_detections(
    prediction: ArrayPrediction, num_stuff: int, least_score: float = 0.0, classes: Sequence[int] | None = None
) -> ArrayPrediction:
    """Return the objects of a prediction that score above `least_score`, of some classes (indices, stuff first)."""
    prediction = prediction.on_cpu()
    keep = prediction.scores > least_score
    if classes is not None:
        keep &= np.isin(prediction.classes, [c - num_stuff for c in classes])
    if keep.all():
        return prediction
    return prediction.rows(np.flatnonzero(keep))


def ranked_by_masks(prediction: ArrayPrediction) -> ArrayPrediction:
    """Multiply the scores of detections of queries by the mean probability within their masks, as the paper's AP does.

    Detections are the :data:`MOST_DETECTIONS` of the highest scores before that, as in the paper. Elsewhere the score
    is the probability of the class: thresholds are meant for the paper's map, and objects with an uncertain mask are
    anonymised, too.
    """
    best = prediction.rows(np.sort(np.argsort(-prediction.scores, kind="stable")[:MOST_DETECTIONS]))
    assert best.mask_logits is not None
    mask_pixels = best.mask_logits >= 0
    sums = (sigmoid(best.mask_logits) * mask_pixels).sum((1, 2), dtype=np.float64)
    factors = sums / np.maximum(mask_pixels.sum((1, 2)), 1)
    return replace(best, scores=(best.scores * factors).astype(np.float32))
