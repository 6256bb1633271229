"""Probabilities of classes: the results of image classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from seamseg.maps.formats.metadata import Metadata
from seamseg.maps.predictions import ArrayPrediction
from seamseg.maps.visualize.overlay import canvas, short_name
from seamseg.results import ImageResult, Thresholds
from seamseg.results.base import Drawable, import_library

TOP = 5
"""Classes that are shown and saved."""


@dataclass(frozen=True, eq=False, repr=False)
class Classification(ImageResult):
    """The probability of each class of an image.

    Attributes
    ----------
    probabilities : `classes` float32, which sum to 1
    image_size : `(height, width)` of the image
    metadata, prediction, source : see :class:`seamseg.results.base.ImageResult`

    Examples
    --------
    >>> seamseg.load("resnext101.onnx").predict("cat.jpg").top(2)  # doctest: +SKIP
    [('tabby', 0.71), ('tiger cat', 0.2)]
    """

    kinds = ("classification",)
    counted = "classes"
    outputs = ("logits",)
    located = False
    probabilities: np.ndarray
    image_size: tuple[int, int]

    @classmethod
    def of(
        cls,
        prediction: ArrayPrediction,
        size: tuple[int, int],
        metadata: Metadata,
        thresholds: Thresholds = Thresholds(0.0),  # noqa: B008  # frozen
        classes: Sequence[int] | None = None,
    ) -> Classification:
        """See :meth:`ImageResult.of`; other classes have probability 0."""
        assert prediction.logits is not None
        logits = prediction.logits.astype(np.float64)
        if classes is not None:
            logits = np.where(np.isin(np.arange(len(logits)), list(classes)), logits, -np.inf)
        shares = np.exp(logits - logits.max())
        return Classification((shares / shares.sum()).astype(np.float32), size, metadata=replace(metadata, images=[]))

    @property
    def size(self) -> tuple[int, int]:
        """`(height, width)` of the image."""
        return self.image_size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Classification):
            return NotImplemented
        return self.size == other.size and np.array_equal(self.probabilities, other.probabilities)

    def __repr__(self) -> str:
        height, width = self.size
        return f"Classification({width} x {height}: {', '.join(f'{n} {p:.0%}' for n, p in self.top())})"

    def top(self, count: int = TOP) -> list[tuple[str, float]]:
        """Return name and probability of the most probable classes, best first."""
        return [(name, share) for name, _, _, share in self._best(count)]

    def counts(self) -> dict[str, int]:
        """Return 1 for the most probable class."""
        return {self.top(1)[0][0]: 1}

    def shares(self) -> list[tuple[str, int, bool, float]]:
        """Return name, index, False, and probability of the most probable classes, best first."""
        return self._best(TOP)

    def _best(self, count: int) -> list[tuple[str, int, bool, float]]:
        best = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.metadata.categories[k], int(k), False, float(self.probabilities[k])) for k in best]

    def draw(self, image: Drawable = None, **options: Any) -> Image.Image:
        """Write the most probable classes onto an image; None for the result's own, or a black image if it has none."""
        rgb, _ = canvas(self, image, 1.0)
        drawn = Image.fromarray(np.array(rgb))
        font = ImageFont.load_default(size=max(10, min(drawn.size) // 24))
        text = "\n".join(f"{share:4.0%} {short_name(name)}" for name, share in self.top())
        ImageDraw.Draw(drawn).multiline_text((4, 4), text, "white", font, stroke_width=2, stroke_fill="black")
        return drawn

    def to_coco(self, image_id: int | str = 0) -> list[dict[str, Any]]:
        """Return the most probable classes as entries with `image_id`, `category_id` and `score`."""
        return [{"image_id": image_id, "category_id": k, "score": share} for _, k, _, share in self.shares()]

    def entries(self) -> list[tuple[int, dict[str, Any]]]:
        """See :meth:`ImageResult.entries`: the most probable classes."""
        return [(c, {"category_id": c, "class": name, "score": share}) for name, c, _, share in self.shares()]

    def to_fiftyone(self) -> dict[str, Any]:
        """See :meth:`seamseg.results.base.ImageResult.to_fiftyone`."""
        library, (name, probability) = import_library("fiftyone", "pip install fiftyone"), self.top(1)[0]
        return {"classification": library.Classification(label=name, confidence=probability)}
